"""Events of the server's processes that the kernel counts by itself (perf_event_open(2)): page faults, switches, migrations; and
the processor's own counters where it shows them.

It tells ``events`` (name -> how many, None where this machine does not count it) and ``missing`` (name -> why).

Cost: at each event an addition. BIAS: a counter of the processor that shares its register is scaled by the time that it had it.
"""

from __future__ import annotations

from dbtoll.machines.observers import Program


class Collector(Program):
    """See interfaces.Collector."""

    name = "events"
    what = "events of the kernel"
    disturbs = False
