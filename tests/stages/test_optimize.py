"""The optimize stage under the real launchers: four starts, many trials each (tests/engine_trials.py)."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.run_directory import RunPaths
from runtime.distributed import Distributed, free_port
from runtime.microbatches import plan_minibatches
from runtime.model import load_policy
from runtime.scoring import read_scores, score_trajectories
from runtime.shards import read_trajectories
from stages.context import Resident
from stages.optimize import decay, read_rows
from tests.corridor_policy import make_policy_folder
from tests.processes import ROOT, run_trials
from tests.tiny_policies import NEGATIVE, POSITIVE
from tests.training_run import OPTIMIZE, TURNS, context, largest_difference, make_run, settings, weights

pytestmark = pytest.mark.slow
SCRIPT = "tests/engine_trials.py"
LIMIT_S = 400
LOSSES = ("sapo/policy_loss", "sapo/value_loss", "sapo/q_loss", "sapo/entropy", "sapo/kl_ref")


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    return inherited | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def launch(command: list[str], root: Path, mode: str) -> dict:
    return run_trials(command, SCRIPT, mode, root, environment(), LIMIT_S)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "tied")
    make_run(folder / "untied", tied=False)
    make_policy_folder(folder / "corridor" / "model")
    return folder


@pytest.fixture(scope="module")
def pair(root) -> dict:
    return launch(["deepspeed", "--num_accelerators", "2", "--master_port", str(free_port())], root, "pair")


@pytest.fixture(scope="module")
def three(root, pair) -> dict:
    return launch(["deepspeed", "--num_accelerators", "3", "--master_port", str(free_port())], root, "three")


@pytest.fixture(scope="module")
def single(root, pair) -> dict:
    return launch([sys.executable], root, "single")


@pytest.fixture(scope="module")
def openmpi(root, single) -> dict:
    pytest.importorskip("mpi4py")
    (root / "hostfile").write_text("localhost slots=2\n")
    command = ["deepspeed", "--hostfile", str(root / "hostfile"), "--force_multi", "--launcher", "openmpi"]
    command += ["--no_ssh_check", "--master_addr", "127.0.0.1", "--launcher_args=--oversubscribe"]
    return launch(command, root, "openmpi")


def policy(root: Path, run: str, iteration: int) -> dict[str, torch.Tensor]:
    return weights(RunPaths(root / run).policy(iteration))


# -- the oracle: plain torch, one turn at a time -----------------------------------------------------------------


def naive_step(model, optimizer, rows, learning_rate: float) -> float:
    """Eq. 8-12 by loops over turns and tokens, AdamW, clipping by hand; returns the gradient norm."""
    num_tokens = sum(row.num_response_tokens for row in rows)
    banned = torch.tensor([POSITIVE, NEGATIVE])
    loss = torch.zeros((), dtype=torch.float32)
    for row in rows:
        logits = model(input_ids=torch.tensor([row.input_ids])).logits[0]
        ((start, end),) = row.spans
        for j, place in enumerate(range(start, end)):
            scaled = (logits[place - 1] / 0.7).index_fill(0, banned, float("-inf"))  # the rollout's temperature
            log_pi = scaled.log_softmax(0)
            token = log_pi[row.input_ids[place]]
            kept = torch.cat([log_pi[:POSITIVE], log_pi[NEGATIVE + 1 :]])
            entropy = -(kept.exp() * kept).sum()
            ratio = (token - row.old_logprobs[j]).exp()
            advantage = row.advantages[0]
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            difference = row.ref_logprobs[j] - token
            k3 = difference.exp() - difference - 1
            loss = loss + (-gain + OPTIMIZE["kl_coef"] * k3 - OPTIMIZE["entropy_coef"] * entropy) / num_tokens
        for place, old, target in (
            (start - 1, row.old_values[0], row.returns[0]),
            (end - 1, row.old_q_values[0], row.q_targets[0]),
        ):
            margin = logits[place][POSITIVE] - logits[place][NEGATIVE]
            inside = bool(margin.abs() <= 1) or bool((margin.sign() * (margin.sign() - target)) > 0)
            p = margin.clamp(-1, 1) + (margin - margin.detach() if inside and margin.abs() > 1 else 0)
            clipped = old + (p - old).clamp(-0.2, 0.2)
            loss = loss + 0.5 * 0.5 * torch.maximum((p - target) ** 2, (clipped - target) ** 2) / len(rows)
    optimizer.zero_grad()
    loss.backward()
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
    for parameter in model.parameters():
        parameter.grad.mul_(min(1.0, OPTIMIZE["max_grad_norm"] / (norm + 1e-6)))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return norm


def test_equals_plain_torch(root, single):
    paths = RunPaths(root / "tied")
    model = AutoModelForCausalLM.from_pretrained(paths.model, dtype="float32", attn_implementation="sdpa")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=0.0
    )
    rows = read_rows(context(paths, settings(), 1, Distributed.single(), Resident()))
    plan = plan_minibatches([1] * len(rows), 8, 5, 1, 0)
    assert len(plan) == 2
    rates = [1e-2 / 3, 1e-2 * 2 / 3]  # warm-up over 3 updates
    norms = [
        naive_step(model, optimizer, [rows[i] for i in part], rate) for part, rate in zip(plan, rates, strict=True)
    ]
    metrics = single["resident"][0]
    assert metrics["sapo/grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-5)
    trained = policy(root, "resident", 1)
    plain = {name: tensor for name, tensor in model.state_dict().items() if name in trained}
    assert largest_difference(plain, trained) < 5e-6  # weights moved by 0.01; Adam magnifies where gradients are near 0
    error = sum((plain[name] - tensor).double().square().sum() for name, tensor in trained.items())
    assert error < (1e-6) ** 2 * sum(tensor.double().square().sum() for tensor in trained.values())


# -- ranks, stages, processes ------------------------------------------------------------------------------------


def test_two_ranks_equal_one(root, pair, single):
    """Also with one turn for two ranks (iteration 2), and with none (iteration 3)."""
    for one, two in zip(single["resident"], pair["pair"], strict=True):
        for name, value in one.items():
            if "tokens_per_s" not in name and "peak_memory" not in name and "first_ratio" not in name:
                assert two[name] == pytest.approx(value, rel=2e-6, abs=2e-6), name
    for name in LOSSES:
        assert pair["pair"][0][name] == pytest.approx(single["resident"][0][name], rel=1e-6), name
    assert largest_difference(policy(root, "resident", 4), policy(root, "pair", 4)) < 5e-6


def test_weights_that_are_gathered_for_each_use_give_the_same(root, pair):
    """Each block anew in the forward, the recomputed forward and the backward: activations are not kept."""
    for name in LOSSES:
        assert [one.get(name, 0.0) for one in pair["partitioned"]] == pytest.approx(
            [one.get(name, 0.0) for one in pair["pair"]], rel=2e-6, abs=2e-6
        )
    assert largest_difference(policy(root, "pair", 4), policy(root, "partitioned", 4)) < 5e-6


def test_resident_engine_equals_a_fresh_one_for_each_stage_to_the_bit(root, single):
    timeless = [
        [{k: v for k, v in one.items() if "tokens_per_s" not in k and "peak" not in k} for one in single[kind]]
        for kind in ("resident", "fresh")
    ]
    assert timeless[0] == timeless[1]
    for iteration in TURNS:
        assert largest_difference(policy(root, "resident", iteration), policy(root, "fresh", iteration)) == 0.0
    moved = largest_difference(policy(root, "fresh", 1), policy(root, "fresh", 2))
    assert 1e-3 < moved < 0.1


@pytest.mark.parametrize("run", ["stage-0", "stage-1", "stage-2", "offload", "pair-1"])
def test_zero_stages_agree(root, single, run):
    iteration = 1 if run == "offload" else 2
    assert largest_difference(policy(root, "resident", iteration), policy(root, run, iteration)) < 5e-6


def test_an_iteration_without_trajectories_passes_the_policy_through(root, single, pair):
    for results, run in ((single["resident"], "resident"), (pair["pair"], "pair")):
        assert results[2]["count/passed_through"] == 1 and results[2]["sapo/updates"] == 0
        assert largest_difference(policy(root, run, 2), policy(root, run, 3)) == 0.0


def test_the_number_of_updates_and_the_warm_up_go_on_after_a_resume(single):
    # 2 updates in iteration 1, then 1, 0, 1; warm-up 3: rates 1/3, 2/3 | 1 | - | 1
    assert [one["sapo/updates"] for one in single["fresh"]] == [2, 1, 0, 1]
    rates = [one.get("sapo/learning_rate") for one in single["fresh"]]
    assert rates == [pytest.approx(2e-2 / 3), pytest.approx(1e-2), None, pytest.approx(1e-2)]


def test_ratio_is_one_before_the_first_step(single):
    assert single["resident"][0]["sapo/first_ratio_error"] < 1e-5
    assert single["resident"][1]["sapo/first_ratio_error"] > 1e-2  # iteration 2's scores are of policy 0: off-policy


def test_value_warm_up_leaves_the_policy_alone(root, single):
    """With every other coefficient 0 nothing pulls at the weights but decay: 2 updates of 1 - rate * 0.1."""
    before, after = weights(RunPaths(root / "tied").model), policy(root, "warm-up", 1)
    shrink = (1 - 1e-2 / 3 * 0.1) * (1 - 2e-2 / 3 * 0.1)
    decayed = {name: tensor * (shrink if tensor.ndim == 2 else 1.0) for name, tensor in before.items()}
    assert largest_difference(decayed, after) < 1e-6
    assert single["warm up"][0]["sapo/policy_loss"] != 0.0  # still measured


def test_the_kl_of_a_value_warm_up_holds_the_policy_where_it_sampled(root, single):
    """12 updates on V and Q move the body; the log-probs of the rollouts move less where the KL pulls them back."""

    def mean_move(run: str) -> float:
        paths = RunPaths(root / run)
        moved = load_policy(paths.policy(1), dtype="float32", temperature=0.7).eval()
        now = score_trajectories(moved, read_trajectories(paths.rollouts(1)), 1000, "cpu")
        old = read_scores(paths.advantages(1))
        return mean(
            abs(x - y) for key in old for x, y in zip(now[key].old_logprobs, old[key].old_logprobs, strict=True)
        )

    assert mean_move("warm-up-held") < 0.5 * mean_move("warm-up-free")  # 0.15 and 0.60
    assert single["free"][0]["sapo/kl_ref"] > single["held"][0]["sapo/kl_ref"] > 0.0


# -- export, checkpoints, faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("run", "tied", "dtype"), [
    ("resident", True, torch.float32), ("untied-3", False, torch.float32), ("bfloat16", True, torch.bfloat16),
])  # fmt: skip
def test_export_loads_in_plain_transformers(root, single, run, tied, dtype):
    folder = RunPaths(root / run).policy(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == dtype and model.config.tie_word_embeddings is tied
    stored = weights(folder)
    assert ("lm_head.weight" in stored) is not tied
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())
    size = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    assert size < (folder / "model.safetensors").stat().st_size < size + 20_000
    assert (folder / "value_tokens.json").read_text() == (RunPaths(root / run).model / "value_tokens.json").read_text()


def test_export_equals_the_masters_to_the_bit(root, single):
    """The engine checkpoint's fp32 masters, flat in the order of parameters, against the export."""
    for run, iteration, cast in (("resident", 1, torch.float32), ("bfloat16", 1, torch.bfloat16)):
        file = next(RunPaths(root / run).engine(iteration).rglob("*optim_states.pt"))
        groups = torch.load(file, weights_only=False)["optimizer_state_dict"]["fp32_flat_groups"]
        masters = torch.cat([group.flatten() for group in groups])
        exported = policy(root, run, iteration)
        assert masters.dtype == torch.float32
        total = sum(tensor.numel() for tensor in exported.values())
        assert 0 <= masters.numel() - total < 64  # padding
        flat = torch.cat([tensor.flatten() for tensor in exported.values()]).float()
        rounded = masters.to(cast).float()
        assert torch.equal(flat.sort().values, rounded[rounded != 0].sort().values)


