"""A machine that is reached through an agent: the base of every environment's machine."""

from __future__ import annotations

import posixpath
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from dbtoll.channel.client import CALL_TIMEOUT_S, Channel, control_message
from dbtoll.channel.output_buffer import Head, Tail, said
from dbtoll.channel.relay import RelayStream
from dbtoll.channel.replies import Progress, Started, check
from dbtoll.channel.stream import CONTROL, ERROR_OUTPUT, MAIN
from dbtoll.errors import AgentFailure, ChannelError, ProgramFailed, Unavailable
from dbtoll.machines.agent.machine_facts import read_facts
from dbtoll.machines.agent.session import SerialSession
from dbtoll.machines.agent.terminals import AgentTerminals
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, Artifact
from dbtoll.model.reply import Completed

LINE_SLACK_S = 60.0
"""How long an answer may take beyond the time that the work itself was given: it breaks a hang, it measures nothing."""

CANCELLED_S = 5.0
"""How long a program that nobody wants any more is waited for: one that is frozen ends later."""

OUTPUT_MAX_BYTES = 64 << 20
"""Standard output that ``run`` accepts; more belongs into a file."""

LOG_MAX_BYTES = 1 << 20
"""The last bytes of a program's output that are kept for the logs."""

LOGS_MAX = 64
"""How many programs' logs are kept, the youngest."""

FACT_MAX_BYTES = 16 << 20
"""/proc/cpuinfo of a machine with thousands of processors."""


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """What the agent puts around a program between fork and exec (docs/PROTOCOL.md, ``run``).

    ``cgroups``: directories of cgroups that it enters. ``mounts``: made in order in a private mount namespace; None
    makes none. ``root``: becomes / after the mounts. ``unshare``: further namespaces (pid, ipc, uts). ``rlimits``:
    soft and hard limit by name. ``cpus``: its affinity.
    """

    cgroups: tuple[str, ...] = ()
    mounts: tuple[Json, ...] | None = None
    root: str | None = None
    unshare: tuple[str, ...] = ()
    rlimits: Mapping[str, int] = field(default_factory=dict)
    cpus: tuple[int, ...] | None = None

    def parameters(self) -> Json:
        """As parameters of ``run``."""
        return {
            "cgroups": list(self.cgroups),
            "mounts": None if self.mounts is None else list(self.mounts),
            "root": self.root,
            "unshare": list(self.unshare),
            "rlimits": dict(self.rlimits),
            "cpus": None if self.cpus is None else list(self.cpus),
        }


FREE = LaunchLimits()
"""Nothing around the program."""


class AgentProcess:
    """A long-running program that the agent started (interfaces.Process). Its output and error output share one log."""

    def __init__(self, channel: Channel, argv: Sequence[str], parameters: Json) -> None:
        self.argv = tuple(argv)
        self._channel = channel
        self._log = Tail(LOG_MAX_BYTES)
        self._stream = channel.open("run", parameters, sinks={MAIN: self._log.take, ERROR_OUTPUT: self._log.take})
        self._stream.end_input()
        first = self._stream.receive(time.monotonic() + CALL_TIMEOUT_S)
        if first is None:
            raise ChannelError(f"the agent on {channel.name} started {argv[0]} without telling its number")
        started = control_message(first.payload)
        check(started, Started, f"{channel.name}: the first message of `run`")
        self.pid: int = started["pid"]

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._stream.closed

    def signal(self, number: int) -> None:
        """Send it a signal. One that has ended already gets none."""
        try:
            self._channel.call("signal", {"pid": self.pid, "signal": number, "group": False})
        except AgentFailure as failure:
            if failure.code != "not_found":
                raise

    def wait(self, timeout_s: float) -> Completed:
        """How it ended. Raises ProgramFailed if it has not within ``timeout_s``."""
        if not self._stream.wait(timeout_s):
            raise ProgramFailed(f"{self.argv[0]} on {self._channel.name} has not ended within {timeout_s:g} s")
        return _completed(self.argv, self._stream.result(), self.output(), b"")

    def output(self) -> bytes:
        """The last LOG_MAX_BYTES of what it wrote; a first line says how much came before."""
        return self._log.content()

    def cancel(self) -> None:
        """Have the agent stop it: ``stop_signal``, after ``stop_grace_ms`` SIGKILL to its group. Returns at once."""
        self._stream.cancel()


