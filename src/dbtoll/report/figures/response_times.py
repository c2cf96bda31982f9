"""The tails of response times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.report.figures.axis import TICKS_MAX, Tick
from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from dbtoll.report.transactions import AtLevels


_TAIL_TICKS = (0.5, 0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True)
class Curve:
    """One arm's in a box of 1000 x 1000. ``kind``: its number among the arms, which is its colour and dash."""

    arm: str
    kind: int
    path: str


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """One transaction: from left to right the response time, upwards the share that took no longer."""

    title: str
    curves: list[Curve]


@dataclass(frozen=True, slots=True)
class Curves:
    """Response times of all transactions and arms at one combination of levels, on the same axes.

    Both are logarithmic: each step up leaves a tenth of the transactions, so that the tail has as much room as all
    others. ``share_ticks`` in per cent of the height, from the top.
    """

    panels: list[CurvePanel]
    time_ticks: list[Tick]
    share_ticks: list[Tick]


def curves(group: AtLevels, arms: Sequence[str]) -> Curves | None:
    """``arms``: of the whole result, so that an arm has the same colour at all levels. None without any response time."""
    points = [
        (name, each.arm, [(q.value_ns, -math.log10(1 - q.fraction)) for q in kind.quantiles])
        for name in group.transactions
        for each, kind in group.of(name)
    ]
    times = [ns for *_, own in points for ns, _ in own]
    if not times:
        return None
    low, high = math.log(min(times) / 1.1), math.log(max(times) * 1.1)
    top = max(tail for *_, own in points for _, tail in own) * 1.03

    def place(ns: float) -> float:
        return (math.log(ns) - low) / (high - low)

    panels = [
        CurvePanel(
            names.transaction_text(name),
            [
                Curve(
                    arm,
                    arms.index(arm),
                    "M" + "L".join(f"{1000 * place(ns):.0f} {1000 - 1000 * tail / top:.0f}" for ns, tail in own),
                )
                for transaction, arm, own in points
                if transaction == name and own
            ],
        )
        for name in group.transactions
    ]
    marks = _time_marks(math.exp(low), math.exp(high))
    return Curves(
        panels=[panel for panel in panels if panel.curves],
        time_ticks=[Tick(round(100 * place(ns), 2), numbers.round_time(ns)) for ns in marks],
        share_ticks=[
            Tick(round(100 - 100 * tail / top, 2), f"{share * 100:g}{numbers.THIN}%")
            for share in _TAIL_TICKS
            if (tail := -math.log10(1 - share)) < top
        ],
    )


def _time_marks(low_ns: float, high_ns: float) -> list[float]:
    """Round times on a logarithmic axis: as many as fit on a narrow panel."""
    decades = range(math.floor(math.log10(low_ns)), math.ceil(math.log10(high_ns)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        marks = [m * 10.0**d for d in decades for m in mantissas if low_ns <= m * 10.0**d <= high_ns]
        if len(marks) < TICKS_MAX:
            return marks
    return marks[:: math.ceil(len(marks) / (TICKS_MAX - 1))]
