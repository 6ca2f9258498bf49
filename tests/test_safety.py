"""What must not happen: foreign code run, secrets written down, files touched outside the run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from env_adapters.alfworld.games import GeneratedGames, RealGames
from env_adapters.base import EnvironmentFault, Task
from env_adapters.disk import is_inside as is_inside_for_adapters
from pipeline.faults import one_line
from pipeline.manifests import read_manifest, write_manifest
from pipeline.run_directory import RunError, RunPaths
from pipeline.session import refuse_other_data
from runtime.files import is_inside, remove_leftovers, remove_tree
from runtime.model import load_policy
from runtime.pretrained import load_config, load_tokenizer
from runtime.weight_files import ModelFilesError
from tests.corridor import CorridorAdapter
from tests.model_folders import byte_model
from tests.processes import ENVIRONMENT, ROOT
from tests.whole_run import SECRETS

FOREIGN_CODE = "from pathlib import Path\nPath({marker!r}).touch()\nclass Foreign: pass\n"


@pytest.fixture
def foreign(tmp_path) -> Path:
    """A model folder whose config and tokenizer ask for code of their own, which would leave a file."""
    folder = byte_model(tmp_path / "model", 320)
    (folder / "foreign.py").write_text(FOREIGN_CODE.format(marker=str(tmp_path / "ran")))
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "foreign.Foreign", "AutoModelForCausalLM": "foreign.Foreign"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "foreign", "auto_map": classes}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Foreign", "auto_map": {"AutoTokenizer": ["foreign.Foreign", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "value_tokens.json").write_text(
        '{"positive_id": 300, "negative_id": 301, "r_max": 10.0, "temperature": 1.0, "fingerprint": "x"}'
    )
    return folder


@pytest.mark.parametrize(
    "read", [load_config, load_tokenizer, lambda folder: load_policy(folder, dtype="float32")],
    ids=["config", "tokenizer", "policy"],
)  # fmt: skip
def test_code_in_a_model_folder_is_never_run(foreign, tmp_path, read):
    """There is no flag for it either: such a model is refused."""
    with pytest.raises(ModelFilesError) as refusal:
        read(foreign)
    assert not (tmp_path / "ran").exists()
    line = one_line(refusal.value)
    assert (
        str(foreign) in line and "; copy the model again, or take one that this version of transformers knows" in line
    )


def test_a_known_model_with_an_auto_map_uses_transformers_own_code(foreign, tmp_path):
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    settings = json.loads((foreign / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (foreign / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_policy(foreign, dtype="float32").causal_lm.__module__.startswith("transformers.")
    load_tokenizer(foreign)
    assert not (tmp_path / "ran").exists()


def test_full_unpickling_is_asked_for_nowhere():
    """A pickle is read from the pipe of the parent process alone, and what a test of adapters has just pickled itself;
    torch.load is DeepSpeed's, within `only_weights`."""
    allowed = {"runtime/demonstration_worker.py", "env_adapters/contract.py"}
    loads = re.compile(r"pickle\.loads?\(|torch\.load\(|weights_only=False|allow_pickle=True|trust_remote_code")
    found = {
        path.relative_to(ROOT).as_posix()
        for house in ("pipeline", "stages", "runtime", "env_adapters")
        for path in (ROOT / house).rglob("*.py")
        if loads.search(path.read_text(encoding="utf-8"))
    }
    assert found == allowed


@pytest.mark.parametrize("check", [is_inside, is_inside_for_adapters])
def test_names_that_leave_their_folder(check):
    assert check("a") and check("a/b.c") and check("a..b/..c")
    assert not any(map(check, ["", "/", "/a", "..", "../a", "a/..", "a/../../b", "a\0b"]))


