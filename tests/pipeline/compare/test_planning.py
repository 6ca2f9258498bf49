"""Flags and what runs they come to."""

from pathlib import Path

import pytest

from pipeline.compare.planning import (
    Variant,
    parse_run,
    parse_seeds,
    parse_variant,
    plan_runs,
    plan_starts,
    state,
    variants_of,
)
from pipeline.config import ConfigError
from pipeline.run_directory import RunError

BASE = ["--env", "tests.corridor:CorridorAdapter"]


def test_variants():
    assert parse_variant("no-q:optimize.q_coef=0") == Variant("no-q", "sapo", ("optimize.q_coef=0",))
    two = parse_variant("x:algorithm.name=ppo,ppo.credit=turn,run.iterations=3")
    assert two == Variant("x", "ppo", ("ppo.credit=turn", "run.iterations=3"))
    assert two.arguments == ("--algorithm", "ppo", "--set", "ppo.credit=turn", "--set", "run.iterations=3")
    for bad in ("x", "x:", ":a=1", "x:a", "a/b:c=1", "x:a=1,,b=2", "..:a=1"):
        with pytest.raises(ConfigError, match="--variant"):
            parse_variant(bad)


def test_variants_have_names_of_their_own():
    names = [one.name for one in variants_of(["sapo", "grpo"], [parse_variant("no-q:optimize.q_coef=0")])]
    assert names == ["sapo", "grpo", "no-q"]
    (own,) = variants_of(["mine.maths:Mine"], [])
    assert own.name == "Mine" and own.arguments == ("--algorithm", "mine.maths:Mine")
    with pytest.raises(ConfigError, match="grpo: named twice"):
        variants_of(["grpo"], [parse_variant("grpo:optimize.q_coef=0")])


def test_seeds():
    assert parse_seeds("3") == [0, 1, 2] and parse_seeds("3,0") == [3, 0] and parse_seeds("7,") == [7]
    for bad in ("0", "-1", "x", "1,1", "1,-2", ",", ""):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(bad)


def test_given_runs_have_the_name_of_their_folder():
    assert parse_run("runs/tiny-alfworld-ppo-seed12") == ("tiny-alfworld-ppo", Path("runs/tiny-alfworld-ppo-seed12"))
    assert parse_run("mine:runs/x") == ("mine", Path("runs/x"))
    assert parse_run("runs/a:b") == ("a:b", Path("runs/a:b"))


def test_runs_are_planned_seed_by_seed():
    runs = plan_runs([Variant("sapo", "sapo"), Variant("ppo", "ppo")], [0, 4], BASE, Path("out"))
    assert [run.name for run in runs] == ["sapo-seed0", "ppo-seed0", "sapo-seed4", "ppo-seed4"]
    assert runs[3].arguments == (*BASE, "--algorithm", "ppo", "--seed", "4", "--run-dir", "out/runs/ppo-seed4")
    assert runs[2].arguments == (*BASE, "--algorithm", "sapo", "--seed", "4", "--run-dir", "out/runs/sapo-seed4")
    assert runs[0].log == Path("out/runs/sapo-seed0.log")


def test_a_shared_start_is_where_runs_of_its_seed_begin():
    variants = [Variant("ppo", "ppo"), Variant("rows", "sapo", ("value.initial_rows=random",))]
    (start,) = plan_starts([4], BASE, Path("out"))
    assert start.name == "warm-start-seed4" and start.arguments[len(BASE) :][:2] == ("--set", "run.iterations=0")
    sharing, own = plan_runs(variants, [4], BASE, Path("out"), share_start=True)
    shared = ("--model", "out/runs/warm-start-seed4/export", "--set", "warm_start.enabled=false")
    assert sharing.arguments[len(BASE) :][: len(shared)] == shared
    assert own == plan_runs(variants, [4], BASE, Path("out"))[1]  # its first policy would be another


def test_the_state_of_a_run(tmp_path, whole_run):
    (new,) = plan_runs([Variant("a", "sapo")], [0], BASE, tmp_path)
    assert state(new) == "new"
    new.folder.parent.mkdir(parents=True)
    new.folder.symlink_to(whole_run)
    with pytest.raises(RunError, match="made with other settings.*choose another --out"):
        state(new)
    (wrong,) = plan_runs([Variant("a", "sapo", ("optimize.q_coeff=0",))], [0], BASE, tmp_path)
    with pytest.raises(ConfigError, match="did you mean optimize.q_coef"):
        state(wrong)
