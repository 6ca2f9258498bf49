"""Run by test_compute_advantages_ranks.py on every rank: the stage on the run directories that are named."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.run_directory import RunPaths
from runtime.distributed import leave
from runtime.engine import init_distributed
from runtime.progress import Progress
from stages.compute_advantages import run
from stages.context import Context, Resident
from tests.stages.test_compute_advantages import CONFIG

if __name__ == "__main__":
    distributed, resident = init_distributed(120.0), Resident()
    for root in sys.argv[1:]:
        run(Context(CONFIG, RunPaths(Path(root)), 2, distributed, None, resident, Progress(False)))
        distributed.barrier("the end of a run")
    leave()
