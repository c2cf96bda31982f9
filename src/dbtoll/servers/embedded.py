"""What engines share whose library has no server of its own: dbtoll's, ``dbtoll-embedded`` (embedded/), loads it in the arm and
speaks PostgreSQL's protocol.

BIAS: the engine's own client calls the library in its own process; here a statement and its answer go through a socket.
`dbtoll selfbench engines` measures what that costs.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from dbtoll.errors import AgentFailure, EngineError, ProgramFailed, SpecError, Unavailable
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Process, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Address
from dbtoll.model.options import Option
from dbtoll.secretive import demand_none
from dbtoll.servers import server_process
from dbtoll.servers.server_process import Server

NAME = "dbtoll-embedded"
PLACE = "/opt/dbtoll/embedded"
PROGRAM = f"{PLACE}/{NAME}"
PROGRAMS = {NAME: PLACE}
"""For `Software.programs`."""

USER = "nobody"
"""Of the image."""

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 600.0
"""It writes what was changed."""

MEMORY_SHARE = 0.8
"""Of an arm's memory, where nobody says otherwise."""


class EmbeddedEngine(interface.Engine):
    """Base of an engine: its library, its settings, its SQL."""

    library: ClassVar[str]
    """In the image."""
    preload: ClassVar[Sequence[str]] = ()
    """Libraries that it needs, in the order in which they are loaded."""
    thread_setting: ClassVar[str]
    memory_setting: ClassVar[str]
    offers = frozenset({interface.SQL, interface.BULK_ROWS, interface.TRANSACTIONS})
    sql: ClassVar[Dialect]
    options: ClassVar[Mapping[str, Option]] = {
        "threads": Option("integer", 0, "threads of a query; 0: one for each processor of the arm"),
        "memory": Option("size", 0, "memory limit of the engine; 0: 80 % of the arm's"),
        "settings": Option("table", {}, "setting = value, as the engine calls them"),
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {name: options.get(name, option.default) for name, option in self.options.items()}
        self._threads: int = chosen["threads"]
        self._memory_bytes: int = chosen["memory"]
        if not 0 <= self._threads <= 1024:
            raise SpecError(
                f"engine {self.name}: {self._threads} threads", "choose 1 to 1024, or 0 for the arm's processors"
            )
        demand_none(chosen["settings"], "leave it out: no figure needs it")
        self._given = {name: _as_text(self.name, name, value) for name, value in chosen["settings"].items()}

    def memory(self, size_bytes: int) -> str:
        """A memory limit as the engine writes it."""
        return f"{size_bytes >> 20}MiB"

    # --- settings ---

    def settings(self, resources: Resources) -> dict[str, str]:
        """The table wins."""
        memory_bytes = self._memory_bytes or round(MEMORY_SHARE * resources.memory_bytes)
        return {
            self.thread_setting: str(self._threads or resources.cpus),
            self.memory_setting: self.memory(memory_bytes),
            **self._given,
        }

    def load_settings(self, resources: Resources) -> dict[str, str]:
        """The same without what the user gave: that is for what is measured."""
        return type(self)({}).settings(resources)

    # --- a data directory ---

    def key(self, machine: Machine) -> str:
        """The engine's own version line."""
        try:
            told = machine.run([PROGRAM, *self._loaded(), "--version"], timeout_s=START_DEADLINE_S)
        except AgentFailure as error:
            if error.code != "not_found":
                raise
            raise Unavailable(
                f"{machine.name}: its image has no {NAME}", "use the system image: leave out --image"
            ) from error
        except ProgramFailed as error:
            raise Unavailable(f"{machine.name}: {self.description.title} cannot be loaded: {error.message}") from error
        return told.output.decode().strip()

    def create(self, machine: Machine, data: str) -> None:
        """An empty directory: the engine makes its files when it first runs."""
        server_process.own_directory(machine, data, USER)

    # --- a server ---

    def start(self, machine: Machine, data: str, settings: Mapping[str, str], *, network: str | None = None) -> Server:
        """See interfaces.Engine."""
        if network is not None:
            raise EngineError(f"{NAME} listens at its socket only", 'placement = ["inside"] under [factors]')
        run = f"/dbtoll/run/{self.name}"
        server_process.own_directory(machine, run, USER)
        socket = f"{run}/socket"
        process = machine.spawn(
            [
                *(PROGRAM, *self._loaded(), "--database", f"{data}/{self.name}", "--unix", socket),
                *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            ],
            user=USER,
            cwd=str(PurePosixPath(data)),
            stop_signal=signal.SIGTERM,
            stop_grace_ms=round(STOP_DEADLINE_S * 1000),
        )
        address = Address(wire="standard", user=USER, database=self.name, unix=socket)
        try:
            self._wait_until_ready(machine, address, process)
        except BaseException:
            if process.running():
                process.signal(signal.SIGKILL)
                process.wait(STOP_DEADLINE_S)
            raise
        return Server(address, process.pid, process)

    def stop(self, machine: Machine, server: AnyServer) -> None:
        """Returns when it has ended with 0: then the library has closed its database."""
        assert isinstance(server, Server)
        server_process.end(machine, server, self.description.title, signal.SIGTERM, STOP_DEADLINE_S)

    def _loaded(self) -> list[str]:
        preload = [part for path in self.preload for part in ("--preload", path)]
        return ["--engine", self.name, "--library", self.library, *preload]

    def _wait_until_ready(self, machine: Machine, address: Address, process: Process) -> None:
        def not_ready() -> None:
            server_process.ask(machine, address, "select 1")

        def error(problem: str) -> EngineError:
            return EngineError(
                f"{machine.name}: {self.description.title} {problem}: {server_process.last_lines(process.output())}",
                "look at its settings: the last lines of its log name the one that it refuses",
            )

        server_process.wait_until_ready(process, START_DEADLINE_S, not_ready, error)

    # --- inside a server ---

    def planned(self, session: Session, asked: str) -> tuple[str, str]:
        """Fingerprint and `plan` of what that statement answers; one that is refused has the fingerprint ``none``."""
        try:
            rows = session.query(asked)
        except EngineError:
            return "none", "this statement has no plan"
        plan = self.plan(rows)
        return hashlib.sha256(plan.encode()).hexdigest()[:16], plan

    def plan(self, rows: Sequence[Sequence[str | None]]) -> str:
        """What EXPLAIN answered, without literals and estimates."""
        raise NotImplementedError


def _as_text(engine: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float) or "\n" in str(value):
        raise SpecError(f"engine {engine}: the setting {name} is neither text nor number", f"write: {name} = 'value'")
    return str(value)
