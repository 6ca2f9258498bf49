"""The export as a step by hand: after the last policy, not before it, and not twice."""

import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.config import Config, EnvConfig, RunConfig
from pipeline.manifests import Manifest, describe_outputs, read_manifests, write_manifest
from pipeline.one_stage import choose
from pipeline.plan import Facts, input_digests, sequence
from pipeline.run_directory import RunError, RunPaths
from pipeline.session import Session, do_step
from runtime.distributed import Distributed
from tests.corridor import CorridorAdapter
from tests.processes import ENVIRONMENT, ROOT

CONFIG = Config(run=RunConfig(iterations=2), env=EnvConfig(name="corridor"))
ADAPTER = CorridorAdapter(CorridorAdapter.Options())


def session(root, steps: int) -> Session:
    """A run whose first `steps` steps are complete; every policy is two small files."""
    paths, facts, manifests = RunPaths(root), Facts.of(CONFIG), {}
    for stage, iteration in sequence(facts)[:steps]:
        folder = paths.stage(stage, iteration)
        (folder / "policy").mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "value_tokens.json"):
            (folder / "policy" / name).write_text(f"{stage} {iteration} {name}")
        inputs = input_digests((stage, iteration), facts, manifests)
        manifest = Manifest(stage, iteration, facts.config, inputs, describe_outputs(folder))
        write_manifest(manifest, paths.manifest(stage, iteration))
        manifests[stage, iteration] = manifest
    return Session(paths, CONFIG, Distributed.single(), None, ADAPTER, manifests=read_manifests(paths))


def test_the_last_policy_is_exported_once(tmp_path):
    run = session(tmp_path, len(sequence(Facts.of(CONFIG))) - 1)
    step = choose("export", None, run)
    assert step == ("export", 0)
    do_step(run, step)
    assert (run.paths.export / "model.safetensors").read_text() == "optimize 2 model.safetensors"
    assert read_manifests(run.paths)["export", 0].outputs.keys() == {"model.safetensors", "value_tokens.json"}
    with pytest.raises(RunError, match="export is complete"):
        choose("export", None, run)


def test_there_is_nothing_to_export_before_the_last_policy(tmp_path):
    run = session(tmp_path, len(sequence(Facts.of(CONFIG))) - 3)  # without optimize 2, evaluate 2
    assert ("optimize", 2) not in run.manifests
    with pytest.raises(RunError, match="export 0 needs optimize 2 first"):
        do_step(run, choose("export", None, run))
    earlier = replace(CONFIG, run=RunConfig(iterations=1))
    shorter = Session(run.paths, earlier, Distributed.single(), None, ADAPTER, manifests=run.manifests)
    do_step(shorter, choose("export", None, shorter))
    assert (run.paths.export / "model.safetensors").read_text() == "optimize 1 model.safetensors"


def test_it_is_a_script_for_the_launcher():
    command = [sys.executable, "pipeline/export.py", "--help"]
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "deepspeed pipeline/export.py" in done.stdout, done.stderr
