"""Real worker processes, a real decode loop, a small real environment."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from env_adapters.base import Task
from runtime import environment_pool
from runtime.environment_pool import EnvironmentPool, EnvironmentPoolError
from runtime.environment_worker import _play
from runtime.prompts import PromptRenderer
from runtime.rollouts import Play, PlaySettings, PlayTimes, RolloutError, play
from runtime.seeding import trajectory_seed
from tests.corridor import Corridor, CorridorAdapter
from tests.corridor_policy import make_generator, make_model, make_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = PlaySettings(run_seed=0, seed_name=1, iteration=1, policy="abc", max_turns=6, max_error_share=1.0)
TOKENIZER = make_tokenizer()
MODEL = make_model(TOKENIZER)
ADAPTER = CorridorAdapter(CorridorAdapter.Options())


def renderer(prompt_tokens: int = 96, history_length: int = 2) -> PromptRenderer:
    return PromptRenderer(TOKENIZER, ADAPTER, history_length, prompt_tokens, chat_template=False)


def pool(workers: int = 2, timeout_s: float = 20.0, adapter: str = "FaultyCorridorAdapter") -> EnvironmentPool:
    return EnvironmentPool(f"tests.corridor:{adapter}", {}, workers, timeout_s)


def corridor_tasks(n: int, rooms: int = 3) -> list[Task]:
    return [Task(f"train/t-{i}", "train", "x", {"rooms": rooms, "start": rooms - 1}) for i in range(n)]


def with_fault(task: Task, fault: str, at: int = 1, marker: Path | None = None) -> Task:
    extra = {"fault": fault, "at": at, "marker": None if marker is None else str(marker)}
    return dataclasses.replace(task, payload={**task.payload, **extra})


def run(tasks, workers=2, slots=4, timeout_s=20.0, settings=SETTINGS, prompts=None, times=None, max_response=2):
    generator = make_generator(MODEL, TOKENIZER, slots, max_response)
    with pool(workers, timeout_s) as environments:
        plays = [Play(task) for task in tasks]
        return list(play(plays, environments, generator, prompts or renderer(), settings, times))


def sampled(trajectory):
    """What must not depend on timing, batch mates or retries."""
    return [(t.prompt_ids, t.response_ids, t.action, t.reward, t.observation) for t in trajectory.turns]


def by_task(trajectories):
    trajectories = list(trajectories)
    assert len({one.key for one in trajectories}) == len(trajectories)
    return {one.task_id: one for one in trajectories}


def replay(trajectory, task, max_turns=6):
    """Oracle: the stored ids, decoded one by one and played turn for turn in this process."""
    environment = Corridor()
    observation = environment.reset(task)
    ended = False
    for turn in trajectory.turns:
        assert not ended, "a turn after the end"
        words = [TOKENIZER.convert_ids_to_tokens(i) for i in turn.response_ids]
        text = " ".join(word for word in words if word != "<end>")
        assert (turn.observation, turn.admissible_actions) == (observation.text, observation.admissible_actions)
        assert turn.response == text
        result = environment.step(text)
        assert (turn.action, turn.valid, turn.reward) == (result.action, result.valid, result.reward)
        observation, ended = result.observation, result.terminated
    assert trajectory.status == ("terminated" if ended else "truncated")
    assert ended or len(trajectory.turns) == max_turns
    *before, last = trajectory.turns
    assert not any(turn.terminated or turn.truncated for turn in before)
    assert (last.terminated, last.truncated) == (ended, not ended)
    assert (trajectory.success, trajectory.score) == (result.success, result.score)


def test_every_task_is_played_once_and_replays_exactly():
    tasks = corridor_tasks(30)
    times = PlayTimes()
    done = by_task(run(tasks, times=times))
    assert set(done) == {task.task_id for task in tasks}
    for task in tasks:
        replay(done[task.task_id], task)
        assert done[task.task_id].task == task.payload
        assert done[task.task_id].seed == trajectory_seed(0, 1, task.task_id, 0)
    statuses = [one.status for one in done.values()]
    assert {"terminated", "truncated"} == set(statuses)  # both ways to end occur, or this test is blind
    assert {one.success for one in done.values()} == {True, False}
    assert {turn.valid for one in done.values() for turn in one.turns} == {True, False}
    assert 0 < times.generation_s + times.environment_wait_s <= times.total_s


def test_trajectories_do_not_depend_on_slots_workers_or_order():
    tasks = corridor_tasks(12)
    one = by_task(run(tasks, workers=1, slots=1))
    many = by_task(run(tasks[::-1], workers=2, slots=7))
    other_seed = by_task(run(tasks, settings=dataclasses.replace(SETTINGS, run_seed=1)))
    for task_id in one:
        assert sampled(one[task_id]) == sampled(many[task_id])
    assert any(sampled(one[task_id]) != sampled(other_seed[task_id]) for task_id in one)


def test_prompts_hold_the_last_turns_and_the_count():
    trajectory = max(run(corridor_tasks(6)), key=lambda one: len(one.turns))
    assert len(trajectory.turns) >= 4
    words = TOKENIZER.decode(list(trajectory.turns[3].prompt_ids)).split()
    assert words[:6] == "find the door , turn 3".split()
    assert words.count(";") == 2  # history_length pairs
    assert words[-5:-1] == trajectory.turns[3].observation.split()


def test_the_last_action_of_a_cut_episode_is_played():
    tasks = corridor_tasks(20, rooms=1)
    settings = dataclasses.replace(SETTINGS, max_turns=1)
    done = run(tasks, settings=settings)
    assert {one.return_undiscounted for one in done} == {0.0, 1.0}
    assert all(len(one.turns) == 1 for one in done)
    # the last action of a cut episode was played: some of them won at the only turn they had
    assert all((one.return_undiscounted == 1.0) == one.success for one in done)


def test_no_tasks_no_trajectories():
    assert run([]) == []


@pytest.mark.parametrize("fault", ["exit", "raise", "hang"])
def test_a_fault_once_is_retried_and_nobody_notices(tmp_path, fault):
    tasks = corridor_tasks(8)
    clean = by_task(run(tasks))
    faulty = [with_fault(task, fault, 1, tmp_path / "once") if i == 2 else task for i, task in enumerate(tasks)]
    start = time.monotonic()
    done = by_task(run(faulty, timeout_s=1.0))
    assert (tmp_path / "once").exists()
    assert time.monotonic() - start < 20
    for task_id in clean:
        assert done[task_id].error is None
        assert sampled(done[task_id]) == sampled(clean[task_id])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("exit", "exit code 3 during step"),
        ("raise", "the floor gave way"),
        ("refuse", "corridor: the door is stuck; oil it"),
        ("hang", "no answer for 1 s"),
    ],
)
def test_a_fault_that_comes_back_is_an_error_and_the_others_are_unaffected(fault, reason):
    tasks = corridor_tasks(8)
    clean = by_task(run(tasks))
    done = by_task(run([with_fault(task, fault) if i == 2 else task for i, task in enumerate(tasks)], timeout_s=1.0))
    bad = done.pop("train/t-2")
    assert (bad.status, bad.success, bad.turns) == ("error", False, ())
    assert reason in bad.error
    if fault == "raise":
        assert "Traceback" in bad.error and "corridor.py" in bad.error
    if fault == "refuse":  # it has named its remedy
        assert bad.error == reason
    for task_id, one in done.items():  # four of them shared the worker
        assert sampled(one) == sampled(clean[task_id])


def test_kill_9_of_a_worker_in_mid_episode(tmp_path):
    tasks = corridor_tasks(8)
    clean = by_task(run(tasks))
    held = [with_fault(task, "wait", 1, tmp_path / "go") if i == 2 else task for i, task in enumerate(tasks)]
    generator = make_generator(MODEL, TOKENIZER, 4)
    with pool() as environments:

        def kill():
            while not (tmp_path / "go.reached").exists():
                time.sleep(0.01)
            os.kill(environments.pids()[0], signal.SIGKILL)  # slot 2 lives in worker 0 of 2
            (tmp_path / "go").touch()

        thread = threading.Thread(target=kill)
        thread.start()
        done = by_task(play([Play(task) for task in held], environments, generator, renderer(), SETTINGS))
        thread.join()
        assert environments.num_restarts == 1
    for task_id in clean:
        assert done[task_id].error is None
        assert sampled(done[task_id]) == sampled(clean[task_id])


def test_too_many_errors_stop_with_the_first_reason():
    tasks = [with_fault(task, "raise") if i < 2 else task for i, task in enumerate(corridor_tasks(10))]
    strict = dataclasses.replace(SETTINGS, max_error_share=0.1)
    generator = make_generator(MODEL, TOKENIZER, 4)
    plays = [Play(task) for task in tasks]
    with pool() as environments:
        done = []
        with pytest.raises(RolloutError, match=r"2 of 10 episodes failed(.|\n)*train/t-[01](.|\n)*the floor gave way"):
            for one in play(plays, environments, generator, renderer(), strict):
                done.append(one)
        assert [one.status for one in done].count("error") == 2  # they were handed over before
    allowed = run(tasks, settings=dataclasses.replace(SETTINGS, max_error_share=0.2))
    assert len(allowed) == 10


def test_an_observation_that_does_not_fit_is_an_error_with_the_remedy():
    done = run(corridor_tasks(3), prompts=renderer(prompt_tokens=11))
    # "find the door , turn 0 : room 2 of 3 ?" has 12 words
    assert {one.status for one in done} == {"error"}
    assert "12 tokens" in done[0].error and "env.prompt_tokens" in done[0].error


def test_a_sweep_given_up_half_way_leaves_the_pool_usable():
    tasks = corridor_tasks(8)
    clean = by_task(run(tasks))
    plays = [Play(task) for task in tasks]
    with pool() as environments:
        first = play(plays, environments, make_generator(MODEL, TOKENIZER), renderer(), SETTINGS)
        next(first)
        first.close()  # as an interrupt would
        done = by_task(play(plays, environments, make_generator(MODEL, TOKENIZER), renderer(), SETTINGS))
    assert {key: sampled(one) for key, one in done.items()} == {key: sampled(one) for key, one in clean.items()}


def test_commands_and_replies_larger_than_a_socket_do_not_block_each_other():
    slots, response = range(40), "right " * 8000
    with pool(workers=1, adapter="EchoingCorridorAdapter") as environments:
        for slot, task in zip(slots, corridor_tasks(len(slots)), strict=True):
            environments.reset(slot, task)
        replies = []
        while len(replies) < len(slots):
            replies += environments.poll(20.0)
        for slot in slots:
            environments.step(slot, response)
        while len(replies) < 2 * len(slots):
            replies += environments.poll(20.0)
    assert all(reply.error is None for reply in replies)
    assert all(reply.result.observation.text.endswith(response) for reply in replies[len(slots) :])


def test_a_worker_that_cannot_build_its_adapter_says_why(monkeypatch):
    monkeypatch.setenv("CORRIDOR_BROKEN", "1")
    with pool(adapter="BrokenAdapter") as environments:
        with pytest.raises(EnvironmentPoolError, match=r"cannot build its adapter(.|\n)*no floor plan"):
            environments.poll(60.0)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_end(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_close_ends_the_workers_even_a_hung_one():
    environments = pool(workers=2)
    environments.reset(0, with_fault(corridor_tasks(1)[0], "hang"))
    environments.poll(20.0)
    environments.step(0, "right")
    pids = environments.pids()
    environments.close()
    assert wait_for_end(pids, 0.1)


def test_a_worker_that_hangs_while_it_starts_is_named_with_the_time_it_was_given(monkeypatch):
    monkeypatch.setattr(environment_pool, "START_SECONDS", 1.0)
    with pool(workers=1, timeout_s=0.5) as environments:
        os.kill(environments.pids()[0], signal.SIGSTOP)
        with pytest.raises(EnvironmentPoolError, match=r"worker 0 .*: no answer for 1 s .* while starting"):
            environments.poll(20.0)


def test_workers_do_not_outlive_a_killed_parent_and_import_no_torch():
    code = """
