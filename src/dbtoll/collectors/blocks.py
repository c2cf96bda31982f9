"""Requests to block devices as the kernel issues them, seen in the machine and in the one around it: how many, how large, and how
far each lies from the end of the one before it of its direction (Zhang et al. 2014, §4: the distance tells how random they are).

It tells ``inside`` and ``around``, each by device (its name; ``major:minor`` of one that has none) and then ``reads``, ``writes``
and ``others``: ``count``, ``bytes``, ``sequential``, ``by_distance`` (bytes, a power of two -> how many lie that far at most); or
``missing``: why.

Cost: each request is recorded, some 100 ns. BIAS: it holds everybody's requests. In a window of transactions the server is asked
meanwhile what its sessions do, which writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from dbtoll.errors import Unavailable
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.observers import Program, looking_on
from dbtoll.model.json import AGENT, Json


class Collector(Program):
    """See interfaces.Collector."""

    name = "blocks"
    what = "requests to block devices"
    disturbs = False
    of_kernel = True
    beside_questions = True

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector. Unavailable where neither kernel shows them."""
        machine.counters(tree_of=pid)  # fails where nobody is who could ask for something
        parent: Machine | None = getattr(machine, "parent", None)
        programs = {"inside": (machine, AGENT)}
        if parent is not None:
            # The agent that runs there, wherever its file is.
            programs["around"] = parent, f"/proc/{parent.hello()['pid']}/exe"
        told: dict[str, Callable[[], Json]] = {}
        with ExitStack() as looking:
            for level, (where, program) in programs.items():
                try:
                    told[level] = looking.enter_context(looking_on(where, [program, self.name], self.what))
                except Unavailable as error:
                    told[level] = _missing(error.message)
            if all("missing" in each() for each in told.values()):
                raise Unavailable("; ".join(each()["missing"] for each in told.values()))
            yield lambda: {level: each() for level, each in told.items()}


def _missing(why: str) -> Callable[[], Json]:
    return lambda: {"missing": why}
