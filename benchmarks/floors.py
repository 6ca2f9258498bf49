"""What the stages of an iteration need at least, against what they took: floating-point operations and bytes.

    python -m benchmarks.floors --run-dir runs/X [--iteration N] [--out floors.json]

The floor of a part is the larger of its operations over the machine's measured rate of matrix products (float32, one
thread, 1,024 cubed) and the bytes that it has to read over the measured rate of a copy. Counted are the matrix products
of the blocks (2 operations a weight and token; the last feed-forward only where a hidden state is read), attention over
the tokens before (4 operations a pair and attention width), and the head at the positions that predict a response
token; a backward pass counts twice a forward one. Decoding reads all weights once a step, and there are at least as
many steps as the longest episode has response tokens; and for every response token the keys and values of the tokens
before it. What the parts took is in the manifests: their wall seconds (environments overlap with generation and are
left out), and the CPU seconds of the whole stage, with its files and its environments. Rates are of CPU seconds, too,
so that `times` (the stage's over the floor) says little of who else used the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.config_loading import load_config
from pipeline.manifests import read_manifest
from pipeline.memory import ModelShape, bytes_of, shape_from_config
from pipeline.run_directory import RunPaths
from runtime.records import Trajectory
from runtime.rows import plain_rows
from runtime.shards import read_trajectories

REPETITIONS = 7
SIDE = 1024  # of the square matrices
COPIED = 64 << 20  # bytes


@dataclass(frozen=True)
class Rates:
    """What the machine does at best, one thread, in a second of its CPU."""

    operations_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Work:
    """What a part has to do."""

    operations: float
    bytes: float = 0.0

    def floor_s(self, rates: Rates) -> float:
        return max(self.operations / rates.operations_per_s, self.bytes / rates.bytes_per_s)


def measure_rates() -> Rates:
    """Medians of a few products and copies on one thread."""
    torch.set_num_threads(1)
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    source, target = torch.empty(COPIED, dtype=torch.uint8), torch.empty(COPIED, dtype=torch.uint8)
    product_s = _median_s(lambda: torch.mm(a, b))
    copy_s = _median_s(lambda: target.copy_(source))
    return Rates(2.0 * SIDE**3 / product_s, 2.0 * COPIED / copy_s)  # a copy reads and writes


def _median_s(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def forward_operations(shape: ModelShape, lengths: list[int], num_predicted: int, num_read: int) -> float:
    """One forward pass over rows of these lengths.

    Args:
        num_predicted: positions that the head predicts a token from.
        num_read: positions whose last hidden state is read: the last block's feed-forward works on no others.
    """
    unread = sum(lengths) - num_read
    blocks = 2.0 * (shape.layers * shape.layer_parameters * sum(lengths) - shape.mlp_parameters * unread)
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    attention = 4.0 * shape.layers * shape.attention_width * pairs
    return blocks + attention + 2.0 * shape.embedding_parameters * num_predicted


def works(shape: ModelShape, trajectories: list[Trajectory], epochs: int, weight_bytes: int) -> dict[str, Work]:
    """The parts of an iteration: generation, scoring, optimising."""
    rows = [row for one in trajectories for row in plain_rows(one)]
    lengths = [len(row.input_ids) for row in rows]
    num_predicted = sum(row.num_response_tokens for row in rows)
    num_turns = sum(len(row.spans) for row in rows)  # each adds the end of its response, where Q is read
    forward = forward_operations(shape, lengths, num_predicted, num_predicted + num_turns)
    generated = forward_operations(shape, lengths, num_predicted, num_predicted)
    steps = max(sum(len(turn.response_ids) for turn in one.turns) for one in trajectories)
    seen = sum(position for row in rows for start, end in row.spans for position in range(start, end))
    kept = 2 * shape.layers * shape.kv_width * seen  # numbers of keys and values that are read
    return {
        "generation": Work(generated, float(weight_bytes * (steps * shape.parameters + kept))),
        "scoring": Work(forward),
        "optimising": Work(3.0 * forward * epochs),
    }


def taken(paths: RunPaths, iteration: int) -> dict[str, tuple[float, float]]:
    """Of the same parts: wall seconds, and CPU seconds of the whole stage, out of the manifests."""
    parts = {
        "generation": ("collect_rollouts", "generation_s"),
        "scoring": ("compute_advantages", "old_logprobs_s"),
        "optimising": ("optimize", "steps_s"),
    }
    manifests = {part: read_manifest(paths.manifest(stage, iteration)) for part, (stage, _) in parts.items()}
    return {part: (one.seconds[parts[part][1]], one.cpu_s) for part, one in manifests.items()}


def main() -> None:
    """Print the table; write it as json where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--iteration", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    paths = RunPaths(arguments.run_dir)
    config = load_config(paths.config)
    shape = shape_from_config(json.loads((paths.model / "config.json").read_text(encoding="utf-8")))
    trajectories = read_trajectories(paths.rollouts(arguments.iteration))
    rates = measure_rates()
    weight_bytes = bytes_of(config.model.dtype)
    parts = works(shape, trajectories, config.optimize.epochs, weight_bytes)
    seconds = taken(paths, arguments.iteration)
    print(f"{shape.parameters:,} parameters; products {rates.operations_per_s / 1e9:.1f} G operations a second, copies "
          f"{rates.bytes_per_s / 1e9:.1f} GB a second")  # fmt: skip
    print(f"{'part':12} {'G operations':>12} {'GB read':>8} {'floor s':>8} {'wall s':>8} {'CPU s':>8} {'times':>6}")
    table = {}
    for name, work in parts.items():
        floor, (wall_s, cpu_s) = work.floor_s(rates), seconds[name]
        table[name] = {**vars(work), "floor_s": floor, "wall_s": wall_s, "stage_cpu_s": cpu_s, "times": cpu_s / floor}
        counts = f"{work.operations / 1e9:12.2f} {work.bytes / 1e9:8.2f}"
        print(f"{name:12} {counts} {floor:8.3f} {wall_s:8.3f} {cpu_s:8.2f} {cpu_s / floor:6.1f}")
    if arguments.out:
        arguments.out.write_text(json.dumps({"rates": vars(rates), "parts": table}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
