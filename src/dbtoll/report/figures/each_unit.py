"""What each unit of an arm did over the rounds: a small picture for each, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.report.text import numbers

if TYPE_CHECKING:
    from dbtoll.report.transactions import AtLevels


@dataclass(frozen=True, slots=True)
class UnitPanel:
    """One unit: its throughput over the rounds as a path in a box of 1000 x 1000, and in figures; the response times of the
    transaction that is counted."""

    number: int
    path: str
    throughput: str
    p50: str
    p99: str


@dataclass(frozen=True, slots=True)
class UnitPanels:
    """Those of one arm. ``most``: what the top of every panel is, the same for all arms."""

    arm: str
    kind: int
    most: float
    panels: list[UnitPanel]


def panels(group: AtLevels, arms: Sequence[str]) -> list[UnitPanels]:
    """Of the arms that have several units. ``arms``: of the whole result, so that an arm has one colour."""
    several = [(arm.arm, units) for arm in group.arms if (units := arm.windows.units) is not None and units.each]
    most = max((max(each.by_round) for _, units in several for each in units.each), default=0.0) or 1.0
    return [
        UnitPanels(
            arm,
            arms.index(arm),
            most,
            [
                UnitPanel(
                    number,
                    _path(each.by_round, most),
                    numbers.figure(units.throughput[number]),
                    numbers.time_of(each.p50_ns),
                    numbers.time_of(each.p99_ns),
                )
                for number, each in enumerate(units.each)
            ],
        )
        for arm, units in several
    ]


def _path(values: Sequence[float], most: float) -> str:
    """From edge to edge; of one round its level."""
    points = [1000 - 960 * value / most for value in (values if len(values) > 1 else [*values, *values])]
    return "M" + "L".join(f"{1000 * index / (len(points) - 1):.0f} {y:.0f}" for index, y in enumerate(points))
