"""Manifests: what they record, what they refuse, and what retention leaves."""

import json
from dataclasses import replace

import pytest
import torch

from pipeline.manifests import (
    Manifest,
    apply_retention,
    check_outputs,
    describe_outputs,
    is_unchanged,
    peak_memory_mib,
    read_manifest,
    read_manifests,
    retained,
    versions,
    write_manifest,
)
from pipeline.run_directory import RunError, RunPaths
from runtime.files import remove_leftovers


def checkpoint(paths: RunPaths, iteration: int) -> Manifest:
    folder = paths.checkpoint(iteration)
    for name in ("policy/model.safetensors", "policy/config.json", "engine/state/rank_0.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"{name} of {iteration}".encode())
    stage = "optimize" if iteration else "warm_start"
    manifest = Manifest(stage, iteration, "c", {}, describe_outputs(folder), seconds={"total": 1.5})
    write_manifest(manifest, folder / "manifest.json")
    return manifest


def test_round_trip_and_layout(tmp_path):
    paths = RunPaths(tmp_path)
    made = {("warm_start", 0): checkpoint(paths, 0), ("optimize", 12): checkpoint(paths, 12)}
    assert read_manifests(paths) == made
    data = json.loads((tmp_path / "checkpoints" / "0012" / "manifest.json").read_text())
    assert data["outputs"]["policy/config.json"] == {
        "bytes": len("policy/config.json of 12"),
        # printf 'policy/config.json of 12' | sha256sum
        "sha256": "7eecdb33a2036d0b569d0935e2fae49e64a4344f6447af42a0f9d3aa33b588e0",
    }


def test_paths_of_every_stage(tmp_path):
    paths = RunPaths(tmp_path)
    places = {
        ("reserve_vocab", 0): "model",
        ("warm_start", 0): "checkpoints/0000",
        ("collect_rollouts", 3): "iterations/0003/rollouts",
        ("compute_advantages", 3): "iterations/0003/advantages",
        ("optimize", 3): "checkpoints/0003",
        ("evaluate", 3): "evaluations/0003",
        ("export", 0): "export",
    }
    for step, place in places.items():
        assert paths.stage(*step) == tmp_path / place
    assert paths.policy(0) == paths.model
    checkpoint(paths, 0)
    assert paths.policy(0) == tmp_path / "checkpoints/0000/policy"
    assert paths.engine(7) == tmp_path / "checkpoints/0007/engine"


def test_the_digest_is_of_contents_alone(tmp_path):
    first, second = checkpoint(RunPaths(tmp_path / "a"), 1), checkpoint(RunPaths(tmp_path / "b"), 1)
    assert first.digest == replace(second, seconds={"total": 99.0}).digest
    (tmp_path / "b/checkpoints/0001/policy/config.json").write_text("policy/config.json of 2")
    assert first.digest != replace(first, outputs=describe_outputs(tmp_path / "b/checkpoints/0001")).digest


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), "missing, though the manifest of optimize lists it"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes, its manifest says"),
        (lambda file: file.write_bytes(file.read_bytes()[::-1]), "its content is not what its manifest says"),
    ],
)
def test_damage_is_found_before_it_is_used(tmp_path, damage, message):
    paths = RunPaths(tmp_path)
    manifest = checkpoint(paths, 1)
    check_outputs(manifest, paths.checkpoint(1), hashes=True)
    damage(paths.policy(1) / "model.safetensors")
    with pytest.raises(RunError, match=message) as refusal:
        check_outputs(manifest, paths.checkpoint(1), hashes=True)
    assert "delete" in str(refusal.value)
    check_outputs(manifest, paths.checkpoint(1), prefix="engine/", hashes=True)


def test_a_truncated_engine_shard_is_found(tmp_path):
    paths = RunPaths(tmp_path)
    manifest = checkpoint(paths, 1)
    (paths.engine(1) / "state/rank_0.pt").write_bytes(b"half")
    with pytest.raises(RunError, match="4 bytes, its manifest says"):
        check_outputs(manifest, paths.checkpoint(1))


