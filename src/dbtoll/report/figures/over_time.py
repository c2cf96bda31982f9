"""Throughput within a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.report.figures.axis import Tick
from dbtoll.report.figures.run_order import time_ticks

if TYPE_CHECKING:
    from dbtoll.report.transactions import AtLevels


@dataclass(frozen=True, slots=True)
class OverTimePanel:
    """One arm's throughput within a window, in a box of 1000 x 1000; ``first``: in the first window after a start."""

    arm: str
    path: str
    first: str


@dataclass(frozen=True, slots=True)
class OverTime:
    """The same axes for all arms; ``most``: transactions a second at the top, above all curves, where its label has room."""

    panels: list[OverTimePanel]
    most: float
    time_ticks: list[Tick]


def over_time(group: AtLevels) -> OverTime | None:
    """None if nothing was measured."""
    highest = max(
        (max((*arm.windows.series, *arm.windows.first_series), default=0.0) for arm in group.arms), default=0.0
    )
    if highest <= 0:
        return None
    most = _ceiling(1.2 * highest)
    panels = [
        OverTimePanel(arm.arm, _line(arm.windows.series, most), _line(arm.windows.first_series, most))
        for arm in group.arms
    ]
    return OverTime(panels, most, time_ticks(group.arms[0].windows.length_ns / 1e9))


def _ceiling(value: float) -> float:
    """The next number of two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def _line(series: Sequence[float], most: float) -> str:
    """A point in the middle of each interval."""
    places = (1000 * (index + 0.5) / len(series) for index in range(len(series)))
    points = [f"{x:.0f} {1000 - 1000 * value / most:.0f}" for x, value in zip(places, series, strict=True)]
    return "M" + "L".join(points) if points else ""
