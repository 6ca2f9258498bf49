import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime.seeding import permutation, seed_from_names, trajectory_seed, uniforms

ROOT = Path(__file__).resolve().parents[2]


def test_seed_is_the_documented_hash():
    import hashlib

    # type, length and text of each name: "int:1:7" then "str:4:task"
    expected = hashlib.blake2b(b"int:1:7str:4:task", digest_size=8).digest()
    assert seed_from_names(7, "task") == int.from_bytes(expected, "little")


def test_names_do_not_run_together():
    seeds = {
        seed_from_names(0, "ab", "c"),
        seed_from_names(0, "a", "bc"),
        seed_from_names(0, "abc"),
        seed_from_names(0, "1"),
        seed_from_names(0, 1),
        seed_from_names(1, 0),
        seed_from_names(0, "a", ""),
        seed_from_names(0, "a"),
    }
    assert len(seeds) == 8


def test_other_types_are_refused():
    for bad in (1.0, None, True, b"x"):
        with pytest.raises(TypeError):
            seed_from_names(0, bad)


def test_same_numbers_in_another_process_with_another_hash_seed():
    code = "from runtime.seeding import permutation, uniforms as u;"
    code += "print(u(3, 2, 'train/heat-1', 0, 4, 3).tolist(), permutation(3, 'x', n=5).tolist())"
    here = f"{uniforms(3, 2, 'train/heat-1', 0, 4, 3).tolist()} {permutation(3, 'x', n=5).tolist()}\n"
    for hash_seed in ("0", "1"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout == here


def test_uniforms_depend_on_every_name_and_prefix_holds():
    base = uniforms(0, 1, "a", 0, 0, 8)
    assert base.dtype == np.float64 and base.shape == (8,)
    for other in [(1, 1, "a", 0, 0), (0, 2, "a", 0, 0), (0, 1, "b", 0, 0), (0, 1, "a", 1, 0), (0, 1, "a", 0, 1)]:
        assert not np.intersect1d(base, uniforms(*other, 8)).size
    np.testing.assert_array_equal(base, uniforms(0, 1, "a", 0, 0, 20)[:8])
    assert trajectory_seed(0, 1, "a", 0) != trajectory_seed(0, "1", "a", 0)


def test_uniforms_are_uniform():
    draws = np.concatenate([uniforms(0, 1, f"t{i}", 0, 0, 10) for i in range(1000)])
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    # chi-square with 19 degrees of freedom: 43.8 is its 99.9 % point
    assert ((counts - 500) ** 2 / 500).sum() < 43.8


def test_permutation_is_one_and_differs_by_name():
    order = permutation(0, "epoch", 0, n=100)
    assert sorted(order.tolist()) == list(range(100))
    assert order.tolist() != permutation(0, "epoch", 1, n=100).tolist()
    assert permutation(0, "epoch", 0, n=0).tolist() == []
