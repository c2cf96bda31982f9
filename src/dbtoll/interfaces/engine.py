"""A database server, seen through a machine, and the powers that some have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from dbtoll.interfaces.machine import Machine, Server, Session
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.model.software import Software

SQL = "sql"
"""Ability: statements of standard SQL are answered."""
BULK_ROWS = "bulk rows"
"""Ability: the agent can fill its tables, in the form that its address's wire names (docs/PROTOCOL.md, ``serial``)."""
TRANSACTIONS = "transactions"
"""Ability: the agent's transaction workloads can be loaded and driven."""
QUIET = "no server"
"""Ability: nothing works beside what is measured."""


@dataclass(frozen=True, slots=True)
class ContractStatements:
    """What contract tests have to say to a server, where that differs between engines.

    ``key``: makes a column the table's key, where there are keys. ``lock_timeout``: gives up waiting for a lock after a second;
    empty where nobody waits for one. ``sleep``: works for a second, and waits meanwhile for ``asleep``, as
    `StatisticsEngine.wait_events` calls it. ``scan``: `StatisticsEngine.query_statistics` that together count what a scan of
    2000 rows of 200 bytes touches, and how much that is at least and at most. ``settings``: that are needed for these
    statistics.
    """

    key: str = "primary key"
    lock_timeout: str = ""
    sleep: str = ""
    asleep: str = ""
    scan: tuple[str, ...] = ()
    scan_touches: tuple[int, int] = (0, 0)
    settings: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """A database server, seen through a Machine. Knows no environment; starts no process except through the machine.

    A module ``engines/NAME.py``, or a package's entry point, defines a class ``Engine`` derived from this one and made from its
    options. Data lives at ``data`` inside the machine. All that dbtoll knows of an engine is in it; what has a value here may be
    left out.
    """

    name: ClassVar[str]
    description: ClassVar[EngineDescription]
    """What analysis and report know of it."""
    also_called: ClassVar[tuple[str, ...]] = ()
    """Names that people may type instead; they are answered with this one."""
    options: ClassVar[Mapping[str, Option]] = {}
    unsupported: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Factor -> level that its servers do not have -> why. Of the levels that are asked for these are not run, and said. Of
    ``threads`` the level is `model.experiment.ABOVE_ONE`."""
    offers: ClassVar[frozenset[str]] = frozenset({SQL})
    """Abilities that workloads ask for (`Workload.requires`)."""
    sql: ClassVar[Dialect]
    software: ClassVar[Software] = Software()
    """What the system image gets for it, all of it."""
    returns_rows: ClassVar[bool] = True
    """Whether its answers mean anything (the no-op engine's do not)."""
    keeps_data: ClassVar[bool] = True
    """Whether it has a data directory."""
    checked_by: ClassVar[str | None] = None
    """The engine whose answers hold for this one, where the usual reference is the same software as this."""
    contract: ClassVar[ContractStatements] = ContractStatements()

    @abstractmethod
    def __init__(self, options: Mapping[str, Any]) -> None: ...
    @abstractmethod
    def settings(self, resources: Resources) -> dict[str, str]:
        """Server settings of a measured arm, equal in all of them; stored with the run."""
        ...

    @abstractmethod
    def key(self, machine: Machine) -> str:
        """What a data directory depends on besides workload: engine, version, page format."""
        ...

    @abstractmethod
    def create(self, machine: Machine, data: str) -> None:
        """An empty data directory, ready to start."""
        ...

    @abstractmethod
    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        """Returns when it answers. There may be others in the machine, each at a place of its own; it listens on a network, where
        its place has one, if it is `ListeningEngine`."""
        ...

    @abstractmethod
    def stop(self, machine: Machine, server: Server) -> None:
        """Cleanly; returns when the last process of it has ended."""
        ...

    @abstractmethod
    def load_settings(self, resources: Resources) -> dict[str, str]: ...
    @abstractmethod
    def finish_load(self, session: Session) -> None:
        """Statistics, frozen rows, a checkpoint: nothing left to do in the background."""
        ...

    @abstractmethod
    def settle(self, session: Session) -> None:
        """Between blocks: do now what would else be done in measured time (a checkpoint)."""
        ...

    @abstractmethod
    def background_work(self, session: Session) -> Json:
        """Cumulative counts of checkpoints, vacuums, analyzes, temporary files; read outside timed passes."""
        ...

    @abstractmethod
    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """(fingerprint, plan as text) of the plan that the server would use now."""
        ...

    @abstractmethod
    def facts(self, session: Session) -> Json:
        """Version and every setting that differs from its default."""
        ...


@runtime_checkable
class StatisticsEngine(Protocol):
    """Power of an engine that keeps accounts of its own: of the pages that its sessions touch, and of what they wait for."""

    def query_statistics(self, session: Session, statement: Statement) -> Json:
        """Of one execution of a statement, which this is: name -> how many. Unavailable for a text of which it cannot tell."""
        ...

    def server_statistics(self, session: Session) -> Json:
        """Of all sessions since the server started: name -> how many; may nest."""
        ...

    def wait_events(self, session: Session) -> dict[int, str]:
        """What each of the other sessions that work waits for at this moment, by the thread that serves it:
        `description.RUNNING` if for nothing that the server knows of."""
        ...

    def serving(self, session: Session) -> list[int]:
        """Numbers of the threads that serve the other sessions, and do nothing else: of processes that have one, theirs."""
        ...


@runtime_checkable
class DatabasesEngine(Protocol):
    """Power of an engine whose servers hold several databases, each with the same tables."""

    def create_database(self, session: Session, name: str) -> None:
        """An empty one, unless it is there. It is entered by the server's address, with that name for its database."""
        ...


@runtime_checkable
class LogEngine(Protocol):
    """Power of an engine whose servers can have their write-ahead log on another device than their data."""

    def move_log(self, machine: Machine, place: ServerPlace) -> None:
        """The log of a server that was stopped cleanly out of its data directory into ``place.log``, a directory that is made here.
        A server that is started at that place finds it there."""
        ...


@runtime_checkable
class BufferedEngine(Protocol):
    """Power of an engine whose servers have a buffer pool of a fixed size: `settings` give one of ``buffer_pool_bytes``, where
    these are given."""

    buffer_setting: str
    """By which it is told."""
    buffer_least_bytes: int
    """With less a server does not start."""

    def has_buffer_setting(self) -> bool:
        """Whether its user's settings say how large it is."""
        ...


@runtime_checkable
class SchemasEngine(Protocol):
    """Power of an engine whose databases hold several schemas, each with the same tables, and whose wire lets a connection begin in
    one of them (docs/PROTOCOL.md, ``serial``)."""

    def create_schema(self, session: Session, name: str) -> None:
        """An empty one in the session's database, unless it is there. It is entered by the address with its name for schema."""
        ...


@runtime_checkable
class CommittingEngine(Protocol):
    """Power of an engine that can be made to commit: to see whether a commit reaches the device."""

    def commit(self, session: Session) -> None:
        """One transaction, durable as the server's settings have it, that leaves nothing in the data."""
        ...


@runtime_checkable
class RewritingEngine(Protocol):
    """Power of an engine that can be asked to write a table anew, as its administrators ask for it from time to time."""

    def rewriting(self, session: Session) -> list[str]:
        """A statement for each table that the session finds without a schema's name."""
        ...


@runtime_checkable
class ListeningEngine(Protocol):
    """Power of an engine whose servers can be reached over a network."""

    def peer(self, session: Session) -> str | None:
        """The network address from which the server sees this session come; None: by no network."""
        ...


@runtime_checkable
class SettingIgnoringEngine(Protocol):
    """Power of an engine that does not take all of its user's settings: ``ignored_settings``, name -> value."""

    ignored_settings: Mapping[str, str]


@runtime_checkable
class ThreadedEngine(Protocol):
    """Power of an engine that answers one query with several threads (or processes): as many as it is told at its start."""

    thread_settings: Sequence[str]
    """Settings by which it is told."""
    following_settings: Sequence[str]
    """What the server then shows to follow from them."""

    def settings_of_threads(self, threads: int) -> Mapping[str, str]:
        """For at most so many threads of a query, its first one among them. SpecError where the engine's options say it already."""
        ...

    def threads_asked_for(self) -> tuple[str, int] | None:
        """The option or setting of its user's by which a query has the most threads, as messages call it, and how many. None: there
        is none; a value that is no number asks for nothing."""
        ...

    def threads(self, session: Session) -> int:
        """At most how many a query has, as the server says."""
        ...


@runtime_checkable
class DurabilityEngine(Protocol):
    """Power of an engine whose sessions and commits can be told how strict to be, while it runs."""

    decided: frozenset[str]
    """Settings that this decides on, so that nobody else may."""
    loss_window_s: float
    """How old a commit that need not be on the ``device`` may be and still be lost with its server or machine."""

    def session(self, isolation: str, *, multi_statement: bool) -> list[str]:
        """Statements that begin a terminal's session: ``read_committed``, ``repeatable_read`` or ``serializable``."""
        ...

    def isolation(self, session: Session) -> str:
        """The level that the server says a session has, in the words of `session`."""
        ...

    def make_durable(self, session: Session, durability: str) -> None:
        """Where an acknowledged commit is: on the ``device``, in the operating ``system``'s memory, in the ``server``'s.

        EngineError unless the server says that it is so now.
        """
        ...

    def disconnect_others(self, session: Session) -> None:
        """Every session of a client but this one is ended by the server."""
        ...
