"""Packed tokens against rows one by one."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2Config

from runtime.row_cache import PACKED, Packing, RowCache, attending_packed, packed_attention

CPU = torch.device("cpu")


def test_packing_by_hand():
    packing = Packing([2, 1, 3], CPU)  # a b | c | d e f
    assert packing.rows.tolist() == [0, 0, 1, 2, 2, 2]
    assert packing.columns.tolist() == [0, 1, 0, 0, 1, 2]
    assert packing.last.tolist() == [1, 2, 5]
    padded = packing.pad(torch.arange(1, 7))
    assert padded.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]
    assert packing.pack(padded).tolist() == [1, 2, 3, 4, 5, 6]
    dense = Packing([2, 2], CPU)
    assert dense.pad(torch.arange(4)).tolist() == [[0, 1], [2, 3]]
    assert dense.pack(torch.tensor([[0, 1], [2, 3]])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("held", [[0, 0, 0], [4, 0, 2]])
@pytest.mark.parametrize("lengths", [[2, 1, 3], [2, 2, 2], [1, 1, 1]])
def test_packed_attention_over_the_cache_equals_each_row_alone(held, lengths):
    torch.manual_seed(0)
    heads, kv_heads, dim, slots, first, n = 4, 2, 8, 5, 1, 3
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": heads * dim}
    config = Qwen2Config(num_hidden_layers=1, **shape)
    cache = RowCache(config, slots, 7, torch.float32, CPU)
    cache.store.normal_()  # what older requests left behind, and what the rows hold
    before = cache.store.clone()
    packing = Packing(lengths, CPU)
    past = torch.tensor(held)
    positions = past[packing.rows] + packing.columns
    query = torch.randn(1, heads, sum(lengths), dim)
    key, value = torch.randn(2, 1, kv_heads, sum(lengths), dim)
    longest = int(positions.max()) + 1
    mask = None
    if any(held):
        reach = past[:, None] + torch.arange(packing.shape[1])
        mask = (torch.arange(longest) <= reach[:, :, None])[:, None]
    cache.expect(first, first + n, longest, packing.rows, positions)
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = heads // kv_heads, True
    got, _ = packed_attention(module, query, *cache.update(key, value, 0), mask, packing, scaling=dim**-0.5)

    assert got.shape == (1, sum(lengths), heads, dim)
    for row in range(n):
        own = packing.rows == row
        stored = before[0, :, first + row, :, : held[row]]
        keys, values = (torch.cat([old, new[0, :, own]], 1) for old, new in zip(stored, (key, value), strict=True))
        assert torch.equal(cache.store[0, 0, first + row, :, : held[row] + lengths[row]], keys)
        assert torch.equal(cache.store[0, 1, first + row, :, : held[row] + lengths[row]], values)
        for step, at in enumerate(own.nonzero()[:, 0]):
            seen = held[row] + step + 1
            keys_of, values_of = (x[:, :seen].repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
            expected = scaled_dot_product_attention(query[0, :, at, None], keys_of, values_of)[:, 0]
            torch.testing.assert_close(got[0, at], expected)
    assert torch.equal(cache.store[:, :, [0, 4]], before[:, :, [0, 4]])  # other rows stay as they were


def test_a_model_attends_as_before_when_packing_has_ended():
    config = Qwen2Config(attn_implementation="eager")
    with pytest.raises(KeyError), attending_packed(config):
        assert config._attn_implementation == PACKED
        raise KeyError
    assert config._attn_implementation == "eager"