import sys, time
from pathlib import Path
from tests.corridor import CorridorAdapter
from runtime.environment_pool import EnvironmentPool
from env_adapters.base import Task
pool = EnvironmentPool("tests.corridor:FaultyCorridorAdapter", {}, 2, 30.0)
payload = {"rooms": 2, "start": 0, "fault": "hang", "at": 1, "marker": None}
pool.reset(0, Task("t", "train", "x", payload))
pool.reset(1, Task("u", "train", "x", {"rooms": 2, "start": 0}))
replies = []
while len(replies) < 2:
    replies += pool.poll(10.0)
pool.step(0, "right")
maps = Path(f"/proc/{pool.pids()[1]}/maps").read_text()
print(*pool.pids(), "libtorch" in maps, "torch" in sys.modules, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    first, second, *imports = parent.stdout.readline().split()
    assert imports == ["False", "False"]
    pids = [int(first), int(second)]
    assert all(map(alive, pids))
    parent.kill()
    parent.wait()
    assert wait_for_end(pids)


@pytest.mark.parametrize(("reward", "fault"), [(math.nan, ValueError), (math.inf, ValueError), ("many", TypeError)])
def test_a_reward_that_is_no_finite_number_fails_in_the_environment(reward, fault):
    class Odd(Corridor):
        def step(self, response):
            return dataclasses.replace(super().step(response), reward=reward)

    environment = Odd()
    environment.reset(corridor_tasks(1)[0])
    with pytest.raises(fault, match="finite|real number"):
        _play(CorridorAdapter(CorridorAdapter.Options()), {0: environment}, 0, "step", "right")
