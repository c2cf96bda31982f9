"""System calls of the server's processes by name, seen by ptrace(2), which works wherever a debugger does.

Cost: every call stops twice and takes many times as long, so this belongs into a counting pass. BIAS: the stops are themselves
switches, and the times of the calls hold them; the counts are exact, but that waiting calls may be made more or less often when all
else is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.collectors.looking_on import lacks, looking_on, owner
from dbtoll.interfaces import Machine
from dbtoll.model import Json

WHAT = "system calls"


class Collector:
    """See interfaces.Collector."""

    name = "calls"
    disturbs = True

    def lacks(self, machine: Machine, pid: int) -> str | None:
        """Sandboxes and kernels may forbid it."""
        return lacks(machine, pid, self.name, WHAT)

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector: name -> ``count``, ``failed``, ``elapsed_ns``."""
        # As the server's own user: a container's root may not look at others' processes (ptrace(2), "access mode checking").
        with looking_on(machine, pid, self.name, WHAT, user=owner(machine, pid)) as told:
            yield lambda: told()["calls"]
