"""Eq. 4-12 in one go against tests/golden/sapo.json (how its numbers were made stands in its note).

By hand, first trajectory (gamma .9, lambda .8, r = 0 10, V = 2 4): A_2 = 10 - 4 = 6,
A_1 = 0 + .9*4 - 2 + .72*6 = 5.92; second: A_1 = 0 - (-1) = 1. Penalised by .5 in the invalid first turn: 5.42, 6, 1.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from runtime.batches import PolicyOutput
from runtime.losses import finish_metrics, sapo_loss
from runtime.microbatches import train_batch
from runtime.records import Row
from runtime.targets import normalise_advantages, turn_targets

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "sapo.json").read_text())


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def targets():
    parts = [
        turn_targets(
            tensor(one["rewards"]),
            tensor(one["values"]),
            tensor(one["q_values"]),
            GOLDEN["gamma"],
            GOLDEN["gae_lambda"],
        )
        for one in GOLDEN["trajectories"]
    ]
    raw = torch.cat([part.advantages for part in parts])
    invalid = torch.tensor([x for one in GOLDEN["trajectories"] for x in one["invalid"]])
    normalised, _ = normalise_advantages(raw, invalid, GOLDEN["invalid_action_coef"], GOLDEN["epsilon"])
    returns, q_targets = (torch.cat([getattr(part, name) for part in parts]) for name in ("returns", "q_targets"))
    return raw, normalised, returns, q_targets


def test_targets():
    assert GOLDEN["raw_advantages"] == pytest.approx([5.92, 6.0, 1.0], abs=1e-12)
    names = ("raw_advantages", "advantages", "returns", "q_targets")
    for name, got in zip(names, targets(), strict=True):
        assert got.tolist() == pytest.approx(GOLDEN[name], abs=1e-12), name


def test_loss_and_metrics():
    _, advantages, returns, q_targets = targets()
    r_max = GOLDEN["r_max"]
    values = [x / r_max for one in GOLDEN["trajectories"] for x in one["values"]]
    q_values = [x / r_max for one in GOLDEN["trajectories"] for x in one["q_values"]]
    rows = [
        Row(
            key="made-up#0",
            turn_index=t,
            input_ids=(5,) + (6,) * len(turn["old"]),
            spans=((1, 1 + len(turn["old"])),),
            old_logprobs=tuple(turn["old"]),
            ref_logprobs=tuple(turn["ref"]),
            advantages=(advantages[t].item(),) * len(turn["old"]),
            old_values=(values[t],),
            old_q_values=(q_values[t],),
            returns=(returns[t].item() / r_max,),
            q_targets=(q_targets[t].item() / r_max,),
        )
        for t, turn in enumerate(GOLDEN["turns"])
    ]
    flat = lambda name: torch.tensor([x for turn in GOLDEN["turns"] for x in turn[name]])  # noqa: E731
    margins = lambda name: torch.tensor([turn[name] for turn in GOLDEN["turns"]])  # noqa: E731
    output = PolicyOutput(flat("new"), flat("entropy"), margins("v_margin"), margins("q_margin"))
    loss, sums = sapo_loss(output, train_batch(rows), num_tokens=6, num_turns=3, **GOLDEN["coefficients"])
    assert loss.item() == pytest.approx(GOLDEN["loss"], abs=1e-6)
    metrics = finish_metrics(sums)
    for name, value in GOLDEN["metrics"].items():
        assert metrics[f"sapo/{name}"] == pytest.approx(value, abs=1e-6), name
    # margins / 2 are .75 1.3 -.2 and .05 .5 -1.4: one of three stands at the clip in each
    assert metrics["sapo/saturated_v"] == metrics["sapo/saturated_q"] == pytest.approx(1 / 3)
