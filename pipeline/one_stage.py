"""One stage of one iteration, by hand: `deepspeed stages/optimize.py --run-dir runs/X [--iteration 3]`.

The same function does the step as in a whole run, so both write the same files.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from pipeline.command_line import Flags
from pipeline.config import ConfigError
from pipeline.config_loading import apply_settings, build_config, fingerprint, parse_setting, to_tree
from pipeline.faults import end_on, leave_process
from pipeline.plan import Name, Step, next_step
from pipeline.run_directory import EXPORT, RunError, RunPaths, link_or_copy
from pipeline.session import Session, do_step, open_session
from pipeline.signals import stop_at_once, what_is_kept
from runtime.distributed import leave

RECOMPUTABLE = ("gamma", "gae_lambda", "invalid_action_coef", "epsilon", "min_std")


def main(stage: str, argv: list[str] | None = None) -> None:
    """Do or resume one stage. Ends the process: 0 done, 2 a named fault, 1 a defect."""
    try:
        arguments = _parser(stage).parse_args(argv)
        if getattr(arguments, "set", []) and not arguments.recompute:
            raise ConfigError("--set goes with --recompute; a run's own settings are those it was started with")
    except ConfigError as fault:
        sys.exit(end_on(fault, None, stage, 0))
    session, code, iteration = None, 0, arguments.iteration or 0
    try:
        session = open_session(arguments.run_dir)
        if session.is_main:
            stop_at_once(lambda: what_is_kept(session.paths, session.at))
        if stage == "compute_advantages" and arguments.recompute:
            step = _recompute(session, arguments.iteration, arguments.set)
        else:
            step = choose(stage, arguments.iteration, session)
            manifest = do_step(session, step)
            if manifest is not None:
                print(f"{stage} {step[1]}: done in {manifest.seconds['total']:.1f}s, {session.paths.stage(*step)}")
        session.close()
        leave()
    except Exception as fault:
        stage, iteration = session.at if session is not None else (stage, iteration)
        code = end_on(fault, RunPaths(arguments.run_dir).errors, stage, iteration)
        if session is not None:
            session.close()
    leave_process(code)


def _parser(stage: str) -> argparse.ArgumentParser:
    script = f"{'pipeline' if stage == EXPORT else 'stages'}/{stage}.py"
    parser = Flags(prog=f"deepspeed {script}", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="a run directory that `bash run.sh` made")
    parser.add_argument("--iteration", type=int, help="default: the first for which the stage is not complete")
    parser.add_argument("--local_rank", type=int, default=0, help="given by the deepspeed launcher; not used")
    if stage == "compute_advantages":
        parser.add_argument(
            "--recompute", action="store_true", help="make the targets again from the stored scores, without a model"
        )
        parser.add_argument(
            "--set", action="append", default=[], metavar="advantage.KEY=VALUE",
            help=f"with --recompute: other settings ({', '.join(RECOMPUTABLE)}); goes to a folder beside the run's own",
        )  # fmt: skip
    return parser


def choose(stage: str, iteration: int | None, session: Session) -> Name:
    """The iteration that was asked for, else the first for which the stage is not complete.

    Raises:
        RunError: it is complete, or an earlier step has to come first.
    """
    return session.on_main(lambda: _choose(stage, iteration, session), "the choice of the iteration")


def _choose(stage: str, iteration: int | None, session: Session) -> Name:
    root = session.paths.root
    own = [step for step in session.steps_on_main() if step.stage == stage]
    if not own:
        raise RunError(f"{root}: this run has no {stage} (config.yaml); take another stage")
    if iteration is None:
        step = next_step(own)
        if step is None:
            raise RunError(f"{root}: {stage} is complete for all iterations; raise run.iterations with `bash run.sh`")
        return step.name
    by_iteration: dict[int, Step] = {step.iteration: step for step in own}
    wanted = by_iteration.get(iteration)
    if wanted is None and stage == "evaluate" and iteration >= 0:  # any policy may be evaluated, planned or not
        if (stage, iteration) not in session.manifests:
            return stage, iteration
    elif wanted is None:
        raise RunError(
            f"{root}: {stage} has no iteration {iteration}; this run has {min(by_iteration)}-{max(by_iteration)}"
        )
    elif wanted.action == "run":
        return wanted.name
    folder = session.paths.stage(stage, iteration)
    raise RunError(f"{folder}: {stage} {iteration} is complete; delete the folder to do it again")


def _recompute(session: Session, iteration: int | None, settings: list[str]) -> Name:
    """Targets again from stored scores: in place, or with other settings in a folder beside."""
    done = [i for stage, i in session.manifests if stage == "compute_advantages"] if session.is_main else []
    iteration = session.distributed.broadcast(iteration or max(done, default=0), "the iteration")
    step = ("compute_advantages", iteration)
    session.on_main(lambda: _check_recomputable(session, step, bool(settings)), "the choice of the iteration")
    if not settings:
        do_step(session, step, recompute=True)
        return step
    pairs = [parse_setting(setting) for setting in settings]
    for key, _ in pairs:
        if key.removeprefix("advantage.") not in RECOMPUTABLE:
            allowed = ", ".join(f"advantage.{name}" for name in RECOMPUTABLE)
            raise RunError(f"--set {key}: not a setting of the targets; one of {allowed}")
    source = session.paths.advantages(iteration)
    if session.log is not None:  # metrics.jsonl is about what the run uses
        session.log.close()
        session.log = None
    session.config = build_config(apply_settings(to_tree(session.config), pairs))
    session.paths = replace(session.paths, advantages_name=f"advantages-{fingerprint(session.config)[:8]}")
    session.on_main(lambda: _link_scores(source, session.paths.advantages(iteration)), "the stored scores")
    do_step(session, step, recompute=True)
    if session.is_main:
        print(f"targets with {', '.join(settings)}: {session.paths.advantages(iteration)} (the run does not use them)")
    return step


def _check_recomputable(session: Session, step: Name, beside: bool) -> None:
    folder = session.paths.stage(*step)
    if step not in session.manifests:
        raise RunError(f"{folder}: no complete scores to recompute from; run compute_advantages without --recompute")
    if not beside and ("optimize", step[1]) in session.manifests:
        raise RunError(
            f"{folder}: policy {step[1]} was trained on these targets; with --set the new ones go beside them"
        )


def _link_scores(source: Path, destination: Path) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    for path in source.glob("scores-*"):
        target = destination / path.name
        target.unlink(missing_ok=True)
        link_or_copy(path, target)
