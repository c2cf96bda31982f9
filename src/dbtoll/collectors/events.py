"""Events of the server's processes that the kernel counts by itself (perf_event_open(2)): page faults, switches, migrations; the
processor's own counters where it shows them; system calls by name where the kernel has their tracepoints.

Cost: at each event an addition, and the way into the kernel is longer while a tracepoint of it is on: measured by
`dbtoll selfbench collectors`. BIAS: a counter of the processor that shares its register is scaled by the time that it had it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.collectors.looking_on import lacks, looking_on
from dbtoll.interfaces import Machine
from dbtoll.model import Json

WHAT = "events of the kernel"


class Collector:
    """See interfaces.Collector."""

    name = "events"
    disturbs = True

    def lacks(self, machine: Machine, pid: int) -> str | None:
        """Kernels are made without it, sandboxes and containers forbid it."""
        return lacks(machine, pid, self.name, WHAT)

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector: ``events`` (name -> how many, None where this machine does not count it), ``calls`` (name ->
        how many, with ``all`` of them; None: no tracepoints) and ``missing`` (name -> why)."""
        with looking_on(machine, pid, self.name, WHAT) as told:
            yield told
