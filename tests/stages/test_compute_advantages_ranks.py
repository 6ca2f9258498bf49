from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.distributed import free_port
from runtime.scoring import read_scores
from runtime.shards import ShardWriter, read_targets, read_trajectories, shard_path
from stages.compute_advantages import run
from tests.stages.test_compute_advantages import prepare

SCRIPT = Path(__file__).with_name("score_on_ranks.py")


@pytest.mark.slow
def test_two_ranks_equal_one_and_a_rank_may_have_nothing(tmp_path):
    roots = [tmp_path / "uneven", tmp_path / "single"]
    contexts = [prepare(root)[0] for root in roots]
    folder = contexts[1].paths.rollouts(2)
    only = read_trajectories(folder)[0]
    for path in folder.iterdir():
        path.unlink()
    with ShardWriter(shard_path(folder, 0)) as writer:
        writer.append(only)  # one trajectory for two ranks

    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, roots)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()

    for context, num_trajectories in zip(contexts, (3, 1), strict=True):
        folder = context.paths.advantages(2)
        assert len(list(folder.glob("scores-*"))) == 2
        by_two, targets = read_scores(folder), read_targets(folder / "targets.jsonl")
        run(context)
        assert len(list(folder.glob("scores-*"))) == 1
        by_one = read_scores(folder)
        assert by_one.keys() == by_two.keys() and len(by_one) == num_trajectories
        for key, one in by_one.items():
            for name in ("old_logprobs", "ref_logprobs", "values", "q_values"):
                assert getattr(by_two[key], name) == pytest.approx(getattr(one, name), abs=2e-5)
        for one, two in zip(read_targets(folder / "targets.jsonl"), targets, strict=True):
            assert one.key == two.key and two.advantages == pytest.approx(one.advantages, abs=1e-5)
