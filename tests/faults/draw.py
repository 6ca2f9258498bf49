"""Faults drawn at random: which, on whom, when."""

from __future__ import annotations

import errno
import random

from tests.faults.attempt import Act
from tests.faults.layer import Order
from tests.faults.trial import Blow, owned_by_nobody

# Of one attempt: faults that the run is to survive, and then one that ends it.
SURVIVED = {"worker": 0.6, "clock jumps": 0.4, "stale lock": 0.3, "stale JIT lock": 0.3}  # how often
DEADLY = {  # and how often
    "SIGKILL": 6, "SIGTERM": 3, "SIGINT": 3, "Ctrl-C twice": 1, "ENOSPC": 3, "EIO": 3, "torn write": 4, "read-only": 1,
    "lost in a collective": 2,
}  # fmt: skip
TARGETS = {  # whom a signal goes to, by mode
    "resident": ("command", "outer launcher", "inner launcher", "rank 0", "rank 1"),
    "stages": ("command", "inner launcher", "rank 0", "rank 1"),
    "forked": ("command",),
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
    deadly = _deadly(rng, ranks, may_mount)
    last = rng.randint(1, span)
    survived = {kind for kind, share in SURVIVED.items() if rng.random() < share}
    order, acts = Order(), []
    if "worker" in survived:  # one: an episode that loses its environment twice is given up
        do, name = rng.choice([("SIGKILL", "worker killed"), ("SIGSTOP", "environment hangs")])
        acts.append(Act(do, "worker", rng.randint(1, last), name=name))
    if deadly in ("ENOSPC", "EIO"):
        number = errno.ENOSPC if deadly == "ENOSPC" else errno.EIO
        order = Order(last, f"fail {number}", stays=deadly == "ENOSPC" or rng.random() < 0.5, name=deadly)
    elif deadly == "torn write":
        order = Order(last, f"tear {rng.randint(0, LONGEST_TEAR)}", name=deadly)
    else:
        acts.append(_act(rng, deadly, mode, ranks, last))
        if "clock jumps" in survived:  # the layer takes one order
            order = Order(rng.randint(1, last), f"clock {rng.choice(CLOCK_S)}", name="clock jumps")
    stale_lock = owned_by_nobody(rng.random() < 0.5) if "stale lock" in survived else None
    return Blow(order, tuple(acts), stale_lock, "stale JIT lock" in survived)


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
        return Act("freeze and kill", f"rank {rng.randrange(ranks)}", last, delay_s, kind)
    if kind == "Ctrl-C twice":
        return Act("SIGINT twice", "command", last, delay_s, kind)
    role = rng.choice([role for role in TARGETS[mode] if role != "rank 1" or ranks > 1])
    if rng.random() < START_UP_SHARE:
        return Act(kind, role, 0, rng.random() * START_UP_S, f"{kind} to {shown(role)}")
    return Act(kind, role, last, delay_s, f"{kind} to {shown(role)}")


def shown(role: str) -> str:
    """For the table: which rank does not matter there."""
    return "a rank" if role.startswith("rank") else f"the {role}"
