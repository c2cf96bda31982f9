"""Page faults of the server's processes by what they do: ``anonymous`` (a new page), ``file``, ``shared`` (memory that processes
share, written), ``shared_read``, ``copy`` (a page that is written to); and ``alone``, how many of each do not come in a row.

Cost: each fault is recorded, some 100 ns, and read by a program beside. BIAS: tracepoints of page faults are an x86 kernel's, and
need the right to look at everybody; where they are missing it is concluded from the baseline's (docs/method/ledgers.md).
"""

from __future__ import annotations

from dbtoll.machines.observers import Program


class Collector(Program):
    """See interfaces.Collector."""

    name = "faults"
    what = "kinds of page faults"
