"""The one pass over the episodes of a run."""

import random

import pytest

from pipeline.inspect.reading import open_run
from pipeline.report.gathering import Reservoir, Sums, gather, pairs_of, split
from pipeline.report.sampling import Sample
from tests.made_run import add_iteration, episode, make_run, targets_of


def test_sums_of_an_iteration_by_hand():
    sums = Sums()
    sums.add(episode(1, "a", (0.0, 2.0, 1.0), invalid=(0, 2)))  # return 3, 3 turns, 2 invalid
    sums.add(episode(1, "b", (0.0, 1.0)))  # return 1, 2 turns, 0 invalid, won
    sums.add(episode(1, "c", (5.0,), status="error"))
    assert sums == Sums(
        episodes=2, errors=1, successes=2, rewards=4.0, rewards_squared=9.0 + 1.0, turns=5, turns_squared=9 + 4,
        invalid=2, invalid_squared=4, invalid_turns=2 * 3,
    )  # fmt: skip


def test_returns_are_the_plain_discounted_ones():
    one = episode(1, "a", (1.0, 0.0, 4.0))
    pairs = pairs_of(one, targets_of(one, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)), gamma=0.5, scale=2.0)
    # R_2 = 2*4 = 8, R_1 = 0 + 8/2 = 4, R_0 = 2*1 + 4/2 = 4
    assert list(pairs.returns) == [4.0, 4.0, 8.0]
    assert (list(pairs.values), list(pairs.q_values)) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])


def test_parts_are_consecutive_and_cover_the_run():
    ends = [(part.first, part.last) for part in split(list(range(1, 11)))]
    assert ends == [(1, 2), (3, 5), (6, 7), (8, 10)]  # cuts at 10*1//4 = 2, 10*2//4 = 5, 10*3//4 = 7
    assert [(part.first, part.last) for part in split([4, 5])] == [(4, 4), (5, 5)]
    assert split([]) == []


def test_a_reservoir_is_uniform():
    counts = [0] * 10
    for seed in range(4000):
        reservoir = Reservoir(3, _draw=random.Random(seed))
        for number in range(10):
            reservoir.add(number)
        assert reservoir.seen == 10 and len(set(reservoir.kept)) == 3
        for number in reservoir.kept:
            counts[number] += 1
    # each is kept in 3/10 of 4000 trials: 1200, standard deviation sqrt(4000 * .3 * .7) = 29; five of them
    assert all(abs(count - 1200) < 145 for count in counts)


def test_a_run_is_counted_whole_whatever_the_sample(tmp_path):
    run = open_run(make_run(tmp_path / "x").root)
    everything, nothing = gather(run, Sample(10**6)), gather(run, Sample(0))
    assert everything.sums == nothing.sums
    assert everything.num_episodes == nothing.num_episodes == 6 * 8 + 2 * 16
    assert (len(everything.sample.episodes), len(nothing.sample.episodes)) == (80, 0)
    assert everything.sums[4].successes == 4 and everything.sums[4].invalid == 1
    assert sum(part.reservoir.seen for part in everything.parts) == 48


@pytest.mark.parametrize("missing", ["targets.jsonl", "manifest.json"])
def test_a_run_that_is_going_on_has_less_to_show(tmp_path, missing):
    paths = make_run(tmp_path / "x", iterations=2)
    (paths.advantages(2) / missing).unlink()
    gathered = gather(open_run(paths.root), Sample(10**6))
    assert gathered.num_episodes == 2 * 8 + 32
    assert sum(part.reservoir.seen for part in gathered.parts) == (8 if missing == "targets.jsonl" else 16)


def test_errors_are_shown_and_not_counted(tmp_path):
    paths = make_run(tmp_path / "x", iterations=1)
    add_iteration(paths, 2, [episode(2, "a"), episode(2, "b", (), status="error", error="the door is stuck", turns=())])
    gathered = gather(open_run(paths.root), Sample(10**6))
    assert (gathered.sums[2].episodes, gathered.sums[2].errors) == (1, 1)
    assert "the door is stuck" in [one.facts["error"] for one in gathered.sample.episodes]