def test_a_flipped_bit_in_engine_state_is_found(tmp_path):
    paths = RunPaths(tmp_path)
    file = paths.engine(1) / "state" / "rank_0.pt"
    file.parent.mkdir(parents=True)
    torch.save({"master": torch.arange(1000.0)}, file)
    manifest = Manifest("optimize", 1, "c", {}, describe_outputs(paths.checkpoint(1)))
    check_outputs(manifest, paths.checkpoint(1), hashes=True)
    content = bytearray(file.read_bytes())
    content[content.index(torch.tensor([500.0]).numpy().tobytes())] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunError, match="rank_0.pt: its content is not what its manifest says; delete"):
        check_outputs(manifest, paths.checkpoint(1), hashes=True)


def test_engine_state_of_another_checkpoint_is_found(tmp_path):
    """Two archives of one size, each whole: the table of contents tells them apart. Small files have plain hashes."""
    paths = RunPaths(tmp_path)
    for iteration in (1, 2):
        folder = paths.engine(iteration)
        (folder / "state").mkdir(parents=True)
        torch.save({"master": torch.arange(100.0) + iteration}, folder / "state/rank_0.pt")
        (folder / "engine.json").write_text(f'{{"num_updates": {iteration}}}')
    manifest = Manifest("optimize", 2, "c", {}, describe_outputs(paths.checkpoint(2)))
    for name in ("state/rank_0.pt", "engine.json"):
        own, other = paths.engine(2) / name, paths.engine(1) / name
        kept = own.read_bytes()
        assert own.stat().st_size == other.stat().st_size
        own.write_bytes(other.read_bytes())
        with pytest.raises(RunError, match=f"{name}: its content is not what its manifest says"):
            check_outputs(manifest, paths.checkpoint(2), hashes=True)
        own.write_bytes(kept)
    check_outputs(manifest, paths.checkpoint(2), hashes=True)


def test_a_manifest_without_checksums_of_engine_state_is_still_read(tmp_path):
    paths = RunPaths(tmp_path)
    torch_file, text = paths.engine(1) / "rank_0.pt", paths.engine(1) / "engine.json"
    torch_file.parent.mkdir(parents=True)
    torch.save({"master": torch.arange(100.0)}, torch_file)
    text.write_text("{}")
    entries = {f"engine/{path.name}": {"bytes": path.stat().st_size, "sha256": None} for path in (torch_file, text)}
    check_outputs(Manifest("optimize", 1, "c", {}, entries), paths.checkpoint(1), hashes=True)


def test_no_damage_of_engine_state_is_more_than_an_answer(tmp_path):
    """Names, offsets, flags and the directory of the archive: the zip library ends in a different error for each."""
    file = tmp_path / "state.pt"
    torch.save({"master": torch.arange(4.0)}, file)
    content = file.read_bytes()
    entry = describe_outputs(tmp_path)["state.pt"] | {"sha256": None}
    answers = []
    for place in range(0, len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x88]) + content[place + 1 :])
        answers.append(is_unchanged(file, entry))
    assert answers.count(False) > 300


WRONG_SHAPE = '{"stage": "s", "iteration": 0, "config": "c", "inputs": {}, "outputs": 3, "removed": [], "format": 1}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"format": 2}',
        b'{"format": 1, "stage": "optimize"}',
        WRONG_SHAPE.encode(),
        WRONG_SHAPE.replace('"outputs": 3', '"outputs": {"a": 3}').encode(),
        WRONG_SHAPE.replace('"outputs": 3', '"outputs": {}').replace('"inputs": {}', '"inputs": 3').encode(),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(RunError) as refusal:
        read_manifest(path)
    assert str(path) in str(refusal.value) and "delete" in str(refusal.value)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "policy/../../x", "", "a\x00b"])
