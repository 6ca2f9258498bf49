"""Last hidden states at some positions: those of a whole forward, and no feed-forward for the others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from runtime.hidden_states import hidden_states_at
from tests.tiny_policies import VOCABULARY, causal_lm

IDS = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 2, 2, 2]])
WANTED = torch.tensor([4, 5, 1, 8, 4])  # of 12; one of them twice


def at_wanted(decoder, ids=IDS, wanted=WANTED):
    return hidden_states_at(decoder, wanted, input_ids=ids, use_cache=False)


def whole(decoder, ids=IDS):
    return decoder(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@contextmanager
def feed_forwards(model) -> Iterator[list[list[int]]]:
    """Positions that each block's feed-forward works on, a list a call."""
    seen: list[list[int]] = [[] for _ in model.get_decoder().layers]
    handles = [
        block.mlp.up_proj.register_forward_pre_hook(lambda _, args, own=own: own.append(args[0].shape[:-1].numel()))
        for block, own in zip(model.get_decoder().layers, seen, strict=True)
    ]
    yield seen
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_states_and_gradients_are_those_of_a_whole_forward(family):
    model, weights = causal_lm(family), torch.linspace(-1, 1, 16)
    expected = whole(model.get_decoder())[WANTED]
    wanted_gradients = gradients(model, (expected.square() @ weights).sum())
    with feed_forwards(model) as seen:
        got = at_wanted(model.get_decoder())
    assert seen == [[12], [4]]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    for name, gradient in gradients(model, (got.square() @ weights).sum()).items():
        torch.testing.assert_close(gradient, wanted_gradients[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_forward_of_someone_else_is_whole():
    model = causal_lm()
    expected = whole(model.get_decoder())
    at_wanted(model.get_decoder())
    with feed_forwards(model) as seen:
        assert torch.equal(whole(model.get_decoder()), expected)
    assert seen == [[12], [12]]


def test_all_positions():
    model = causal_lm()
    with feed_forwards(model) as seen:
        got = at_wanted(model.get_decoder(), wanted=torch.arange(12))
    assert seen == [[12], [12]]
    assert torch.equal(got, whole(model.get_decoder()))


def test_recomputed_activations_are_of_their_own_forward():
    """Another forward comes before the backward of the first: its positions must not take their place."""
    model = causal_lm()
    expected = gradients(model, at_wanted(model.get_decoder()).square().sum())
    model.train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    first = at_wanted(model.get_decoder())
    at_wanted(model.get_decoder(), wanted=torch.tensor([0, 7]))
    for name, gradient in gradients(model, first.square().sum()).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_copy_of_a_model_reads_its_own_weights():
    model = causal_lm()
    at_wanted(model.get_decoder())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_decoder().layers[-1].mlp.down_proj.weight.mul_(2)
    torch.testing.assert_close(at_wanted(other.get_decoder()), whole(other.get_decoder())[WANTED], rtol=0, atol=1e-6)
    assert not torch.allclose(at_wanted(model.get_decoder()), at_wanted(other.get_decoder()))


def test_a_block_of_another_kind_computes_all():
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    decoder = GPTNeoXForCausalLM(config).eval().get_decoder()
    assert torch.equal(at_wanted(decoder), whole(decoder)[WANTED])
