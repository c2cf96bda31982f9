"""HyPer 9: the server of Tableau's Hyper API, out of its wheel.

What is not data lies in the server's own directory (`ServerPlace.run`; mode 0700, its own user's): the socket. It asks for no
password there, and listens nowhere else. The data are one file, which the server maps into its memory.

A commit is in the server's memory: the file is written when the last session that uses it ends, and everything since it was opened
is lost if the server is killed before (seen with 9.1.0). So one session is held for the server's life: without it a workload that
connects for each statement would measure how a database is opened and written.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dbtoll.errors import AgentFailure, EngineError, Unavailable
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Process, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, ServerPlace
from dbtoll.model.reply import Statement
from dbtoll.model.software import Software, Wheel
from dbtoll.servers import server_process
from dbtoll.servers.parallel_engine import LOAD_DEADLINE_S, START_DEADLINE_S, STOP_DEADLINE_S, USER, ParallelEngine

PLACE = "/opt/dbtoll/hyper"
PROGRAM = f"{PLACE}/hyperd"
SOCKET = ".s.PGSQL.7483"
"""In the server's own directory."""

ROLE = "tableau_internal_user"
"""Of the database; it owns all. So the Hyper API calls it, which opens no file of another one's."""

FILE = "dbtoll.hyper"

WHEEL = Wheel(
    "tableauhyperapi",
    "0.0.26963",
    builds={
        "x86_64": ("manylinux2014_x86_64", "35376f598c6fdfa52fe25769778f756e2daec1c124ff8f471b5e098cb9cf7863"),
    },
    files={
        "tableauhyperapi/bin/hyper/hyperd": PROGRAM,
        "tableauhyperapi-0.0.26963.dist-info/LICENSE": f"{PLACE}/LICENSE",
        "tableauhyperapi-0.0.26963.dist-info/NOTICES.txt": f"{PLACE}/NOTICES.txt",
    },
)

_UNDURABLE = "a commit is in the server's memory until the last session ends"
_SNAPSHOT = "every transaction reads from a snapshot, and the first writer of a row wins"
"""The contract tests try it. The server calls it read committed, whatever it is asked for."""


@dataclass(slots=True)
class Server(server_process.Server):
    """``held``: keeps the database open."""

    held: Session | None = None


class Engine(ParallelEngine):
    """See interfaces.Engine."""

    name = "hyper"
    also_called = ("hyperd", "tableau")
    description = EngineDescription("HyPer")
    sql = Dialect("hyper", atomic_scripts=False, quotient_places=6, scripts=__name__)
    software = Software(wheels=(WHEEL,), versions=dict.fromkeys(("bookworm", "trixie"), "9.1"))
    contract = interface.ContractStatements(key="")
    thread_settings = ("hard_concurrent_query_thread_limit", "soft_concurrent_query_thread_limit")
    memory_setting = "memory_limit"
    flag_texts = ("0", "1")
    unsupported: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "interaction": {"procedure": "it has no stored procedures"},
        "isolation": {"read_committed": _SNAPSHOT, "serializable": _SNAPSHOT},
        "durability": {"device": _UNDURABLE, "os_cache": _UNDURABLE},
        "foreign_keys": {"yes": "it checks no keys"},
    }

    def canonical(self, setting: str) -> str:
        """With underscores."""
        return setting.replace("-", "_")

    def memory(self, size_bytes: int) -> str:
        """In MiB."""
        return f"{size_bytes >> 20}m"

    # --- a data directory ---

    def key(self, machine: Machine) -> str:
        """The full version line."""
        try:
            return machine.run([PROGRAM, "--version"]).output.decode().strip()
        except AgentFailure as error:
            if error.code != "not_found":
                raise
            raise Unavailable(
                f"{machine.name}: its image has no HyPer server", "use the system image: leave out --image"
            ) from error

    # --- a server ---

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        """See interfaces.Engine."""
        data, run = place.data, place.run
        if place.network is not None:
            raise EngineError("HyPer listens at its socket only", 'placement = ["inside"] under [factors]')
        server_process.own_directory(machine, run, USER)
        process = machine.spawn(
            [
                *(PROGRAM, "run", "--skip-license", "--no-password", f"--init-user={ROLE}", "--strict-settings-mode"),
                *(
                    f"--listen-connection=tab.domain://{run}/domain/{SOCKET}",
                    "--log-config=",
                ),  # it would write some KB of log for each statement
                *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items()),
            ],
            user=USER,
            cwd=data,
            stop_signal=signal.SIGTERM,
            stop_grace_ms=round(STOP_DEADLINE_S * 1000),
        )
        inside = Address(wire="standard", user=ROLE, database=f"{data}/{FILE}", unix=f"{run}/{SOCKET}")
        nowhere = Address(wire="standard", user=ROLE, database="", unix=f"{run}/{SOCKET}")
        try:
            self._wait_until_ready(machine, nowhere, inside.database, process)
            held = machine.serial(inside, connection="persistent")
            held.query("select 1")
        except BaseException:
            if process.running():
                process.signal(signal.SIGKILL)
                process.wait(STOP_DEADLINE_S)
            raise
        return Server(inside, process.pid, process, held=held)

    def stop(self, machine: Machine, server: AnyServer) -> None:
        """Returns when it has ended with 0: with its last session it has written what was changed."""
        assert isinstance(server, Server)
        try:
            if server.held is not None:
                server.held.close()
        finally:
            server_process.end(machine, server, "HyPer", signal.SIGTERM, STOP_DEADLINE_S)

    def _wait_until_ready(self, machine: Machine, address: Address, file: str, process: Process) -> None:
        def not_ready() -> None:
            server_process.ask(machine, address, f'create database if not exists "{file}"')

        server_process.wait_until_ready(machine, "HyPer", process, START_DEADLINE_S, not_ready)

    # --- inside a server ---

    def finish_load(self, session: Session) -> None:
        """Statistics. The rows are written when the server stops."""
        session.query("analyze", timeout_s=LOAD_DEADLINE_S)

    def settle(self, session: Session) -> None:
        """Nothing works in the background, and nothing can be written before the last session ends."""

    def background_work(self, session: Session) -> Json:
        """None that it tells of."""
        return {}

    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """Its plan as a drawing, which has neither literals nor estimates; a text without a plan has the fingerprint ``none``."""
        try:
            rows = session.query(f"explain {statement.text}")
        except EngineError:
            return "none", "this statement has no plan"
        plan = "\n".join(line.rstrip() for row in rows for line in (row[0] or "").splitlines())
        return hashlib.sha256(plan.encode()).hexdigest()[:16], plan

    def facts(self, session: Session) -> Json:
        """Version, and every setting of the server as it is now: it does not tell which differ from their defaults."""
        ((version,),) = session.query("select version()")
        settings = {str(name).removeprefix("global."): value for name, value, _ in session.query("show all")}
        return {"version": version, "settings": dict(sorted(settings.items()))}
