"""Flags -> configuration and run directory."""

from pathlib import Path

import pytest

from env_adapters.base import EnvironmentFault
from pipeline.command_line import parser, resolve
from pipeline.config import ConfigError
from pipeline.config_loading import save_config


def request(*flags: str):
    return resolve(parser().parse_args(list(flags)))


def test_without_flags_it_is_the_main_job():
    asked = request()
    assert asked.run_dir == Path("runs/tiny-alfworld-seed0")
    assert (asked.config.model.name, asked.config.env.name, asked.source) == ("tiny", "alfworld", "preset tiny")
    assert not asked.dry_run


def test_a_model_picks_its_preset_and_a_flag_beats_it():
    asked = request("--model", "Qwen2.5-7B", "--env", "alfworld", "--seed", "3", "--iterations", "9", "--ranks", "8")
    assert asked.run_dir == Path("runs/paper-7b-alfworld-seed3")
    run = asked.config.run
    assert (run.seed, run.iterations, run.ranks, asked.config.model.name) == (3, 9, 8, "Qwen2.5-7B")
    assert request("--model", "smollm2-135m").run_dir == Path("runs/smollm2-135m-alfworld-seed0")
    assert request("--model", "someone/a-model").run_dir == Path("runs/paper-1.5b-someone-a-model-alfworld-seed0")
    assert request("--preset", "tiny", "--model", "someone/a-model").config.model.dtype == "float32"


def test_set_is_last_and_in_order():
    config = request("--iterations", "5", "--set", "run.iterations=6", "--set", "run.iterations=7").config
    assert config.run.iterations == 7
    assert request("--set", "env.name=tests.corridor:CorridorAdapter").run_dir.name == (
        "tiny-tests.corridor-CorridorAdapter-seed0"
    )


def test_logs_are_added_to_those_that_are_on():
    logging = request("--log", "wandb", "--log", "trackio").config.logging
    assert (logging.tensorboard, logging.wandb, logging.trackio) == (True, True, True)
    assert not request().config.logging.wandb
    assert not request("--log", "wandb", "--set", "logging.wandb=false").config.logging.wandb


def test_adapter_options_go_to_the_adapter():
    config = request("--env", "tests.corridor:CorridorAdapter", "--preset", "paper-1.5b", "--set", "env.rooms=5").config
    assert config.env.options == {"rooms": 5}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--set", "env.max_turn=4"), "unknown key env.max_turn; did you mean env.max_turns?"),
        (("--env", "tests.corridor:CorridorAdapter", "--preset", "paper-1.5b", "--set", "env.romms=4"),
         "unknown key env.romms; did you mean env.rooms?"),
        (("--env", "alfwrld"), "did you mean alfworld?"),
        (("--env", "tests.corridor:Corridr"), "has no class 'Corridr'; did you mean Corridor?"),
        (("--env", "no.such.module:X"), "cannot import no.such.module"),
        (("--set", "env.name=[1]"), "env.name = [1]: must be text; put quotes around it"),
        (("--set", "model.name=7"), "model.name = 7: must be text; put quotes around it"),
        (("--itertions", "4"), "unknown argument --itertions; did you mean --iterations? (bash run.sh --help)"),
        (("--learning-rate=1",), "unknown argument --learning-rate; settings go through --set section.key=value"),
        (("--seed", "abc"), "argument --seed: invalid int value: 'abc' (bash run.sh --help)"),
        (("--preset", "tinny"), "unknown preset tinny; did you mean tiny?"),
        (("--iterations", "-1"), "run.iterations = -1: must be >= 0"),
        (("--env", "tests.corridor:CorridorAdapter", "--preset", "paper-1.5b", "--set", "env.rooms=0"), "rooms = 0"),
        (("--env", "tests.corridor:CorridorAdapter", "--preset", "paper-1.5b", "--set", "env.rooms=many"), "give int"),
    ],
)  # fmt: skip
def test_wrong_flags_are_refused(flags, message):
    with pytest.raises((ConfigError, EnvironmentFault)) as refusal:
        request(*flags)
    assert message in str(refusal.value)


def test_a_run_directory_alone_goes_on_with_its_own_settings(tmp_path):
    save_config(request("--set", "optimize.learning_rate=0.125").config, tmp_path / "config.yaml")
    asked = request("--run-dir", str(tmp_path), "--iterations", "99")
    assert (asked.config.optimize.learning_rate, asked.config.run.iterations) == (0.125, 99)
    assert request("--run-dir", str(tmp_path), "--preset", "tiny").config.optimize.learning_rate != 0.125


def test_an_export_brings_its_runs_settings_and_no_second_warm_start(tmp_path):
    origin = tmp_path / "first"
    (origin / "export").mkdir(parents=True)
    save_config(request("--set", "model.tiny_width=64").config, origin / "config.yaml")
    asked = request("--model", str(origin / "export"))
    assert asked.config.model.name == str(origin / "export")
    assert asked.config.model.tiny_width == 64 and not asked.config.warm_start.enabled
    assert asked.run_dir == Path("runs/from-first-alfworld-seed0")
    assert request("--model", str(origin / "export"), "--preset", "tiny").config.warm_start.enabled
