"""The benchmarks can be imported, and the settings of those that drive real runs make runs that can start."""

import importlib
from pathlib import Path

import pytest

from benchmarks import algorithms, stages, talk_runs
from pipeline.launch import launch_environment

NEEDS_MORE = {"trl_side": "trl", "generation_vllm": "vllm"}  # packages of environments of their own
SCRIPTS = sorted(path.stem for path in Path(stages.__file__).parent.glob("*.py"))

SETTINGS = {
    **{f"stages {name}": ("alfworld", own) for name, own in stages.SETTINGS.items()},
    **{
        f"{algorithm}, {profile}": ("alfworld", {**own, **settings})
        for profile, own in algorithms.SETTINGS.items()
        for algorithm, settings in algorithms.RUNS.items()
    },
    "talk": ("benchmarks.talk:TalkAdapter", talk_runs.SETTINGS),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_can_be_imported_and_says_what_it_measures(name):
    if name in NEEDS_MORE:
        pytest.importorskip(NEEDS_MORE[name])
    assert importlib.import_module(f"benchmarks.{name}").__doc__


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_can_start(tmp_path, name):
    environment, settings = SETTINGS[name]
    config = stages.make_run(tmp_path / "run", environment, settings)
    assert config.run.ranks == 1
    assert int(launch_environment(config)["OMP_NUM_THREADS"]) >= 1
    assert config.optimize.gradient_checkpointing in ("always", "never")