@pytest.mark.parametrize("mode", ["pair to single", "single to pair"])
def test_optimizer_resumes_at_another_number_of_ranks(root, single, openmpi, mode):
    resumed, whole = {"pair to single": ("from-pair", "pair"), "single to pair": ("from-single", "fresh")}[mode]
    assert largest_difference(policy(root, resumed, 2), policy(root, whole, 2)) < 5e-6


def test_a_run_of_two_ranks_goes_on_with_one_and_with_three(root, pair, single, three):
    """Losses of the next iteration and the weights after it, against the two ranks that went on."""
    assert pair["pair"][3]["count/turns"] > 2  # or there is little to compare
    for resumed, run in ((single, "from-pair-4"), (three, "from-pair-3-ranks")):
        (metrics,) = resumed["converted 4"]
        for name in LOSSES:
            assert metrics[name] == pytest.approx(pair["pair"][3][name], rel=1e-5, abs=1e-7), (run, name)
        assert largest_difference(policy(root, run, 4), policy(root, "pair", 4)) < 5e-6


@pytest.mark.parametrize(("fault", "message"), [
    ("truncated", "optim_states.pt: has"), ("missing", "optim_states.pt: is missing"),
    ("garbled", "cannot be loaded"), ("stage", "written with zero_stage 3, asked for 2; use 3"),
])  # fmt: skip
def test_a_bad_checkpoint_is_refused_by_name(single, fault, message):
    assert message in single["faults"][fault] and "engine" in single["faults"][fault]


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(single, stage):
    norm, unchanged, counted, updates, next_norm, moved = single["skipped"][stage]
    assert (norm, unchanged, counted, updates, moved) == ("nan", True, 1, 1, True)
    assert next_norm == pytest.approx(single["skipped"]["0"][4], rel=1e-6) and math.isfinite(next_norm)


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_a_closed_engine_gives_its_memory_back(single, stage):
    """The warm start's engine is closed before that of iteration 1 is built: both at once need not fit."""
    assert single["left"][stage] < 0.5


