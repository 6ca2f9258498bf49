"""`python -m pipeline.compare`: algorithms (or settings) side by side, over seeds, with tables, curves and tests."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from env_adapters.base import EnvironmentFault
from pipeline.algorithm_options import DEFAULT_ALGORITHM
from pipeline.command_line import Flags
from pipeline.compare.measuring import Measured, load, measure
from pipeline.compare.planning import (
    BEGUN,
    FINISHED,
    NEW,
    REFUSED,
    PlannedRun,
    parse_run,
    parse_seeds,
    parse_variant,
    plan_runs,
    plan_starts,
    shared_arguments,
    state,
    variants_of,
)
from pipeline.compare.running import Runner
from pipeline.compare.writing import NUMBERS, slug, write
from pipeline.config import ConfigError
from pipeline.config_loading import DEFAULT_PRESET
from pipeline.run_directory import RunError

EXAMPLES = """examples:
  python -m pipeline.compare --algorithms sapo,ppo,grpo --seeds 5 --env alfworld --preset tiny --jobs 2
  python -m pipeline.compare --algorithms sapo --variant no-q:optimize.q_coef=0 --seeds 3
  python -m pipeline.compare --runs runs/tiny-alfworld-seed0 ppo:runs/other --out results
  python -m pipeline.compare --from runs/comparison-tiny-alfworld --out docs/results/tiny   tables and curves anew
The same command again goes on where it was. docs/comparing.md says what the numbers mean."""
FAILED, FAULT = 1, 2


def main(argv: list[str] | None = None) -> int:
    """Returns 0: all runs are in the tables; 1: some failed or are missing; 2: a named fault; 128+n: signal n."""
    try:
        flags = arguments().parse_args(argv)
        return compare(flags) if flags.source is None else redraw(flags.source, flags.out)
    except (ConfigError, RunError, EnvironmentFault, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return FAULT


def compare(flags: argparse.Namespace) -> int:
    """Do the runs that are not finished, and write what all come to; returns the exit code.

    Raises:
        ConfigError: a flag or a setting is wrong; EnvironmentFault: the environment refuses; RunError: see `finish`.
    """
    starts, planned, given = everything(flags)
    out = flags.out or default_out(flags)
    states, faults = look_at([*starts, *planned])
    say_plan([*starts, *planned], states, flags.dry_run)
    for variant, folder in given:
        print(f"  given     {variant}: {folder}")
    sys.stdout.flush()
    if flags.dry_run:
        return 0
    runner = Runner(flags.jobs, lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True))
    for phase in (starts, planned):
        runner.run([run for run in phase if states[run.folder] in (NEW, BEGUN)])
    every = [*((run.variant, run.folder) for run in planned), *given]
    runs, left_out = measure_all(every, faults | runner.failures)
    if not runner.stopped_by:
        return finish(out, runs, left_out)
    if runs:
        finish(out, runs, left_out)
    print("stopped on request; the same command goes on", file=sys.stderr)
    return 128 + runner.stopped_by


def everything(
    flags: argparse.Namespace,
) -> tuple[list[PlannedRun], list[PlannedRun], list[tuple[str, Path]]]:
    """The runs that make first policies, those to compare, and those that are given.

    Raises:
        ConfigError: nothing to compare, or a flag that is wrong.
    """
    algorithms = [name for name in flags.algorithms.split(",") if name]
    variants = variants_of(algorithms, [parse_variant(text) for text in flags.variant])
    given = [parse_run(text) for text in flags.runs]
    if not variants and not given:
        raise ConfigError("nothing to compare: name --algorithms, --variant, --runs or --from")
    if flags.jobs < 1:
        raise ConfigError(f"--jobs {flags.jobs}: must be >= 1")
    if flags.share_start and any(setting.startswith("model.name=") for setting in flags.set):
        raise ConfigError("--set model.name with --share-start: it would win over the shared start; use --model")
    out = flags.out or default_out(flags)
    seeds, base = parse_seeds(flags.seeds), shared_arguments(flags)
    starts = plan_starts(seeds, base, out) if flags.share_start and variants else []
    return starts, plan_runs(variants, seeds, base, out, flags.share_start), given


def default_out(flags: argparse.Namespace) -> Path:
    return Path("runs") / f"comparison-{flags.preset or DEFAULT_PRESET}-{slug(flags.env or 'alfworld')}"


def look_at(planned: Sequence[PlannedRun]) -> tuple[dict[Path, str], dict[Path, str]]:
    """The state of each run's folder, and of those that cannot be used what is wrong with them."""
    states, faults = {}, {}
    for run in planned:
        try:
            states[run.folder] = state(run)
        except RunError as fault:
            states[run.folder], faults[run.folder] = REFUSED, str(fault)
    return states, faults


