"""What is counted beside a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from dbtoll.interfaces.machine import Machine
from dbtoll.model.json import Json


class Collector(Protocol):
    """Something that is counted beside a server, in a pass of its own (DESIGN §1.4). Knows no engine and no environment.

    A module ``collectors/NAME.py`` defines a class ``Collector`` with this shape; its head says what it costs and what can
    distort it.
    """

    name: str
    disturbs: bool
    """Whether what it looks at takes longer for it (`dbtoll selfbench collectors`): then it has a pass of its own."""
    everywhere: bool
    """Or in the baseline alone: what is a property of the program and not of where it runs."""
    of_kernel: bool
    """Whether it counts what everybody on the server's kernel does, or the server alone."""
    beside_questions: bool
    """Whether what it counts is the same while the server is asked, every 20 ms, what its sessions do."""
    least_s: float
    """Of executions that it must see in order to know; what is shorter is executed again. 0 where it counts each event."""

    def missing_requirements(self, machine: Machine, pid: int) -> str | None:
        """Why it cannot be counted for the process ``pid`` and its descendants there; None if it can."""
        ...

    def around(self, machine: Machine, pid: int) -> AbstractContextManager[Callable[[], Json]]:
        """Counts while the context lasts; what it yields tells, afterwards, what was counted. Unavailable where it cannot."""
        ...
