"""The critic's part of the optimize stage: two starts, many trials each (tests/critic_trials.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification

from pipeline.run_directory import RunPaths
from runtime.batches import TokenBatch
from runtime.critic import load_critic
from runtime.distributed import Distributed, free_port
from runtime.microbatches import plan_minibatches, token_batch
from runtime.rows import plain_rows
from runtime.shards import read_trajectories
from stages.context import Resident
from stages.optimize import read_rows
from tests.critic_trials import ITERATIONS, make_critic_runs, ppo_settings
from tests.processes import ENVIRONMENT, run_trials
from tests.training_run import OPTIMIZE, context, largest_difference, weights

pytestmark = pytest.mark.slow
LIMIT_S = 1500  # half a minute where nobody else wants the cores
ROUNDING = 5e-6  # weights move by 0.02 a step; Adam magnifies rounding where gradients are near 0
RANKS_ROUNDING = 2e-5  # likewise, where sums are made in another order: 1.1e-5 in three steps over tokens


def launch(command: list[str], root: Path, mode: str) -> dict:
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return run_trials(command, "tests/critic_trials.py", mode, root, environment, LIMIT_S)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("critics")
    make_critic_runs(folder)
    return folder


@pytest.fixture(scope="module")
def single(root) -> dict:
    return launch([sys.executable], root, "single")


@pytest.fixture(scope="module")
def pair(root) -> dict:
    deepspeed = str(Path(sys.executable).parent / "deepspeed")
    return launch([deepspeed, "--num_accelerators", "2", "--master_port", str(free_port())], root, "pair")


def critic(root: Path, run: str, iteration: int) -> dict[str, torch.Tensor]:
    return weights(RunPaths(root / run).critic(iteration))


def policy(root: Path, run: str, iteration: int) -> dict[str, torch.Tensor]:
    return weights(RunPaths(root / run).policy(iteration))


def test_the_first_critic_says_0_everywhere_and_has_the_policys_weights(root):
    paths = RunPaths(root / "turn")
    model = load_critic(paths.critic(0), dtype="float32", attention="sdpa").eval()
    rows = [row for one in read_trajectories(paths.rollouts(1)) for row in plain_rows(one)]
    for by_token in (False, True):
        values = model(token_batch(rows), by_token)
        assert len(values) == (sum(row.num_response_tokens for row in rows) if by_token else len(rows))
        assert not values.any()
    shared = {name: tensor for name, tensor in weights(paths.critic(0)).items() if not name.startswith("score")}
    body = {name: tensor for name, tensor in weights(paths.model).items() if name != "lm_head.weight"}
    assert largest_difference(shared, body) == 0.0


def test_values_are_read_before_the_first_token_of_a_turn_and_before_every_token(root, single):
    """Against one forward a prefix: the critic's number at the last token of what came before."""
    paths = RunPaths(root / "turn-single")
    model = load_critic(paths.critic(1), dtype="float32", attention="sdpa").eval()
    rows = [row for one in read_trajectories(paths.rollouts(1)) for row in plain_rows(one)][:3]
    batch: TokenBatch = token_batch(rows)

    @torch.no_grad()
    def naive(ids: tuple[int, ...]) -> float:
        return model.classifier(input_ids=torch.tensor([ids])).logits[0, -1, 0].item()

    places = [(row, place) for row in rows for start, end in row.spans for place in range(start, end)]
    expected = [naive(row.input_ids[:place]) for row, place in places]
    assert len(set(expected)) > 3
    with torch.no_grad():
        assert model(batch, True).tolist() == pytest.approx(expected, abs=1e-5)
        firsts = [x for x, (row, place) in zip(expected, places, strict=True) if place in [a for a, _ in row.spans]]
        assert model(batch, False).tolist() == pytest.approx(firsts, abs=1e-5)