def test_a_manifest_lists_no_file_outside_its_folder(tmp_path, name):
    manifest = checkpoint(RunPaths(tmp_path), 1)
    path = tmp_path / "checkpoints/0001/manifest.json"
    write_manifest(replace(manifest, outputs={name: {"bytes": 1, "sha256": None}}), path)
    with pytest.raises(RunError, match="which is not below its folder; use the version that wrote it, or delete"):
        read_manifest(path)


def test_metrics_that_are_not_finite_are_left_out(tmp_path):
    manifest = Manifest("optimize", 1, "c", {}, {}, metrics={"a": 1.0, "b": float("nan"), "c": float("inf")})
    write_manifest(manifest, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json").metrics == {"a": 1.0}


def test_what_stays():
    both, weights = {"policy/", "engine/"}, {"policy/"}
    assert retained(7, keep_last=2, keep_every=3, present=range(8)) == {
        0: weights, 1: set(), 2: set(), 3: weights, 4: set(), 5: set(), 6: both, 7: both,
    }  # fmt: skip
    assert retained(3, keep_last=1, keep_every=0, present=[0, 2, 3]) == {0: weights, 2: set(), 3: both}
    assert retained(1, keep_last=2, keep_every=0, present=[0, 1]) == {0: both, 1: both}


def test_retention_removes_folders_and_keeps_manifests(tmp_path):
    paths = RunPaths(tmp_path)
    manifests = {("optimize" if i else "warm_start", i): checkpoint(paths, i) for i in range(5)}
    manifests |= apply_retention(paths, manifests, keep_last=2, keep_every=2)
    parts = {i: sorted(path.name for path in paths.checkpoint(i).iterdir()) for i in range(5)}
    assert parts == {
        0: ["manifest.json", "policy"],
        1: ["manifest.json"],
        2: ["manifest.json", "policy"],
        3: ["engine", "manifest.json", "policy"],
        4: ["engine", "manifest.json", "policy"],
    }
    assert read_manifests(paths) == manifests
    for name, manifest in manifests.items():  # what is marked as removed is not missed
        check_outputs(manifest, paths.stage(*name), hashes=True)
    assert apply_retention(paths, manifests, keep_last=2, keep_every=2) == {}


def test_retention_that_was_killed_goes_on(tmp_path):
    paths = RunPaths(tmp_path)
    manifests = {("optimize", i): checkpoint(paths, i) for i in (1, 2)}
    # killed after the manifest was told, in the middle of the removal
    manifests["optimize", 1] = replace(manifests["optimize", 1], removed=("engine/", "policy/"))
    write_manifest(manifests["optimize", 1], paths.checkpoint(1) / "manifest.json")
    (paths.checkpoint(1) / "policy").rename(paths.checkpoint(1) / ".policy.tmp-9-00000000")
    apply_retention(paths, manifests, keep_last=1, keep_every=0)
    remove_leftovers(tmp_path)
    assert [path.name for path in paths.checkpoint(1).iterdir()] == ["manifest.json"]


def test_half_checkpoints_are_left_alone(tmp_path):
    paths = RunPaths(tmp_path)
    manifests = {("optimize", i): checkpoint(paths, i) for i in (1, 2)}
    paths.policy(3).mkdir(parents=True)  # optimize 3 in progress: no manifest
    apply_retention(paths, manifests, keep_last=2, keep_every=0)
    assert paths.policy(1).exists() and paths.policy(3).exists()


def test_versions_and_memory():
    assert set(versions()) - {"vllm"} == {"python", "torch", "transformers", "deepspeed", "pipeline"}
    assert versions()["torch"].startswith("2.")
    before = peak_memory_mib()["cpu"]
    block = bytearray(300 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    assert peak_memory_mib(cuda_bytes=3 * 2**20) == {"cpu": pytest.approx(before + 300, abs=310), "cuda": 3.0}
    assert peak_memory_mib()["cpu"] >= 300
