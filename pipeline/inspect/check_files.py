"""What `verify` checks of manifests, the files that they list, weights and logs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import Config
from pipeline.inspect.findings import Finding, found, from_message
from pipeline.inspect.reading import Run, complete_lines, read_json
from pipeline.manifests import ENGINES, NAME, Manifest, is_unchanged, read_manifest, stage_names
from pipeline.plan import Facts, plan
from pipeline.run_directory import EXPORT, RunError
from runtime.metrics import finite_or_none
from runtime.vocabulary import ValueTokens, read_value_tokens
from runtime.weight_files import ModelFilesError, TensorEntry, WeightFile, read_pieces, read_weights

EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}  # all ones: NaN or infinite
EMBEDDING = "embed_tokens.weight"


def check_manifests(run: Run, settings: Config) -> Iterator[Finding]:
    """Every stage's manifest: readable, where it belongs, of these settings, of what the stages before it made."""
    for name in stage_names(run.paths):
        path = run.paths.manifest(*name)
        try:
            manifest = read_manifest(path, name[0])
        except (RunError, OSError) as fault:
            yield from_message(run, path, fault)
            continue
        if manifest is not None and (manifest.stage, manifest.iteration) != name:
            belongs = f"{manifest.stage} {manifest.iteration}"
            yield found(run, path, f"is the manifest of {belongs}, not of {name[0]} {name[1]}")
    for step in plan(Facts.of(settings), run.manifests):
        if step.action == "stale" and not (step.stage == EXPORT and step.name not in run.manifests):
            yield found(run, run.paths.manifest(*step.name), step.why)
    newest = max((iteration for stage, iteration in run.manifests if stage == "optimize"), default=0)
    for iteration in range(1, newest):
        if ("optimize", iteration) not in run.manifests:
            path = run.paths.manifest("optimize", iteration)
            yield found(run, path, f"there is no manifest, though policy {newest} was trained on from it")


def check_outputs(run: Run) -> Iterator[Finding]:
    """Every file that a manifest lists: there, of its size, of its hash; and none that no manifest lists."""
    for (stage, iteration), manifest in run.manifests.items():
        folder = run.paths.stage(stage, iteration)
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for name, entry in manifest.outputs.items():
            fact = _output_fact(folder / name, name, entry, manifest)
            if fact and not _removed_since(run, stage, iteration, name):
                yield found(run, folder / name, fact)
        for name in sorted(there - set(manifest.outputs) - {NAME}):
            if ".tmp-" not in name:
                yield found(run, folder / name, f"is not in the manifest of {stage}, which is complete")


def _output_fact(path: Path, name: str, entry: Mapping[str, Any], manifest: Manifest) -> str | None:
    if name.startswith(manifest.removed):
        return "is there, though its manifest says that it was removed" if path.exists() else None
    if not path.is_file():
        return "is missing, though its manifest lists it"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"has {size} bytes, its manifest says {entry['bytes']}"
    if entry["sha256"] is None and not name.startswith(ENGINES):
        return "has no hash in its manifest"
    return None if is_unchanged(path, entry) else "its content is not what its manifest says"


def _removed_since(run: Run, stage: str, iteration: int, name: str) -> bool:
    """Whether the run that is going on took the file away after we had read its manifest."""
    try:
        manifest = read_manifest(run.paths.manifest(stage, iteration), stage)
    except RunError:
        return False
    return manifest != run.manifests[stage, iteration] and (manifest is None or name.startswith(manifest.removed))


def policy_folders(run: Run) -> dict[str, Path]:
    """The folders with weights that are complete and still there, by a name for them."""
    folders = {"model": run.paths.model} if ("reserve_vocab", 0) in run.manifests else {}
    for (stage, iteration), manifest in run.manifests.items():
        if stage in ("warm_start", "optimize") and "policy/" not in manifest.removed:
            folders[f"policy {iteration}"] = run.paths.checkpoint(iteration) / "policy"
    return folders | ({EXPORT: run.paths.export} if (EXPORT, 0) in run.manifests else {})


def critic_folders(run: Run) -> list[Path]:
    """Likewise those of critics, by what the manifests list."""
    makers = [(name, one) for name, one in run.manifests.items() if name[0] in ("compute_advantages", "optimize")]
    parts = {run.paths.stage(*name) / file.split("/")[0] for name, one in makers for file in one.outputs
             if "critic/" in file and not file.startswith(one.removed)}  # fmt: skip
    return sorted(parts)


