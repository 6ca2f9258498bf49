"""Faults drawn at random: which, on whom, when."""

from __future__ import annotations

import errno
import random

from tests.faults.attempt import Act
from tests.faults.layer import Order
from tests.faults.trial import Blow, owned_by_nobody

# Of one attempt: at most one fault that the run is to survive, and then one that ends it.
SURVIVED = ("worker killed", "environment hangs", "clock jumps", "stale lock", "stale JIT lock")
DEADLY = {  # and how often
    "SIGKILL": 6, "SIGTERM": 3, "SIGINT": 3, "Ctrl-C twice": 1, "ENOSPC": 3, "EIO": 3, "torn write": 4, "read-only": 1,
    "lost in a collective": 2,
}  # fmt: skip
TARGETS = {  # whom a signal goes to, by mode
    "resident": ("command", "outer launcher", "inner launcher", "rank 0", "rank 1"),
    "stages": ("command", "inner launcher", "rank 0", "rank 1"),
    "driver": ("command",),
}
CLOCK_S = (-7 * 86400, -3600, 3600, 400 * 86400)
LONGEST_TEAR = 400  # bytes; a trajectory has a few thousand
START_UP_SHARE = 0.15  # of the signals come before the first file event
START_UP_S = 15.0


def draw(rng: random.Random, mode: str, ranks: int, span: int, may_mount: bool) -> Blow:
    """The faults of one attempt.

    Args:
        span: the fault that ends the attempt comes before this many file events.
    """
    names, order, acts, stale_lock, jit = [], Order(), [], None, False
    deadly = _deadly(rng, ranks, may_mount)
    last = rng.randint(1, span)
    survived = rng.choice(SURVIVED) if rng.random() < 0.75 else None
    if survived == "stale lock":
        stale_lock = owned_by_nobody(rng.random() < 0.5)
    elif survived == "stale JIT lock":
        jit = True
    elif survived == "clock jumps" and deadly not in ("ENOSPC", "EIO", "torn write"):  # one order at a time
        order = Order(at=rng.randint(1, last), do=f"clock {rng.choice(CLOCK_S)}")
    elif survived in ("worker killed", "environment hangs"):
        do = "SIGKILL" if survived == "worker killed" else "SIGSTOP"
        acts.append(Act(do, "worker", at=rng.randint(1, last)))
    else:
        survived = None
    if survived is not None:
        names.append(survived)
    names.append(deadly)
    if deadly in ("ENOSPC", "EIO"):
        number = errno.ENOSPC if deadly == "ENOSPC" else errno.EIO
        order = Order(at=last, do=f"fail {number}", stays=deadly == "ENOSPC" or rng.random() < 0.5)
    elif deadly == "torn write":
        order = Order(at=last, do=f"tear {rng.randint(0, LONGEST_TEAR)}")
    else:
        acts.append(_act(rng, deadly, mode, ranks, last))
    says = not (acts and acts[-1].do == "SIGKILL" and acts[-1].role == "command")
    return Blow(tuple(names), order, tuple(acts), stale_lock, jit, says)


def _deadly(rng: random.Random, ranks: int, may_mount: bool) -> str:
    possible = [
        (kind, weight)
        for kind, weight in DEADLY.items()
        if (kind != "lost in a collective" or ranks > 1) and (kind != "read-only" or may_mount)
    ]
    return rng.choices([kind for kind, _ in possible], [weight for _, weight in possible])[0]


def _act(rng: random.Random, kind: str, mode: str, ranks: int, last: int) -> Act:
    delay_s = rng.random() * 0.3
    if kind == "read-only":
        return Act(kind, "command", last)
    if kind == "lost in a collective":
        return Act("freeze and kill", f"rank {rng.randrange(ranks)}", last, delay_s)
    if kind == "Ctrl-C twice":
        return Act("SIGINT twice", "command", last, delay_s)
    role = rng.choice([role for role in TARGETS[mode] if role != "rank 1" or ranks > 1])
    if rng.random() < START_UP_SHARE:
        return Act(kind, role, 0, rng.random() * START_UP_S)
    return Act(kind, role, last, delay_s)