def redraw(sources: Sequence[Path], out: Path | None) -> int:
    """Write the tables and curves of one or several comparisons out of their numbers.

    Raises:
        ConfigError: several, and no folder to write to; RunError: see `load` and `finish`.
    """
    if out is None and len(sources) > 1:
        raise ConfigError("--from several folders: name the folder for all of them together with --out")
    loaded = [load(source / NUMBERS) for source in sources]
    return finish(out or sources[0], [run for runs, _ in loaded for run in runs],
                  [line for _, lines in loaded for line in lines])  # fmt: skip


def say_plan(planned: Sequence[PlannedRun], states: dict[Path, str], commands: bool) -> None:
    if planned:
        done = sum(one == FINISHED for one in states.values())
        print(f"{len(planned)} runs, {done} of them finished")
    for run in planned:
        print(f"  {states[run.folder]:<9} " + (f"bash run.sh {shlex.join(run.arguments)}" if commands else run.name))


def measure_all(named: Sequence[tuple[str, Path]], faults: dict[Path, str]) -> tuple[list[Measured], list[str]]:
    """The numbers of all finished runs, and what is left out and why."""
    runs, left_out = [], []
    for variant, folder in named:
        try:
            if folder in faults:
                raise RunError(f"{folder}: {faults[folder].removeprefix(f'{folder}: ')}")
            runs.append(measure(folder, variant))
        except (RunError, ConfigError) as fault:
            left_out.append(str(fault))
    return runs, left_out


def finish(out: Path, runs: Sequence[Measured], left_out: Sequence[str]) -> int:
    """Write the files and say where they are.

    Raises:
        RunError: there is no run to show, or two of one variant and seed.
    """
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    if not runs:
        raise RunError(f"{out}: no finished run to compare; see what is said of each above")
    worlds = sorted({run.settings["env.name"] for run in runs})
    if len(worlds) > 1:
        raise RunError(f"{out}: runs in {' and '.join(worlds)}; compare those of one environment at a time")
    names = [(run.variant, run.seed) for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RunError(f"{twice[0]}, seed {twice[1]}: two runs; name one of them otherwise: --runs NAME:DIR")
    for path in write(out, runs, left_out):
        print(path)
    return FAILED if left_out else 0


def arguments() -> argparse.ArgumentParser:
    flags = Flags(
        prog="python -m pipeline.compare", description=__doc__, epilog=EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    flags.add_argument("--algorithms", default="", metavar="A,B", help=f"such as {DEFAULT_ALGORITHM},ppo,grpo")
    flags.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...",
                       help="other settings under a name of their own; repeatable")  # fmt: skip
    flags.add_argument("--seeds", default="3", help="how many, or which with commas; default 3")
    flags.add_argument("--runs", nargs="+", action="extend", default=[], metavar="[NAME:]DIR",
                       help="finished runs to compare as well")  # fmt: skip
    flags.add_argument("--from", dest="source", nargs="+", action="extend", type=Path, metavar="DIR",
                       help="folders of comparisons: write them anew, as one")  # fmt: skip
    flags.add_argument("--out", type=Path, help="where everything goes; default: runs/comparison-<preset>-<env>")
    flags.add_argument("--share-start", action="store_true",
                       help="one warm start a seed, that all runs of the seed begin with")  # fmt: skip
    flags.add_argument("--jobs", type=int, default=1, help="runs at a time; default 1")
    flags.add_argument("--dry-run", action="store_true", help="print the runs; start nothing")
    for name, kind in (("preset", str), ("model", str), ("env", str), ("iterations", int), ("ranks", int)):
        flags.add_argument(f"--{name}", type=kind, help="as of bash run.sh")
    flags.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of bash run.sh; repeatable")
    return flags


if __name__ == "__main__":
    sys.exit(main())
