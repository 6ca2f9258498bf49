"""Faults to plant in a copy of the whole run (tests/whole_run.py): what `verify` must find and name.

A value "w+" stands for the id of w+, which `name_value_tokens` puts in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from pipeline.inspect.reading import open_run
from pipeline.manifests import describe_outputs, read_manifests, write_manifest
from pipeline.plan import Facts, input_digests
from pipeline.run_directory import RunPaths

Plant = Callable[[Path], Any]  # gets the run directory

ROLLOUTS = "iterations/0004/rollouts/rank-00000.jsonl"  # sampled by policy 3, whose weights are still there
COLLECTED = "iterations/0004/rollouts/manifest.json"
ADVANTAGES = "iterations/0004/advantages"
SCORES = f"{ADVANTAGES}/scores-00000.safetensors"
TARGETS = f"{ADVANTAGES}/targets.jsonl"
POLICY = "checkpoints/0004/policy"
WEIGHTS = f"{POLICY}/model.safetensors"
VALUE_TOKENS = f"{POLICY}/value_tokens.json"
STATE = "checkpoints/0004/engine/state/zero_pp_rank_0_mp_rank_00_optim_states.pt"
EPISODES = "evaluations/0004/near-t1-rank-00000.jsonl"
RESULTS = "evaluations/0004/results.json"
EVALUATED = "evaluations/0004/manifest.json"
EXPORT = "export/model.safetensors"
FIRST = f"{ROLLOUTS}:1"
KEY = "train/corridor-0003#0"  # the fourth line of targets.jsonl


def reseal(root: Path) -> None:
    """Make all manifests anew from the files, as if the stages had written these: hashes no longer tell of a fault."""
    paths = RunPaths(root)
    facts = Facts.of(open_run(root).settings())
    manifests = read_manifests(paths)
    for (stage, iteration), manifest in manifests.items():
        present = describe_outputs(paths.stage(stage, iteration))
        gone = {name: entry for name, entry in manifest.outputs.items() if name.startswith(manifest.removed)}
        manifests[stage, iteration] = replace(manifest, outputs={**gone, **present})
    for name, manifest in manifests.items():
        write_manifest(replace(manifest, inputs=input_digests(name, facts, manifests)), paths.manifest(*name))


def name_value_tokens(root: Path) -> None:
    """Put the id of w+ where "w+" was planted."""
    positive = json.loads((root / "model/value_tokens.json").read_text())["positive_id"]
    data = (root / ROLLOUTS).read_bytes()
    (root / ROLLOUTS).write_bytes(data.replace(b'"w+"', str(positive).encode()))


def flip(path: str, at: int) -> Plant:
    """Another bit."""

    def plant(root: Path) -> None:
        data = bytearray((root / path).read_bytes())
        data[at] ^= 1
        (root / path).write_bytes(bytes(data))

    return plant


def cut(path: str, num_bytes: int) -> Plant:
    """Bytes missing at the end."""
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:-num_bytes])


def copy(source: str, target: str) -> Plant:
    return lambda root: shutil.copyfile(root / source, root / target)


def text(path: str, old: str, new: str) -> Plant:
    """One text for another, the first time it is there."""

    def plant(root: Path) -> None:
        content = (root / path).read_text()
        assert old in content
        (root / path).write_text(content.replace(old, new, 1))

    return plant


def records(path: str, change: Callable[[list[dict]], list[dict] | None]) -> Plant:
    """Let `change` work on the records of a jsonl file; what it returns, if anything, takes their place."""

    def plant(root: Path) -> None:
        lines = [json.loads(line) for line in (root / path).read_text().splitlines()]
        changed = change(lines)
        lines = lines if changed is None else changed
        (root / path).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return plant


def put(path: str, *keys: str | int, to: Any) -> Plant:
    """A value in a JSON file. Example: put(RESULTS, "sweeps", 0, "all", "n", to=25)"""

    def plant(root: Path) -> None:
        data = json.loads((root / path).read_text())
        _put(data, keys, to)
        (root / path).write_text(json.dumps(data))

    return plant


def put_line(path: str, *keys: str | int, to: Any) -> Plant:
    """A value in a jsonl file; the first key is the line. Example: put_line(ROLLOUTS, 0, "turns", 0, "reward", to=1)"""
    return records(path, lambda lines: _put(lines, keys, to))


def _put(data: Any, keys: tuple[str | int, ...], value: Any) -> None:
    for key in keys[:-1]:
        data = data[key]
    data[keys[-1]] = value


def in_turn(*keys: str | int, to: Any) -> Plant:
    """A value in the first turn of the first trajectory."""
    return put_line(ROLLOUTS, 0, "turns", 0, *keys, to=to)


def tensors(path: str, change: Callable[[dict[str, np.ndarray]], Any], contents: Callable[[dict], Any] | None) -> Plant:
    """Change a safetensors file, and the keys and counts that a file of scores has in its metadata."""

    def plant(root: Path) -> None:
        with open(root / path, "rb") as file:
            metadata = json.loads(file.read(int.from_bytes(file.read(8), "little"))).get("__metadata__", {})
        arrays = {name: array.copy() for name, array in load_file(root / path).items()}
        change(arrays)
        if contents is not None:
            listed = json.loads(metadata["contents"])
            contents(listed)
            metadata = {"contents": json.dumps(listed)}
        save_file(arrays, root / path, metadata)

    return plant


def number(path: str, name: str | None, value: float) -> Plant:
    """The first number of a tensor; None: of the first tensor."""
    return tensors(path, lambda arrays: arrays[name or min(arrays)].reshape(-1).__setitem__(0, value), None)


def listed(change: Callable[[dict], Any]) -> Plant:
    return tensors(SCORES, lambda arrays: None, change)


def swap_turns(lines: list[dict]) -> None:
    """The first two turns of the first trajectory that has three."""
    turns = next(line["turns"] for line in lines if len(line["turns"]) >= 3)
    turns[0], turns[1] = turns[1], turns[0]


def end_early(lines: list[dict]) -> None:
    """A truncated episode that ends before the limit of turns."""
    one = next(line for line in lines if line["status"] == "truncated")
    del one["turns"][-1]
    one["turns"][-1]["truncated"] = True


def other_numbers(lines: list[dict]) -> None:
    for line in lines:
        line.update({name: 0.123 for name in line if "/" in name})


# What is planted -> (how, where it is found, what is said of it). Hashes tell of most of these.
BROKEN_FILES: dict[str, tuple[Plant, str, str]] = {
    "a flipped byte in a shard": (flip(ROLLOUTS, 20), ROLLOUTS, "not what its manifest says"),
    "a truncated shard": (cut(ROLLOUTS, 30), ROLLOUTS, "its manifest says"),
    "a torn last line": (cut(ROLLOUTS, 1), ROLLOUTS, "last line is torn"),
    "a missing shard": (lambda root: (root / ROLLOUTS).unlink(), ROLLOUTS, "is missing"),
    "a shard too many": (copy(ROLLOUTS, ROLLOUTS.replace("00.", "01.")), "rank-00001.jsonl", "not in the manifest"),
    "truncated weights": (cut(WEIGHTS, 8), POLICY, "truncated"),
    "a flipped byte in weights": (flip(WEIGHTS, -9), WEIGHTS, "not what its manifest says"),
    "a flipped byte in engine state": (flip(STATE, 5000), STATE, "not what its manifest says"),
    "truncated scores": (cut(SCORES, 4), SCORES, "truncated"),
    "removed weights that are back": (
        lambda root: shutil.copytree(root / POLICY, root / "checkpoints/0001/policy"),
        "checkpoints/0001/policy",
        "it was removed",
    ),
    "a manifest from another iteration": (
        copy("iterations/0003/rollouts/manifest.json", COLLECTED),
        COLLECTED,
        "is the manifest of collect_rollouts 3",
    ),
    "a manifest of another stage": (
        copy(COLLECTED, f"{ADVANTAGES}/manifest.json"),
        f"{ADVANTAGES}/manifest.json",
        "is the manifest of collect_rollouts 4",
    ),
    "a manifest that is not JSON": (cut(EVALUATED, 5), EVALUATED, "not a manifest"),
    "a manifest of another format": (put(EVALUATED, "format", to=99), EVALUATED, "manifest format 99"),
    "a missing manifest in the chain": (
        lambda root: (root / "checkpoints/0002/manifest.json").unlink(),
        "checkpoints/0002",
        "there is no manifest",
    ),
    "another setting": (text("config.yaml", "gamma: 0.95", "gamma: 0.9"), "manifest.json", "other settings"),
    "an unknown setting": (text("config.yaml", "gamma: 0", "gama: 0"), "config.yaml", "not this version's settings"),
    "settings that are not YAML": (text("config.yaml", "run:", "run: ["), "config.yaml", "cannot be read"),
    "other numbers in metrics.jsonl": (records("metrics.jsonl", other_numbers), "metrics.jsonl", "its manifest says"),
    "lost lines of metrics.jsonl": (
        records("metrics.jsonl", lambda lines: lines[:4]),
        "metrics.jsonl",
        "has no line of",
    ),
    "a damaged line of metrics.jsonl": (text("metrics.jsonl", "{", "{{"), "metrics.jsonl:1", "not a line of metrics"),
    "times that are not JSON": (cut("times.json", 9), "times.json", "cannot be read"),
    "a damaged line of errors.jsonl": (
        lambda root: (root / "errors.jsonl").write_text("oops\n"),
        "errors.jsonl:1",
        "not JSON",
    ),
}

# These lie in files whose manifests fit them.
WRONG_CONTENT: dict[str, tuple[Plant, str, str]] = {
    "a line that is not JSON": (text(ROLLOUTS, '"task_id"', '"task_id'), FIRST, "not JSON"),
    "a line that is not UTF-8": (
        lambda root: (root / ROLLOUTS).write_bytes(b"\xff" + (root / ROLLOUTS).read_bytes()),
        FIRST,
        "utf-8",
    ),
    "a field of another name": (text(ROLLOUTS, '"goal"', '"gaol"'), FIRST, "gaol"),
    "a field of another type": (in_turn("reward", to="1"), FIRST, "reward"),
    "a log-prob too few": (in_turn("sampling_logprobs", to=[]), FIRST, "0 sampling_logprobs"),
    "a log-prob above 0": (in_turn("sampling_logprobs", 0, to=0.5), FIRST, "at most 0"),
    "another log-prob": (in_turn("sampling_logprobs", 0, to=-30.0), f"{ADVANTAGES}/manifest.json", "logprob_gap_max"),
    "a shuffled turn": (records(ROLLOUTS, swap_turns), f"{ADVANTAGES}/manifest.json", "logprob_gap_max"),
    "a sampled value token": (in_turn("response_ids", 0, to="w+"), FIRST, "response_ids hold the value token"),
    "a value token in a prompt": (in_turn("prompt_ids", 0, to="w+"), FIRST, "prompt_ids hold the value token"),
    "an id beyond the vocabulary": (in_turn("response_ids", 0, to=10**6), FIRST, "the vocabulary has"),
    "a text that is not its ids'": (in_turn("response", to="jump"), FIRST, "not the text of response_ids"),
    "a prompt that is too long": (in_turn("prompt_ids", to=[1] * 65), FIRST, "65 prompt_ids, env.prompt_tokens is 64"),
    "another iteration": (put_line(ROLLOUTS, 0, "iteration", to=3), FIRST, "is of iteration 3"),
    "another seed": (put_line(ROLLOUTS, 0, "seed", to=1), FIRST, "seed 1 is not"),
    "another task": (put_line(ROLLOUTS, 0, "task_id", to="train/other"), FIRST, "train/other#0: seed"),
    "another policy": (put_line(ROLLOUTS, 0, "policy", to="ff"), FIRST, "sampled by policy ff"),
    "another temperature": (put_line(ROLLOUTS, 0, "temperature", to=0.5), FIRST, "temperature 0.5, expected 1"),
    "another split": (put_line(ROLLOUTS, 0, "split", to="far"), "iterations/0004/rollouts", "several splits"),
    "an error without its status": (put_line(ROLLOUTS, 0, "error", to="lost"), FIRST, "but error is set"),
    "a trajectory that is there twice": (
        records(ROLLOUTS, lambda lines: [*lines, lines[0]]),
        f"{ROLLOUTS}:25",
        "twice",
    ),
    "a lost trajectory": (records(ROLLOUTS, lambda lines: lines[1:]), COLLECTED, "trajectories is 24"),
    "a truncated episode that is too short": (records(ROLLOUTS, end_early), ROLLOUTS, "3 turns and truncated"),
    "a status that the last turn does not know": (
        records(ROLLOUTS, lambda lines: lines[0]["turns"][-1].update(terminated=False, truncated=False)),
        FIRST,
        "its last turn does not say",
    ),
    "another reward": (in_turn("reward", to=0.25), TARGETS, "returns of"),
    "another validity": (in_turn("valid", to=None), FIRST, "valid"),
    "a wrong count": (put(COLLECTED, "counts", "turns", to=3), COLLECTED, "turns is 3"),
    "a wrong metric": (put(COLLECTED, "metrics", "rollout/success", to=0.99), COLLECTED, "rollout/success is 0.99"),
    "another value": (number(SCORES, "values", 0.5), TARGETS, "values of"),
    "a value beyond r_max": (number(SCORES, "q_values", 11.0), ADVANTAGES, "beyond value.r_max"),
    "a score that is no number": (number(SCORES, "old_logprobs", float("nan")), SCORES, "NaN"),
    "scores of another trajectory": (
        listed(lambda contents: contents["keys"].__setitem__(0, "train/other#0")),
        ADVANTAGES,
        "scores without a rollout: train/other#0",
    ),
    "scores that do not fit": (listed(lambda contents: contents["num_turns"].sort()), ADVANTAGES, "the rollout has"),
    "scores without the reference's": (
        tensors(SCORES, lambda arrays: arrays.pop("ref_logprobs"), None),
        ADVANTAGES,
        "are missing, optimize.kl_coef is 0.01",
    ),
    "scores without their keys": (listed(lambda contents: contents.pop("keys")), SCORES, "keys"),
    "another advantage": (put_line(TARGETS, 3, "advantages", 0, to=3.0), TARGETS, f"advantages of {KEY} turn 0 is 3"),
    "another Q target": (put_line(TARGETS, 3, "q_targets", -1, to=3.0), TARGETS, f"q_targets of {KEY}"),
    "targets missing": (records(TARGETS, lambda lines: lines[1:]), ADVANTAGES, "no targets of train/corridor-0000#0"),
    "targets of different length": (put_line(TARGETS, 3, "returns", to=[]), TARGETS, "series of different length"),
    "success of an evaluation": (
        put(RESULTS, "sweeps", 0, "all", "success", to=0.01),
        RESULTS,
        "near at temperature 1: success is 0.01",
    ),
    "n of an evaluation": (put(RESULTS, "sweeps", 0, "all", "n", to=25), RESULTS, "25 episodes"),
    "results of another iteration": (copy("evaluations/0002/results.json", RESULTS), RESULTS, "is of iteration 2"),
    "an episode of another split": (put_line(EPISODES, 0, "split", to="far"), f"{EPISODES}:1", "is of split far"),
    "weights that are no numbers": (number(WEIGHTS, None, np.nan), WEIGHTS, "NaN"),
    "other value tokens": (put(VALUE_TOKENS, "positive_id", to=1), VALUE_TOKENS, "differs from the run's first"),
    "another readout": (put(VALUE_TOKENS, "r_max", to=3.0), VALUE_TOKENS, "not those of config.yaml"),
    "another vocabulary": (put(f"{POLICY}/config.json", "vocab_size", to=999), WEIGHTS, "config.json vocab_size 999"),
    "another policy's export": (
        copy("checkpoints/0003/policy/model.safetensors", EXPORT),
        EXPORT,
        "is not the file of",
    ),
}
