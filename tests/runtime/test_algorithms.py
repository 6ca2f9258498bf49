"""What each algorithm makes of episodes: numbers by hand, and reductions of one to another."""

import dataclasses
import math
import random

import pytest

from env_adapters.base import Task
from runtime.algorithms import ALGORITHMS, algorithm_class
from runtime.algorithms.base import BASELINES, Episode, Settings
from runtime.records import RecordError, Scores, Trajectory, Turn
from runtime.targets import turn_advantages

SETTINGS = Settings(
    gamma=0.5, gae_lambda=0.8, c_inv=0.0, epsilon=1e-12, min_std=0.0, r_max=10.0, response_tokens=8
)  # fmt: skip


def turn(reward=0.0, valid=True, tokens=1, seen="here"):
    ids, logprobs = (5,) * tokens, (-0.5,) * tokens
    return Turn(seen, None, (3,), "go", ids, logprobs, "go", valid, reward, 0.0, 0.0)


def trajectory(task, sample, turns, status="terminated"):
    return Trajectory(
        task_id=task, sample=sample, split="train", task_type="x", goal="", iteration=1, seed=0, policy="p",
        temperature=1.0, status=status, success=False, score=0.0, turns=tuple(turns),
    )  # fmt: skip


def episode(task, sample, turns, scale=1.0, **scores):
    one = trajectory(task, sample, turns)
    n, k = sum(len(x.response_ids) for x in turns), len(turns)
    filled = {"old_logprobs": (-0.5,) * n, "ref_logprobs": None, "values": (0.0,) * k, "q_values": (0.0,) * k}
    return Episode(one, tuple(x.reward * scale for x in turns), Scores(key=one.key, **filled | scores))


def make(name, settings=SETTINGS, **options):
    kind = algorithm_class(name)
    return kind(kind.Options(**options), settings)


def advantages(estimates):
    return {one.key: list(one.advantages) for one in estimates.targets}


def random_group(seed, task="t", size=4, anchors="abcdefghijklmnopqrstuvwxyz"):
    rng = random.Random(seed)
    return [
        episode(
            task,
            sample,
            [
                turn(rng.choice([0.0, 0.0, 10.0]), rng.random() < 0.7, rng.randint(1, 3), rng.choice(anchors))
                for _ in range(rng.randint(1, 5))
            ],
        )
        for sample in range(size)
    ]


def test_every_algorithm_has_a_class_whose_options_have_defaults():
    for name in ALGORITHMS:
        algorithm = make(name)
        assert algorithm.samples >= 1 and algorithm.critic == (name == "ppo")


def test_sapo_is_equations_4_to_7():
    one = episode("t", 0, [turn(), turn(8.0)], values=(1.0, 3.0), q_values=(2.0, 4.0))
    (targets,) = make("sapo").estimate([one], []).targets
    # A_1 = 8 - 3 = 5, A_0 = 0.5 * 3 - 1 + 0.4 * 5 = 2.5; mean 3.75, deviation 1.25
    assert targets.raw_advantages == (2.5, 5.0) and targets.returns == (3.5, 8.0)
    assert targets.q_targets == (0.5 * 4.0, 8.0) and targets.advantages == pytest.approx((-1.0, 1.0))
    assert targets.values == (1.0, 3.0) and targets.q_values == (2.0, 4.0)
    (other,) = make("sapo", advantage="q_minus_v").estimate([one], []).targets
    assert other.raw_advantages == (1.0, 1.0) and other.advantages == (0.0, 0.0)  # 2 - 1, 4 - 3: no variance


def test_sapo_normalised_over_tokens_weighs_turns_by_their_length():
    one = episode("t", 0, [turn(0.0, tokens=1), turn(8.0, tokens=3)], values=(2.0, 4.0))
    (targets,) = make("sapo", normalise="tokens").estimate([one], []).targets
    # raw 0.5 * 4 - 2 + 0.4 * 4 = 1.6 and 4; over the tokens 1.6, 4, 4, 4: mean 3.4, variance (3.24 + 3 * 0.36) / 4
    spread = math.sqrt(1.08)
    assert targets.advantages == pytest.approx((-1.8 / spread, 0.6 / spread))


