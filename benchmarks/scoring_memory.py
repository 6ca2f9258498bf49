"""Memory of a scoring pass over Qwen2.5's vocabulary, against one that makes all logits at once.

    python -m benchmarks.scoring_memory [--tokens 2048] [--model head] [--out benchmarks/results/scoring_memory.json]

Every side is a process of its own, and what counts is how far its memory rises above what it holds when the model is
there and everything has run once on a few tokens: the highest resident size on the CPU, allocations on a GPU. Sides:

    chunks            ours: log-probs, entropies, V and Q of all tokens but the first
    logits            the logits of those positions alone, float32, with nothing made of them
    log-softmax       logits, their log-softmax and the chosen log-probs: the plain way, without entropies
    chunks, trained   ours with the backward pass
    plain, trained    log-softmax, with autograd's backward pass

What the blocks hold is in every side; the model `head` is small, so that what is seen is the head.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.measuring import machine, peak, reset_peak, timed, write
from benchmarks.models import SHAPES, add_device_flags, make_policy
from runtime.microbatches import token_batch
from runtime.records import Row

SIDES = ("chunks", "logits", "log-softmax", "chunks, trained", "plain, trained")
TARGET = 0.15  # of the logits' own bytes
MIB = 2**20


def one_row(tokens: int) -> Row:
    """A row whose tokens but the first are one response."""
    return Row("row", 0, tuple(10 + i % 1000 for i in range(tokens)), ((1, tokens),))


def work(side: str, policy, tokens: int, device: str) -> None:
    batch = token_batch([one_row(tokens)]).to(device)
    with torch.set_grad_enabled(side.endswith("trained")):
        if side.startswith("chunks"):
            output = policy(batch)
            logprobs = output.logprobs + 1e-3 * output.entropies
        else:
            logits = policy.causal_lm(batch.input_ids, use_cache=False).logits[0, :-1].float()
            if side == "logits":
                return
            logprobs = logits.log_softmax(-1).gather(1, batch.input_ids[0, 1:, None])
        if side.endswith("trained"):
            logprobs.sum().backward()


def measure(side: str, model: str, tokens: int, device: str, dtype: str) -> dict[str, float]:
    """In this process: bytes above what was held before, and seconds."""
    policy = make_policy(SHAPES[model], device, dtype)
    work(side, policy, 18, device)
    policy.zero_grad(set_to_none=True)
    before = reset_peak(device)
    clock, _ = timed(lambda: work(side, policy, tokens, device), device)
    return {"mib": (peak(device) - before) / MIB, "wall_s": clock.wall_s, "cpu_s": clock.cpu_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--model", choices=SHAPES, default="head")
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    add_device_flags(parser)
    options = parser.parse_args()
    shared = ["--model", options.model, "--tokens", str(options.tokens), "--device", options.device]
    shared += ["--dtype", options.dtype]
    if options.side:
        print(json.dumps(measure(options.side, options.model, options.tokens, options.device, options.dtype)))
        return
    vocabulary = SHAPES[options.model].vocabulary
    logits_mib = (options.tokens - 1) * vocabulary * 4 / MIB
    print(f"{options.tokens} tokens, vocabulary {vocabulary:,}: logits have {logits_mib:,.0f} MiB")
    print(f"{'':18}{'MiB':>8}{'of the logits':>15}{'wall s':>8}{'CPU s':>8}")
    sides = {}
    for side in SIDES:
        line = [sys.executable, "-m", "benchmarks.scoring_memory", "--side", side, *shared]
        one = sides[side] = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
        one["of_logits"] = one["mib"] / logits_mib
        print(f"{side:18}{one['mib']:8.0f}{one['of_logits']:15.3f}{one['wall_s']:8.1f}{one['cpu_s']:8.1f}", flush=True)
    print(f"ours over the logits: {sides['chunks']['of_logits']:.3f} (target {TARGET})")
    facts = {"machine": machine(), "tokens": options.tokens, "vocabulary": vocabulary}
    facts |= {"model": options.model, "dtype": options.dtype, "device": options.device, "sides": sides}
    write(options.out, "scoring_memory", facts)


if __name__ == "__main__":
    main()
