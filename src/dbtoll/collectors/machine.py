"""What the whole machine did, seen from inside it and from the machine around it: CPU time by state, switches, forks, transfers of
each block device, pressure.

Two levels, because a guest's requests are not its host's (Minhas et al. 2008, Table 6: Dom0 read up to twice as much as the
guest asked for). Cost: two reads of /proc in each machine, before and after; nothing in between. BIAS: it holds what everybody
there did; of an arm on its parent's kernel both levels are the same. CPU times of a machine advance by ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.interfaces.machine import Machine
from dbtoll.machines.observers import Counters, risen
from dbtoll.model.json import Json


class Collector(Counters):
    """See interfaces.Collector."""

    name = "machine"
    of_kernel = True

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector: ``inside`` and ``around`` (None: nothing is around it); keys as of the agent's method
        ``counters``, what a kernel does not tell is None."""
        levels = {"inside": machine, "around": getattr(machine, "parent", None)}
        before = {name: None if level is None else level.counters()["machine"] for name, level in levels.items()}
        after: Json = {}
        yield lambda: {name: None if old is None else risen(old, after[name]) for name, old in before.items()}
        after |= {name: None if level is None else level.counters()["machine"] for name, level in levels.items()}
