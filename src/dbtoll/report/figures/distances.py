"""How far successive writes lie apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dbtoll.report.figures.axis import Tick
from dbtoll.report.figures.response_times import Curve, CurvePanel, Curves
from dbtoll.report.text import numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Distance
    from dbtoll.report.transactions import AtLevels

_SHARES = (0.25, 0.5, 0.75)
_TICK_POWERS = 8
"""Of two, between the labels of the axis."""


def curves(group: AtLevels, arms: Sequence[str]) -> Curves | None:
    """A panel for each device and where it was seen. From left to right the distance in blocks, each power of two as wide as the
    next; at the left edge what was sequential. Upwards the share that lies no farther. ``arms``: of the whole result, so that an
    arm has one colour. None where nothing was seen."""
    panels: dict[str, list[Curve]] = {}
    most = max((each.distances[-1].blocks for _, each in group.writes), default=0)
    width = max(1.0, _power(most))
    for arm, each in group.writes:
        points = [f"{1000 * place / width:.0f} {1000 - 1000 * share:.0f}" for place, share in _corners(each.distances)]
        title = each.device if each.where == "host" else f"{each.device}, {each.where}"
        panels.setdefault(title, []).append(Curve(arm.arm, arms.index(arm.arm), "M" + "L".join(points)))
    if not panels:
        return None
    return Curves(
        panels=[CurvePanel(title, its) for title, its in panels.items()],
        time_ticks=[
            Tick(round(100 * _power(2**power) / width, 2), blocks_text(2**power))
            for power in range(0, math.ceil(width), _TICK_POWERS)
            if _power(2**power) <= width
        ],
        share_ticks=[Tick(100 - 100 * share, f"{100 * share:.0f}{numbers.THIN}%") for share in _SHARES],
    )


def _corners(distances: Sequence[Distance]) -> Iterator[tuple[float, float]]:
    """A curve rises within a class alone, which begins at half of where it ends."""
    reached = 0.0
    for distance in distances:
        if distance.blocks:
            yield _power(distance.blocks) - 1, reached
        yield _power(distance.blocks), distance.share
        reached = distance.share


def _power(blocks: int) -> float:
    """Place of a distance: 0 of none, 1 of one block, and 1 more for each doubling."""
    return 1 + math.log2(blocks) if blocks else 0.0


def blocks_text(blocks: int) -> str:
    """``1``, ``256``, ``64 Ki``, ``16 Mi``."""
    for unit, scale in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if blocks >= scale:
            return f"{blocks // scale}{numbers.THIN}{unit}"
    return str(blocks)
