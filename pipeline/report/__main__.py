"""`python -m pipeline.report runs/X`: one HTML page about a run, and figures for papers with --png."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.inspect.reading import open_run
from pipeline.report.curves import panels
from pipeline.report.evaluations import read_sweeps
from pipeline.report.gathering import gather
from pipeline.report.page import page_data, render
from pipeline.report.sampling import Sample
from pipeline.run_directory import RunError
from runtime.files import atomic_write_text
from runtime.progress import Progress

MEGABYTE = 1_000_000
LARGEST_MB = 13.0  # of episodes: the page stays below 15


def main(argv: list[str] | None = None) -> int:
    """Write the page; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        run = open_run(arguments.run_dir)
        with Progress(True)(len(run.iterations()) + len(run.evaluations()), "episodes", "part") as bar:
            gathered = gather(run, Sample(int(arguments.sample_mb * MEGABYTE)), bar.update)
        sweeps = read_sweeps(run)
        found = panels(run, gathered.sums, sweeps)
        data = page_data(run, gathered, sweeps, found)
        page = arguments.output or arguments.run_dir / "report.html"
        atomic_write_text(page, render(data, data["run"]["name"]))
        shown, total = data["episodes"]["shown"], gathered.num_episodes
        print(f"{page}: {page.stat().st_size / MEGABYTE:.1f} MB, {shown} of {total} episodes to read in it")
        if arguments.png is not None:
            from pipeline.report.figures import write_figures  # matplotlib takes a second to import

            for figure in write_figures(arguments.png, data, found):
                print(figure)
    except (RunError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m pipeline.report", description=__doc__, allow_abbrev=False)
    flags.add_argument("run_dir", type=Path, help="a run directory, finished or going on, or a copy of one")
    flags.add_argument("--output", type=Path, help="the page; default: report.html in the run directory")
    flags.add_argument("--png", type=Path, metavar="DIR", help="also write the figures into DIR, for papers")
    flags.add_argument(
        "--sample-mb", type=sample_size, default=8.0, metavar="MB",
        help=f"how much of the page may be episodes; at most {LARGEST_MB:g}, default 8",
    )  # fmt: skip
    return flags


def sample_size(text: str) -> float:
    size = float(text)
    if not 0 <= size <= LARGEST_MB:
        raise argparse.ArgumentTypeError(f"{text}: must be in [0, {LARGEST_MB:g}]")
    return size


if __name__ == "__main__":
    sys.exit(main())
