"""The floor of the rig: a server that answers every statement at once with an empty result.

What it costs to ask is what dbtoll itself, the socket and the layer in between cost; no database can be measured
below it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from dbtoll.engines import no_server
from dbtoll.errors import AgentFailure, EngineError
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import ABOVE_ONE, THREADS
from dbtoll.model.json import AGENT
from dbtoll.model.machine import Address, ServerPlace
from dbtoll.model.reply import Statement
from dbtoll.servers.server_process import Server

START_DEADLINE_S = 10.0
STOP_DEADLINE_S = 10.0


class Engine(no_server.Engine):
    """Speaks the PostgreSQL wire; keeps nothing."""

    name = "noop"
    description = EngineDescription("noop")
    unsupported: ClassVar[Mapping[str, Mapping[str, str]]] = {THREADS: {ABOVE_ONE: "it has nothing to do"}}
    offers = frozenset({interface.SQL, interface.BULK_ROWS, interface.TRANSACTIONS})  # it takes whatever is said to it
    sql = Dialect("postgres")
    keeps_data = False

    def key(self, machine: Machine) -> str:
        """There is one."""
        return "noop"

    def create(self, machine: Machine, data: str) -> None:
        """It has no data."""

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        """Returns when it answers."""
        if place.network is not None:
            raise EngineError("the null server listens at its socket only", 'placement = ["inside"] under [factors]')
        socket = f"{place.run}.socket"  # beside its directory, which would have nothing else in it
        process = machine.spawn([AGENT, "null-server", "--unix", socket])
        address = Address(wire="postgres", user="null", database="null", unix=socket)
        deadline = time.monotonic() + START_DEADLINE_S
        while not _answers(machine, address):
            if not process.running() or time.monotonic() > deadline:
                said = process.output()[-400:].decode(errors="replace")
                raise EngineError(
                    f"{machine.name}: the null server does not answer: {said}",
                    "look at the logs of this machine",
                )
            time.sleep(0.01)
        return Server(address, process.pid, process)

    def stop(self, machine: Machine, server: AnyServer) -> None:
        """Returns when it has ended."""
        assert isinstance(server, Server)
        server.process.signal(15)
        server.process.wait(STOP_DEADLINE_S)

    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """It plans nothing."""
        return "none", "the no-op server plans nothing"


def _answers(machine: Machine, address: Address) -> bool:
    try:
        session = machine.serial(address, connection="persistent")
    except AgentFailure:
        return False
    try:
        session.query("SELECT 1")
    except (AgentFailure, EngineError):
        return False
    finally:
        session.close()
    return True
