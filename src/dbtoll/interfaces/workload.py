"""What is asked of a server, and the powers that some workloads have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from dbtoll.interfaces.cache import BuildCache
from dbtoll.interfaces.engine import SQL
from dbtoll.interfaces.machine import Machine, Server, Session
from dbtoll.model.description import WorkloadDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import FACTORS
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.model.reply import AnswerReference, Statement


class Workload(Protocol):
    """What is asked of the server. A module ``workloads/NAME``, or a package's entry point, defines a class ``Workload``
    derived from this one and made from its options. All that dbtoll knows of a workload is in it; what has a value here may be
    left out.
    """

    name: ClassVar[str]
    description: WorkloadDescription
    """What analysis and report know of it."""
    also_called: ClassVar[tuple[str, ...]] = ()
    """Names that people may type instead; they are answered with this one."""
    primary: ClassVar[str]
    """The option that the short form sets: ``tpcc:5``."""
    requires: ClassVar[frozenset[str]] = frozenset({SQL})
    """Abilities that an engine must offer (`Engine.offers`)."""
    factors: ClassVar[Mapping[str, tuple[str, ...]]] = FACTORS
    """Factor -> levels that a specification may ask for, the default first: of those that the runner knows."""
    options: ClassVar[Mapping[str, Option]] = {}
    writes: ClassVar[bool] = False
    """Whether its statements change data: then an arm whose commits do not reach the device is void."""
    queries: tuple[str, ...]

    refused_options: ClassVar[Mapping[str, Any]] = {"queries": ["no such"]}
    """What contract tests give to it, and it must refuse with a hint."""

    @classmethod
    def contract_options(cls, folder: Path) -> Mapping[str, Any]:
        """Options with which contract tests make it; ``folder``: an empty one, for files that it needs."""
        return {}

    @abstractmethod
    def __init__(self, options: Mapping[str, Any]) -> None: ...
    @abstractmethod
    def key(self) -> str:
        """What the loaded data depends on: everything but the engine."""
        ...

    @abstractmethod
    def estimate_bytes(self) -> int:
        """Disk space of the tables with their indexes, while they are loaded, roughly; asked before that starts."""
        ...

    @abstractmethod
    def load(self, machine: Machine, sql: Dialect, server: Server, progress: Callable[[str], None]) -> Json:
        """Schema, rows, keys, indexes (statistics are the engine's). Returns facts: rows per table, times in ns."""
        ...

    @abstractmethod
    def statements(self, sql: Dialect, seed: int) -> dict[str, Statement]:
        """query name -> statement, parameters drawn from ``seed``: equal for equal seeds, on every machine."""
        ...

    def references(
        self, machine: Machine, statements: Mapping[str, Statement], cache: BuildCache, progress: Callable[[str], None]
    ) -> dict[str, AnswerReference]:
        """Answers computed by an independent engine before the run, kept in ``cache``; {} if there is none.

        ``machine``: the local host, whose agent makes the rows.
        """
        return {}

    def answer_columns(self, query: str) -> tuple[str, ...] | None:
        """How each column of an answer is compared (`AnswerReference.columns`); None where no other engine can give it."""
        return None


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
    throughput_transaction: str | None
    """The transaction whose commits are the throughput (TPC-C: new_order); None: all of them."""
    multi_statement: bool
    """Whether most transactions have more than one statement: then some servers begin them by themselves."""

    def driver_parameters(self, levels: Mapping[str, str], seed: int) -> Json:
        """Parameters of the agent's method ``oltp``, but for the server and its session. ``levels``: of factors; the first of each
        that is not in there."""
        ...

    def window_timing(self) -> tuple[int, int, float | None]:
        """Ramp-up and window, ns; arrivals in a second, None: a closed loop."""
        ...

    def violations(self, session: Session, *, initially: bool = False) -> list[str]:
        """What must hold of the data and does not; ``initially``: with what only holds before the first transaction."""
        ...

    def constrain(self, session: Session, sql: Dialect, foreign_keys: str) -> None:
        """Untimed: with foreign keys, ``yes``, or without, ``no``, whatever there was."""
        ...

    def unlikely_mix(self, counts: Mapping[str, int]) -> str | None:
        """What is beyond chance in how often each transaction was executed; None if nothing is."""
        ...


@runtime_checkable
class TenantKeyWorkload(Protocol):
    """Power of a `TransactionWorkload` whose tables several tenants can share: each has rows of its own by a key."""

    def as_tenant(self, number: int, of: int) -> Self:
        """The same as it is for tenant ``number``, from 0, of ``of``. Each has as many rows as the workload alone. Of all rows are
        `Workload.key`, `estimate_bytes`, `load` and `TransactionWorkload.violations`; of its own are `driver_parameters`.

        UsageError if there would be more rows than the workload can have.
        """
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
