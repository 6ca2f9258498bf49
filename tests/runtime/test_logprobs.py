from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.logprobs import LOGIT_BUDGET, action_log_softmax, action_logprobs, chunk_size, value_margins

BANNED = torch.tensor([2, 3])


def test_worked_by_hand():
    # hidden 1, weights = logits: ln 3, 0, and the value tokens 99 and -5, which count for nothing
    # T = 1: pi = 3/4, 1/4; H = -(3/4 ln 3/4 + 1/4 ln 1/4) = 0.562335
    weight = torch.tensor([[math.log(3)], [0.0], [99.0], [-5.0]])
    hidden, ids = torch.ones(2, 1), torch.tensor([0, 1])
    logprobs, entropies = action_logprobs(hidden, weight, ids, BANNED, 1.0)
    assert logprobs.tolist() == pytest.approx([math.log(3 / 4), math.log(1 / 4)], abs=1e-6)
    assert entropies.tolist() == pytest.approx([0.562335, 0.562335], abs=1e-6)
    # T = 0.5: logits doubled, pi = 9/10, 1/10
    logprobs, _ = action_logprobs(hidden, weight, ids, BANNED, 0.5)
    assert logprobs.tolist() == pytest.approx([math.log(0.9), math.log(0.1)], abs=1e-6)
    assert value_margins(torch.tensor([[1.0], [0.5]]), weight, BANNED).tolist() == [104.0, 52.0]  # no temperature


def plain(hidden, weight, ids, temperature):
    """Full logits, autograd, the value tokens' columns left out by hand."""
    keep = [i for i in range(weight.shape[0]) if i not in BANNED.tolist()]
    log_pi = (hidden @ weight[keep].t() / temperature).log_softmax(1)
    columns = torch.tensor([keep.index(i) for i in ids.tolist()])
    return log_pi.gather(1, columns[:, None]).squeeze(1), -(log_pi.exp() * log_pi).sum(1)


@pytest.mark.parametrize("chunk", [1, 3, 10, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunks_equal_full_logits_forward_and_gradient(chunk, temperature):
    torch.manual_seed(0)
    weight, hidden = torch.randn(23, 8), torch.randn(10, 8)
    ids = torch.tensor([0, 1, 4, 5, 22, 6, 7, 0, 1, 9])
    upstream = torch.randn(2, 10)
    results = []
    for function in (
        lambda h, w: plain(h, w, ids, temperature),
        lambda h, w: action_logprobs(h, w, ids, BANNED, temperature, chunk),
    ):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logprobs, entropies = function(h, w)
        (upstream[0] * logprobs + upstream[1] * entropies).sum().backward()
        results.append((logprobs.detach(), entropies.detach(), h.grad, w.grad))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)
    assert torch.count_nonzero(results[1][3][BANNED]) == 0  # the value rows get nothing from the policy


def test_the_value_rows_get_their_gradient_from_the_margins():
    weight = torch.randn(5, 3, requires_grad=True)
    hidden = torch.randn(2, 3)
    value_margins(hidden, weight, torch.tensor([4, 1])).sum().backward()
    total = hidden.sum(0)
    torch.testing.assert_close(weight.grad[4], total)
    torch.testing.assert_close(weight.grad[1], -total)
    assert torch.count_nonzero(weight.grad[[0, 2, 3]]) == 0


def test_extreme_logits_stay_finite():
    weight = torch.tensor([[1e4], [-1e4], [3e4], [-3e4], [0.0]], requires_grad=True)
    hidden = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    logprobs, entropies = action_logprobs(hidden, weight, torch.tensor([1, 4]), BANNED, 0.1)
    (logprobs.sum() + entropies.sum()).backward()
    assert logprobs.tolist() == [-2e5, -1e5] and entropies.tolist() == [0.0, 0.0]
    assert torch.isfinite(hidden.grad).all() and torch.isfinite(weight.grad).all()


def test_no_positions():
    weight, hidden = torch.randn(6, 3, requires_grad=True), torch.zeros(0, 3, requires_grad=True)
    logprobs, entropies = action_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64), BANNED, 1.0)
    (logprobs.sum() + entropies.sum()).backward()
    assert logprobs.shape == (0,) and torch.count_nonzero(weight.grad) == 0


def test_the_distribution_sums_to_one_without_the_value_tokens():
    log_pi = action_log_softmax(torch.randn(4, 9), BANNED, 0.7)
    torch.testing.assert_close(log_pi.exp().sum(1), torch.ones(4))
    assert torch.isneginf(log_pi[:, BANNED]).all()


class LargestLogits(TorchDispatchMode):
    """Remembers the most rows that any tensor with a vocabulary-sized last dimension had."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and x.ndim >= 2 and x.shape[-1] == self.vocabulary:
                self.rows = max(self.rows, x.numel() // self.vocabulary)
        return result


def test_at_most_one_chunk_of_logits_exists_at_a_time():
    weight, hidden = torch.randn(101, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    with LargestLogits(101) as seen:
        logprobs, entropies = action_logprobs(hidden, weight, torch.full((50,), 7), BANNED, 1.0, chunk=8)
        (logprobs.sum() + entropies.sum()).backward()
    assert seen.rows == 8


def test_chunk_size_keeps_the_budget():
    assert chunk_size(151_936) * 151_936 <= LOGIT_BUDGET < (chunk_size(151_936) + 1) * 151_936
    assert chunk_size(10**9) == 16
