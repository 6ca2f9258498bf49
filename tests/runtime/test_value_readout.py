from __future__ import annotations

import pytest
import torch

from runtime.value_readout import normalised_readout, readout, saturated


def test_worked_numbers():
    # tau_v = 2: margins 1, -0.5, 3, -8 -> 0.5, -0.25, clip(1.5) = 1, clip(-4) = -1; times r_max = 10
    margins = torch.tensor([1.0, -0.5, 3.0, -8.0])
    assert normalised_readout(margins, 2.0).tolist() == [0.5, -0.25, 1.0, -1.0]
    assert readout(margins, 10.0, 2.0).tolist() == [5.0, -2.5, 10.0, -10.0]
    assert saturated(margins, 2.0).tolist() == [False, False, True, True]


def test_equal_rows_give_zero():
    assert readout(torch.zeros(3), 10.0, 0.1).tolist() == [0.0, 0.0, 0.0]


def test_gradient_inside_the_range_is_one_over_the_temperature():
    margins = torch.tensor([0.2, -0.3, 0.0], requires_grad=True)
    (normalised_readout(margins, 0.5) * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
    assert margins.grad.tolist() == [2.0, -4.0, 6.0]


@pytest.mark.parametrize("margin", [-3.0, -1.5, 1.5, 3.0])
@pytest.mark.parametrize("upstream", [-0.7, 0.7])
def test_outside_the_range_gradient_flows_iff_descent_moves_the_readout_inwards(margin, upstream):
    x = torch.tensor([margin], requires_grad=True)
    (upstream * normalised_readout(x, 1.0)).sum().backward()
    descended = margin - 0.1 * upstream  # where plain gradient descent without a clip would go
    inwards = abs(descended) < abs(margin)
    assert x.grad.item() == pytest.approx(upstream if inwards else 0.0, abs=1e-7)


def test_a_squared_error_pulls_a_saturated_readout_back_and_never_further_out():
    x = torch.tensor([2.0, 2.0, -2.0, -2.0], requires_grad=True)
    y = torch.tensor([0.5, 1.0, -0.5, -1.0])  # targets inside, or at the very bound
    (0.5 * (normalised_readout(x, 1.0) - y).square()).sum().backward()
    assert x.grad.tolist() == [0.5, 0.0, -0.5, 0.0]


def test_at_the_bound_the_gradient_passes_both_ways():
    x = torch.tensor([1.0, 1.0, -1.0, -1.0], requires_grad=True)
    (normalised_readout(x, 1.0) * torch.tensor([1.0, -1.0, 1.0, -1.0])).sum().backward()
    assert x.grad.tolist() == [1.0, -1.0, 1.0, -1.0]
