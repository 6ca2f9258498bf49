"""The readers of a run's files and of model folders, each with a whole sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import ConfigError
from pipeline.config_loading import apply_settings, build_config, load_config, parse_setting, to_tree
from pipeline.inspect.reading import decode_trajectory, open_run
from pipeline.manifests import Manifest, read_manifest, write_manifest
from pipeline.printout import add_times
from pipeline.run_directory import RunError, describe_owner, owner_pid
from runtime.demonstrations import DemonstrationError, read_demonstrations
from runtime.engine_files import EngineError, read_state_record, write_state_record
from runtime.forwarding import read_sent
from runtime.metrics import read_metrics
from runtime.model import load_policy
from runtime.pretrained import load_tokenizer
from runtime.records import RecordError, Scores, Targets, to_json
from runtime.scoring import read_scores, scores_path, write_scores
from runtime.shards import read_shards, read_targets, to_line, write_targets
from runtime.vocabulary import ValueTokens, read_value_tokens, write_value_tokens
from runtime.weight_files import ModelFilesError, read_weight_file, read_weights
from tests.fuzzing.reader import Reader
from tests.model_folders import byte_model
from tests.tiny_policies import causal_lm, save_policy
from tests.trajectories import trajectory
from tests.whole_run import SETTINGS


def run_readers(root: Path) -> list[Reader]:
    """All of them, over files below `root`."""
    root.mkdir(parents=True)
    return [*_settings(root), *_stage_files(root), *_logs(root), *_records(root), *_models(root)]


def _settings(root: Path) -> list[Reader]:
    tree = {"format": 1, "version": "0.1.0", **to_tree(build_config(SETTINGS))}
    config = root / "config.yaml"
    setting = root / "setting.txt"

    def read_setting() -> Any:
        text = setting.read_bytes().decode("utf-8", "surrogateescape")  # as Python hands a command line over
        return build_config(apply_settings(SETTINGS, [parse_setting(text)]))

    return [
        Reader("config.yaml", config, json.dumps(tree).encode(), "json", lambda: load_config(config), (ConfigError,)),
        Reader("config.yaml (block style)", config, yaml.safe_dump(tree).encode(), "bytes",
               lambda: load_config(config), (ConfigError,), count=80),
        Reader("--set", setting, b"optimize.learning_rate=1e-6", "bytes", read_setting, (ConfigError,), count=160),
    ]  # fmt: skip


def _stage_files(root: Path) -> list[Reader]:
    folder = root / "stage"
    folder.mkdir()
    manifest = Manifest(
        "optimize", 3, "c" * 16, {"policy": "ab"}, {"policy/x.safetensors": {"bytes": 3, "sha256": "ab"}},
        counts={"turns": 3}, metrics={"sapo/ratio": 1.0}, seconds={"total": 1.0}, versions={"torch": "2"},
    )  # fmt: skip
    write_manifest(manifest, folder / "manifest.json")
    (folder / "state").mkdir()
    (folder / "state" / "rank0.pt").write_bytes(b"12345")
    facts = {"world_size": 2, "zero_stage": 3, "dtype": "float32", "num_updates": 7, "skipped_steps": 0}
    write_state_record(folder, **facts, skipped_in_row=0)
    return [
        Reader("manifest.json", folder / "manifest.json", (folder / "manifest.json").read_bytes(), "json",
               lambda: read_manifest(folder / "manifest.json", "optimize"), (RunError,)),
        Reader("engine.json", folder / "engine.json", (folder / "engine.json").read_bytes(), "json",
               lambda: read_state_record(folder), (EngineError,)),
    ]  # fmt: skip


def _logs(root: Path) -> list[Reader]:
    metrics = {"stage": "optimize", "iteration": 3, "seconds": 1.9, "sapo/approx_kl": 0.004}
    errors = {"time": "2026", "stage": "optimize", "iteration": 1, "rank": 0, "stopped": True, "error": "RunError",
              "message": "a: b; c", "lines": ["x"]}  # fmt: skip
    times = {"wall_s": 3.0, "startup_s": 1.0, "work_s": 2.0, "staging_share": 0.0, "processes": [],
             "stages_s": {"optimize": {"total": 2.0, "times": 1}}}  # fmt: skip
    results = {"iteration": 0, "sweeps": [{"split": "near", "temperature": 1.0, "all": {"n": 1}, "types": {}}]}
    lock = {"host": "h", "pid": 1, "started": 1.5e9}
    log, sent = root / "metrics.jsonl", root / "wandb.json"
    (root / "evaluations" / "0000").mkdir(parents=True)
    evaluated = root / "evaluations" / "0000" / "results.json"

    def no_lines(result: list) -> bool:
        return not result

    def read_errors() -> Any:
        (root / "config.yaml").write_bytes(b"{}")
        return open_run(root).errors

    def read_results() -> Any:
        (root / "config.yaml").write_bytes(b"{}")
        return open_run(root).evaluations()

    def read_times() -> Any:
        return add_times(root / "times.json", 0.0, 1.0, 0.5, [])["wall_s"]

    def read_lock() -> Any:
        return owner_pid(root / "run.lock"), describe_owner((root / "run.lock").read_bytes())

    return [
        Reader("metrics.jsonl", log, _line(metrics), "jsonl", lambda: read_metrics(log), left_out=no_lines),
        Reader("errors.jsonl", root / "errors.jsonl", _line(errors), "jsonl", read_errors, left_out=no_lines),
        Reader("times.json", root / "times.json", json.dumps(times).encode(), "json", read_times,
               left_out=lambda wall_s: wall_s == 1.0),
        Reader("results.json", evaluated, json.dumps(results).encode(), "json", read_results, left_out=no_lines),
        Reader("run.lock", root / "run.lock", json.dumps(lock).encode(), "json", read_lock,
               left_out=lambda owner: owner == (None, "another process")),
        Reader("wandb.json", sent, b'{"id": "abcd", "lines": 3}', "json", lambda: read_sent(sent),
               left_out=lambda found: found.lines == 0),
    ]  # fmt: skip


def _records(root: Path) -> list[Reader]:
    folder = root / "rollouts"
    folder.mkdir()
    shard, targets, demonstrations = folder / "rank-00000.jsonl", folder / "targets.jsonl", folder / "shown.jsonl"
    one = trajectory("train/a", 2)
    line = to_line(to_json(one), "sample")
    three = b"".join(line.replace(b"train/a", b"train/" + letter) for letter in (b"a", b"b", b"c"))
    numbers = (0.5, -0.5)
    write_targets(targets, [Targets("a#0", values=numbers, q_values=numbers, raw_advantages=numbers,
                                    advantages=numbers, returns=numbers, q_targets=numbers)])  # fmt: skip
    shown = {
        "task_id": "a", "goal": "g", "success": True,
        "turns": [{"observation": "o", "admissible_actions": ["left"], "action": "left", "imitated": True}],
    }  # fmt: skip
    write_scores(scores_path(folder, 0), [Scores("a#0", (-0.5, -0.25), None, (0.5,), (0.25,), (0.1, 0.2))])
    scores = scores_path(folder, 0)

    def read_whole() -> Any:
        return [to_line(to_json(found), "again") for found in read_shards(folder).trajectories]

    def read_lightly() -> Any:
        return decode_trajectory(shard.read_bytes(), "shard:1")

    return [
        Reader("shard line", shard, line, "jsonl", read_whole, (RecordError,), left_out=lambda x: not x, count=200),
        Reader("shard, three lines", shard, three,
               "bytes", lambda: read_shards(folder), (RecordError,),
               left_out=lambda x: x.num_torn + x.num_duplicates > 0, count=120),
        Reader("shard line (inspect)", shard, line, "jsonl", read_lightly, (RecordError,), count=160),
        Reader("targets.jsonl", targets, targets.read_bytes(), "jsonl", lambda: read_targets(targets), (RecordError,)),
        Reader("demonstrations.jsonl", demonstrations, _line(shown), "jsonl",
               lambda: read_demonstrations(demonstrations), (RecordError, DemonstrationError)),
        Reader("scores", scores, scores.read_bytes(), "bytes", lambda: read_scores(folder), (RecordError,)),
    ]  # fmt: skip


def _models(root: Path) -> list[Reader]:
    folder, sharded, worded = root / "model", root / "sharded", root / "worded"
    save_policy(causal_lm(), folder)
    save_policy(causal_lm(), sharded, max_shard_size="12KB")
    byte_model(worded, 320)
    write_value_tokens(worded, ValueTokens(300, 301, 10.0, 1.0, "test"))
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    head, index = root / "head.safetensors", sharded / "model.safetensors.index.json"

    def read_header() -> Any:  # only the header is spoilt: the weights behind it are put back
        text = head.read_bytes()
        spoilt = root / "spoilt.safetensors"
        spoilt.write_bytes(len(text).to_bytes(8, "little") + text + whole[header:])
        return read_weight_file(spoilt)

    def policy(where: Path) -> Any:
        return lambda: load_policy(where, dtype="float32")

    def reader(name: str, path: Path, read: Any, form: str = "json", count: int = 120) -> Reader:
        return Reader(name, path, path.read_bytes(), form, read, (ModelFilesError,), count=count)

    return [
        reader("value_tokens.json", folder / "value_tokens.json", lambda: read_value_tokens(folder)),
        Reader("safetensors header", head, whole[8:header], "json", read_header, (ModelFilesError,)),
        reader("safetensors file", weights, lambda: read_weights(folder), "bytes"),
        reader("model.safetensors.index.json", index, lambda: read_weights(sharded)),
        reader("config.json of a model", folder / "config.json", policy(folder), count=100),
        reader("tokenizer.json", worded / "tokenizer.json", lambda: load_tokenizer(worded), count=60),
        reader("tokenizer_config.json", worded / "tokenizer_config.json", lambda: load_tokenizer(worded), count=60),
    ]


def _line(data: Any) -> bytes:
    return json.dumps(data).encode() + b"\n"
