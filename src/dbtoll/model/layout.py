"""How many there are at each level of an arm, from machines down to tenants of one set of tables, and the units that work there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from math import prod

UNITS_MAX = 64
"""Each has up to three streams to the agent that drives it: two sessions and its terminals. It serves 256 (docs/PROTOCOL.md)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Who works on rows of its own: places of its machine, server, database, schema and key, each from 0 in what is around it."""

    number: int
    machine: int
    server: int
    database: int
    schema: int
    key: int


@dataclass(frozen=True, slots=True)
class Layout:
    """``machines``: how often the last environment of an arm's stack is there; ``servers`` in each of them; ``databases`` in each
    server; ``schemas`` in each database, each with tables of its own; ``keys``: of tenants that share each set of tables, told
    apart by a key. Every key is a unit, and all units work at the same time."""

    machines: int = 1
    servers: int = 1
    databases: int = 1
    schemas: int = 1
    keys: int = 1

    @property
    def units(self) -> tuple[Unit, ...]:
        """In the order in which everything names them."""
        places = product(*map(range, asdict(self).values()))
        return tuple(Unit(number, *place) for number, place in enumerate(places))

    @property
    def sets_of_tables(self) -> int:
        """In all of its machines: each is loaded, and checked, once."""
        return self.all_servers * self.databases * self.schemas

    @property
    def in_server(self) -> Layout:
        """What each of its servers holds."""
        return replace(self, machines=1, servers=1)

    @property
    def all_servers(self) -> int:
        """In all of its machines."""
        return self.machines * self.servers

    @property
    def text(self) -> str:
        """``machines=3``, as a specification would say it; empty of one unit."""
        return ", ".join(f"{name}={many}" for name, many in asdict(self).items() if many != 1)

    @property
    def is_possible(self) -> bool:
        """Whether there is something at each level, and all of it can be driven."""
        levels: list[int] = list(asdict(self).values())
        return min(levels) >= 1 and prod(levels) <= UNITS_MAX


ONE_UNIT = Layout()
"""What an arm is unless more is asked for."""


def name_of(number: int) -> str:
    """Of a database of several in a server, or of a schema of several in a database; the first one is there, and has a name."""
    return f"unit_{number}"
