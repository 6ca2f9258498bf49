from __future__ import annotations

import math
import random

import pytest
import torch

from runtime.targets import normalise_advantages, turn_targets


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_worked_by_hand():
    # gamma = 0.5, lambda = 0.8, three turns, r = 0, 0, 8; V = 2, 4, 6; Q = 1, 3, 5
    # delta_3 = 8 - 6 = 2                    A_3 = 2
    # delta_2 = 0 + .5*6 - 4 = -1            A_2 = -1 + .4*2 = -0.2
    # delta_1 = 0 + .5*4 - 2 = 0             A_1 = 0 + .4*(-.2) = -0.08
    # y^V = V + A = 1.92, 3.8, 8             y^Q = .5*3, .5*5, 8 = 1.5, 2.5, 8
    got = turn_targets(tensor(0, 0, 8), tensor(2, 4, 6), tensor(1, 3, 5), 0.5, 0.8)
    torch.testing.assert_close(got.advantages, tensor(-0.08, -0.2, 2.0), rtol=0, atol=1e-12)
    torch.testing.assert_close(got.returns, tensor(1.92, 3.8, 8.0), rtol=0, atol=1e-12)
    torch.testing.assert_close(got.q_targets, tensor(1.5, 2.5, 8.0), rtol=0, atol=1e-12)


def test_against_a_loop_over_the_definition():
    # A_t as the forward sum of (gamma lambda)^l delta_{t+l}, not the recursion of the function
    random.seed(1)
    for num_turns in (1, 2, 7, 50):
        r, v, q = ([random.uniform(-1, 1) for _ in range(num_turns)] for _ in range(3))
        gamma, lam = 0.95, 0.9
        got = turn_targets(tensor(*r), tensor(*v), tensor(*q), gamma, lam)
        for t in range(num_turns):
            total = 0.0
            for s in range(t, num_turns):
                bootstrap = gamma * v[s + 1] if s + 1 < num_turns else 0.0
                total += (gamma * lam) ** (s - t) * (r[s] + bootstrap - v[s])
            assert got.advantages[t].item() == pytest.approx(total, abs=1e-12)
            assert got.returns[t].item() == pytest.approx(v[t] + total, abs=1e-12)
            bootstrap = gamma * q[t + 1] if t + 1 < num_turns else 0.0
            assert got.q_targets[t].item() == pytest.approx(r[t] + bootstrap, abs=1e-12)


def test_lambda_one_is_the_plain_discounted_return_whatever_the_values():
    r = tensor(1, 0, 2, 10)
    plain = [1 + 0.9**2 * 2 + 0.9**3 * 10, 0.9 * 2 + 0.9**2 * 10, 2 + 0.9 * 10, 10]
    for v in (tensor(0, 0, 0, 0), tensor(3, -1, 4, 1)):
        torch.testing.assert_close(turn_targets(r, v, v, 0.9, 1.0).returns, tensor(*plain), rtol=0, atol=1e-12)


def test_lambda_zero_is_the_one_step_error():
    got = turn_targets(tensor(1, 2), tensor(5, 3), tensor(0, 0), 0.9, 0.0)
    torch.testing.assert_close(got.advantages, tensor(1 + 0.9 * 3 - 5, 2 - 3), rtol=0, atol=1e-12)


def test_the_last_turn_bootstraps_nothing():
    got = turn_targets(tensor(0.0), tensor(4.0), tensor(9.0), 0.95, 0.95)
    assert got.advantages.tolist() == [-4.0] and got.returns.tolist() == [0.0] and got.q_targets.tolist() == [0.0]


def test_q_does_not_steer_the_advantage():
    first = turn_targets(tensor(0, 1), tensor(1, 2), tensor(0, 0), 0.9, 0.9)
    second = turn_targets(tensor(0, 1), tensor(1, 2), tensor(7, -7), 0.9, 0.9)
    assert torch.equal(first.advantages, second.advantages)


@pytest.mark.parametrize(
    ("r", "v", "q"),
    [((), (), ()), ((1,), (1, 2), (1,)), ((math.nan,), (0,), (0,)), ((0,), (math.inf,), (0,))],
)
def test_bad_input_is_refused(r, v, q):
    with pytest.raises(ValueError, match="must be"):
        turn_targets(tensor(*r), tensor(*v), tensor(*q), 0.9, 0.9)


def test_normalisation_worked_by_hand():
    # A = 1, 3, 5, 7 with turns 2 and 4 invalid, c_inv = 2: 1, 1, 5, 5; mu = 3, sigma = 2, eps = 0.5
    # (A - 3) / 2.5 = -.8, -.8, .8, .8
    invalid = torch.tensor([False, True, False, True])
    got, stats = normalise_advantages(tensor(1, 3, 5, 7), invalid, 2.0, 0.5)
    torch.testing.assert_close(got, tensor(-0.8, -0.8, 0.8, 0.8), rtol=0, atol=1e-12)
    assert (stats.num_turns, stats.mean, stats.std) == (4, 3.0, 2.0)
    assert not stats.zero_variance and not stats.floored


def test_normalised_batch_has_mean_zero_and_population_deviation_one():
    torch.manual_seed(0)
    raw = 3 + 5 * torch.randn(1000, dtype=torch.float64)
    got, _ = normalise_advantages(raw, torch.zeros(1000, dtype=torch.bool), 0.1, 1e-9)
    assert got.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert got.square().mean().item() == pytest.approx(1.0, abs=1e-8)
    shifted, _ = normalise_advantages(2 * raw + 7, torch.zeros(1000, dtype=torch.bool), 0.1, 1e-9)
    torch.testing.assert_close(shifted, got, rtol=0, atol=1e-8)  # scale and shift do not matter


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-9])
@pytest.mark.parametrize("num_turns", [1, 3, 1000])
def test_a_batch_without_variance_gives_exact_zeros(value, num_turns):
    raw = torch.full((num_turns,), value, dtype=torch.float64)
    got, stats = normalise_advantages(raw, torch.zeros(num_turns, dtype=torch.bool), 0.1, 1e-12)
    assert got.tolist() == [0.0] * num_turns
    assert stats.zero_variance


def test_the_floor_stands_in_for_a_small_deviation():
    # sigma = 1e-3 below min_std = 0.5: (0.001) / (0.5 + 0) = 0.002
    got, stats = normalise_advantages(tensor(-0.001, 0.001), torch.zeros(2, dtype=torch.bool), 0.0, 1e-15, 0.5)
    torch.testing.assert_close(got, tensor(-0.002, 0.002), rtol=0, atol=1e-12)
    assert stats.floored and not stats.zero_variance and stats.std == pytest.approx(0.001)


def test_normalisation_refuses_shapes_that_differ():
    with pytest.raises(ValueError, match="one length"):
        normalise_advantages(tensor(1, 2), torch.zeros(1, dtype=torch.bool), 0.1, 1e-6)
