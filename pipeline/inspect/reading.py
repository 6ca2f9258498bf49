"""A run directory read lightly: without torch, a model or an environment, while the run is going or from a copy.

Nothing is taken for granted: a file that is missing, half written or damaged leaves a gap and a line in
`Run.damage`. Trajectories stream: one at a time is in memory, whatever the size of the shards.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import yaml

from pipeline.config import Config
from pipeline.manifests import Manifest, read_manifest, stage_names
from pipeline.run_directory import RunError, RunPaths
from runtime.metrics import read_metrics
from runtime.records import RecordError, Targets, Trajectory, from_json
from runtime.shards import SHARD_PATTERN

Name = tuple[str, int]  # (stage, iteration)
BASELINES = "baseline-"  # prefix of the shards of episodes that an algorithm plays and does not train on


class _Keyed(msgspec.Struct):
    """A line of targets.jsonl of which only the key is wanted."""

    key: str


_TRAJECTORY = msgspec.json.Decoder(Trajectory)  # eight times as fast as json and `from_json`, and as strict on types
_TARGETS = msgspec.json.Decoder(Targets)
_KEYED = msgspec.json.Decoder(_Keyed)


@dataclass(frozen=True)
class Episode:
    """A trajectory and, where they have been computed, its training targets.

    Example: episode.trajectory.turns[3].reward, episode.targets.values[3]
    """

    trajectory: Trajectory
    targets: Targets | None = None  # None: not computed yet, an error, or an episode of an evaluation


@dataclass(frozen=True)
class Run:
    """What a run directory held when it was opened.

    Example: for episode in open_run("runs/X").trajectories(3): ...
    """

    paths: RunPaths
    config: Mapping[str, Any]  # config.yaml as it stands: section -> key -> value; {} where it cannot be read
    manifests: Mapping[Name, Manifest]  # a stage is complete exactly if its manifest is there
    metrics: tuple[Mapping[str, Any], ...]  # the lines of metrics.jsonl
    errors: tuple[Mapping[str, Any], ...]  # the lines of errors.jsonl
    damage: list[str] = field(default_factory=list)  # what could not be read, one line each; grows while reading

    def setting(self, section: str, key: str) -> Any:
        """A value of config.yaml, None where it is not there. Example: run.setting("advantage", "gamma")"""
        return self.config.get(section, {}).get(key)

    def settings(self) -> Config:
        """All settings, as the pipeline had them when it wrote config.yaml.

        Raises:
            RunError: config.yaml cannot be read, or another version wrote it.
            ConfigError: a value is out of its range.
        """
        try:
            return Config(**{name: kind(**self.config[name]) for name, kind in get_type_hints(Config).items()})
        except (KeyError, TypeError) as fault:
            text = f"{self.paths.config}: not this version's settings ({fault}); use the version that wrote it"
            raise RunError(text) from None

    def iterations(self) -> list[int]:
        """The iterations that have rollouts on disk, complete or not, in order."""
        return _numbered(self.paths.root / "iterations", "rollouts")

    def evaluation_numbers(self) -> list[int]:
        """The evaluations that have a folder, complete or not, in order."""
        return _numbered(self.paths.root / "evaluations", "")

    def evaluations(self) -> dict[int, Mapping[str, Any]]:
        """results.json of each complete evaluation, by iteration."""
        found = {}
        for iteration in _numbered(self.paths.root / "evaluations", "results.json"):
            results = read_json(self.paths.evaluation(iteration) / "results.json", self.damage)
            if isinstance(results, dict) and isinstance(results.get("sweeps"), list):
                found[iteration] = results
        return found

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """One metric over the iterations, as (iteration, value); what is no number is left out."""
        points = {line["iteration"]: line[metric] for line in self.metrics if isinstance(line.get(metric), int | float)}
        return sorted(points.items())

    def trajectories(self, iteration: int) -> Iterator[Episode]:
        """The rollouts of an iteration as they lie on disk, each with its targets."""
        path = self.paths.advantages(iteration) / "targets.jsonl"
        places = _places(path, self.damage)
        if not places:
            yield from (Episode(one) for one in _stream(self.paths.rollouts(iteration), "", self.damage))
            return
        with open(path, "rb") as file:
            for one in _stream(self.paths.rollouts(iteration), "", self.damage):
                place = places.get(one.key)
                yield Episode(one, None if place is None else _read_targets(file, place))

    def baselines(self, iteration: int) -> Iterator[Episode]:
        """What an iteration played besides and did not train on: greedy episodes, or continuations of others."""
        yield from (Episode(one) for one in _stream(self.paths.rollouts(iteration), BASELINES, self.damage))

    def evaluation_episodes(self, iteration: int) -> Iterator[Episode]:
        """The episodes of an evaluation, all splits and temperatures."""
        folder = self.paths.evaluation(iteration)
        for prefix in sorted({path.name[: path.name.index("rank-")] for path in folder.glob("*" + SHARD_PATTERN)}):
            yield from (Episode(one) for one in _stream(folder, prefix, self.damage))


def open_run(path: str | Path) -> Run:
    """Read the small files of a run directory.

    Raises:
        RunError: there is no such folder, or it is no run directory; names those that are near.
    """
    root = Path(path)
    paths = RunPaths(root)
    if not paths.config.is_file():
        fact = "no config.yaml in it" if root.is_dir() else "no such folder"
        raise RunError(f"{root}: {fact}{_near_runs(root)}; name a run directory that `bash run.sh` made")
    damage: list[str] = []
    return Run(
        paths=paths,
        config=_read_config(paths.config, damage),
        manifests=_read_manifests(paths, damage),
        metrics=tuple(read_metrics(paths.metrics)),
        errors=tuple(_read_errors(paths.errors, damage)),
        damage=damage,
    )


def read_json(path: Path, damage: list[str]) -> Any:
    """The content of a JSON file; None where it is missing or, with a line in `damage`, unreadable."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as fault:
        damage.append(f"{path}: cannot be read ({_short(fault)})")
        return None


def complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of each line that ends with a newline; what a writer has not finished is left out."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line
    except FileNotFoundError:
        return


def decode_trajectory(line: bytes, where: str) -> Trajectory:
    """A line of a shard.

    Raises:
        RecordError: not a trajectory.
    """
    try:
        return _TRAJECTORY.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_strictly(line, where)  # which knows lone surrogates, and says better what is wrong


def decode_strictly(line: bytes, where: str) -> Trajectory:
    """A line of a shard as the pipeline itself reads it: slower, and every field is checked.

    Raises:
        RecordError: not a trajectory.
    """
    try:
        return from_json(json.loads(line), where)
    except (ValueError, RecursionError) as fault:
        raise RecordError(f"{where}: not JSON ({_short(fault)}); delete the line to replay it") from fault


def _stream(folder: Path, prefix: str, damage: list[str]) -> Iterator[Trajectory]:
    """The trajectories of a folder's shards; of several with one key the first that is no error, as in training."""
    seen: set[str] = set()
    errors: dict[str, Trajectory] = {}
    for path in sorted(folder.glob(prefix + SHARD_PATTERN)):
        for number, line in complete_lines(path):
            try:
                one = decode_trajectory(line, f"{path}:{number}")
            except RecordError as fault:
                damage.append(str(fault))
                continue
            if one.status == "error":
                errors.setdefault(one.key, one)  # an episode that is played once more after it was lost
            elif one.key not in seen:
                seen.add(one.key)
                yield one
    yield from (one for key, one in errors.items() if key not in seen)


def _places(path: Path, damage: list[str]) -> dict[str, tuple[int, int]]:
    """Where the line of each key lies in targets.jsonl: (first byte, length). Its order is not that of the shards."""
    places, start = {}, 0
    for number, line in complete_lines(path):
        try:
            places[_KEYED.decode(line).key] = (start, len(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            damage.append(f"{path}:{number}: not targets ({_short(fault)}); run compute_advantages with --recompute")
        start += len(line)
    return places


def _read_targets(file: Any, place: tuple[int, int]) -> Targets | None:
    file.seek(place[0])
    try:
        return _TARGETS.decode(file.read(place[1]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _read_config(path: Path, damage: list[str]) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as fault:
        damage.append(f"{path}: cannot be read ({_short(fault)})")
        return {}
    return {key: value for key, value in tree.items() if isinstance(value, dict)} if isinstance(tree, dict) else {}


def _read_manifests(paths: RunPaths, damage: list[str]) -> dict[Name, Manifest]:
    found = {}
    for name in stage_names(paths):
        try:
            manifest = read_manifest(paths.manifest(*name), name[0])
        except (RunError, OSError) as fault:
            damage.append(str(fault))
            continue
        if manifest is not None:
            found[name] = manifest
    return found


def _read_errors(path: Path, damage: list[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in complete_lines(path):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as fault:
            damage.append(f"{path}:{number}: not JSON ({_short(fault)})")
            continue
        if isinstance(entry, dict):
            yield entry


def _numbered(folder: Path, part: str) -> list[int]:
    """The numbers of the folders 0001, 0002, ... that have `part` in them."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and (path / part).exists())


def _near_runs(root: Path) -> str:
    """`; did you mean runs/X?`, out of the runs beside the folder that was named and those below it."""
    parent = root if root.is_dir() else root.parent
    if not parent.is_dir():
        return ""
    runs = [path.name for path in parent.iterdir() if (path / "config.yaml").is_file()]
    near = difflib.get_close_matches(root.name, runs, n=3, cutoff=0.4) or (runs[:3] if root.is_dir() else [])
    return f"; did you mean {' or '.join(str(parent / name) for name in near)}?" if near else ""


def _short(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:200]
