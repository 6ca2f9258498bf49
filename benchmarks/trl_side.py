"""TRL's side of benchmarks/trl_loop.py: its GRPO trainer on episodes of `benchmarks.talk`, run by its own interpreter.

Episodes are played in a `rollout_func`, which generates with the trainer's own backend on transformers, so every turn
that is generated is executed. (TRL's `environment_factory` generates a turn more than it executes.) Each turn's prompt
is the whole transcript so far, the ids as they were sampled. No KL term, one update on all trajectories.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.talk import TalkAdapter


class Episodes:
    """The `rollout_func`: plays all prompts side by side, turn after turn, and notes what it took."""

    def __init__(self, tokenizer, num_turns: int) -> None:
        self.tokenizer, self.num_turns = tokenizer, num_turns
        self.adapter = TalkAdapter(TalkAdapter.Options())
        self.tasks = {task.task_id: task for task in self.adapter.tasks("train")}
        self.times: list[tuple[float, float]] = []
        self.generated: list[int] = []
        self.final: list[int] = []

    def __call__(self, prompts, trainer) -> dict[str, list]:
        start = time.perf_counter(), time.process_time()
        worlds = [self.adapter.make() for _ in prompts]
        first = [world.reset(self.tasks[prompt]) for world, prompt in zip(worlds, prompts, strict=True)]
        contexts = [self.tokenizer.encode(self.adapter.prompt(one, [], 0)) for one in first]
        prompt_lengths, masks, rewards = [len(ids) for ids in contexts], [[] for _ in prompts], [0.0] * len(prompts)
        for turn in range(self.num_turns):
            responses, _ = trainer._generate_single_turn(contexts, None, {}, len(prompts))
            for index, (world, response) in enumerate(zip(worlds, responses, strict=True)):
                result = world.step(self.tokenizer.decode(response, skip_special_tokens=True))
                rewards[index] += result.reward
                contexts[index] = contexts[index] + list(response)
                masks[index] += [1] * len(response)
                if turn + 1 < self.num_turns:
                    end = [] if response[-1] == self.tokenizer.eos_token_id else [self.tokenizer.eos_token_id]
                    new = end + self.tokenizer.encode(self.adapter.follow_up(result.observation))
                    contexts[index] = contexts[index] + new
                    masks[index] += [0] * len(new)
        self.times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        self.generated.append(sum(map(sum, masks)))
        self.final.append(sum(map(len, contexts)))
        return {
            "prompt_ids": [ids[:n] for ids, n in zip(contexts, prompt_lengths, strict=True)],
            "completion_ids": [ids[n:] for ids, n in zip(contexts, prompt_lengths, strict=True)],
            "logprobs": None,
            "env_mask": masks,
            "earned": rewards,
        }


class Steps(TrainerCallback):
    """Seconds of each training step, collection included."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append((time.perf_counter() - self.start[0], time.process_time() - self.start[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a transformers folder")
    parser.add_argument("--trajectories", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--response-tokens", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa")
    episodes, steps = Episodes(tokenizer, options.turns), Steps()
    n = options.trajectories
    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=n, num_generations=n, steps_per_generation=1,
            max_completion_length=options.response_tokens, max_steps=options.iterations, learning_rate=1e-6, beta=0.0,
            temperature=1.0, bf16=False, fp16=False, use_cpu=True, gradient_checkpointing=False, report_to="none",
            logging_strategy="no", save_strategy="no", disable_tqdm=True, max_grad_norm=1.0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model,
            args=config,
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"prompt": sorted(episodes.tasks)}),
            reward_funcs=lambda earned, **others: earned,
            rollout_func=episodes,
            callbacks=[steps],
        )
        trainer.train()
    found = [
        {"collect_s": collect[0], "collect_cpu_s": collect[1], "wall_s": whole[0], "cpu_s": whole[1],
         "update_cpu_s": whole[1] - collect[1],
         "response_tokens": generated, "final_tokens": final}
        for collect, whole, generated, final in zip(
            episodes.times, steps.times, episodes.generated, episodes.final, strict=True)
    ]  # fmt: skip
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"iterations": found, "peak_mib": peak_mib, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
