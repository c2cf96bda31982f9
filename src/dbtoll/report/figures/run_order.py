"""What each visit took, in the order of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from dbtoll.report.figures.axis import TICKS_MAX, Tick
from dbtoll.report.text import numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import SeriesPoint


_PINNED_SHARE, _MOST, _TIMES_MOST = 0.01, 0.8, 3.0
"""The run-order axis holds all but this share of the visits, or three times what holds four fifths of them if that is
less; the others are drawn at its edge: stalled visits must not hide the drift of all."""


@dataclass(frozen=True, slots=True)
class RunOrderPanel:
    """One arm's visits in the order in which they were made, in a box of 1000 x 1000.

    ``path``: a dot each. ``middles``: the median of each round, over the time that it took.
    """

    arm: str
    path: str
    middles: str
    visits: int
    pinned: int


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The same axes for all panels. ``time_ticks`` and ``rounds`` (where each begins) in per cent of the width."""

    panels: list[RunOrderPanel]
    limit: float
    time_ticks: list[Tick]
    rounds: list[float]


def run_order(series: Sequence[SeriesPoint], arms: Sequence[str]) -> RunOrder | None:
    """None if nothing was measured."""
    if not series:
        return None
    sizes = sorted(abs(s.log_deviation) for s in series)
    nearly_all, most = (sizes[math.floor((len(sizes) - 1) * share)] for share in (1 - _PINNED_SHARE, _MOST))
    limit = max(0.02, 1.1 * min(nearly_all, _TIMES_MOST * most))
    end_s = max(s.elapsed_s for s in series) or 1.0
    panels = []
    for arm in arms:
        own = [s for s in series if s.arm == arm]
        if not own:
            continue
        # A path of zero-length strokes with round caps: each is a dot of constant size however the box is stretched.
        dots = (f"M{1000 * s.elapsed_s / end_s:.0f} {_height(s.log_deviation, limit)}h0" for s in own)
        pinned = sum(abs(s.log_deviation) > limit for s in own)
        middles = "".join(_middle(visits, end_s, limit) for visits in _by_round(own).values())
        panels.append(RunOrderPanel(arm, "".join(dots), middles, len(own), pinned))
    begins: dict[int, float] = {}
    for s in series:
        begins[s.round] = min(begins.get(s.round, s.elapsed_s), s.elapsed_s)
    return RunOrder(
        panels=panels,
        limit=math.expm1(limit),
        time_ticks=time_ticks(end_s),
        rounds=[round(100 * t / end_s, 2) for _, t in sorted(begins.items())],
    )


def _height(log_deviation: float, limit: float) -> int:
    return round(500 - 490 * max(-1.0, min(1.0, log_deviation / limit)))


def _by_round(series: Iterable[SeriesPoint]) -> dict[int, list[SeriesPoint]]:
    rounds: dict[int, list[SeriesPoint]] = {}
    for s in series:
        rounds.setdefault(s.round, []).append(s)
    return rounds


def _middle(visits: Sequence[SeriesPoint], end_s: float, limit: float) -> str:
    begin, end = (1000 * pick(s.elapsed_s for s in visits) / end_s for pick in (min, max))
    return f"M{begin:.0f} {_height(median(s.log_deviation for s in visits), limit)}H{end:.0f}"


def time_ticks(end_s: float) -> list[Tick]:
    """Ticks of a time axis from 0 to ``end_s``, at round numbers."""
    steps_s = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
    step = next((s for s in steps_s if end_s / s <= TICKS_MAX - 1), 86400 * math.ceil(end_s / 86400 / TICKS_MAX))
    return [
        Tick(round(100 * t / end_s, 2), numbers.span(t) if t else "0") for t in range(0, math.floor(end_s) + 1, step)
    ]
