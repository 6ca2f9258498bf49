"""A damaged checkpoint: what is offered instead."""

import torch

from pipeline.manifests import Manifest, describe_outputs, read_manifests, write_manifest
from pipeline.recovery import way_on
from pipeline.run_directory import RunPaths


def make_run(paths: RunPaths, removed: dict[int, tuple[str, ...]]) -> dict:
    """Policies 0 (of the reserved model) to 3, as a run leaves them; `removed` by retention."""
    for i in range(4):
        folder, name = (paths.checkpoint(i), "policy/w") if i else (paths.model, "w")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(bytes([i]) * 10)
        if i:
            paths.engine(i).mkdir()
            torch.save(torch.arange(10) + i, paths.engine(i) / "rank_0.pt")
        stage = "optimize" if i else "reserve_vocab"
        manifest = Manifest(stage, i, "c", {}, describe_outputs(folder), removed=removed.get(i, ()))
        write_manifest(manifest, paths.manifest(stage, i))
    return read_manifests(paths)


def test_the_checkpoint_before_is_offered(tmp_path):
    paths = RunPaths(tmp_path)
    manifests = make_run(paths, {})
    assert way_on(paths, manifests, 3, False) == (
        f"policy 2 is whole: delete {tmp_path}/checkpoints/0003 and start the same command again to make policy 3 anew"
    )


def test_a_damaged_or_half_removed_one_before_it_is_passed_over(tmp_path):
    paths = RunPaths(tmp_path)
    manifests = make_run(paths, {1: ("engine/",)})
    (paths.engine(2) / "rank_0.pt").write_bytes((paths.engine(3) / "rank_0.pt").read_bytes())  # swapped
    doomed = " ".join(f"{tmp_path}/checkpoints/000{i}" for i in (1, 2, 3))
    assert way_on(paths, manifests, 3, False) == (
        f"policy 0 is whole: delete {doomed} and start the same command again to make policies 1 to 3 anew"
    )


def test_where_no_training_can_go_on_the_newest_weights_are_offered(tmp_path):
    paths = RunPaths(tmp_path)
    manifests = make_run(paths, {1: ("engine/", "policy/"), 2: ("engine/", "policy/")})
    (paths.model / "w").write_bytes(b"damaged..!")
    (paths.engine(3) / "rank_0.pt").write_bytes(b"")
    assert way_on(paths, manifests, 3, False).endswith(
        f"policy 3, a new run can start from them: bash run.sh --model {tmp_path}/checkpoints/0003/policy"
    )
    (paths.policy(3) / "w").unlink()
    assert way_on(paths, manifests, 3, False).startswith("no checkpoint of this run is whole")
