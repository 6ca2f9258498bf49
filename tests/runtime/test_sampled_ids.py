"""What was sampled is what is stored and trained: no response is encoded again (docs/reliability.md, row 1)."""

from __future__ import annotations

from env_adapters.base import Task
from runtime.environment_pool import EnvironmentPool
from runtime.microbatches import token_batch
from runtime.prompts import PromptRenderer
from runtime.rollouts import Play, PlaySettings, play
from runtime.rows import plain_rows
from tests.corridor import CorridorAdapter
from tests.corridor_policy import make_generator, make_model, make_tokenizer

SETTINGS = PlaySettings(run_seed=0, seed_name=1, iteration=1, policy="abc", max_turns=6)
TOKENIZER = make_tokenizer()


def test_stored_ids_and_trained_ids_are_the_generators():
    adapter = CorridorAdapter(CorridorAdapter.Options())
    generator = make_generator(make_model(TOKENIZER), TOKENIZER, slots=4, max_response=3)
    step, completions = generator.step, {}

    def recorded():
        done = step()
        for one in done:
            _, episode = one.key
            completions[episode.task.task_id, len(episode.turns)] = one
        return done

    generator.step = recorded
    tasks = [Task(f"train/t-{i}", "train", "x", {"rooms": 3, "start": 2}) for i in range(12)]
    with EnvironmentPool("tests.corridor:CorridorAdapter", {}, 1, 20.0) as environments:
        prompts = PromptRenderer(TOKENIZER, adapter, 2, 96, chat_template=False)
        trajectories = list(play([Play(task) for task in tasks], environments, generator, prompts, SETTINGS))
    assert sum(len(one.turns) for one in trajectories) == len(completions) > 12
    differ = 0
    for one in trajectories:
        for index, (turn, row) in enumerate(zip(one.turns, plain_rows(one), strict=True)):
            sampled = completions[one.task_id, index]
            assert turn.response_ids == sampled.response_ids
            assert turn.sampling_logprobs == sampled.sampling_logprobs
            assert row.input_ids == turn.prompt_ids + sampled.response_ids
            batch = token_batch([row])
            assert batch.input_ids[batch.response_mask].tolist() == list(sampled.response_ids)
            differ += tuple(TOKENIZER.encode(turn.response)) != sampled.response_ids
    assert differ > 0  # or encoding again would change nothing here, and the test were blind
