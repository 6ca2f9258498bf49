from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from runtime.distributed import LAUNCHER_VARIABLES, CollectiveError, Distributed, launch_variables


def test_one_rank_needs_no_process_group():
    one = Distributed.single()
    one.barrier("anything")
    assert one.is_main
    assert one.sum([1, 2.5]) == [1.0, 2.5]
    assert one.max(3) == 3
    assert one.gather("a") == ["a"]
    assert one.broadcast({"b": 1}) == {"b": 1}


def test_variables_of_the_launcher_are_taken_as_they_are():
    given = dict(zip(LAUNCHER_VARIABLES, ("3", "4", "1", "10.0.0.1", "29501"), strict=True))
    assert launch_variables({**given, "OMPI_COMM_WORLD_SIZE": "9", "HOME": "x"}) == given


def test_a_plain_process_is_one_rank_with_a_port_of_its_own():
    found = launch_variables({"RANK": "5"})  # an incomplete set is not a launcher
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("0", "1", "0")
    assert 0 < int(found["MASTER_PORT"]) < 65536


def test_a_collective_that_fails_names_what_it_waited_for(monkeypatch):
    # two ranks are claimed and there is no process group: torch refuses with its own words
    two = Distributed(rank=0, world_size=2, local_rank=0, device=Distributed.single().device, timeout_s=7.0)
    monkeypatch.setattr("torch.distributed.all_gather_object", _time_out)
    with pytest.raises(
        CollectiveError, match=r"rank 0 of 2 waited for the scores of all ranks \(limit 7 s\): Timed out"
    ):
        two.gather(1, "the scores of all ranks")


def _time_out(*_):
    raise RuntimeError("Timed out waiting 7000ms for recv operation to complete")


def test_a_dry_run_needs_no_deepspeed():
    code = (
        "import sys, runtime.engine; from runtime.deepspeed_settings import deepspeed_config; "
        "deepspeed_config(zero_stage=3, dtype='bfloat16', max_grad_norm=1.0); "
        "sys.exit('deepspeed' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 5000 ms\n Original exception: \n"
         "[pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer. This is typically ...",
         "rank 3 is gone: it was killed, ran out of memory, or ended on an error of its own"),
        ("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 5000 ms", "rank 3 did not come"),
        ("[pair.cc:547] Connection closed by peer [127.0.0.1]:1", "another rank is gone: it was killed, ran out of"),
        ("Timed out\nwaiting", "Timed out waiting"),
    ],
)  # fmt: skip
def test_a_lost_rank_is_one_line_with_its_number(text, reason):
    def collective():
        raise RuntimeError(text)

    with pytest.raises(CollectiveError) as caught:
        replace(Distributed.single(), world_size=4)._wait("the sum", collective)
    assert f"rank 0 of 4 waited for the sum (limit 0 s): {reason}" in str(caught.value)
    assert "\n" not in str(caught.value)
