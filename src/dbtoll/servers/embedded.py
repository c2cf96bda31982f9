"""What engines share whose library has no server of its own: dbtoll's, ``dbtoll-embedded`` (embedded/), loads it in the arm and
speaks PostgreSQL's protocol.

BIAS: the engine's own client calls the library in its own process; here a statement and its answer go through a socket.
`dbtoll selfbench engines` measures what that costs.
"""

from __future__ import annotations

import hashlib
import signal
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import ClassVar

from dbtoll.errors import AgentFailure, EngineError, ProgramFailed, Unavailable
from dbtoll.interfaces.machine import Machine, Process, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.dialect import Dialect
from dbtoll.model.machine import Address, ServerPlace
from dbtoll.servers import server_process
from dbtoll.servers.parallel_engine import START_DEADLINE_S, STOP_DEADLINE_S, USER, ParallelEngine
from dbtoll.servers.server_process import Server

NAME = "dbtoll-embedded"
PLACE = "/opt/dbtoll/embedded"
PROGRAM = f"{PLACE}/{NAME}"
PROGRAMS = {NAME: PLACE}
"""For `Software.programs`."""


class EmbeddedEngine(ParallelEngine):
    """Base of an engine: its library, its settings, its SQL."""

    library: ClassVar[str]
    """In the image."""
    preload: ClassVar[Sequence[str]] = ()
    """Libraries that it needs, in the order in which they are loaded."""
    sql: ClassVar[Dialect]

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

    # --- a server ---

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        """See interfaces.Engine."""
        if place.network is not None:
            raise EngineError(f"{NAME} listens at its socket only", 'placement = ["inside"] under [factors]')
        data, run = place.data, place.run
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

        server_process.wait_until_ready(machine, self.description.title, process, START_DEADLINE_S, not_ready)

    # --- inside a server ---

    def planned(self, session: Session, asked: str) -> tuple[str, str]:
        """Fingerprint and `plan` of what that statement answers; one that is refused has the fingerprint ``none``."""
        try:
            rows = session.query(asked)
        except EngineError:
            return "none", "this statement has no plan"
        plan = self.plan(rows)
        return hashlib.sha256(plan.encode()).hexdigest()[:16], plan

    @abstractmethod
    def plan(self, rows: Sequence[Sequence[str | None]]) -> str:
        """What EXPLAIN answered, without literals and estimates."""