@pytest.mark.parametrize("pack", ["../secret.pack", "/etc/passwd", "other.pack", None, 3, ["train-000.pack"]])
def test_a_payload_names_no_pack_but_the_adapters_own(tmp_path, pack):
    games = GeneratedGames.__new__(GeneratedGames)
    games._folder, games._packs = tmp_path, ["train-000.pack"]
    with pytest.raises(EnvironmentFault, match="is no pack of .*; other games?"):
        games.read(Task("train/x", "train", "x", {"pack": pack, "start": 0, "game": 1, "translation": 1}))


@pytest.mark.parametrize("game", ["../secret", "/etc", "json_2.1.1/../../secret", None, 3, ""])
def test_a_payload_names_no_game_outside_the_data(tmp_path, game):
    games = RealGames.__new__(RealGames)
    games._root = tmp_path
    with pytest.raises(EnvironmentFault, match="is no folder of .*; other games?"):
        games.read(Task("train/x", "train", "x", {"game": game}))


def test_links_out_of_a_run_are_not_followed_when_something_is_removed(tmp_path):
    """A run's folders may lie on another disk behind a link; what is removed is the link."""
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    (precious / "thesis.txt").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "policy").symlink_to(precious)
    (run / ".policy.tmp-1-a").symlink_to(precious)
    (run / "inner").mkdir()
    (run / "inner" / "link").symlink_to(precious)
    remove_leftovers(run)
    remove_tree(run / "policy")
    remove_tree(run / "inner")
    remove_leftovers(run)
    assert (precious / "thesis.txt").read_text() == "mine"
    assert not (run / "policy").exists() and not (run / "inner").exists()


def test_secrets_of_the_environment_are_written_nowhere(whole_run):
    """The run was made with SECRETS in its environment (tests/whole_run.py): neither in a file nor in what it said."""
    texts = {path: path.read_bytes() for path in whole_run.parent.rglob("*") if path.is_file()}
    assert len(texts) > 50 and any(path.name == "output.txt" for path in texts)
    for name, secret in SECRETS.items():
        holders = [str(path) for path, content in texts.items() if secret.encode() in content]
        assert not holders, (name, holders)


def test_a_run_refuses_other_data_in_one_line(whole_run):
    paths = RunPaths(whole_run)
    manifest = read_manifest(paths.manifest("collect_rollouts", 2))
    description = CorridorAdapter(CorridorAdapter.Options(rooms=3, tasks=24)).description()
    assert manifest.environment == description  # grammar, data and counts stand in every manifest
    stages = [("collect_rollouts", 2), ("optimize", 4), ("evaluate", 0), ("warm_start", 0), ("reserve_vocab", 0)]
    assert all(read_manifest(paths.manifest(*stage)).environment == description for stage in stages)
    manifests = {("collect_rollouts", 2): manifest}
    refuse_other_data(whole_run, manifests, {**description, "new": 1})  # a later version may tell more
    with pytest.raises(RunError, match=r"changed since collect_rollouts 2 \(rooms 3 -> 4\); put the old data back, or"):
        refuse_other_data(whole_run, manifests, {**description, "rooms": 4})


@pytest.mark.slow
def test_a_run_over_other_data_does_not_start(whole_run, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    path = RunPaths(run_dir).manifest("optimize", 4)
    manifest = read_manifest(path)
    write_manifest(type(manifest)(**{**vars(manifest), "environment": {"rooms": 9}}), path)
    shutil.rmtree(RunPaths(run_dir).export)
    command = [sys.executable, "pipeline/driver.py", "--run-dir", str(run_dir)]
    environment = {**ENVIRONMENT, **SECRETS, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and "(rooms 9 -> 3)" in done.stderr
    (line,) = [json.loads(text) for text in (run_dir / "errors.jsonl").read_text().splitlines()]
    assert line["error"] == "RunError" and not any(secret in json.dumps(line) for secret in SECRETS.values())
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS.values())


def test_the_environment_variable_of_weights_only_is_put_back():
    from runtime.engine import only_weights

    with only_weights():
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
