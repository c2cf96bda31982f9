"""The few protocols that the families implement and the runner joins; each says what must NOT happen.

The data's way: ``Environment.open(machine, place) -> Machine``; ``Engine.start(machine, …) -> Server``;
``Workload.load(machine, server)`` once, ``Workload.statements(seed)`` for each block; ``Machine.serial(server) ->
Session``; ``Session.visit(…) -> VisitReply``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from dbtoll.model import (
    Address,
    AnswerReference,
    Artifact,
    Completed,
    Json,
    MissingRequirement,
    Option,
    Place,
    Resources,
    Statement,
    VisitReply,
    VisitTiming,
    WindowReply,
)

FetchKernel = Callable[[], Artifact | None]
"""Brings the kernel that guests boot, when it is needed; None where none is."""


class CachedBuild(Protocol):
    """What lies in the cache: whole, as it was built, and not removed as long as this process lives."""

    @property
    def content(self) -> Path: ...


class BuildCache(Protocol):
    """The cache (`images.cache`), to who makes something for it."""

    def obtain(
        self,
        kind: str,
        recipe: Json,
        build: Callable[[Path], Json],
        *,
        estimate_bytes: int,
        progress: Callable[[str], None] = ...,
    ) -> CachedBuild:
        """What ``recipe`` says; ``build`` fills the directory that it is given if it is not there, and returns facts."""
        ...


class ByteStream(Protocol):
    """An ordered stream of bytes. ``read`` blocks and returns b"" at the end. Never a network the guest configured."""

    def read(self, size: int) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class TimestampedStream(Protocol):
    """Power of a ByteStream that was relayed with stamps: when did byte number ``count`` pass (ns, relay's clock)?"""

    def written_at(self, count: int) -> int | None: ...
    def read_at(self, count: int) -> int | None: ...


@runtime_checkable
class Killable(Protocol):
    """Power of a ByteStream whose far end need not be waited for: one that has never answered."""

    def kill(self) -> None: ...


class Process(Protocol):
    """A long-running program on a machine; ends with the machine. Its output is kept (bounded) for the logs."""

    pid: int

    def running(self) -> bool: ...
    def signal(self, number: int) -> None: ...
    def wait(self, timeout_s: float) -> Completed: ...
    def output(self) -> bytes: ...


class Server(Protocol):
    """A running database server: ``pid`` of its first process on its machine, ``address`` for a driver there.

    ``network``: where it listens for those outside, by its machine's own address; None where it was not asked to.
    """

    address: Address
    pid: int | None
    network: Address | None


class Session(Protocol):
    """A serial load driver inside a machine. No Python clock ever becomes a number here."""

    def visit(
        self,
        statements: Sequence[Statement],
        *,
        mode: str,
        pace: VisitTiming,
        answers: Mapping[str, AnswerReference],
        lead_in: bool = True,
        dwell: bool = True,
        least: int = 1,
        keep_rows: bool = False,
    ) -> VisitReply: ...

    def query(self, sql: str, *, timeout_s: float = 300.0) -> list[list[str | None]]:
        """Untimed. ChannelError after ``timeout_s``: whoever loads data gives more."""
        ...

    def disconnect(self) -> None: ...
    def close(self) -> None: ...


class Terminals(Protocol):
    """The terminals of a transaction workload in a machine: connected, and at rest between windows."""

    def window(self, *, ramp_up_ns: int, window_ns: int, rate: float | None) -> WindowReply:
        """They work for so long; with ``rate`` so many transactions arrive in a second, whether or not others are done."""
        ...

    def close(self) -> None: ...


class Machine(Protocol):
    """One place where programs run.

    Small files only through ``put`` and ``get`` (64 MiB); bulk data comes by ``provide``. Nothing is sent while it sleeps.
    ``close`` ends every program it started and gives back every resource, also after a failure, also twice.
    """

    name: str

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Completed: ...

    def spawn(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stop_signal: int = 15,
        stop_grace_ms: int = 5000,
    ) -> Process: ...

    def put(
        self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None, in_place: bool = False
    ) -> None: ...
    def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes: ...
    def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file or, ``recursive``, a tree. Follows no link in it, crosses no mount."""
        ...

    def provide(self, artifact: Artifact) -> str: ...
    def connect(
        self, *, unix: str | None = None, tcp: tuple[str, int] | None = None, stamps: bool = False
    ) -> ByteStream: ...
    def serial(self, address: Address, *, connection: str) -> Session: ...
    def terminals(self, address: Address, driver_parameters: Json) -> Terminals:
        """Connected when it returns. ``driver_parameters``: what `TransactionWorkload.driver_parameters` says."""
        ...

    def counters(self, *, tree_of: int | None = None, everything: bool = False, each: bool = False) -> Json: ...
    def call(
        self,
        method: str,
        parameters: Json,
        *,
        timeout_s: float = 60.0,
        progress: Callable[[Json], None] | None = None,
        data: Callable[[bytes], None] | None = None,
    ) -> Json: ...
    def hello(self) -> Json: ...
    def facts(self) -> Json: ...
    def logs(self) -> Mapping[str, bytes]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class FreezableMachine(Protocol):
    """Power of a machine that can sleep. ``asleep_cpu_ns`` is the CPU time of all its processes so far, readable asleep.

    It counts as asleep only when that stands still.
    """

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def cpu_ns(self) -> int: ...


@runtime_checkable
class CacheDroppingMachine(Protocol):
    """Power of a machine with a kernel of its own: to empty the page cache that a cold statement would find there.

    An arm on its parent's kernel has no such power: the host's caches are the runner's to drop, only with ``exclusive``.
    """

    def drop_caches(self) -> None: ...


@runtime_checkable
class ReachableMachine(Protocol):
    """Power of a machine that its parent can reach over a network: terminals can work outside of it.

    Both raise Unavailable where it was opened without one.
    """

    parent: Machine

    def listen_at(self) -> str:
        """The address in here at which a server has to listen for that."""
        ...

    def reach(self, port: int) -> tuple[str, int]:
        """Host and port by which the parent reaches that port in here."""
        ...


class Entry(Protocol):
    """One created resource in the journal."""

    def done(self) -> None:
        """It is gone again."""


class Journal(Protocol):
    """Written before a resource is made, so that a killed run can be cleaned (DESIGN §6).

    ``kind``: process, cgroup, mount, container, directory, setting; ``identity`` holds what its removal needs.
    """

    def create(self, kind: str, **identity: Any) -> Entry: ...


class Environment(Protocol):
    """Takes a machine and yields a machine. Knows no engine and no workload.

    A module ``environments/NAME.py`` defines a class ``Environment`` with this shape. ``primary`` is the option that the short
    form ``docker:runsc`` sets. ``packages``: Debian's, which a machine must have to open it.
    """

    name: str
    primary: str | None
    options: Mapping[str, Option]
    packages: tuple[str, ...]

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """What is missing on ``machine`` to open this: probed, with deadlines, leaving nothing behind.

        ``kernel``: fetches what `BootingEnvironment` asked for, once all else is there; such an environment boots it without
        any disk.
        ``journal``: where it is noted what a trial makes, so that it can be found if the trial is killed.
        """
        ...

    def open(self, machine: Machine, place: Place, journal: Journal) -> Machine: ...


@runtime_checkable
class BootingEnvironment(Protocol):
    """Power of an environment whose machines boot a kernel of their own: image and data come to it as disks."""

    def kernel(self, options: Mapping[str, Any]) -> str | None:
        """Name of the kernel that shall be provided as ``Place.kernel`` (images.kernel); None: it brings its own."""
        ...


@runtime_checkable
class NetworkedEnvironment(Protocol):
    """Power of an environment whose machines can be `ReachableMachine`."""

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were given, with a network where they name none. UsageError where they forbid one."""
        ...


@runtime_checkable
class RunScopedEnvironment(Protocol):
    """Power of an environment whose arms share something that is dear to start (a daemon, an imported image).

    While the context lasts, it is there, so that no start of an arm has to wait for it; without it every arm brings its own.
    """

    def for_run(self, machine: Machine, place: Place, journal: Journal) -> AbstractContextManager[None]: ...


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
    least_s: float
    """Of executions that it must see in order to know; what is shorter is executed again. 0 where it counts each event."""

    def missing_requirements(self, machine: Machine, pid: int) -> str | None:
        """Why it cannot be counted for the process ``pid`` and its descendants there; None if it can."""
        ...

    def around(self, machine: Machine, pid: int) -> AbstractContextManager[Callable[[], Json]]:
        """Counts while the context lasts; what it yields tells, afterwards, what was counted. Unavailable where it cannot."""
        ...


class Engine(Protocol):
    """A database server, seen through a Machine. Knows no environment; starts no process except through the machine.

    A module ``engines/NAME.py`` defines a class ``Engine`` made from its options. Data lives at ``data`` inside the machine.
    """

    name: str
    options: Mapping[str, Option]
    answers: bool
    """Whether its answers mean anything (the null engine's do not)."""
    keeps_data: bool
    """Whether it has a data directory."""
    packages: tuple[str, ...]
    """Debian's, which the system image gets for it beside what it has anyway."""

    def __init__(self, options: Mapping[str, Any]) -> None: ...
    def settings(self, resources: Resources) -> dict[str, str]:
        """Server settings of a measured arm, equal in all of them; stored with the run."""
        ...

    def key(self, machine: Machine) -> str:
        """What a data directory depends on besides workload: engine, version, page format."""
        ...

    def create(self, machine: Machine, data: str) -> None:
        """An empty data directory, ready to start."""
        ...

    def start(self, machine: Machine, data: str, settings: Mapping[str, str], *, network: str | None = None) -> Server:
        """Returns when it answers. ``network``: an address of the machine at which it listens too, if it is `Listening`."""
        ...

    def stop(self, machine: Machine, server: Server) -> None:
        """Cleanly; returns when the last process of it has ended."""
        ...

    def load_settings(self, resources: Resources) -> dict[str, str]: ...
    def finish_load(self, session: Session) -> None:
        """Statistics, frozen rows, a checkpoint: nothing left to do in the background."""
        ...

    def quiet(self, session: Session) -> None:
        """Between blocks: do now what would else be done in measured time (a checkpoint)."""
        ...

    def background_work(self, session: Session) -> Json:
        """Cumulative counts of checkpoints, vacuums, analyzes, temporary files; read outside timed passes."""
        ...

    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """(fingerprint, plan as text) of the plan that the server would use now."""
        ...

    def facts(self, session: Session) -> Json:
        """Version and every setting that differs from its default."""
        ...


@runtime_checkable
class StatisticsEngine(Protocol):
    """Power of an engine that keeps accounts of its own: of the pages that its sessions touch, and of what they wait for."""

    def account(self, session: Session, statement: Statement) -> Json:
        """Of one execution of a statement, which this is: name -> how many. Unavailable for a text of which it cannot tell."""
        ...

    def accounts(self, session: Session) -> Json:
        """Of all sessions since the server started: name -> how many; may nest."""
        ...

    def waiting(self, session: Session) -> list[str]:
        """What each of the other sessions that work waits for at this moment: ``running`` if for nothing."""
        ...


@runtime_checkable
class CommittingEngine(Protocol):
    """Power of an engine that can be made to commit: to see whether a commit reaches the device."""

    def commit(self, session: Session) -> None:
        """One transaction, durable as the server's settings have it, that leaves nothing in the data."""
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
    counted: str | None
    """The transaction whose commits are the throughput (TPC-C: new_order); None: all of them."""
    multiple: bool
    """Whether most transactions have more than one statement: then `MariaDB` begins them by itself."""

    def driver_parameters(self, interaction: str, seed: int) -> Json:
        """Parameters of the agent's method ``oltp``, but for the server and its session."""
        ...

    def pace(self) -> tuple[int, int, float | None]:
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
        """``event``: what is counted, in words; ``least_ns``, ``most_ns``: between which its cost is believed."""
        ...


@runtime_checkable
class DurabilityEngine(Protocol):
    """Power of an engine whose sessions and commits can be told how strict to be, while it runs."""

    decided: frozenset[str]
    """Settings that this decides on, so that nobody else may."""

    def session(self, isolation: str, *, multiple: bool) -> list[str]:
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
