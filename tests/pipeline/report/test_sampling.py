"""Which episodes come into the page."""

import json
import random

import pytest

from pipeline.inspect.reading import Episode
from pipeline.report import sampling
from pipeline.report.page import episode_tables
from pipeline.report.sampling import LONGEST_TEXT, Sample, compact, nats_a_token, pack, short
from tests.made_run import episode, targets_of


def crowd(tasks: int, times: int) -> list[Episode]:
    found = []
    for iteration in range(times):
        for task in range(tasks):
            one = episode(iteration, f"train/t-{task}", (0.0,) * 4)
            found.append(Episode(one, targets_of(one, (0.5,) * 4)))
    return found


def sampled(episodes, budget: int) -> Sample:
    sample = Sample(budget)
    for one in episodes:
        sample.add(one, "rollouts")
    return sample


def bytes_of(sample: Sample) -> int:
    return len(json.dumps(episode_tables(sample.episodes), separators=(",", ":")))


@pytest.mark.parametrize("budget", [2_000, 20_000, 100_000])
def test_the_budget_holds_and_is_used(budget):
    sample = sampled(crowd(tasks=200, times=3), budget)
    assert 0.5 * budget < bytes_of(sample) < 1.1 * budget
    assert sample.size <= budget
    assert len(sample.episodes) + sample.given_up == 600


def test_tasks_are_whole_and_do_not_depend_on_the_order():
    episodes = crowd(tasks=100, times=3)
    sample = sampled(episodes, 20_000)
    kept = {one.task_id for one in sample.episodes}
    assert 5 < len(kept) < 60
    assert all(sum(one.task_id == task for one in sample.episodes) == 3 for task in kept)
    random.Random(0).shuffle(episodes)
    assert {one.task_id for one in sampled(episodes, 20_000).episodes} == kept


def test_size_is_what_was_counted_when_all_is_taken_away_again():
    sample = sampled(crowd(tasks=30, times=2), 10**7)
    full = sample.size
    sample.budget = full // 3
    sample.add(Episode(episode(0, "another")), "rollouts")
    again = Sample(10**7)
    for one in sorted(sample.episodes, key=lambda one: one.task_id):
        again._count(one, 1)
    assert sample.size == again.size < full


def test_a_run_of_one_task_keeps_some_of_its_episodes(monkeypatch):
    assert 2 < len(sampled(crowd(tasks=1, times=60), 5_000).episodes) < 30
    monkeypatch.setattr(sampling, "TASK_EPISODES", 10)
    assert len(sampled(crowd(tasks=2, times=60), 10**7).episodes) == 20


def test_texts_are_shortened_and_say_so():
    assert short("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    assert short("x" * 10**6) == "x" * LONGEST_TEXT + f" […] ({10**6 - LONGEST_TEXT} more characters in the shard)"


def test_what_is_packed():
    one = episode(2, "a", (0.0, 1.25), invalid=(0,))
    packed = pack(Episode(one, targets_of(one, (0.123456, -2.0))), "rollouts")
    assert packed.texts == ("find the door of a", "room 0 of a", "right", "", "room 1 of a", "right", "right")
    assert packed.facts["valid"] == [0, 1] and packed.facts["rewards"] == [0.0, 1.25]
    assert packed.facts["values"] == [0.1235, -2.0]
    assert packed.facts["nats"] == [0.3, 0.3]  # (0.5 + 0.1) / 2
    assert packed.lists == (("left", "right"),) * 2
    assert "values" not in pack(Episode(one), "evaluation").facts


def test_small_things():
    assert (compact(0.000123456), compact(123456.0), compact(-1.0)) == (0.0001235, 123500.0, -1.0)
    assert nats_a_token(episode(1, "a").turns[0]) == pytest.approx(0.3)


def test_tables_hold_each_text_and_list_once():
    first, second = episode(1, "a", (0.0,)), episode(2, "a", (0.0,))
    tables = episode_tables([pack(Episode(first), "rollouts"), pack(Episode(second), "rollouts")])
    assert tables["texts"] == ["find the door of a", "room 0 of a", "right", "left"]
    assert tables["lists"] == [(3, 2)]
    texts, lists = tables["fields"].index("texts"), tables["fields"].index("lists")
    assert [(row[texts], row[lists]) for row in tables["rows"]] == [([0, 1, 2, 2], [0])] * 2
