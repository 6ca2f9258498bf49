"""The layer between a run and its disk (layer.c): built once, told what to do by environment variables."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("layer.c")
COMPILERS = ("cc", "gcc", "g++")
STATE = "SAPO_FAULT_STATE"  # every process of a trial has it in its environment: that is how they are found
SHUT, REACHED, OPEN = 0, 1, 2


def compiler() -> str | None:
    """The first C compiler on the path, or None."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def build(folder: Path) -> Path:
    """Compile the layer into a folder; returns the library for LD_PRELOAD."""
    library = folder / "layer.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        own = folder / f"layer-{os.getpid()}.so"
        command = [compiler(), "-x", "c", "-O2", "-shared", "-fPIC", "-o", str(own), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        os.replace(own, library)
    return library


@dataclass(frozen=True)
class Order:
    """What the layer does at the n-th event below the run directory (those whose path contains `match`).

    Example: Order(at=7, do="fail 28", match="metrics.jsonl", stays=True) is a disk full from the seventh event on.
    """

    at: int = 0
    do: str = ""
    match: str = ""
    stays: bool = False
    name: str = ""  # for the table


class Layer:
    """One trial's shared state: how many events there were, and the gate at which an event waits."""

    def __init__(self, library: Path, state: Path, root: Path, order: Order) -> None:
        self.library, self.path, self.root, self.order = library, state, root, order
        state.write_bytes(bytes(16))
        with open(state, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)

    @property
    def environment(self) -> dict[str, str]:
        order = self.order
        return {
            "LD_PRELOAD": str(self.library), STATE: str(self.path), "SAPO_FAULT_ROOT": str(self.root),
            "SAPO_FAULT_MATCH": order.match, "SAPO_FAULT_AT": str(order.at), "SAPO_FAULT_DO": order.do,
            "SAPO_FAULT_STAYS": str(int(order.stays)),
        }  # fmt: skip

    @property
    def events(self) -> int:
        return struct.unpack_from("q", self._map, 0)[0]

    @property
    def waits(self) -> bool:
        """Whether a process stands at the gate."""
        return struct.unpack_from("q", self._map, 8)[0] == REACHED

    def open_gate(self) -> None:
        struct.pack_into("q", self._map, 8, OPEN)

    def processes(self) -> dict[int, str]:
        """Living processes of the trial and their command lines, zombies left out."""
        mark, found = f"{STATE}={self.path}".encode() + b"\0", {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if mark not in (entry / "environ").read_bytes() + b"\0":
                    continue
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has just ended
                continue
        return found

    def close(self) -> None:
        self._map.close()