def test_grpo_by_hand_and_its_weights():
    group = [episode("t", 0, [turn(10.0, tokens=2)]), episode("t", 1, [turn(), turn(tokens=3)])]
    estimates = make("grpo", group_size=2).estimate(group, [])
    # returns 10 and 0, mean 5, sample deviation sqrt(50): 5 / sqrt(50) = 1 / sqrt(2)
    assert advantages(estimates) == {
        "t#0": pytest.approx([1 / math.sqrt(2)]),
        "t#1": pytest.approx([-1 / math.sqrt(2)] * 2),
    }
    # 2 and 4 tokens, 3 on average: weights 3 / 2 and 3 / 4, so that each trajectory counts 3 and all count 6
    assert [one.weight for one in estimates.targets] == [1.5, 0.75]
    by_token = make("grpo", group_size=2, mean="token").estimate(group, [])
    assert [one.weight for one in by_token.targets] == [1.0, 1.0]
    assert all(not one.values and not one.returns and not one.q_targets for one in by_token.targets)
    without = make("grpo", group_size=2, use_std=False).estimate(group, [])
    assert advantages(without) == {"t#0": [0.5], "t#1": [-0.5, -0.5]}  # 5 of r_max 10


def test_grpo_compares_within_tasks_only_and_counts_groups_without_variance():
    episodes = [episode("a", n, [turn(10.0 * n)]) for n in (0, 1)] + [episode("b", n, [turn(10.0)]) for n in (0, 1)]
    estimates = make("grpo", group_size=2).estimate(episodes, [])
    assert estimates.metrics["advantage/groups"] == 2 and estimates.metrics["advantage/groups_without_variance"] == 1
    assert advantages(estimates)["b#0"] == advantages(estimates)["b#1"] == [0.0]
    assert advantages(estimates)["a#1"] == [-x for x in advantages(estimates)["a#0"]]


def test_a_group_that_lost_all_but_one_is_not_trained():
    episodes = [episode("a", 0, [turn(10.0)]), episode("b", 0, [turn(10.0)]), episode("b", 1, [turn()])]
    assert sorted(advantages(make("grpo", group_size=2).estimate(episodes, []))) == ["b#0", "b#1"]


@pytest.mark.parametrize("name", ["grpo", "rloo", "dapo", "gigpo"])
def test_groups_of_one_are_refused_with_the_reason(name):
    with pytest.raises(ValueError, match="group_size = 1: must be >= 2, a trajectory alone has no group"):
        algorithm_class(name).Options(group_size=1)


def test_rloo_of_two_is_the_difference_in_units_of_r_max():
    group = [episode("t", 0, [turn(8.0)]), episode("t", 1, [turn(), turn(2.0)])]
    assert advantages(make("rloo", group_size=2).estimate(group, [])) == {"t#0": [0.6], "t#1": [-0.6, -0.6]}


def test_remax_is_against_the_greedy_return():
    settings = dataclasses.replace(SETTINGS, c_inv=1.0)
    sampled = [episode("t", 0, [turn(), turn(8.0, valid=False)]), episode("lost", 0, [turn(8.0)])]
    greedy = [Episode(trajectory("t", 1, [turn(), turn(2.0)]), (0.0, 2.0))]
    got = advantages(make("remax", settings).estimate(sampled, greedy))
    assert got == {"t#0": pytest.approx([0.6, 0.5])}  # (8 - 2) / 10, and one less of r_max 10 at the invalid turn


def test_remax_plays_a_greedy_episode_for_each_task():
    remax, tasks = make("remax"), [Task("a", "train", "x"), Task("b", "train", "x")]
    first = remax.next_sweep(tasks, [], list)
    second = remax.next_sweep(tasks, [[]], list)
    assert (first.prefix, first.greedy, [play.key for play in first.plays]) == ("", False, ["a#0", "b#0"])
    assert (second.prefix, second.greedy, [play.key for play in second.plays]) == (BASELINES, True, ["a#1", "b#1"])
    assert remax.next_sweep(tasks, [[], []], list) is None and remax.samples == 2


@pytest.mark.parametrize("seed", range(5))
def test_dapo_with_a_symmetric_clip_and_no_filtering_is_grpo_with_the_token_mean(seed):
    settings = dataclasses.replace(SETTINGS, c_inv=0.3)
    group = random_group(seed)
    dapo = make("dapo", settings, group_size=4, max_extra_rounds=0, clip_high=0.2)
    grpo = make("grpo", settings, group_size=4, mean="token")
    assert dapo.estimate(group, []).targets == grpo.estimate(group, []).targets
    trajectories = [one.trajectory for one in group]
    assert dapo.select(trajectories) == grpo.select(trajectories) and dapo.clip_high == 0.2
    tasks = [Task("t", "train", "x")]
    assert dapo.next_sweep(tasks, [], lambda n: []).plays == grpo.next_sweep(tasks, [], lambda n: []).plays
    assert dapo.next_sweep(tasks, [trajectories], lambda n: [Task("more", "train", "x")] * n) is None


