"""Packed tokens against rows one by one."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2Config

from runtime.row_cache import PACKED, Packing, RowCache, attending_packed, packed_attention

CPU = torch.device("cpu")


def test_packing_by_hand():
    packing = Packing([2, 1, 3], [3, 4, 5], CPU)  # a b | c | d e f
    assert packing.read == slice(3, 6)
    assert packing.slots.tolist() == [3, 3, 4, 5, 5, 5]
    assert packing.rows.tolist() == [0, 0, 1, 2, 2, 2]
    assert packing.columns.tolist() == [0, 1, 0, 0, 1, 2]
    assert packing.last.tolist() == [1, 2, 5]
    padded = packing.pad(torch.arange(1, 7))
    assert padded.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]
    assert packing.pack(padded).tolist() == [1, 2, 3, 4, 5, 6]
    dense = Packing([2, 2], [0, 1], CPU)
    assert dense.pad(torch.arange(4)).tolist() == [[0, 1], [2, 3]]
    assert dense.pack(torch.tensor([[0, 1], [2, 3]])).tolist() == [0, 1, 2, 3]


def test_a_decode_step_reads_over_two_rows_of_others_for_each_of_its_own():
    near = Packing([1, 1], [1, 6], CPU)  # of six rows two are ours
    assert near.read == slice(1, 7) and near.shape == (6, 1)
    padded = near.pad(torch.tensor([7, 8]))
    assert padded.tolist() == [[7], [0], [0], [0], [0], [8]]
    assert near.pack(padded).tolist() == [7, 8]
    far = Packing([1, 1], [1, 7], CPU)
    assert far.read.tolist() == far.slots.tolist() == [1, 7] and far.shape == (2, 1)


def test_prompts_read_their_own_rows_only():
    packing = Packing([2, 1], [1, 3], CPU)
    assert packing.read.tolist() == [1, 3] and packing.shape == (2, 2)
    assert packing.slots.tolist() == [1, 1, 3] and packing.rows.tolist() == [0, 0, 1]


@pytest.mark.parametrize("slots", [[1, 2, 3], [0, 2, 4], [0, 5, 10]])  # side by side, near and far
@pytest.mark.parametrize("held", [[0, 0, 0], [4, 0, 2]])
@pytest.mark.parametrize("lengths", [[2, 1, 3], [2, 2, 2], [1, 1, 1]])
def test_packed_attention_over_the_cache_equals_each_row_alone(slots, held, lengths):
    torch.manual_seed(0)
    heads, kv_heads, dim, num_slots = 4, 2, 8, 11
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": heads * dim}
    config = Qwen2Config(num_hidden_layers=1, **shape)
    cache = RowCache(config, num_slots, 7, torch.float32, CPU)
    cache.store.normal_()  # what older requests left behind, and what the rows hold
    before = cache.store.clone()
    packing = Packing(lengths, slots, CPU)
    past = torch.full((num_slots,), 6)  # others hold more than is read
    past[slots] = torch.tensor(held)
    positions = past[packing.slots] + packing.columns
    query = torch.randn(1, heads, sum(lengths), dim)
    key, value = torch.randn(2, 1, kv_heads, sum(lengths), dim)
    longest = int(positions.max()) + 1
    mask = None
    if past[packing.read].any():
        reach = past[packing.read, None] + torch.arange(packing.shape[1])
        mask = (torch.arange(longest) <= reach[:, :, None])[:, None]
    cache.expect(packing, positions, longest)
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = heads // kv_heads, True
    got, _ = packed_attention(module, query, *cache.update(key, value, 0), mask, packing, scaling=dim**-0.5)

    assert got.shape == (1, sum(lengths), heads, dim)
    for slot, length, past_length in zip(slots, lengths, held, strict=True):
        own = packing.slots == slot
        stored = before[0, :, slot, :, :past_length]
        keys, values = (torch.cat([old, new[0, :, own]], 1) for old, new in zip(stored, (key, value), strict=True))
        assert torch.equal(cache.store[0, 0, slot, :, : past_length + length], keys)
        assert torch.equal(cache.store[0, 1, slot, :, : past_length + length], values)
        for step, at in enumerate(own.nonzero()[:, 0]):
            seen = past_length + step + 1
            keys_of, values_of = (x[:, :seen].repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
            expected = scaled_dot_product_attention(query[0, :, at, None], keys_of, values_of)[:, 0]
            torch.testing.assert_close(got[0, at], expected)
    others = [slot for slot in range(num_slots) if slot not in slots]
    assert torch.equal(cache.store[:, :, others], before[:, :, others])  # they stay as they were


def test_a_model_attends_as_before_when_packing_has_ended():
    config = Qwen2Config(attn_implementation="eager")
    with pytest.raises(KeyError), attending_packed(config):
        assert config._attn_implementation == PACKED
        raise KeyError
    assert config._attn_implementation == "eager"
