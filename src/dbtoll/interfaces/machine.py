"""A machine, its streams, programs, sessions and terminals, and the powers that some machines have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from dbtoll.interfaces.journal import RemoteJournal
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, Artifact
from dbtoll.model.reply import AnswerReference, Completed, Statement, VisitReply, WindowReply


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


Reply_co = TypeVar("Reply_co", covariant=True)


class Begun(Protocol[Reply_co]):
    """What a driver was asked for, and has not answered yet. With ``hold`` it waits for ``go`` before it begins, so that several
    drivers can begin at one moment. Whoever drops it without a ``go`` closes the session or the terminals that it is of."""

    def ready(self) -> None:
        """Returns when it waits for ``go``."""
        ...

    def go(self, in_ns: int = 0) -> None:
        """It begins so long after it has read this."""
        ...

    def result(self) -> Reply_co: ...


class Session(Protocol):
    """A serial load driver inside a machine. No Python clock ever becomes a number here."""

    def visit(
        self,
        statements: Sequence[Statement],
        *,
        query_protocol: str,
        timing: VisitTiming,
        answers: Mapping[str, AnswerReference],
        lead_in: bool = True,
        repeat: bool = True,
        min_executions: int = 1,
        keep_rows: bool = False,
        hold: bool = False,
    ) -> Begun[VisitReply]:
        """A visit that is held after its lead-in, or begins at once."""
        ...

    def query(self, sql: str, *, timeout_s: float = 300.0) -> list[list[str | None]]:
        """Untimed. ChannelError after ``timeout_s``: whoever loads data gives more."""
        ...

    def disconnect(self) -> None: ...
    def close(self) -> None: ...


class Terminals(Protocol):
    """The terminals of a transaction workload in a machine: connected, and at rest between windows."""

    def window(self, *, ramp_up_ns: int, window_ns: int, rate: float | None, hold: bool = False) -> Begun[WindowReply]:
        """They work for so long; with ``rate`` so many transactions arrive in a second, whether or not others are done. The window
        is held, or begins at once."""
        ...

    def close(self) -> None: ...


class InspectableMachine(Protocol):
    """What is enough to look at a machine: programs that end, small files, and ``hello`` with the ``pid`` of who looks."""

    @property
    def name(self) -> str: ...
    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        check: bool = True,
    ) -> Completed: ...
    def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes: ...
    def hello(self) -> Mapping[str, Any]: ...


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

    def counters(
        self,
        *,
        tree_of: int | None = None,
        everything: bool = False,
        each: bool = False,
        brief: bool = False,
        single_threads: Collection[int] = (),
    ) -> Json:
        """``brief``: nothing of the machine, and nothing that is summed over threads, for a fraction of the time.
        ``single_threads``: told of each by itself, whatever else is asked for."""
        ...

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
    def processes(self) -> set[int] | None:
        """All that is in here as processes of the machine around it, by their numbers there; None where there are none of its.

        What a commit asks the outermost kernel for is told by them: without, it cannot be checked.
        """
        ...


@runtime_checkable
class CacheDroppingMachine(Protocol):
    """Power of a machine with a kernel of its own: to empty the page cache that a cold statement would find there.

    An arm on its parent's kernel has no such power: the host's caches are the runner's to drop, only with ``exclusive``.
    """

    def drop_caches(self) -> None: ...


@runtime_checkable
class RemoteMachine(Protocol):
    """Power of a machine that is no part of its parent but another host, with processors, memory, disks and a kernel of its own.

    What is provided is sent there once. ``directory``: dbtoll's own there, gone when this is closed. ``journal``: by which all
    else is noted that is made there. ``told``: what kind of host it is, for the facts.
    """

    parent: Machine
    directory: str
    journal: RemoteJournal
    told: Json


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
