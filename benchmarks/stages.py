"""What each stage costs: seconds, tokens a second and peak memory, on one rank.

    python -m benchmarks.stages [tiny] [qwen2.5-0.5b] [--out benchmarks/results/stages.json] [--limit-gib 20]

`tiny` is the tiny preset after a short warm start. `qwen2.5-0.5b` has random weights of that model's shape in float32
(hidden 896, 24 layers, vocabulary 151,936, tied), three rows of full-scene ALFWorld prompts with 64 sampled tokens, one
optimizer step under ZeRO-3; minutes on a free core, 12 GB of disk. Both play generated games.

Every stage is the real one on a run directory in a temporary folder, started as a process of its own, so that its
peak memory is its own (environments live in further processes and do not count). In the second iteration of `tiny`
the reference differs from the policy, so it is scored too. Numbers come from the stages' own manifests; CPU seconds
are those of the whole process, imports and environments included, and tell how much of the wall time was waiting for
a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.config_loading import apply_settings, build_config, load_preset, save_config
from pipeline.launch import launch_environment
from pipeline.machine import settle
from pipeline.manifests import Manifest, read_manifests
from pipeline.run_directory import RunPaths

ROOT = Path(__file__).resolve().parents[1]
MIB_A_GIB = 1024
QWEN_ROWS, QWEN_TOKENS = 151_936, 151_665  # of the matrix and of the tokenizer: spare rows for w+ and w-
ROWS = 3  # of the large model: tasks of one turn, in two micro-batches

GAMES = {"env.warm_start_games": 200, "env.train_games": 64, "env.dev_games": 8, "env.held_out_games": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {**GAMES, "run.iterations": 2, "warm_start.demonstrations": 200, "optimize.kl_coef": 0.01},
    "qwen2.5-0.5b": {
        "run.iterations": 1, "warm_start.enabled": False,
        "env.warm_start_games": 1, "env.train_games": ROWS, "env.dev_games": 1, "env.held_out_games": 1,
        "env.scene": "full", "env.prompt": "published", "env.max_turns": 1, "env.prompt_tokens": 1024,
        "env.response_tokens": 64, "rollout.trajectories": ROWS, "rollout.slots": ROWS, "optimize.kl_coef": 0.01,
        "optimize.microbatch_tokens": 1200, "advantage.score_tokens": 1200,
    },
}  # fmt: skip
STEPS = {
    "tiny": [("reserve_vocab", 0), ("warm_start", 0), ("collect_rollouts", 1), ("compute_advantages", 1),
             ("optimize", 1), ("collect_rollouts", 2), ("compute_advantages", 2), ("optimize", 2), ("evaluate", 2)],
    "qwen2.5-0.5b": [("reserve_vocab", 0), ("collect_rollouts", 1), ("compute_advantages", 1), ("optimize", 1)],
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of the table. The peak is that of the stage's process; its parts share it."""

    stage: str
    part: str
    seconds: float
    tokens: int | None
    peak_gib: float
    cpu_s: float | None  # of the whole process; on its first line only

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.tokens is None else self.tokens / max(self.seconds, 1e-9)


def make_qwen_shape(folder: Path) -> None:
    """A Qwen2.5-0.5B with random weights and a tokenizer whose words are the environment's."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=QWEN_ROWS, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, bos_token_id=None,
        eos_token_id=QWEN_TOKENS - 1, pad_token_id=QWEN_TOKENS - 1, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    byte_pairs(scene_words(), QWEN_TOKENS).save_pretrained(folder)


def scene_words() -> Sequence[str]:
    """The words of ALFWorld's full scenes."""
    from env_adapters.registry import make_adapter

    return make_adapter("alfworld", {"scene": "full"}).vocabulary()


def byte_pairs(texts: Sequence[str], size: int) -> Any:
    """Qwen2's kind of tokenizer, its merges learned from the texts, filled up to `size` tokens that never come up."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=min(4000, size - 1), initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    learned = json.loads(core.to_str())["model"]
    vocabulary = dict(learned["vocab"])
    vocabulary |= {f"<unused {i}>": i for i in range(len(vocabulary), size - 1)}
    return Qwen2Tokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in learned["merges"]])


def run_child(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a command to its end; returns its CPU seconds, those of its own children included."""
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(arguments)}: exit code {child.returncode}\n{log.read()[-4000:]}")
    return usage.ru_utime + usage.ru_stime


def make_run(root: Path, environment: str, settings: Mapping[str, Any]) -> Config:
    """A new run directory on the tiny preset, one rank, with these settings besides."""
    tree = apply_settings(load_preset("tiny", environment), [("run.ranks", 1), *settings.items()])
    config = settle(build_config(tree))
    root.mkdir()
    save_config(config, RunPaths(root).config)
    return config


