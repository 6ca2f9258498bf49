"""Settings that are left open, on machines of several kinds."""

import os
from types import SimpleNamespace

import pytest
import torch

from pipeline import machine
from pipeline.command_line import parser, resolve
from pipeline.config import Config
from pipeline.memory import activation_elements, model_shape, stage_memory


def config(*flags: str) -> Config:
    return resolve(parser().parse_args(["--env", "webshop", *flags])).config


@pytest.fixture
def on(monkeypatch, tmp_path):
    """A machine with so many GPUs and cores, each GPU (or all cores together) with so much memory."""

    def make(gpus: int, cores: int, memory: int = 2**40) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        monkeypatch.setattr(machine, "host_memory", lambda: memory)
        monkeypatch.setattr(machine, "CGROUPS", tmp_path)

    return make


@pytest.mark.parametrize(("gpus", "cores", "ranks"), [(0, 1, 1), (0, 2, 2), (0, 64, 2), (1, 64, 1), (8, 64, 2)])
def test_ranks_that_are_left_open_are_those_of_the_machine(on, gpus, cores, ranks):
    on(gpus, cores)
    assert config().run.ranks == ranks
    assert config("--ranks", "1").run.ranks == 1


@pytest.mark.parametrize("gpus", [0, 1])
def test_activations_are_kept_where_they_fit(on, gpus):
    on(gpus, 1)
    asked = config()
    assert asked.optimize.gradient_checkpointing == "never"
    parts = stage_memory(asked, model_shape(asked), 1, "cuda" if gpus else "cpu")["optimize"]
    assert parts["activations"] == 4 * activation_elements(model_shape(asked), 4096, checkpointing=False)
    needed = sum(size for part, size in parts.items() if not (gpus and part.startswith("host")))
    on(gpus, 1, memory=round(needed / 0.9) + 1)
    assert config().optimize.gradient_checkpointing == "never"
    on(gpus, 1, memory=round(needed / 0.9) - 2)
    assert config().optimize.gradient_checkpointing == "always"
    assert config("--set", "optimize.gradient_checkpointing=never").optimize.gradient_checkpointing == "never"


def test_cores_share_their_memory_between_ranks(on):
    on(0, 2)
    asked = config("--ranks", "1")
    needed = sum(stage_memory(asked, model_shape(asked), 1, "cpu")["optimize"].values())
    on(0, 2, memory=round(1.5 * needed))
    assert config("--ranks", "1").optimize.gradient_checkpointing == "never"
    assert config("--ranks", "2").optimize.gradient_checkpointing == "always"


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, 8, None),
        ({"cpu.max": "max 100000", "memory.max": "max"}, 8, None),
        ({"cpu.max": "250000 100000", "memory.max": "1073741824"}, 3, 2**30),
        ({"cpu.max": "50000 100000", "memory.max": str(2**60)}, 1, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8, None),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2, None),
        ({"memory/memory.limit_in_bytes": "536870912"}, 8, 2**29),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, 8, None),
        ({"cpu.max": "", "memory.max": ""}, 8, None),
    ],
)
def test_a_containers_limits_count(monkeypatch, tmp_path, files, cores, memory):
    """Files of control groups, version 2 and 1; a memory of None is the machine's own."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    own = machine.host_memory()
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert machine.cores() == cores
    assert machine.host_memory() == (memory or own)


def test_a_model_of_unknown_shape_computes_them_again(on):
    on(1, 8)
    assert config("--preset", "tiny", "--model", "someone/a-model").optimize.gradient_checkpointing == "always"