def test_training_starts_no_programs(single):
    """DeepSpeed asks numactl for devices once a micro-batch, unless LOCAL_SIZE tells it their number."""
    assert single["programs"] == []


def test_the_learning_rate_falls_to_a_tenth_and_stays():
    # 51 iterations: 1 - 0.9 * 25 / 50 = 0.55 half-way
    assert [decay(i, 51) for i in (1, 26, 51, 60)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert decay(7, 0) == decay(7, 1) == 1.0


# -- launchers ---------------------------------------------------------------------------------------------------


def test_collectives(pair, openmpi):
    # sums in float64: 1 + 2, and 1e16 - 1e16; max of 10 and 9
    expected = {"sum": [3.0, 0.0], "max": 10, "gather": [{"rank": 0}, {"rank": 1}], "broadcast": "from 0"}
    assert pair["collectives"] == expected
    assert openmpi["collectives"] == expected


def test_a_missing_rank_is_named(pair):
    assert pair["missing rank"].startswith("rank 0 of 2 waited for the scores of all ranks (limit 1 s)")
    assert "rank 1 did not come" in pair["missing rank"]


def test_a_rank_never_holds_the_whole_model(pair):
    assert pair["held elements"] == math.ceil(pair["all elements"] / 2)


# -- warm start --------------------------------------------------------------------------------------------------


def test_warm_start_learns_the_expert(root, single):
    found = single["warm start"]
    assert found["warm_start/dev_token_accuracy"] == 1.0  # "right" and the end, always
    assert found["warm_start/dev_loss"] < 0.05 and found["warm_start/loss"] < 0.05
    assert found["demonstrations"] == 40 and found["dev_turns"] > 0
    # 40 corridors of 1, 2, 3, 1, ... rooms, the walker in the last room: one turn each; 2 held out; 2.5 * 38 / 16
    assert (found["turns"], found["dev_turns"], found["steps"]) == (38, 2, 6)


def test_warm_start_is_the_same_on_two_ranks(root, single, pair):
    one, two = (weights(root / run / "checkpoints" / "0000" / "policy") for run in ("warm-single", "warm-pair"))
    assert largest_difference(one, two) < 1e-4
    assert pair["warm start"]["warm_start/loss"] == pytest.approx(single["warm start"]["warm_start/loss"], rel=1e-3)


def test_warm_start_writes_a_policy_with_its_companions(root, single):
    folder = root / "warm-single" / "checkpoints" / "0000"
    assert {"model.safetensors", "tokenizer.json", "value_tokens.json"} <= {
        p.name for p in (folder / "policy").iterdir()
    }
    lines = (folder / "demonstrations.jsonl").read_text().splitlines()
    assert len(lines) == 40 and json.loads(lines[2])["turns"][0]["action"] == "right"
