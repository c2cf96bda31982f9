"""System calls of the server's processes by name, seen by ptrace(2), which works wherever a debugger does.

Cost: every call stops twice and takes many times as long, so this belongs into a counting pass. BIAS: the stops are themselves
switches, and the times of the calls hold them; the counts are exact, but that waiting calls may be made more or less often when all
else is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.interfaces.machine import Machine
from dbtoll.machines.observers import Program, looking_on
from dbtoll.model.json import AGENT, Json


class Collector(Program):
    """See interfaces.Collector."""

    name = "calls"
    what = "system calls"

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector: name -> ``count``, ``failed``, ``alone``, ``background``, ``elapsed_ns``
        (agent/src/collect/calls.rs)."""
        # As the server's own user: a container's root may not look at others' processes (ptrace(2), "access mode checking").
        argv = [AGENT, self.name, str(pid)]
        with looking_on(machine, argv, self.what, user=_owner(machine, pid)) as told:
            yield lambda: told()["calls"]


def _owner(machine: Machine, pid: int) -> str:
    """``uid:gid`` of a process."""
    lines = machine.get(f"/proc/{pid}/status").decode().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return f"{fields['Uid'].split()[0]}:{fields['Gid'].split()[0]}"
