import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from runtime.weight_files import ModelFilesError, RowEdit, read_weight_file, read_weights, rewrite_rows


@pytest.fixture
def path(tmp_path):
    torch.manual_seed(0)
    tensors = {
        "norm": torch.randn(3, dtype=torch.float16),
        "embedding": torch.randn(5, 4).bfloat16(),
        "matrix": torch.randn(2, 3),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path / "model.safetensors"


def test_header_agrees_with_the_library(path):
    """bf16 [5, 4]: 40 bytes, 8 a row."""
    file = read_weight_file(path)
    with safe_open(path, "pt") as opened:
        assert set(file.tensors) == set(opened.keys()) and file.metadata == opened.metadata()
        assert all(list(file.tensors[name].shape) == opened.get_slice(name).get_shape() for name in opened.keys())
    assert file.tensors["embedding"].row_bytes == 8
    assert sum(entry.end - entry.start for entry in file.tensors.values()) == 6 + 40 + 24 + 8 + 0 + 3


def test_rewriting_changes_the_named_rows_only(path):
    """Rows 5..7 are new and hold the fill; rows 1 and 6 are zero."""
    before, target = load_file(path), path.with_name("new.safetensors")
    fill = torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16()
    edit = RowEdit(
        num_rows=8,
        fill=fill.view(torch.uint8).numpy().tobytes(),
        rows=dict.fromkeys((1, 6), bytes(fill.numel() * fill.element_size())),
    )
    rewrite_rows(read_weight_file(path), target, {"embedding": edit})
    after = load_file(target)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before if name != "embedding")
    zero = torch.zeros(4).bfloat16()
    old = before["embedding"]
    assert torch.equal(after["embedding"], torch.stack([old[0], zero, old[2], old[3], old[4], fill, zero, fill]))
    with safe_open(target, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert read_weight_file(target).tensors["norm"].end <= target.stat().st_size


def test_an_edit_without_change_copies_every_tensor(path):
    target = path.with_name("new.safetensors")
    rewrite_rows(read_weight_file(path), target, {"embedding": RowEdit(5, b"", {})})
    before, after = load_file(path), load_file(target)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_file_cut_at_any_byte_is_refused(path):
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(ModelFilesError, match="model.safetensors.*copy the model again"):
            read_weight_file(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ModelFilesError, match="its header speaks of"):
        read_weight_file(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{}x",
        b"[1]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1]}}',
        b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, '  # overlaps the next
        b'"b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}',
        b"\xff\xfe{}",
    ],
)
def test_a_damaged_header_is_refused(tmp_path, header):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(6))
    with pytest.raises(ModelFilesError, match="model.safetensors"):
        read_weight_file(path)


@pytest.mark.parametrize(
    "index", ['{"weight_map": {}}', "[]", '{"weight_map": {"a": 3}}', "{", '{"weight_map": {"a": "../x"}}', "{}"]
)
def test_a_damaged_index_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFilesError, match="index.json"):
        read_weights(tmp_path)


def test_the_single_file_comes_before_an_index_as_in_transformers(path):
    index = {"weight_map": {"x": "missing.safetensors"}}
    path.with_name("model.safetensors.index.json").write_text(json.dumps(index))
    assert [file.path for file in read_weights(path.parent)] == [path]
