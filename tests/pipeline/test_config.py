"""Every setting is checked at the door; presets hold the published numbers."""

import dataclasses
import re
from typing import get_type_hints

import pytest

from pipeline.config import Config, ConfigError
from pipeline.config_loading import (
    MAY_CHANGE,
    apply_settings,
    build_config,
    differences,
    fingerprint,
    flatten,
    load_config,
    load_preset,
    parse_setting,
    preset_for_model,
    preset_names,
    save_config,
)


def configured(*settings: str, preset: str = "tiny", environment: str | None = None) -> Config:
    return build_config(apply_settings(load_preset(preset, environment), [parse_setting(one) for one in settings]))


@pytest.mark.parametrize("preset", ["paper-1.5b", "paper-7b"])
@pytest.mark.parametrize(
    ("environment", "max_turns", "prompt_tokens", "minibatch_size"),
    [("alfworld", 50, 2048, 256), ("webshop", 15, 4096, 64)],
)
def test_the_paper_presets_hold_the_published_settings(preset, environment, max_turns, prompt_tokens, minibatch_size):
    config = configured(preset=preset, environment=environment)
    published = {
        "run.iterations": 150,
        "model.name": {"paper-1.5b": "Qwen2.5-1.5B", "paper-7b": "Qwen2.5-7B"}[preset],
        "env.name": environment,
        "env.max_turns": max_turns,
        "env.history_length": 2,
        "env.prompt_tokens": prompt_tokens,
        "env.response_tokens": 512,
        "warm_start.enabled": False,
        "rollout.trajectories": 128,
        "rollout.temperature": 1.0,
        "advantage.gamma": 0.95,
        "advantage.invalid_action_coef": 0.1,
        "optimize.learning_rate": 1e-6,
        "optimize.minibatch_size": minibatch_size,
        "optimize.epochs": 1,
        "optimize.weight_decay": 0.01,
        "optimize.max_grad_norm": 1.0,
        "optimize.clip_low": 0.2,
        "optimize.clip_high": 0.2,
        "optimize.kl_coef": 0.01,
        "optimize.entropy_coef": 0.001,
        "evaluate.every": 5,
        "evaluate.tasks": 128,
        "evaluate.temperature": 0.4,
    }
    if environment == "alfworld":  # without real data: rooms of real size, and the prompt that asks for the tags
        published |= {"env.scene": "full", "env.prompt": "published"}
    flat = flatten(config)
    assert {key: flat[key] for key in published} == published


def test_the_default_is_tiny_and_models_pick_their_preset():
    assert preset_names() == ["compare", "compare-long", "paper-1.5b", "paper-7b", "smollm2-135m", "tiny"]
    assert [preset_for_model(name) for name in (None, "tiny", "Qwen2.5-1.5B", "Qwen2.5-7B", "smollm2-135m")] == [
        "tiny", "tiny", "paper-1.5b", "paper-7b", "smollm2-135m",
    ]  # fmt: skip
    assert preset_for_model("someone/some-model") == "paper-1.5b"
    config = configured()
    assert (config.model.name, config.model.dtype, config.model.chat_template) == ("tiny", "float32", False)
    assert config.warm_start.enabled


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimize.learnig_rate=1", "unknown key optimize.learnig_rate; did you mean optimize.learning_rate?"),
        ("advantage.gae_lamda=0.9", "unknown key advantage.gae_lamda; did you mean advantage.gae_lambda?"),
        ("optimise.epochs=2", "unknown section optimise; did you mean optimize?"),
        ("gamma=1", "--set gamma=1: must be section.key=value, such as optimize.learning_rate=1e-6"),
        ("optimize.epochs", "--set optimize.epochs: must be section.key=value, such as optimize.learning_rate=1e-6"),
        ("optimize.epochs=1.5", "optimize.epochs = 1.5: must be a whole number"),
        ("optimize.epochs=true", "optimize.epochs = True: must be a whole number"),
        ("optimize.learning_rate=fast", "optimize.learning_rate = 'fast': must be a number"),
        ("optimize.zero_stage=4", "optimize.zero_stage = 4: must be one of 0, 1, 2, 3"),
        ("model.dtype=float16", "model.dtype = 'float16': must be one of float32, bfloat16"),
        ("logging.progress=maybe", "logging.progress = 'maybe': must be true or false"),
        ("optimize.learning_rate=.inf", "optimize.learning_rate = inf: must be finite and below 1e+15"),
        ("optimize.learning_rate=.nan", "optimize.learning_rate = nan: must be finite and below 1e+15"),
        ("env.success_reward=.nan", "env.success_reward = nan: must be finite and below 1e+15"),
        ("rollout.slots=" + "9" * 400, f"rollout.slots = {'9' * 24}: must be finite and below 1e+15"),
        ("rollout.slots=" + "9" * 5000, f"--set rollout.slots={'9' * 86}: the value is not YAML; put quotes around it"),
        ("rollout.turn_timeout_s=1e9", "rollout.turn_timeout_s = 1000000000.0: must be seconds in (0, 10000000]"),
        ("rollout.trajectories=", "rollout.trajectories = null: must be a whole number"),
        ("env.options=3", "env.options = 3: must be keys and values; set env.<key>=<value> one by one"),
        (
            "rollout.trajectories=a: b: c",
            "--set rollout.trajectories=a: b: c: the value is not YAML; put quotes around it",
        ),
        ("optimize.offload_parameters=true", None),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(setting, message):
    if message is None:  # allowed at ZeRO stage 3 only
        assert configured(setting).optimize.offload_parameters
        with pytest.raises(ConfigError, match="false unless optimize.zero_stage is 3"):
            configured(setting, "optimize.zero_stage=2")
        return
    with pytest.raises(ConfigError) as refusal:
        configured(setting)
    assert str(refusal.value) == message