def check_policies(run: Run, settings: Config) -> Iterator[Finding]:
    """Weights: whole, finite, of the vocabulary's size; and the same two value tokens all over the run."""
    first: ValueTokens | None = None
    for folder in policy_folders(run).values():
        try:
            files = read_weights(folder)
            tokens = read_value_tokens(folder)
        except (ModelFilesError, OSError) as fault:
            yield from_message(run, folder, fault)
            continue
        first = first or tokens
        if tokens != first:
            yield found(run, folder / "value_tokens.json", f"{tokens} differs from the run's first, {first}")
        readout = (tokens.r_max, tokens.temperature)
        if readout != (settings.value.r_max, settings.value.temperature):
            yield found(run, folder / "value_tokens.json", f"r_max, temperature {readout} are not those of config.yaml")
        yield from _check_tensors(run, folder, files)
    for folder in critic_folders(run):
        try:
            yield from _check_tensors(run, folder, read_weights(folder))
        except (ModelFilesError, OSError) as fault:
            yield from_message(run, folder, fault)
    yield from _check_export(run)


def _check_tensors(run: Run, folder: Path, files: list[WeightFile]) -> Iterator[Finding]:
    rows = (read_json(folder / "config.json", []) or {}).get("vocab_size")
    for file in files:
        with open(file.path, "rb") as opened:
            for name, entry in file.tensors.items():
                if name.endswith(EMBEDDING) and rows is not None and entry.shape[0] != rows:
                    yield found(run, file.path, f"{name} has {entry.shape[0]} rows, config.json vocab_size {rows}")
                if entry.dtype in EXPONENTS and not _finite(opened, entry):
                    yield found(run, file.path, f"{name} holds NaN or infinite numbers")


def _finite(opened: Any, entry: TensorEntry) -> bool:
    kind, ones = EXPONENTS[entry.dtype]
    return not any(np.any((np.frombuffer(piece, kind) & ones) == ones) for piece in read_pieces(opened, entry))


def _check_export(run: Run) -> Iterator[Finding]:
    """The export is the policy that it was made from, file by file."""
    export = run.manifests.get((EXPORT, 0))
    if export is None:
        return
    maker = next((one for one in run.manifests.values() if one.digest == export.inputs.get("policy")), None)
    if maker is None:
        yield found(run, run.paths.export, "was made from a policy that no manifest of this run knows")
        return
    policy = {name.removeprefix("policy/"): entry["sha256"] for name, entry in maker.outputs.items()}
    for name, entry in export.outputs.items():
        if policy.get(name) != entry["sha256"]:
            yield found(run, run.paths.export / name, f"is not the file of {maker.stage} {maker.iteration}")


def check_logs(run: Run) -> Iterator[Finding]:
    """metrics.jsonl against the manifests; errors.jsonl and times.json."""
    for number, line in complete_lines(run.paths.metrics):
        try:
            entry = json.loads(line)
            entry["stage"], entry["iteration"]
        except (ValueError, KeyError, TypeError, RecursionError):
            yield found(run, run.paths.metrics, "not a line of metrics", number)
    lines = {(line["stage"], line["iteration"]): line for line in run.metrics}  # of a stage done twice the last counts
    for name, manifest in run.manifests.items():
        line = lines.get(name)
        wrong = [metric for metric, value in manifest.metrics.items() if line and not _same(line.get(metric), value)]
        if wrong:
            yield found(run, run.paths.metrics, f"{wrong[0]} of {name[0]} {name[1]} is not what its manifest says")
    missing = [name for name in run.manifests if name not in lines]
    if len(missing) > 1:  # the last line alone may be lost by a kill: the next start writes it
        stage, iteration = missing[0]
        yield found(run, run.paths.metrics, f"has no line of {stage} {iteration} and {len(missing) - 1} more")
    damage: list[str] = []
    read_json(run.paths.times, damage)
    for text in damage:
        yield from_message(run, run.paths.times, text)


def _same(logged: Any, value: float) -> bool:
    """Whether a line of metrics.jsonl holds a manifest's number; JSON has no NaN, the line has null there."""
    if not isinstance(value, int | float):
        return False
    expected = finite_or_none(value)
    if expected is None or not isinstance(logged, int | float):
        return logged == expected
    return math.isclose(logged, expected, rel_tol=1e-12)
