"""Where one design stops being the better one: a band over the values, and where it leaves 0. Pure; log scale.

Formulas and their sources: docs/method/sweeps.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats, Interval
from dbtoll.model.experiment import Precision, Verdict


@dataclass(frozen=True, slots=True)
class Banded:
    """One value's effect. ``band``: its interval among those of all values (Holm 1979), by which signs are decided; ``verdict``: as
    of a query among others. ``band`` None: nothing is decided there."""

    shown: Interval | None
    band: Interval | None
    verdict: Verdict


NOTHING = Banded(None, None, Verdict.CANNOT_TELL)


def banded(
    values: Sequence[Floats], precision: Precision, *, widened_by: Sequence[float] | None = None
) -> list[Banded]:
    """For each value, from its effects per round: intervals adjusted for the number of values.

    ``widened_by``: what A/A showed at each. A value with fewer than two rounds has no interval.
    """
    alpha = 1 - precision.confidence
    widths = widened_by or [0.0] * len(values)
    found = [stats.interval(each, alpha, precision.rounds_min) for each in values]
    known = [index for index, each in enumerate(found) if each is not None]
    shown = [each for each in found if each is not None]
    alarm = max((widths[index] for index in known), default=0.0)
    of_zero = dict(zip(known, stats.holm_alphas([each.p for each in shown], alpha), strict=True))
    low, high = math.log1p(-precision.margin) + alarm, math.log1p(precision.margin) - alarm
    of_both = dict(zip(known, stats.family_alphas(shown, alpha, low, high), strict=True))
    result = []
    for index, each in enumerate(found):
        if each is None:
            result.append(NOTHING)
            continue
        band, decisive = (
            interval.widened(widths[index])
            for level in (of_zero[index], of_both[index])
            if (interval := stats.interval(values[index], level, precision.rounds_min)) is not None
        )
        rounds = len(values[index])
        verdict = stats.verdict(decisive, rounds, precision)
        told = None if stats.too_few(rounds, precision) else band
        result.append(Banded(each.shown.widened(widths[index]), told, verdict))
    return result


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``low`` to ``high`` on the axis. ``sign``: -1 where the band lies below 0, 1 above, 0 where it holds 0."""

    low: float
    high: float
    sign: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """The effect goes through 0 at ``estimate``, from sign ``before`` on. The band holds 0 from ``low`` to ``high``."""

    low: float
    estimate: float
    high: float
    before: int


def segments(at: Sequence[float], band: Sequence[Interval | None]) -> list[Segment]:
    """The axis from the first place to the last, cut where the band, straight between neighbours, begins or ends to hold 0.

    ``at``: rising. Where nothing is decided (None) the band holds 0, up to both neighbours.
    """
    found: list[Segment] = []
    for (left, one), (right, other) in pairwise(zip(at, band, strict=True)):
        cuts = [left, *sorted(_zeros(left, one, right, other)), right]
        for begin, end in pairwise(cuts):
            if end <= begin:
                continue
            sign = _sign(_between(left, one, right, other, (begin + end) / 2))
            if found and found[-1].sign == sign:
                found[-1] = Segment(found[-1].low, end, sign)
            else:
                found.append(Segment(begin, end, sign))
    return found


def crossings(at: Sequence[float], estimates: Sequence[float | None], found: Sequence[Segment]) -> list[Crossing]:
    """Every undecided segment between two of unlike signs, with where the estimate, straight between neighbours, goes through 0
    there: of several such places the middle one."""
    result = []
    for before, between, after in zip(found, found[1:], found[2:], strict=False):
        if between.sign or before.sign + after.sign:
            continue
        zeros = []
        known = [(x, y) for x, y in zip(at, estimates, strict=True) if y is not None]
        for (left, one), (right, other) in pairwise(known):
            if one == 0.0:
                zeros.append(left)
            elif one * other < 0:
                zeros.append(left + (right - left) * one / (one - other))
        inside = [zero for zero in zeros if between.low <= zero <= between.high]
        middle = inside[len(inside) // 2] if inside else (between.low + between.high) / 2
        result.append(Crossing(between.low, middle, between.high, before.sign))
    return result


def _zeros(left: float, one: Interval | None, right: float, other: Interval | None) -> list[float]:
    if one is None or other is None:
        return []
    ends = ((one.low, other.low), (one.high, other.high))
    return [left + (right - left) * a / (a - b) for a, b in ends if a * b < 0]


def _between(left: float, one: Interval | None, right: float, other: Interval | None, x: float) -> tuple[float, float]:
    if one is None or other is None:
        return -math.inf, math.inf
    part = (x - left) / (right - left)
    return one.low + part * (other.low - one.low), one.high + part * (other.high - one.high)


def _sign(band: tuple[float, float]) -> int:
    low, high = band
    return 1 if low > 0 else -1 if high < 0 else 0