OUT_OF_RANGE = {
    "run": {"seed": -1, "iterations": -1, "ranks": -1, "stage_timeout_s": 0},
    "model": {"name": "''", "tiny_width": 131, "tiny_layers": 0, "tiny_heads": 0},
    "value": {"r_max": 0, "temperature": 0},
    "env": {"name": "''", "max_turns": 0, "history_length": -1, "prompt_tokens": 7, "response_tokens": 1},
    "warm_start": {"demonstrations": 0, "epochs": 0, "batch_size": 0, "learning_rate": 0},
    "rollout": {"trajectories": 0, "temperature": 0, "slots": 0, "workers": -1, "turn_timeout_s": 0,
                "max_error_share": 1.1},
    "advantage": {"gamma": 1.01, "gae_lambda": -0.1, "invalid_action_coef": -1, "epsilon": 0, "min_std": -1,
                  "score_tokens": 0},
    "optimize": {"learning_rate": 0, "warmup_steps": -1, "decay_iterations": -1,
                 "weight_decay": -1, "adam_beta1": 1, "adam_beta2": -0.1,
                 "adam_epsilon": 0, "max_grad_norm": 0, "epochs": 0, "minibatch_size": 0, "microbatch_tokens": 0,
                 "clip_low": 1, "clip_high": 0, "value_clip": 0, "q_clip": 0, "value_coef": -1, "q_coef": -1,
                 "kl_coef": -1, "entropy_coef": -1, "value_warmup_iterations": -1,
                 "value_warmup_kl_coef": -1},
    "evaluate": {"every": -1, "tasks": -1, "final_tasks": -1, "temperature": -0.1},
    "checkpoint": {"keep_last": 0, "keep_every": -1, "min_free_gib": -1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [(f"{section}.{key}", value) for section, keys in OUT_OF_RANGE.items() for key, value in keys.items()],
)
def test_ranges(key, value):
    with pytest.raises(ConfigError, match=f"^{key} = .*: must be "):
        configured(f"{key}={value}")


def test_numbers_keep_their_types():
    config = configured("optimize.learning_rate=1e-6", "advantage.gamma=1", "env.history_length=0", "env.scene=full")
    assert config.optimize.learning_rate == 1e-6
    assert type(config.advantage.gamma) is float and type(config.env.history_length) is int
    assert config.env.options["scene"] == "full"


def test_unknown_preset():
    with pytest.raises(ConfigError, match="unknown preset paper-7B; did you mean paper-7b?"):
        load_preset("paper-7B", None)


def test_the_preset_of_smollm2_is_small_enough_for_a_machine_without_gpu():
    flat = flatten(configured(preset="smollm2-135m", environment="alfworld"))
    small = {"run.iterations": 1, "run.ranks": 1, "model.name": "smollm2-135m", "model.dtype": "float32",
             "model.chat_template": True, "env.max_turns": 4, "env.prompt": "published", "env.response_tokens": 32,
             "rollout.trajectories": 4, "evaluate.every": 0, "warm_start.enabled": False}  # fmt: skip
    assert {key: flat[key] for key in small} == small
    assert 0 < flat["evaluate.final_tasks"] <= 4


def test_a_preset_stands_above_its_base_and_an_algorithms_section_above_both():
    tiny, compare, long = (flatten(configured(preset=name, environment="alfworld")) for name in
                           ("tiny", "compare", "compare-long"))  # fmt: skip
    assert compare["run.iterations"] == long["run.iterations"] == 40 != tiny["run.iterations"]
    assert compare["value.temperature"] == tiny["value.temperature"] == 0.125
    assert long["env.scene"] == "small" and long["env.prompt"] == tiny["env.prompt"] == "compact"
    assert load_preset("compare", "alfworld", "vineppo")["rollout"]["trajectories"] == 8
    assert load_preset("compare", "alfworld", "grpo")["rollout"]["trajectories"] == 64


@pytest.mark.parametrize("preset", ["tiny", "paper-1.5b", "paper-7b", "smollm2-135m"])
def test_config_yaml_round_trip(tmp_path, preset):
    config = configured("optimize.learning_rate=3.0000000000000004e-7", preset=preset)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "cannot be read"),
        (b"a: [", "cannot be read"),
        (b"just text", "run directory of format None, this version reads 1"),
        (b"format: 99\n", "run directory of format 99, this version reads 1"),
        (b"format: 1\noptimize: {lr: 1}\n", "unknown key optimize.lr"),
        (b"format: 1\noptimize: 3\n", "optimize = 3: must be a section of keys"),
    ],
)
def test_a_foreign_config_yaml_is_refused(tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load_config(path)
    text = str(refusal.value)
    assert message in text and text.startswith(str(path))
    assert text.endswith(("another --run-dir", "name a run directory that `bash run.sh` made"))


def test_differences_name_every_setting_that_may_not_change():
    old = configured("env.scene=full")
    new = configured("optimize.learning_rate=0.5", "run.iterations=999", "run.ranks=2", "logging.progress=false")
    assert differences(old, new) == [
        "env.scene: 'full' -> (not set)",
        f"optimize.learning_rate: {old.optimize.learning_rate!r} -> 0.5",
    ]
    assert fingerprint(old) != fingerprint(new)


def test_what_may_change_keeps_the_fingerprint():
    changes = ["run.iterations=999", "run.ranks=3", "rollout.workers=2", "rollout.slots=7", "checkpoint.keep_last=5",
               "logging.tensorboard=false", "optimize.microbatch_tokens=512", "evaluate.every=3"]  # fmt: skip
    for change in changes:
        assert differences(configured(), configured(change)) == []
        assert fingerprint(configured()) == fingerprint(configured(change)), change
    for change in ("run.seed=5", "model.dtype=bfloat16", "rollout.temperature=0.7", "evaluate.tasks=5"):
        assert fingerprint(configured()) != fingerprint(configured(change)), change


def test_every_exception_in_may_change_exists():
    sections = get_type_hints(Config)
    known = {f"{name}.{field.name}" for name, kind in sections.items() for field in dataclasses.fields(kind)}
    assert set(MAY_CHANGE) <= known | set(sections)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"algorithm.name": "ppoo"},
            "algorithm.name = 'ppoo': no such algorithm; did you mean ppo?; there are sapo",
        ),
        ({"algorithm.name": "no_such.module:X"}, "no such algorithm (ModuleNotFoundError: No module named 'no_such')"),
        ({"algorithm.name": "os:path"}, "not a subclass of runtime.algorithms.base.Algorithm"),
        ({"algorithm.name": "runtime.algorithms.base:Algorithm"}, "it has no `estimate`"),
        ({"algorithm.name": "ppo", "ppo.credi": "turn"}, "unknown key ppo.credi; did you mean ppo.credit?"),
        ({"algorithm.name": "ppo", "ppo.credit": "word"}, "ppo.credit = 'word': must be one of turn, token"),
        ({"algorithm.name": "grpo", "grpo.group_size": 1}, "grpo.group_size = 1: must be >= 2, a trajectory alone"),
        ({"algorithm.name": "grpo", "grpo.group_size": 7}, "rollout.trajectories = 128: must be a multiple of 7"),
        ({"grpo.group_size": 4}, "grpo: options of the algorithm grpo, the run's is sapo"),
        ({"algorithm.options": 3}, "algorithm.options = 3: must be a section of keys"),
    ],
)
def test_what_is_wrong_with_an_algorithm_is_named(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_config(apply_settings({}, settings.items()))