class AgentMachine:
    """Implements interfaces.Machine over a Channel; environments subclass it and add their powers (freeze, provide …).

    ``name`` appears in every error. ``on_close`` is unwound after the channel has been closed, also when that failed.
    """

    def __init__(self, name: str, channel: Channel, on_close: ExitStack | None = None) -> None:
        self.name = name
        self.channel = channel
        self.on_close = on_close or ExitStack()
        self._processes: deque[AgentProcess] = deque(maxlen=LOGS_MAX)

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
        within: LaunchLimits = FREE,
    ) -> Completed:
        """Run a program to its end. Raises ProgramFailed (with ``check``: also for an exit code that is not 0)."""
        parameters = _run_parameters(argv, user, env, cwd, within) | {"timeout_ms": max(1, round(timeout_s * 1000))}
        output, error_output = Head(OUTPUT_MAX_BYTES), Tail(LOG_MAX_BYTES)
        # All output goes to sinks: a program that writes while it is still being fed must not wait for us.
        sinks = {MAIN: output.take, ERROR_OUTPUT: error_output.take, CONTROL: _ignore}
        until = time.monotonic() + timeout_s + LINE_SLACK_S
        stream = self.channel.open("run", parameters, sinks=sinks)
        try:
            if stream.write(input, until):
                stream.end_input()
            result = stream.result(until)
        except AgentFailure as failure:
            if failure.code == "timeout":
                said = _last_lines(error_output.content() or output.content())
                raise ProgramFailed(f"{argv[0]} on {self.name} did not end within {timeout_s:g} s{said}") from failure
            raise
        except BaseException:
            stream.cancel()
            stream.wait(CANCELLED_S)  # the program ends soon after; what it works on is its caller's again then
            raise
        if output.seen_bytes > output.limit_bytes:
            raise ProgramFailed(
                f"{argv[0]} on {self.name} wrote {output.seen_bytes} bytes; at most {output.limit_bytes} are taken",
                "let it write to a file",
            )
        completed = _completed(tuple(argv), result, output.content(), error_output.content())
        if check and completed.exit_code != 0:
            raise ProgramFailed(_failure_text(self.name, completed))
        return completed

    def spawn(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stop_signal: int = 15,
        stop_grace_ms: int = 5000,
        within: LaunchLimits = FREE,
    ) -> AgentProcess:
        """Start a program that runs on. Raises AgentFailure if it cannot be started."""
        stop = {"stop_signal": stop_signal, "stop_grace_ms": stop_grace_ms}
        process = AgentProcess(self.channel, argv, _run_parameters(argv, user, env, cwd, within) | stop)
        self._processes.append(process)
        return process

    def put(
        self,
        path: str,
        data: bytes,
        *,
        mode: int = 0o644,
        user: str | None = None,
        in_place: bool = False,
        parents: bool = False,
    ) -> None:
        """Write a small file; ``in_place`` with one write into the existing one (control files of the kernel)."""
        parameters = {"path": path, "size_bytes": len(data), "mode": mode, "user": user}
        self.channel.call("put", parameters | {"in_place": in_place, "parents": parents}, data=data)

    def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The whole of a small file. Raises AgentFailure ``too_large`` beyond ``max_bytes``."""
        content = Head(max_bytes)
        self.channel.call("get", {"path": path, "max_bytes": max_bytes}, output=content.take)
        return content.content()

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or, ``recursive``, a tree; follows no link, crosses no mount. Raises AgentFailure."""
        self.channel.call("remove", {"path": path, "recursive": recursive}, timeout_s=600.0)

    def entries(self, path: str) -> list[Json]:
        """``{"name", "kind", "size_bytes"}`` of everything in the directory ``path``."""
        entries: list[Json] = self.channel.call("list", {"path": path})["entries"]
        return entries

    def mkdir(self, path: str, *, mode: int = 0o755, user: str | None = None, parents: bool = True) -> None:
        """Make a directory."""
        self.channel.call("mkdir", {"path": path, "mode": mode, "user": user, "parents": parents})

    def place(self, path: str) -> str:
        """Where what root has at ``path``, below /run or /var/lib, lies on this machine."""
        return path

    def visited(self) -> tuple[AgentMachine, ExitStack] | None:
        """Where nothing may outlast our stay: the host, and what undoes it there while its agent still answers. None where it may
        stay for the next run.

        Whoever pushes on it notes the thing in the journal: where the line breaks it is not undone.
        """
        return None

    def provide(self, artifact: Artifact) -> str:
        """The artifact's path here. Nothing is sent: it must be on this machine by the path it has where it was made.

        Raises Unavailable where it is not.
        """
        directory, name = posixpath.split(artifact.path.rstrip("/"))
        try:
            kinds = {entry["name"]: entry["kind"] for entry in self.entries(directory or "/")}
        except AgentFailure as failure:
            if failure.code != "not_found":
                raise
            kinds = {}
        if kinds.get(name) != artifact.kind:
            raise Unavailable(
                f"{self.name} has no {artifact.kind} {artifact.path} ({artifact.key})",
                "copy it there by the same path, for instance with rsync: bulk data is never sent through the line",
            )
        return artifact.path

    def connect(
        self,
        *,
        unix: str | None = None,
        tcp: tuple[str, int] | None = None,
        device: str | None = None,
        stamps: bool = False,
        timeout_s: float = 5.0,
    ) -> RelayStream:
        """A stream to a socket or a (raw) device there; exactly one of the three. A failure shows at the first read."""
        targets: Json = {"unix": unix, "tcp": None if tcp is None else list(tcp), "device": device}
        target = {kind: place for kind, place in targets.items() if place is not None}
        if len(target) != 1:
            raise ValueError("connect needs exactly one of unix, tcp and device")
        return RelayStream(self.channel, "connect", target | {"timeout_ms": round(timeout_s * 1000)}, stamps=stamps)

    def serial(self, address: Address, *, connection: str) -> SerialSession:
        """A serial load driver in this machine. ``connection``: ``one`` or ``per_statement``."""
        return SerialSession(self.channel, address, connection)

    def terminals(self, address: Address, driver_parameters: Json) -> AgentTerminals:
        """See interfaces.Machine."""
        return AgentTerminals(self.channel, address, driver_parameters)

    def counters(
        self,
        *,
        tree_of: int | None = None,
        everything: bool = False,
        each: bool = False,
        brief: bool = False,
        single_threads: Collection[int] = (),
    ) -> Json:
        """Of the machine and of a process tree, or of all processes (docs/PROTOCOL.md, ``counters``)."""
        threads = "each" if each else "nothing" if brief else "sums"
        selection: Json = {"tree_of": tree_of, "all": everything, "threads": threads, "machine": not brief}
        if single_threads:
            selection["single_threads"] = list(single_threads)
        return self.channel.call("counters", selection)

    def call(
        self,
        method: str,
        parameters: Json,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        progress: Callable[[Json], None] | None = None,
        data: Callable[[bytes], None] | None = None,
    ) -> Json:
        """Any other method of the protocol (``tpch_load`` …): its END.

        ``progress`` gets its control messages and ``data`` its DATA, both in the caller's thread; while they block, the
        agent is held back by its credit.
        """

        def hear(payload: bytes) -> None:
            message = control_message(payload)
            check(message, Progress, f"{self.name}: the progress of `{method}`")
            assert progress is not None
            progress(message)

        heard = None if progress is None else hear
        return self.channel.call(method, parameters, on_data=data, on_control=heard, timeout_s=timeout_s)

    def hello(self) -> Json:
        """What the agent said of itself."""
        return dict(self.channel.hello)

    def facts(self) -> Json:
        """What this machine is: a JSON object (machine_facts)."""
        return read_facts(
            self.channel.hello,
            lambda path: self.get(path, max_bytes=FACT_MAX_BYTES),
            lambda path: [entry["name"] for entry in self.entries(path)],
        )

    def logs(self) -> Mapping[str, bytes]:
        """The last output of every program that was spawned, by name; also after ``close``."""
        return {f"{posixpath.basename(each.argv[0])}-{each.pid}.log": each.output() for each in self._processes}

    def close(self) -> None:
        """End every program, then what ``on_close`` holds."""
        with self.on_close:
            self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run_parameters(
    argv: Sequence[str], user: str | None, env: Mapping[str, str] | None, cwd: str, within: LaunchLimits
) -> Json:
    return {"argv": list(argv), "env": dict(env or {}), "cwd": cwd, "user": user} | within.parameters()


def _completed(argv: tuple[str, ...], result: Json, output: bytes, error_output: bytes) -> Completed:
    usage = {key: value for key, value in result.items() if key not in ("exit_code", "signal")}
    return Completed(argv, result.get("exit_code"), result.get("signal"), output, error_output, usage)


def _failure_text(name: str, completed: Completed) -> str:
    end = f"exit code {completed.exit_code}" if completed.signal is None else f"signal {completed.signal}"
    return f"{completed.argv[0]} on {name} ended with {end}{_last_lines(completed.error_output or completed.output)}"


def _last_lines(output: bytes) -> str:
    text = output.decode(errors="replace").strip()
    return ": " + said("\n".join(text.splitlines()[-5:])[-1000:]) if text else ""


def _ignore(payload: bytes) -> None:
    """Take control messages that nobody waits for."""
