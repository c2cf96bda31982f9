"""Over how many instructions the time of the server's processes in user mode is spread, by looking up every 20 us where they are.

It tells ``samples`` and ``instructions`` (agent/src/collect/samples.rs); of the baseline alone, for it is a property of the
program. An emulator pays for each instruction, whether or not a real processor waits in it.

A statement of 5 ms has 250 samples for as much code as a long one: it is executed until it has some twenty thousand.

Cost: an interrupt for each sample, a microsecond or two.
"""

from __future__ import annotations

from dbtoll.machines.observers import Program


class Collector(Program):
    """See interfaces.Collector."""

    name = "samples"
    what = "where processes are"
    everywhere = False
    least_s = 0.5