@pytest.mark.parametrize("credit", ITERATIONS)
def test_equals_plain_torch(root, single, credit):
    """Iteration 1, two steps: 1/2 mean max((v - y)^2, (v_clip - y)^2) by a loop, AdamW, clipping by hand."""
    paths = RunPaths(root / credit)
    model = AutoModelForTokenClassification.from_pretrained(
        paths.critic(0), dtype="float32", attn_implementation="sdpa"
    )
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=0.0
    )
    rows = read_rows(context(paths, ppo_settings(), 1, Distributed.single(), Resident()))
    for chosen, rate in zip(plan_minibatches([1] * len(rows), 8, 5, 1, 0), (2e-2 / 3, 4e-2 / 3), strict=True):
        part = [rows[i] for i in chosen]
        terms = []
        for row in part:
            values = model(input_ids=torch.tensor([row.input_ids])).logits[0, :, 0]
            ((start, end),) = row.spans
            places = range(start, end) if credit == "token" else [start]
            targets = row.token_returns if credit == "token" else row.returns
            for place, target in zip(places, targets, strict=True):
                value = values[place - 1]
                clipped = value.clamp(-0.2, 0.2)  # the old value is 0
                terms.append(0.5 * torch.maximum((value - target) ** 2, (clipped - target) ** 2))
        optimizer.zero_grad()
        (sum(terms) / len(terms)).backward()
        norm = sum(p.grad.double().square().sum().item() for p in model.parameters()) ** 0.5
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, OPTIMIZE["max_grad_norm"] / (norm + 1e-6)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    assert largest_difference(dict(model.state_dict()), critic(root, f"{credit}-single", 1)) < ROUNDING


def test_the_critic_learns_a_fixed_batch(single):
    # first a critic of zeros: it explains nothing; then the mean over 30 passes, the first ones included
    assert single["1 epochs"][0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert single["30 epochs"][0]["critic/explained_variance"] > 0.3
    assert single["30 epochs"][0]["critic/loss"] < 0.7 * single["1 epochs"][0]["critic/loss"]


@pytest.mark.parametrize("credit", ITERATIONS)
def test_micro_batches_and_ranks_do_not_change_the_critic(root, single, pair, credit):
    """One micro-batch or several; iteration 2 has one turn for two ranks, 3 none."""
    several, whole = (critic(root, f"{credit}-{kind}", 1) for kind in ("single", "split"))
    assert largest_difference(several, whole) < RANKS_ROUNDING
    for one, two in zip(single[credit], pair[credit], strict=True):
        for name in one:
            if name.startswith("critic/"):
                assert two[name] == pytest.approx(one[name], rel=2e-5, abs=2e-6), name
    last = ITERATIONS[credit][-1]
    for read in (critic, policy):
        one, two = (read(root, f"{credit}-{ranks}", last) for ranks in ("single", "pair"))
        assert largest_difference(one, two) < RANKS_ROUNDING


def test_an_iteration_without_trajectories_passes_the_critic_through(root, single):
    assert largest_difference(critic(root, "turn-single", 2), critic(root, "turn-single", 3)) == 0.0
    assert not [name for name in single["turn"][2] if name.startswith("critic/")]


def test_a_resumed_critic_is_that_of_an_uncut_run_to_the_bit(root, single):
    """Fresh processes for every stage, and one that was killed between two optimizer steps."""
    for iteration in (1, 2, 3, 4):
        for read in (critic, policy):
            assert largest_difference(read(root, "turn-single", iteration), read(root, "fresh", iteration)) == 0.0
    for read in (critic, policy):
        assert largest_difference(read(root, "turn-single", 1), read(root, "killed", 1)) == 0.0
    assert 1e-3 < largest_difference(critic(root, "fresh", 1), critic(root, "fresh", 2)) < 0.1


def test_a_value_warm_up_trains_the_critic_and_leaves_the_policy_as_it_is(root, single):
    assert largest_difference(policy(root, "warming", 1), weights(RunPaths(root / "warming").model)) == 0.0
    assert largest_difference(critic(root, "warming", 1), critic(root, "turn-single", 1)) == 0.0
    assert single["warming"][0]["sapo/updates"] == 0.0 and "sapo/learning_rate" not in single["warming"][0]


def test_the_policy_has_no_value_losses(single):
    assert not {"sapo/value_loss", "sapo/q_loss", "sapo/explained_variance_v"} & single["turn"][0].keys()
