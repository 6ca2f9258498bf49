"""Goals: which a product gives, their price limits, the shuffle, the splits and what keeps them apart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from env_adapters.base import EnvironmentFault
from env_adapters.webshop.catalogue import generate
from env_adapters.webshop.goals import (
    LEFT_OUT,
    NO_LIMIT,
    SPLITS,
    GoalList,
    assign_splits,
    check_splits,
    ensure_goals,
    split_sizes,
    wishes,
)
from env_adapters.webshop.products import Instruction, Product
from env_adapters.webshop.store import ensure_store

SHIRT = Product(
    "B1", "Shirt", "fashion", "shirts", "A › B", "", (), (15.0,), {"size": ("s", "l"), "color": ("red", "tan")},
    ("soft",), (Instruction("i want a soft shirt.", ("soft",), ("red", "s")), Instruction("any shirt", ())),
    Instruction("Find me a soft shirt", ("soft",)),
)  # fmt: skip


def test_human_wishes():
    """Full stops at the ends go; an instruction without attributes is none."""
    assert [(words, options) for words, _, options in wishes(SHIRT, "human")] == [("i want a soft shirt", ["red", "s"])]


def test_synthetic_wishes_are_all_combinations_with_option_names_sorted():
    found = [(words, options) for words, _, options in wishes(SHIRT, "synthetic")]
    lead = "Find me a soft shirt with color:"
    assert found == [
        (f"{lead} red, and size: s", {"color": "red", "size": "s"}),
        (f"{lead} red, and size: l", {"color": "red", "size": "l"}),
        (f"{lead} tan, and size: s", {"color": "tan", "size": "s"}),
        (f"{lead} tan, and size: l", {"color": "tan", "size": "l"}),
    ]
    plain = replace(SHIRT, options={})
    assert [words for words, _, _ in wishes(plain, "synthetic")] == ["Find me a soft shirt"]
    assert list(wishes(replace(SHIRT, synthetic_instruction=None), "synthetic")) == []


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(3000, (500, 1000)), (12_000, (500, 1000)), (2999, (499, 999)), (600, (100, 200)), (6, (1, 2)), (2, (0, 0))],
)
def test_split_sizes(count, sizes):
    assert split_sizes(count) == sizes


def names(splits):
    return Counter("left out" if split == LEFT_OUT else SPLITS[split] for split in splits)


def test_splits_by_position():
    """12 goals: 2 test, 4 dev, 6 train, of which the warm start gets at most a third."""
    words = [bytes([number]) for number in range(12)]
    splits = assign_splits(words, warm_start=100)
    assert [SPLITS[split] for split in splits] == ["test"] * 2 + ["dev"] * 4 + [
        "warm_start", "train", "train", "warm_start", "train", "train",
    ]  # fmt: skip
    assert names(assign_splits(words, 1)) == {"test": 2, "dev": 4, "train": 5, "warm_start": 1}
    assert names(assign_splits(words, 0)) == {"test": 2, "dev": 4, "train": 6}


def test_an_instruction_stays_in_the_split_that_has_it_first():
    words = [bytes([letter]) for letter in b"abcadfghhjbk"]  # a: test and dev; b: test and train; h: twice in train
    splits = assign_splits(words, 0)
    assert [int(position) for position in np.flatnonzero(splits == LEFT_OUT)] == [3, 10]
    check_splits(words, splits)
    moved = assign_splits([bytes([letter]) for letter in b"abcdefhhhhhh"], 1)
    assert names(moved) == {"test": 2, "dev": 4, "warm_start": 6}  # the same words go to one split together
    splits[3] = SPLITS.index("dev")
    with pytest.raises(EnvironmentFault, match="goal 3: its instruction is in dev and test; .* prepare again"):
        check_splits(words, splits)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("goals") / "products"
    return ensure_store(folder, {}, lambda: generate("full", 300, 6, 0))


@pytest.mark.parametrize("kind", ["human", "synthetic"])
def test_no_goal_and_no_instruction_is_in_two_splits(store, tmp_path, kind):
    """Also not with another price limit."""
    goals = ensure_goals(tmp_path / "goals", store, kind, 0, 50)
    goals.check()
    owner, ids = {}, set()
    for split in SPLITS:
        for task in goals.tasks(split):
            goal = goals.goal(task.payload["goal"])
            words = goal.instruction.split(", and price lower")[0]
            assert owner.setdefault(words, split) == split
            ids.add(task.task_id)
            assert task.task_type == goal.category and task.split == split
    assert len(ids) + goals.num_left_out == len(goals)
    assert all(len(goals.tasks(split)) for split in SPLITS)


def test_goals_are_the_same_in_every_process_and_shuffled_as_published(store, tmp_path):
    goals = ensure_goals(tmp_path / "one", store, "human", 0, 50)
    again = ensure_goals(tmp_path / "two", store, "human", 0, 50)
    assert goals.sha256 == again.sha256
    assert [goals.goal(i) for i in range(len(goals))] == [again.goal(i) for i in range(len(goals))]
    other = ensure_goals(tmp_path / "three", store, "human", 1, 50)  # other limits
    assert other.sha256 != goals.sha256
    order = list(range(len(goals)))
    random.Random(233).shuffle(order)
    in_order = [goals.line(order.index(number))["words"] for number in range(12)]
    expected = [wish.text.strip(".") for i in range(2) for wish in store.product(i).human_instructions]
    assert in_order == expected


def test_a_limit_is_above_the_price_and_in_the_text(store, tmp_path):
    goals = ensure_goals(tmp_path / "goals", store, "human", 0, 0)
    limits = set()
    for position in range(len(goals)):
        goal = goals.goal(position)
        price = store.product(store.index_of(goal.asin)).pricing[0]
        assert price < goal.price_upper
        assert goal.instruction.endswith(f" {goal.price_upper:.2f} dollars") or goal.price_upper == NO_LIMIT
        limits.add(goal.price_upper - price)
    assert max(limits) < 65 and min(limits) > 0  # four steps of ten at most, and a range's drawn price


def test_a_products_synthetic_goals_share_one_limit(tmp_path):
    store = ensure_store(tmp_path / "products", {}, lambda: [SHIRT])
    goals = ensure_goals(tmp_path / "goals", store, "synthetic", 0, 0)
    assert len(goals) == 4 and len({goals.goal(i).price_upper for i in range(4)}) == 1
    assert {frozenset(goals.goal(i).options.items()) for i in range(4)} == {
        frozenset({("color", color), ("size", size)}) for color in ("red", "tan") for size in ("s", "l")
    }


def test_tasks_are_made_as_they_are_asked_for(store, tmp_path):
    tasks = ensure_goals(tmp_path / "goals", store, "human", 0, 50).tasks("train")
    assert list(tasks[2:4]) == [tasks[2], tasks[3]] and tasks[-1] == list(tasks)[-1]
    assert len(tasks[:5]) == 5 and not tasks[:0]


def test_folders_of_another_catalogue_or_torn_ones_are_refused_or_made_again(store, tmp_path):
    goals = ensure_goals(tmp_path / "goals", store, "human", 0, 50)
    small = ensure_store(tmp_path / "small", {"n": 1}, lambda: generate("full", 20, 6, 0))
    with pytest.raises(EnvironmentFault, match="goals of another catalogue; prepare"):
        GoalList(tmp_path / "goals", small)
    path = tmp_path / "goals" / "goals.jsonl"
    for cut in (0, 1, path.stat().st_size - 1):
        content = path.read_bytes()
        path.write_bytes(content[:cut])
        with pytest.raises(EnvironmentFault, match="no whole goal list"):
            GoalList(tmp_path / "goals", store)
        assert ensure_goals(tmp_path / "goals", store, "human", 0, 50).sha256 == goals.sha256
        assert path.read_bytes() == content
    (tmp_path / "goals" / "order.npy").unlink()
    assert len(ensure_goals(tmp_path / "goals", store, "human", 0, 50)) == len(goals)
    bare = ensure_store(tmp_path / "bare", {"n": 2}, lambda: [replace(SHIRT, human_instructions=())])
    with pytest.raises(EnvironmentFault, match="no goals of this kind; choose env.goals="):
        ensure_goals(tmp_path / "none", bare, "human", 0, 0)
