"""How much faster each arm is with more threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.report.figures.axis import Axis, Tick

if TYPE_CHECKING:
    from dbtoll.report.scaling import AtLevels

_AIR, _ROOM = 0.06, 0.12
"""Above and below the curves, and at their sides, where the labels are: of their height and width, at each end."""

_APART = 1.1
"""Per cent of the width between the marks of two arms at one number of threads, so that their intervals can be told apart."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Per cent of the width, and of the height from the top; ``low`` and ``high`` are None where there is no interval."""

    x: float
    y: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """One arm's. ``kind``: its number among the arms, which is its colour and dash. ``path``: in a box of 1000 x 1000."""

    arm: str
    kind: int
    path: str
    points: list[ScalingPoint]


@dataclass(frozen=True, slots=True)
class Scaling:
    """From left to right the threads, upwards the speed-up; both are logarithmic, so that twice as fast is as high everywhere.

    ``ideal``: as many times as fast as there are threads, as long as each has a processor.
    """

    title: str
    ideal: str
    curves: list[ScalingCurve]
    thread_ticks: list[Tick]
    speed_ticks: list[Tick]


def scaling(group: AtLevels, arms: Sequence[str], cpus: int) -> Scaling | None:
    """``arms``: of the whole result, so that an arm has the same colour in all figures. None where no arm has a speed-up."""
    own = {arm: [(n, group.geomean(arm, n)) for n in group.threads[1:]] for arm in group.arms}
    known = {arm: [(n, each) for n, each in found if each and each.estimate] for arm, found in own.items()}
    if not any(known.values()):
        return None
    fewest, most = group.threads[0], group.threads[-1]
    ideal = [
        (n, min(n, cpus) / min(fewest, cpus))
        for n in sorted({*group.threads, *({cpus} if fewest < cpus < most else ())})
    ]
    ends = [v for found in known.values() for _, e in found for v in (e.estimate, e.low, e.high) if v is not None]
    low, high = min(1.0, *ends), max(*ends, *(speed for _, speed in ideal))
    air = (high / low) ** _AIR
    beside = (most / fewest) ** _ROOM
    across = Axis(fewest / beside - 1, most * beside - 1, log=True)
    up = Axis(low / air - 1, high * air - 1, log=True)

    def height(speed: float) -> float:
        return round(100 - up.place(speed - 1), 2)

    curves = []
    for place, (arm, found) in enumerate(known.items()):
        aside = _APART * (place - (len(known) - 1) / 2)
        points = [ScalingPoint(across.place(fewest - 1), height(1.0), None, None)]
        for n, each in found:
            assert each.estimate is not None
            bounds = [None if value is None else height(value) for value in (each.low, each.high)]
            points.append(ScalingPoint(across.place(n - 1) + aside, height(each.estimate), *bounds))
        curves.append(ScalingCurve(arm, arms.index(arm), _path([(each.x, each.y) for each in points]), points))
    return Scaling(
        title=group.title,
        ideal=_path([(across.place(n - 1), height(speed)) for n, speed in ideal]),
        curves=curves,
        thread_ticks=[Tick(across.place(n - 1), str(n)) for n in _told(group.threads)],
        speed_ticks=[Tick(height(speed), f"{speed:g}×") for speed in _round_speeds(up)],
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{10 * x:.0f} {10 * y:.0f}" for x, y in points)


def _round_speeds(up: Axis) -> list[float]:
    """Doublings, where there is room for three of them."""
    doublings = [2.0**power for power in range(-3, 11) if up.low <= 2.0**power - 1 <= up.high]
    return doublings if len(doublings) > 2 else [float(tick.label.rstrip("×")) for tick in up.ticks]


def _told(threads: Sequence[int]) -> list[int]:
    """Numbers that have room for their labels: a tenth of the axis from the one before."""
    told = [threads[0]]
    width = math.log(threads[-1] / threads[0])
    for n in threads[1:]:
        if math.log(n / told[-1]) >= 0.1 * width:
            told.append(n)
    return told