def test_dapo_drops_flat_groups_and_plays_further_tasks_a_bounded_number_of_times():
    dapo = make("dapo", group_size=2, max_extra_rounds=2)
    tasks, others = [Task(x, "train", "x") for x in "ab"], [Task(x, "train", "x") for x in "cdefgh"]
    more = lambda n: others[:n]  # noqa: E731
    played = {"a": (10.0, 0.0), "b": (0.0, 0.0), "c": (10.0, 10.0), "d": (0.0, 10.0)}
    results = lambda *names: [trajectory(t, n, [turn(played[t][n])]) for t in names for n in (0, 1)]  # noqa: E731
    first = dapo.next_sweep(tasks, [], more)
    assert [play.key for play in first.plays] == ["a#0", "a#1", "b#0", "b#1"]
    assert first.may_hold == {f"{task}#{n}" for task in "cdef" for n in (0, 1)}  # two rounds of two at most
    second = dapo.next_sweep(tasks, [results("a", "b")], more)  # b is flat: one further task
    assert [play.task.task_id for play in second.plays[::2]] == ["a", "b", "c"]
    third = dapo.next_sweep(tasks, [results("a", "b"), results("a", "b", "c")], more)
    assert [play.task.task_id for play in third.plays[::2]] == ["a", "b", "c", "d"]
    everything = [results("a", "b"), results("a", "b", "c"), results("a", "b", "c", "d")]
    assert dapo.next_sweep(tasks, everything, more) is None  # a and d: as many groups as tasks, and the bound
    assert {one.task_id for one in dapo.select(everything[-1])} == {"a", "d"}
    still_flat = [results("b", "c"), results("b", "c", "c"), results("b", "c", "c")]
    assert dapo.next_sweep(tasks, still_flat, more) is None  # the bound of two rounds
    assert dapo.next_sweep(tasks, [results("a", "b")], lambda n: []) is None  # the split has no more


def test_dapo_counts_long_responses_against_a_trajectory():
    group = [episode("t", 0, [turn(10.0, tokens=7)]), episode("t", 1, [turn(10.0, tokens=1)])]
    # longest 8, buffer 4: 7 tokens cost 0.75 of 2: returns 8.5 and 10, mean 9.25
    dapo = make("dapo", group_size=2, overlong_buffer=4, overlong_coef=2.0, use_std=False)
    assert advantages(dapo.estimate(group, [])) == {"t#0": pytest.approx([-0.075]), "t#1": pytest.approx([0.075])}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("use_std", [True, False])
def test_gigpo_without_repeated_anchors_is_grpo(seed, use_std):
    group = [
        dataclasses.replace(
            one,
            trajectory=dataclasses.replace(
                one.trajectory,
                turns=tuple(
                    dataclasses.replace(x, observation=f"{one.trajectory.sample} {i}")
                    for i, x in enumerate(one.trajectory.turns)
                ),
            ),
        )
        for one in random_group(seed)
    ]
    gigpo = make("gigpo", group_size=4, use_std=use_std).estimate(group, [])
    grpo = make("grpo", group_size=4, use_std=use_std, mean="token").estimate(group, [])
    assert gigpo.targets == grpo.targets


def test_gigpo_adds_the_turn_level():
    group = [
        episode("t", 0, [turn(seen="door"), turn(8.0, seen="roof")]),
        episode("t", 1, [turn(seen="door"), turn(seen="hall")]),
    ]
    # whole: (8 - 4) / 10 and (0 - 4) / 10; at the door: returns 0.5 * 8 = 4 and 0, mean 2: (4 - 2) / 10 and -0.2
    got = advantages(make("gigpo", group_size=2, use_std=False, step_weight=0.5).estimate(group, []))
    assert got == {"t#0": pytest.approx([0.4 + 0.5 * 0.2, 0.4]), "t#1": pytest.approx([-0.4 - 0.5 * 0.2, -0.4])}