def measure(name: str, scratch: Path) -> list[Line]:
    """Make a run directory and do the stages one by one, each in a process of its own."""
    settings = {**SETTINGS[name], "env.cache_dir": str(scratch / "games")}
    if name != "tiny":
        settings["model.name"] = str(scratch / "base")
        run_child(["-m", "benchmarks.stages", "--make-qwen-shape", str(scratch / "base")], os.environ)
    paths = RunPaths(scratch / "run")
    config = make_run(paths.root, "alfworld", settings)
    environment = launch_environment(config)
    lines: list[Line] = []
    for stage, iteration in STEPS[name]:
        started = time.perf_counter()
        flags = ["--run-dir", str(paths.root), "--iteration", str(iteration)]
        cpu_s = run_child([f"stages/{stage}.py", *(flags if iteration else flags[:2])], environment)
        manifest = read_manifests(paths)[stage, iteration]
        lines += lines_of(manifest, cpu_s, config)
        print(f"{name}: {stage} {iteration} in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return lines


def lines_of(manifest: Manifest, cpu_s: float, config: Config) -> list[Line]:
    """The manifest's parts that a reader asks for; tokens are what the part read or wrote."""
    counts, metrics, turns = manifest.counts, manifest.metrics, manifest.counts.get("turns", 0)
    sampled = round(metrics.get("rollout/response_tokens", 0.0) * turns)
    read = round(metrics.get("rollout/prompt_tokens", 0.0) * turns)
    seen = round(config.warm_start.epochs * counts.get("tokens", 0))
    parts = {
        "reserve_vocab": [("reserve", "reserve_s", None)],
        "warm_start": [("steps", "steps_s", seen)],
        "collect_rollouts": [("generation, prompt + response tokens", "generation_s", read + sampled)],
        "compute_advantages": [
            ("old log-probs, V, Q (with loading)", "old_logprobs_s", counts.get("scored_tokens")),
            ("reference log-probs (with loading)", "ref_logprobs_s", counts.get("scored_tokens")),
        ],
        "optimize": [
            ("engine: build, load", "load_s", None),
            (f"{counts.get('updates', 0)} optimizer step(s)", "steps_s", counts.get("trained_tokens")),
            ("save engine state", "save_s", None),
            ("export policy", "export_s", None),
        ],
        "evaluate": [("generation", "generation_s", None)],
    }[manifest.stage]
    peak = max(manifest.peak_memory_mib.values()) / MIB_A_GIB
    found = [(label, manifest.seconds[key], tokens) for label, key, tokens in parts if key in manifest.seconds]
    name = f"{manifest.stage} {manifest.iteration}" if manifest.iteration else manifest.stage
    return [
        Line(name, label, seconds, tokens, peak, cpu_s if at == 0 else None)
        for at, (label, seconds, tokens) in enumerate(found)
    ]


def table(name: str, lines: Sequence[Line]) -> str:
    text = [f"{name}\n{'stage':<22}{'part':<40}{'seconds':>9}{'tokens':>9}{'tokens/s':>10}{'peak GiB':>10}{'CPU s':>8}"]
    for line in lines:
        tokens = ("", "") if line.tokens is None else (f"{line.tokens}", f"{line.tokens_per_s:.1f}")
        cpu = "" if line.cpu_s is None else f"{line.cpu_s:.1f}"
        text.append(
            f"{line.stage:<22}{line.part:<40}{line.seconds:>9.2f}{tokens[0]:>9}{tokens[1]:>10}"
            f"{line.peak_gib:>10.2f}{cpu:>8}"
        )
    return "\n".join(text)


def machine() -> dict[str, Any]:
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(SETTINGS)}; default: both")
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON; other models' numbers there stay")
    parser.add_argument("--limit-gib", type=float, default=20.0, help="a higher peak is a failure")
    parser.add_argument("--make-qwen-shape", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make_qwen_shape:
        make_qwen_shape(options.make_qwen_shape)
        return
    unknown = set(options.models) - set(SETTINGS)
    if unknown:
        parser.error(f"no model {min(unknown)!r}; there are {', '.join(SETTINGS)}")
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    highest = 0.0
    for name in options.models or SETTINGS:
        facts = machine()
        scratch = Path(tempfile.mkdtemp(prefix="sapo-stages-"))
        try:
            lines = measure(name, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        highest = max(highest, *(line.peak_gib for line in lines))
        results[name] = {"machine": facts, "settings": SETTINGS[name]}
        results[name]["lines"] = [{**asdict(line), "tokens_per_s": line.tokens_per_s} for line in lines]
        print(table(name, lines), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if highest > options.limit_gib:
        raise SystemExit(f"peak memory {highest:.1f} GiB is over the limit of {options.limit_gib:g} GiB")


if __name__ == "__main__":
    main()
