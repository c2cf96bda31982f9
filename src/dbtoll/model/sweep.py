"""A sweep: one specification measured at several values of one of its variables, each value a run of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = bool | int | float | str
"""Of a variable."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An arm that does not fit on the machine at that value, and why. Where ``arm`` is empty: no run of that value could begin."""

    value: Value
    arm: str
    why: str


@dataclass(frozen=True, slots=True)
class Limit:
    """``quantile`` of the response times, ``p99``, of ``transaction`` (empty: of all) is to be at most ``ns``."""

    quantile: str
    transaction: str
    ns: int

    @property
    def measure(self) -> str:
        """``new_order.p99``, as the command line has it."""
        return ".".join(filter(None, (self.transaction, self.quantile)))


PERIODS_S: Mapping[str, float] = {"hour": 3600.0, "day": 86400.0, "month": 86400 * 365.25 / 12, "year": 86400 * 365.25}
"""What costs may be for, s."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What it costs to run an arm for a ``period`` (`PERIODS_S`) in ``currency``, as its user says (docs/method/sweeps.md).

    ``host``: whatever is on it; ``processor``, ``memory_gib``: each that an arm has; ``machine``, ``server``: each machine of an
    arm, and each server in them (a licence); ``devices``: each that an arm has (`price.devices_of`).
    """

    currency: str
    period: str
    host: float = 0.0
    processor: float = 0.0
    memory_gib: float = 0.0
    machine: float = 0.0
    server: float = 0.0
    devices: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Which value of which sweep a run is.

    ``id``: what all its runs have in common and no other run has. ``file``: the specification's path, from which paths in it begin.
    ``values``: that were asked for, in order, of which a search measures some; ``value``: this run's. ``left_out``: at any value.
    """

    id: str
    file: str
    variable: str
    values: tuple[Value, ...]
    value: Value
    left_out: tuple[LeftOut, ...] = ()
    limit: Limit | None = None
    costs: Costs | None = None
