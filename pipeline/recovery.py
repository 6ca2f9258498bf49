"""What to go on from when a checkpoint is damaged: the newest one before it that is whole."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pipeline.manifests import CRITIC, CRITIC_ENGINE, ENGINE, POLICY, Manifest, check_outputs
from pipeline.plan import Name, policy_maker
from pipeline.run_directory import RunError, RunPaths


def way_on(paths: RunPaths, manifests: Mapping[Name, Manifest], damaged: int, warm_start: bool) -> str:
    """What can be done about a damaged checkpoint (>= 1), in words; reads the files of those before it.

    Example: `policy 2 is whole: delete runs/X/checkpoints/0003 and start the same command again to make policy 3 anew`
    """
    newest = next((i for i in range(damaged - 1, -1, -1) if is_whole(paths, manifests, i, warm_start)), None)
    if newest is not None:
        folders = [str(paths.checkpoint(i)) for i in range(newest + 1, damaged + 1)]
        made = f"policy {damaged}" if len(folders) == 1 else f"policies {newest + 1} to {damaged}"
        listed = " ".join(map(shlex.quote, folders))
        return f"policy {newest} is whole: delete {listed} and start the same command again to make {made} anew"
    weights = next((i for i in range(damaged, -1, -1) if is_whole(paths, manifests, i, warm_start, (POLICY,))), None)
    if weights is None:
        return "no checkpoint of this run is whole; start a new run with another --run-dir"
    folder = shlex.quote(str(paths.policy(weights)))
    return (
        "no earlier checkpoint has its engine state (checkpoint.keep_last); the newest whole weights are those of "
        f"policy {weights}, a new run can start from them: bash run.sh --model {folder}"
    )


def is_whole(
    paths: RunPaths,
    manifests: Mapping[Name, Manifest],
    iteration: int,
    warm_start: bool,
    needed: tuple[str, ...] = (POLICY, ENGINE, CRITIC, CRITIC_ENGINE),
) -> bool:
    """Whether training can go on from a policy: nothing of it was removed, and every file is what was written.

    Policy 0 needs no engine state: the first iteration starts a fresh optimizer.
    """
    maker = policy_maker(iteration, warm_start)
    manifest = manifests.get(maker)
    if manifest is None or (iteration > 0 and set(needed) & set(manifest.removed)):
        return False
    try:
        check_outputs(manifest, paths.stage(*maker), needed if iteration > 0 else "", hashes=True)
    except RunError:
        return False
    return True
