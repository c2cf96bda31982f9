"""What is asked of a server, and the powers that some workloads have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from dbtoll.interfaces.cache import BuildCache
from dbtoll.interfaces.machine import Machine, Server, Session
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.model.reply import AnswerReference, Statement


class Workload(Protocol):
    """What is asked of the server. A module ``workloads/NAME`` defines a class ``Workload`` made from its options."""

    name: str
    primary: str
    """The option that the short form sets: ``tpcc:5``."""
    engines: tuple[str, ...] | None
    """Those that it can be loaded into and asked of; None: any."""
    options: Mapping[str, Option]
    writes: bool
    """Whether its statements change data: then an arm whose commits do not reach the device is void."""
    queries: tuple[str, ...]

    def __init__(self, options: Mapping[str, Any]) -> None: ...
    def key(self) -> str:
        """What the loaded data depends on: everything but the engine."""
        ...

    def estimate_bytes(self) -> int:
        """Disk space that the loaded data and its load will take, roughly; asked before it starts."""
        ...

    def load(self, machine: Machine, engine: str, server: Server, progress: Callable[[str], None]) -> Json:
        """Schema, rows, keys, indexes (statistics are the engine's). Returns facts: rows per table, times in ns."""
        ...

    def statements(self, engine: str, seed: int) -> dict[str, Statement]:
        """query name -> statement, parameters drawn from ``seed``: equal for equal seeds, on every machine."""
        ...

    def references(
        self, machine: Machine, statements: Mapping[str, Statement], cache: BuildCache, progress: Callable[[str], None]
    ) -> dict[str, AnswerReference]:
        """Answers computed by an independent engine before the run, kept in ``cache``; {} if there is none.

        ``machine``: the local host, whose agent makes the rows.
        """
        ...


@runtime_checkable
class ResumableWorkload(Protocol):
    """Power of a workload whose `Workload.load` goes on where an earlier one was killed or interrupted."""

    def loaded(self, session: Session) -> frozenset[str]:
        """Names of the parts of a load that are there."""
        ...


@runtime_checkable
class TransactionWorkload(Protocol):
    """Power of a workload whose transactions the agent knows: terminals work in measurement windows, and what proves them
    is the state of the data. Its one query, as far as plans go, is a window.
    """

    mix: Mapping[str, float]
    """Transaction -> how often it is drawn, in any unit."""
    factors: Mapping[str, tuple[str, ...]]
    """Factor -> its levels, where it does not have all of them."""
    throughput_transaction: str | None
    """The transaction whose commits are the throughput (TPC-C: new_order); None: all of them."""
    multi_statement: bool
    """Whether most transactions have more than one statement: then `MariaDB` begins them by itself."""

    def driver_parameters(self, interaction: str, seed: int) -> Json:
        """Parameters of the agent's method ``oltp``, but for the server and its session."""
        ...

    def window_timing(self) -> tuple[int, int, float | None]:
        """Ramp-up and window, ns; arrivals in a second, None: a closed loop."""
        ...

    def violations(self, session: Session, *, initially: bool = False) -> list[str]:
        """What must hold of the data and does not; ``initially``: with what only holds before the first transaction."""
        ...

    def constrain(self, session: Session, engine: str, foreign_keys: str) -> None:
        """Untimed: with foreign keys, ``yes``, or without, ``no``, whatever there was."""
        ...

    def unlikely_mix(self, counts: Mapping[str, int]) -> str | None:
        """What is beyond chance in how often each transaction was executed; None if nothing is."""
        ...


@runtime_checkable
class ProbeWorkload(Protocol):
    """Power of a workload that asks no server: each of its queries is a micro-probe of the agent's (docs/PROTOCOL.md, "Command
    line"), run in a process of its own in the arm.
    """

    def request(self, query: str, folder: str) -> Json:
        """What `dbtoll-agent probe` is asked. ``folder``: in the arm, on its storage."""
        ...

    def uncached(self, query: str) -> bool:
        """Whether all caches are to be dropped before, the host's among them: nobody but who owns the machine may ask for that."""
        ...

    def about(self, query: str) -> Json:
        """``event``: what is counted, in words; ``min_ns``, ``max_ns``: between which its cost is believed."""
        ...