def test_ppo_with_turn_credit_reads_the_critic_at_the_first_token_of_each_turn():
    one = episode("t", 0, [turn(tokens=2), turn(8.0)], critic_values=(1.0, 99.0, 3.0))
    (targets,) = make("ppo").estimate([one], []).targets
    assert targets.values == (1.0, 3.0) and targets.raw_advantages == (2.5, 5.0) and targets.returns == (3.5, 8.0)
    assert targets.q_values == targets.q_targets == targets.token_returns == ()


def test_ppo_with_a_perfect_critic_credits_each_turn_with_what_it_changed():
    """Values equal to the expected return: the only advantage is at the turn whose outcome was not certain."""
    # a certain way to 8: V = 2, 4, 8 at gamma 0.5
    certain = episode("t", 0, [turn(), turn(), turn(8.0)], critic_values=(2.0, 4.0, 8.0))
    # at the second turn it was even odds whether the last is won: V = 0.5 * 2 = 1, 2, then 8 (won) or 0 (lost)
    won = episode("t", 1, [turn(), turn(), turn(8.0)], critic_values=(1.0, 2.0, 8.0))
    lost = episode("t", 2, [turn(), turn(), turn(0.0)], critic_values=(1.0, 2.0, 0.0))
    targets = make("ppo").estimate([certain, won, lost], []).targets
    assert targets[0].raw_advantages == (0.0, 0.0, 0.0)
    # at turn 1: 0.5 * 8 - 2 = 2 or 0 - 2; the turn before inherits gamma lambda = 0.4 of it
    assert targets[1].raw_advantages == pytest.approx((0.8, 2.0, 0.0))
    assert targets[2].raw_advantages == pytest.approx((-0.8, -2.0, 0.0))


def test_ppo_with_one_token_a_turn_is_the_same_for_both_credits():
    rng = random.Random(4)
    numbers = lambda: tuple(rng.random() for _ in range(4))  # noqa: E731
    episodes = [episode("t", n, [turn(10.0 * x) for x in numbers()], critic_values=numbers()) for n in range(3)]
    by_turn, by_token = (make("ppo", credit=credit).estimate(episodes, []) for credit in ("turn", "token"))
    for a, b in zip(by_turn.targets, by_token.targets, strict=True):
        assert a.advantages == pytest.approx(b.token_advantages) and a.returns == pytest.approx(b.token_returns)
        assert b.advantages == pytest.approx(b.token_advantages) and a.values == b.values == b.token_values


def test_vineppo_takes_the_mean_of_its_continuations():
    vine, task = make("vineppo", continuations=2), Task("t", "train", "x")
    one = episode("t", 0, [turn(seen="a"), turn(8.0, seen="b")])
    plan = vine.next_sweep([task], [[one.trajectory]], list)
    assert plan.prefix == BASELINES and vine.next_sweep([task], [[], []], list) is None
    assert [(play.sample, play.script) for play in plan.plays] == [
        (1, ()), (2, ()), (3, one.trajectory.turns[:1]), (4, one.trajectory.turns[:1])
    ]  # fmt: skip
    played = {1: [0.0, 8.0], 2: [0.0, 0.0, 8.0], 3: [0.0, 8.0], 4: [0.0, 0.0]}
    baselines = [Episode(trajectory("t", n, [turn(r) for r in own]), tuple(own)) for n, own in played.items()]
    (targets,) = vine.estimate([one], baselines).targets
    # V_0 = (0.5 * 8 + 0.25 * 8) / 2 = 3, V_1 = (8 + 0) / 2 = 4; A_1 = 8 - 4, A_0 = 0.5 * 4 - 3
    assert targets.values == (3.0, 4.0) and targets.raw_advantages == (-1.0, 4.0) and targets.returns == (2.0, 8.0)
    with pytest.raises(RecordError, match="every continuation from turn 1 ended in an error"):
        vine.estimate([one], baselines[:2])


def test_vineppo_is_turn_gae_with_lambda_0_on_its_values():
    one = episode("t", 0, [turn(), turn(), turn(8.0)])
    values = (1.5, 2.5, 7.0)
    baselines = [
        Episode(trajectory("t", 1 + t, [turn()]), (0.0,) * t + (value,)) for t, value in enumerate(values)
    ]  # fmt: skip
    (targets,) = make("vineppo").estimate([one], baselines).targets
    assert targets.values == values
    assert targets.raw_advantages == pytest.approx(turn_advantages(one.rewards, values, 0.5, 0.0).tolist())
