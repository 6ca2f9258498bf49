"""The ranks of a run and what they say to each other. The one importer of torch.distributed and mpi4py.

Everything that crosses ranks here is small: counts, sums, names, seeds. Weights and gradients travel
inside DeepSpeed. Every rank must make the same calls in the same order; each call says in words what it
waits for, so that a lost rank ends in a sentence and not in a silent hang.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")

MISSING_RANK = re.compile(r"Rank (\d+) failed to pass")  # gloo's monitored barrier

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
OPENMPI_SIZE = "OMPI_COMM_WORLD_SIZE"


class CollectiveError(Exception):
    """The ranks could not agree. The message names the rank, what it waited for, and the remedy."""


@dataclass(frozen=True)
class Distributed:
    """This process among the ranks of the run.

    With `world_size` 1 no process group is needed and every method returns at once.

    Example (the second of two ranks on one machine):
        Distributed(rank=1, world_size=2, local_rank=1, device=torch.device("cpu"), timeout_s=600.0)
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    timeout_s: float

    @classmethod
    def single(cls, device: str = "cpu") -> Distributed:
        """One rank, no process group."""
        return cls(rank=0, world_size=1, local_rank=0, device=torch.device(device), timeout_s=0.0)

    @property
    def is_main(self) -> bool:
        """True on the rank that writes what is written once."""
        return self.rank == 0

    def barrier(self, name: str) -> None:
        """Return when all ranks have come to the point `name`.

        Raises:
            CollectiveError: some rank did not come within the timeout.
        """
        if self.world_size == 1:
            return
        if self.device.type == "cpu":  # gloo's monitored barrier tells which rank is missing
            self._wait(name, lambda: dist.monitored_barrier(timeout=timedelta(seconds=self.timeout_s)))
        else:
            self._wait(name, lambda: dist.barrier(device_ids=[self.local_rank]))

    def sum(self, values: list[float], what: str = "a sum") -> list[float]:
        """Element-wise sum over ranks in float64. All ranks give lists of one length and get the same result."""
        if self.world_size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        self._wait(what, lambda: dist.all_reduce(tensor, op=dist.ReduceOp.SUM))
        return tensor.tolist()

    def max(self, value: int, what: str = "a maximum") -> int:
        """The largest of the ranks' integers, on every rank."""
        if self.world_size == 1:
            return int(value)
        tensor = torch.tensor([value], dtype=torch.int64, device=self.device)
        self._wait(what, lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX))
        return int(tensor.item())

    def gather(self, value: Any, what: str = "a gather") -> list[Any]:
        """One picklable object of each rank, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        self._wait(what, lambda: dist.all_gather_object(values, value))
        return values

    def broadcast(self, value: Any, what: str = "a broadcast") -> Any:
        """Rank 0's picklable object, on every rank; what the others pass is ignored."""
        if self.world_size == 1:
            return value
        values = [value]
        self._wait(what, lambda: dist.broadcast_object_list(values, src=0))
        return values[0]

    def _wait(self, what: str, collective: Callable[[], Result]) -> Result:
        try:
            return collective()
        except RuntimeError as fault:
            raise CollectiveError(
                f"rank {self.rank} of {self.world_size} waited for {what} (limit {self.timeout_s:g} s): "
                f"{_reason(fault)}; look for the first error of the other ranks, then start the same command again"
            ) from fault


def _reason(fault: RuntimeError) -> str:
    """Gloo's and NCCL's words in ours, where it is known what they mean."""
    text = " ".join(str(fault).split())
    missing = MISSING_RANK.search(text)
    who = f"rank {missing[1]}" if missing else "another rank"
    if "by peer" in text:
        return f"{who} is gone: it was killed, ran out of memory, or ended on an error of its own"
    return f"{who} did not come" if missing else text[:200]


def launch_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT of this process, however it was started.

    The `deepspeed` launcher sets all five; under mpirun they are agreed on through mpi4py; a plain
    `python x.py` is one rank with a free port of its own.

    Raises:
        CollectiveError: started by mpirun and mpi4py is not installed.
    """
    if all(name in environ for name in LAUNCHER_VARIABLES):
        return {name: environ[name] for name in LAUNCHER_VARIABLES}
    if OPENMPI_SIZE in environ:
        return _mpi_variables()
    return _variables(0, 1, 0, "127.0.0.1", free_port())


def _mpi_variables() -> dict[str, str]:
    try:
        from mpi4py import MPI
    except ImportError as fault:
        raise CollectiveError(
            f"started by mpirun, but mpi4py cannot be imported ({fault}); "
            "install libopenmpi-dev, openmpi-bin and mpi4py, or use the deepspeed launcher"
        ) from fault
    world = MPI.COMM_WORLD
    hosts = world.allgather(MPI.Get_processor_name())
    local_rank = hosts[: world.rank].count(hosts[world.rank])
    address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    port = world.bcast(free_port() if world.rank == 0 else None, root=0)
    return _variables(world.rank, world.size, local_rank, address, port)


def _variables(rank: int, world_size: int, local_rank: int, address: str, port: int) -> dict[str, str]:
    return dict(zip(LAUNCHER_VARIABLES, (str(rank), str(world_size), str(local_rank), address, str(port)), strict=True))


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def from_environment(device: torch.device, timeout_s: float) -> Distributed:
    """This process among the ranks of the process group that the environment variables describe."""
    return Distributed(
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        device=device,
        timeout_s=timeout_s,
    )


def no_meeting(fault: RuntimeError, timeout_s: float) -> CollectiveError:
    """What to say when the ranks could not be joined (see the environment variables for where)."""
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if "EADDRINUSE" in str(fault):
        return CollectiveError(
            f"port {place} is in use by another process; start again with a free one: deepspeed --master_port N ... "
            "(`bash run.sh` takes one by itself)"
        )
    text = " ".join(str(fault).split())[:200]
    return CollectiveError(
        f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others at {place} within "
        f"{timeout_s:g} s ({text}); look for the first error of the other ranks, then start the same command again"
    )


def leave() -> None:
    """Close the process group, if there is one. For the end of a process."""
    if dist.is_initialized():
        dist.destroy_process_group()
