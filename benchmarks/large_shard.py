"""Time and memory of reading one shard of very many lines: `python -m benchmarks.large_shard --lines 10000000`.

The lines are of a thousand trajectories of one turn, written over and over (as retries of a broken loop would), so that
what the reader keeps is small and what it passes through is not.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from runtime.records import Trajectory, Turn, to_json
from runtime.shards import read_shards, shard_path, to_line

KEYS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    arguments = parser.parse_args()
    block = b"".join(to_line(to_json(episode(number)), "block") for number in range(KEYS))
    with tempfile.TemporaryDirectory() as folder:
        path = shard_path(Path(folder), 0)
        with open(path, "wb") as file:
            for _ in range(arguments.lines // KEYS):
                file.write(block)
        before, started = peak_mib(), time.process_time()
        found = read_shards(Path(folder))
        seconds = time.process_time() - started
        print(
            f"{arguments.lines:,} lines, {path.stat().st_size / 2**30:.2f} GiB: {seconds:.0f} CPU seconds, "
            f"{1e6 * seconds / arguments.lines:.0f} microseconds a line; {len(found.trajectories)} trajectories, "
            f"{found.num_duplicates:,} duplicates; peak memory {before:.0f} -> {peak_mib():.0f} MiB"
        )


def episode(number: int) -> Trajectory:
    turn = Turn("You see a mug 1.", ("look",), (5, 9, 11), "look", (42, 2), (-0.1, -0.2), "look", True, 0.0, 0.01, 0.0)
    return Trajectory(
        f"train/t-{number}", 0, "train", "pick", "take a mug", 1, 0, "p", 1.0, "terminated", False, 0.0, (turn,)
    )


def peak_mib() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
