"""What visits took, in the order of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from dbtoll.report.figures.axis import TICKS_MAX, Tick
from dbtoll.report.text import numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import SeriesBin


_PINNED_SHARE, _MOST, _TIMES_MOST = 0.01, 0.8, 3.0
"""The run-order axis holds all but this share of the dots, or three times what holds four fifths of them if that is
less; the others are drawn at its edge: stalled visits must not hide the drift of all."""


@dataclass(frozen=True, slots=True)
class RunOrderPanel:
    """One arm's visits in the order in which they were made, in a box of 1000 x 1000.

    ``path``: of each bin a dot for its smallest and its largest deviation, and a stroke over the middle half; a visit that has a
    bin of its own is a dot. ``middles``: of the bins that begin in a round the median, over the time that they took.
    """

    arm: str
    path: str
    middles: str
    visits: int
    dots: int
    pinned: int


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The same axes for all panels. ``time_ticks`` and ``rounds`` (where each begins; where they are many, where a bin of several
    begins) in per cent of the width. ``together``: so many visits are in a bin at most."""

    panels: list[RunOrderPanel]
    limit: float
    time_ticks: list[Tick]
    rounds: list[float]
    together: int


def run_order(series: Sequence[SeriesBin], arms: Sequence[str]) -> RunOrder | None:
    """None if nothing was measured."""
    if not series:
        return None
    sizes = sorted(abs(end) for each in series for end in _ends(each))
    nearly_all, most = (sizes[math.floor((len(sizes) - 1) * share)] for share in (1 - _PINNED_SHARE, _MOST))
    limit = max(0.02, 1.1 * min(nearly_all, _TIMES_MOST * most))
    end_s = max(each.to_s for each in series) or 1.0
    panels = []
    for arm in arms:
        own = [each for each in series if each.arm == arm]
        if not own:
            continue
        ends = [end for each in own for end in _ends(each)]
        panels.append(
            RunOrderPanel(
                arm=arm,
                path="".join(_strokes(each, end_s, limit) for each in own),
                middles="".join(_middle(bins, end_s, limit) for bins in _by_round(own).values()),
                visits=sum(each.visits for each in own),
                dots=len(ends),
                pinned=sum(abs(end) > limit for end in ends),
            )
        )
    begins: dict[int, float] = {}
    for each in series:
        begins[each.round] = min(begins.get(each.round, each.from_s), each.from_s)
    return RunOrder(
        panels=panels,
        limit=math.expm1(limit),
        time_ticks=time_ticks(end_s),
        rounds=[round(100 * t / end_s, 2) for _, t in sorted(begins.items())],
        together=max(each.visits for each in series),
    )


def _ends(each: SeriesBin) -> tuple[float, ...]:
    return (each.min,) if each.visits == 1 else (each.min, each.max)


def _strokes(each: SeriesBin, end_s: float, limit: float) -> str:
    """Strokes with round caps: one without length is a dot of constant size however the box is stretched."""
    at = f"M{500 * (each.from_s + each.to_s) / end_s:.0f} "
    dots = "".join(f"{at}{_height(end, limit)}h0" for end in _ends(each))
    return dots + (f"{at}{_height(each.q1, limit)}V{_height(each.q3, limit)}" if each.visits > 2 else "")


def _height(log_deviation: float, limit: float) -> int:
    return round(500 - 490 * max(-1.0, min(1.0, log_deviation / limit)))


def _by_round(series: Iterable[SeriesBin]) -> dict[int, list[SeriesBin]]:
    rounds: dict[int, list[SeriesBin]] = {}
    for each in series:
        rounds.setdefault(each.round, []).append(each)
    return rounds


def _middle(bins: Sequence[SeriesBin], end_s: float, limit: float) -> str:
    begin, end = (1000 * s / end_s for s in (min(each.from_s for each in bins), max(each.to_s for each in bins)))
    return f"M{begin:.0f} {_height(median(each.median for each in bins), limit)}H{end:.0f}"


def time_ticks(end_s: float) -> list[Tick]:
    """Ticks of a time axis from 0 to ``end_s``, at round numbers."""
    steps_s = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
    step = next((s for s in steps_s if end_s / s <= TICKS_MAX - 1), 86400 * math.ceil(end_s / 86400 / TICKS_MAX))
    return [
        Tick(round(100 * t / end_s, 2), numbers.span(t) if t else "0") for t in range(0, math.floor(end_s) + 1, step)
    ]
