"""The kernel's own accounts of the server's processes: page faults, switches, CPU time, transfers, waiting for a processor.

Cost: two reads of /proc, before and after; nothing in between. BIAS: switches, run time and waits are of processes that live at
both reads; the kernel adds those that ended meanwhile to page faults, CPU time and transfers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.interfaces.machine import Machine
from dbtoll.machines.observers import Counters, risen
from dbtoll.model.json import Json

LEVELS = frozenset({"count", "rss_bytes"})
"""Not counters: they do not only rise."""


class Collector(Counters):
    """See interfaces.Collector."""

    name = "processes"

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector. Keys as of the agent's method ``counters``; what the kernel does not tell is None."""
        before = machine.counters(tree_of=pid, each=True)["processes"]
        after: Json = {}
        yield lambda: {name: value for name, value in risen(before, after).items() if name not in LEVELS}
        after |= machine.counters(tree_of=pid, each=True)["processes"]
