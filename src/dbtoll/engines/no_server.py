"""No server: for workloads that need none. See `interfaces.workload.ProbeWorkload`. Its data directory is an
empty one, on the arm's own storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dbtoll.errors import EngineError
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement

NOWHERE = Address(wire="postgres", user="nobody", database="none", unix="/nonexistent")
"""Where nothing listens; sessions connect when they are first asked something, and nothing asks."""


@dataclass(slots=True)
class Server:
    """None."""

    address: Address = NOWHERE
    pid: int | None = None
    network: Address | None = None


class Engine(interface.Engine):
    """Starts nothing."""

    name = "no_server"
    description = EngineDescription("no server")
    options: ClassVar[Mapping[str, Option]] = {}
    offers = frozenset({interface.QUIET})
    sql = Dialect("none")
    returns_rows = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        del options

    def settings(self, resources: Resources) -> dict[str, str]:
        """None."""
        return {}

    def key(self, machine: Machine) -> str:
        """There is one."""
        return "no_server"

    def create(self, machine: Machine, data: str) -> None:
        """An empty directory."""
        machine.run(["mkdir", "-p", data])

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> AnyServer:
        """At once."""
        if place.network is not None:
            raise EngineError("without a server nobody listens", 'placement = ["inside"] under [factors]')
        return Server()

    def stop(self, machine: Machine, server: AnyServer) -> None:
        """At once."""

    def load_settings(self, resources: Resources) -> dict[str, str]:
        """None."""
        return {}

    def finish_load(self, session: Session) -> None:
        """Nothing was loaded."""

    def settle(self, session: Session) -> None:
        """Nothing works in the background."""

    def background_work(self, session: Session) -> Json:
        """None."""
        return {}

    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """Nothing is planned."""
        return "none", "there is no server that plans"

    def facts(self, session: Session) -> Json:
        """None."""
        return {}
