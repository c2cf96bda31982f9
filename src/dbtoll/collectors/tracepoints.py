"""System calls of the server's processes by name, counted by the kernel at their tracepoint.

It tells ``calls``: name -> how many, with ``all`` of them. Where a kernel has tracepoints they count what `calls` does.

Cost: each call is held against a filter for each name there is, and the way into the kernel is longer while its tracepoint is on.
"""

from __future__ import annotations

from dbtoll.machines.observers import Program


class Collector(Program):
    """See interfaces.Collector."""

    name = "tracepoints"
    what = "system calls at their tracepoint"
