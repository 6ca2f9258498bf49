"""All steps of a run in one process group: `deepspeed pipeline/driver.py --run-dir runs/X` (see pipeline.launch)."""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path[0] = str(_Path(__file__).resolve().parents[1])  # not pipeline/, whose `inspect` is not Python's

import argparse
import time
from pathlib import Path

from pipeline.faults import end_on, leave_process
from pipeline.manifests import Manifest
from pipeline.plan import Step, next_step
from pipeline.printout import add_times, final_summary, iteration_line, times_table
from pipeline.run_directory import RunPaths, resume_command
from pipeline.session import Session, do_step, import_stages, open_session
from runtime.distributed import leave


def main(argv: list[str] | None = None) -> None:
    """Do or resume a whole run. Ends the process: 0 done, 128+n stopped by signal n, 2 a named fault, 1 a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0, help="given by the deepspeed launcher; not used")
    arguments = parser.parse_args(argv)
    session, code = None, 0
    try:
        session = open_session(arguments.run_dir)
        import_stages(session)
        stopped_by = drive(session)
        code = 128 + stopped_by if stopped_by else 0
        session.close()
        leave()
    except Exception as fault:
        stage, iteration = session.at if session is not None else ("start", 0)
        code = end_on(fault, RunPaths(arguments.run_dir).errors, stage, iteration)
        if session is not None:
            session.close()
    leave_process(code)


def drive(session: Session) -> int:
    """Go through the plan until it is done, or until a stop is asked for; returns the signal that asked, or 0."""
    started, done = time.time(), []
    clock_start = time.monotonic()
    stopped_by = 0
    first_iteration, first_time = None, clock_start
    while step := next_step(session.steps()):
        stopped_by = session.distributed.max(session.stop.signal, "a request to stop")
        if stopped_by:
            break
        if step.stage == "collect_rollouts" and first_iteration is None:
            first_iteration, first_time = step.iteration, time.monotonic()
        manifest = do_step(session, step.name)
        if manifest is not None:
            done.append(manifest)
            _say(session, step, first_iteration, first_time)
    if session.is_main:
        _finish(session, started, time.monotonic() - clock_start, done, bool(stopped_by))
    session.distributed.barrier("the end of the run")  # the first process that ends otherwise than by 0 ends the others
    return stopped_by


def _say(session: Session, step: Step, first_iteration: int | None, first_time: float) -> None:
    """One line after an iteration's last step, or after a step outside the iterations."""
    facts, following = session.facts, next_step(session.steps_on_main())
    if step.iteration == 0:
        seconds = session.manifests[step.name].seconds["total"]
        print(f"{step.stage}: {seconds:.1f}s", flush=True)
    elif following is None or following.iteration != step.iteration:
        counted = step.iteration - (first_iteration or step.iteration) + 1
        mean_s = (time.monotonic() - first_time) / counted
        print(iteration_line(step.iteration, facts, session.manifests, mean_s), flush=True)


def _finish(session: Session, started: float, run_s: float, done: list[Manifest], stopped: bool) -> None:
    if done:
        wall_s = session.startup_s + run_s
        record = add_times(session.paths.times, started, wall_s, session.startup_s, done)
        print(times_table(record))
    if stopped:
        print(f"stopped on request; go on with: {resume_command(session.paths)}")
    else:
        print(final_summary(session.paths, session.facts, session.manifests))


if __name__ == "__main__":
    main()
