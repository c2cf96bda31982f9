"""How many machines, servers and databases an arm is, and the units that work in them."""

from __future__ import annotations

from dataclasses import dataclass

UNITS_MAX = 64
"""Each has up to three streams to the agent that drives it: two sessions and its terminals. It serves 256 (docs/PROTOCOL.md)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Who works on a data set of its own: the places of its machine, server and database, each from 0 in what is around it."""

    number: int
    machine: int
    server: int
    database: int


@dataclass(frozen=True, slots=True)
class Layout:
    """``machines``: how often the last environment of an arm's stack is there; ``servers`` in each of them; ``databases`` in each
    server. Every database is a unit, and all units work at the same time."""

    machines: int = 1
    servers: int = 1
    databases: int = 1

    @property
    def units(self) -> tuple[Unit, ...]:
        """In the order in which everything names them."""
        places = (
            (machine, server, database)
            for machine in range(self.machines)
            for server in range(self.servers)
            for database in range(self.databases)
        )
        return tuple(Unit(number, *place) for number, place in enumerate(places))

    @property
    def all_servers(self) -> int:
        """In all of its machines."""
        return self.machines * self.servers

    @property
    def text(self) -> str:
        """``machines=3``, as a specification would say it; empty of one unit."""
        levels = {"machines": self.machines, "servers": self.servers, "databases": self.databases}
        return ", ".join(f"{name}={many}" for name, many in levels.items() if many != 1)

    @property
    def is_possible(self) -> bool:
        """Whether there is something at each level, and all of it can be driven."""
        at_least = min(self.machines, self.servers, self.databases)
        return at_least >= 1 and self.machines * self.servers * self.databases <= UNITS_MAX


ONE_UNIT = Layout()
"""What an arm is unless more is asked for."""


def database_name(number: int) -> str:
    """Of a server that has several; the first one is its own."""
    return f"unit_{number}"
