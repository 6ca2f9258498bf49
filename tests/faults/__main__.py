"""Random faults in real runs: `python -m tests.faults --points 200 --seed 0 --out faults.jsonl`.

Runs of the toy corridor with a tiny model are hit again and again and must end with nothing lost and the weights of an
uncut run. One line of JSON a run goes to the file; the same command again goes on behind the runs that are there.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path

from tests.faults.attempt import may_mount
from tests.faults.draw import draw
from tests.faults.forked import import_everything, under_the_layer
from tests.faults.layer import build
from tests.faults.run import unequal
from tests.faults.trial import Trial, make_reference

FORKED = ("forked", 1, 2, 24)  # mode, ranks, iterations, faults: a start by the launcher costs ten times a forked one
KINDS_OF_RUN = (  # in turns
    *(FORKED, FORKED, ("resident", 1, 2, 8)),
    *(FORKED, FORKED, ("stages", 1, 1, 8)),
    *(FORKED, FORKED, ("resident", 2, 2, 8)),
    *(FORKED, FORKED, ("stages", 2, 1, 8)),
)
ASKED = (("SIGTERM", "command"), ("SIGINT", "command"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200, help="faults that came to pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a line a run; taken up where it is there")
    parser.add_argument(
        "--mode", choices=sorted({kind[0] for kind in KINDS_OF_RUN}), help="only runs started in this way"
    )
    parser.add_argument("--scratch", type=Path, help="where the runs are made, and stay while they are not done")
    arguments = parser.parse_args()
    scratch = arguments.scratch or Path(tempfile.gettempdir()) / f"sapo-faults-{arguments.seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    under_the_layer(build(scratch))
    import_everything()
    print(f"seed {arguments.seed}, {arguments.points} points", flush=True)
    kinds = [kind for kind in KINDS_OF_RUN if arguments.mode in (None, kind[0])]
    torment(arguments.points, arguments.seed, kinds, arguments.out, scratch)
    runs = read(arguments.out)
    print(table(runs))
    raise SystemExit(any(run["faults"] or any(one["faults"] for one in run["attempts"]) for run in runs))


def read(path: Path) -> list[dict]:
    """The runs of an output file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def torment(points: int, seed: int, kinds: Sequence[tuple[str, int, int, int]], out: Path, scratch: Path) -> None:
    """Make runs until so many faults came to pass; each run has its own random numbers, by seed and number."""
    library, mounts = build(scratch), may_mount(scratch / "mount")
    references: dict[int, tuple[Path, int]] = {}
    runs = read(out)
    while sum(happened(runs).values()) < points:
        number = next(n for n in count() if n not in {run["run"] for run in runs})
        rng = random.Random(f"{seed}-{number}")
        mode, ranks, iterations, share = kinds[number % len(kinds)]
        if ranks not in references:
            reference = scratch / f"uncut-{ranks}"
            references[ranks] = reference, make_reference(reference, library, ranks)
        reference, events = references[ranks]
        trial = Trial(scratch / f"run-{number}", reference, library, mode, ranks, iterations)
        begun = time.monotonic()
        line = one_run(trial, rng, events, share, mounts) | {
            "run": number,
            "seconds": round(time.monotonic() - begun, 1),
        }
        runs.append(line)
        with open(out, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"run {number}: {mode}, {ranks} rank(s), {sum(happened([line]).values())} faults in {line['seconds']} s, "
              f"{sum(happened(runs).values())} so far; {found(line) or 'nothing lost'}", flush=True)  # fmt: skip
        if not found(line):
            for path in scratch.glob(f"{trial.run_dir.name}*"):
                shutil.rmtree(path, ignore_errors=True)


def one_run(trial: Trial, rng: random.Random, events: int, share: int, mounts: bool) -> dict:
    """Hit a run until it has had its share of faults or is complete, then let it end."""
    for leftover in (trial.run_dir, trial.run_dir.with_name(f"{trial.run_dir.name}-side")):
        shutil.rmtree(leftover, ignore_errors=True)
    trial.prepare()
    # About two faults an attempt: with this span the last one comes before the end of the run. A stage is one of 12.
    span = max(2, 3 * events // share if trial.mode != "stages" else 2 * events // 12)
    num_dealt = 0
    while num_dealt < share and not trial.complete:
        attempt = trial.strike(draw(rng, trial.mode, trial.ranks, span, mounts))
        num_dealt += len(attempt.dealt)
    faults = trial.finish()
    return {
        "mode": trial.mode,
        "ranks": trial.ranks,
        "attempts": [
            {
                "faults_dealt": one.dealt,
                "acts": [asdict(act) for act in one.outcome.done],
                "order": asdict(one.blow.order),
                "exit": one.outcome.code,
                "seconds": round(one.outcome.seconds, 1),
                "stop_s": None if one.outcome.stop_s is None else round(one.outcome.stop_s, 1),
                "lost": one.lost,
                "orphans": one.outcome.orphans,
                "faults": one.faults,
                "said": one.message[-300:],
            }
            for one in trial.attempts
        ],
        "trajectories": trial.memory.num_trajectories,
        "unequal": unequal(trial.run_dir, trial.reference),
        "faults": faults,
    }


def happened(runs: list[dict]) -> Counter[str]:
    """How often each fault came to pass."""
    return Counter(name for run in runs for one in run["attempts"] for name in one["faults_dealt"])


def found(run: dict) -> list[str]:
    """Everything that was wrong with a run."""
    return [fault for one in run["attempts"] for fault in one["faults"]] + run["faults"]


def table(runs: list[dict]) -> str:
    """Faults by kind, and what was lost."""
    rows = ["| fault | points | trajectories lost | orphans | other findings |", "|---|---|---|---|---|"]
    for kind in sorted(happened(runs)):
        own = [one for run in runs for one in run["attempts"] if kind in one["faults_dealt"]]
        lost, orphans = sum(one["lost"] for one in own), sum(len(one["orphans"]) for one in own)
        others = sum(len(one["faults"]) for one in own) - lost - orphans
        rows.append(f"| {kind} | {happened(runs)[kind]} | {lost} | {orphans} | {others} |")
    attempts = [one for run in runs for one in run["attempts"]]
    starts = len(attempts)
    unlike = sum(bool(run["unequal"]) for run in runs)
    asked = [
        one["stop_s"]
        for run in runs
        for one in run["attempts"]
        if run["mode"] == "resident" and one["acts"] and (one["acts"][-1]["do"], one["acts"][-1]["role"]) in ASKED
    ]
    return "\n".join(
        [
            *rows,
            f"\n{sum(happened(runs).values())} faults in {len(runs)} runs and {starts} starts; "
            f"{sum(run['trajectories'] for run in runs)} trajectories checked, {sum(one['lost'] for one in attempts)} "
            f"lost; {sum(len(one['orphans']) for one in attempts)} orphans; {unlike} runs with other weights than an "
            f"uncut one; slowest stop {max(asked, default=0.0)} s; {sum(run['seconds'] for run in runs) / 60:.0f} min",
        ]
    )


if __name__ == "__main__":
    main()
