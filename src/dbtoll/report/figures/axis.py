"""An axis of changes, linear near none and logarithmic far from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dbtoll.report.text import numbers

_LOG_FROM = math.log1p(numbers.TIMES_FROM)
"""An axis that must hold what is said as a factor is logarithmic: a linear one squeezes everything else against zero."""

_LABEL = 22.0
"""Per cent of a narrow panel's width that a label takes."""

TICKS_MAX = 6
"""As many labels as fit beside each other on a phone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """``x``: place in per cent of the width. ``crowded``: on a narrow panel its label would touch another one."""

    x: float
    label: str
    crowded: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis over changes (`numbers.EffectText.change`) between ``low`` and ``high``; ``log`` makes equal factors equally wide.

    ``of_throughput``: to the right is more; else it is longer.
    """

    low: float
    high: float
    log: bool
    of_throughput: bool = False

    def place(self, change: float) -> float:
        """Per cent of the width, 0 to 100; outside values lie on the edge."""
        value, low, high = (math.log1p(max(e, -0.999)) if self.log else e for e in (change, self.low, self.high))
        return round(min(100.0, max(0.0, 100 * (value - low) / (high - low))), 2)

    @property
    def ticks(self) -> list[Tick]:
        """Every second, third … of them is left uncrowded, that of no difference among them."""
        ticks = self._ticks()
        middle = min(range(len(ticks)), key=lambda index: abs(ticks[index].x - self.place(0.0)), default=0)
        apart = [right.x - left.x for left, right in pairwise(ticks)]
        step = math.ceil(_LABEL / min(apart)) if apart else 1
        return [replace(tick, crowded=(index - middle) % step != 0) for index, tick in enumerate(ticks)]

    def _ticks(self) -> list[Tick]:
        if self.log:
            factors = log_factors(1 + self.low, 1 + self.high)
            return [Tick(self.place(f - 1), "1" if f == 1 else f"{f:g}×") for f in factors]
        step = _step((self.high - self.low) / (TICKS_MAX - 1))
        decimals = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [
            Tick(self.place(i * step), numbers.number(i * step * 100, decimals, plus=True))
            for i in range(first, last + 1)
        ]

    @property
    def title(self) -> str:
        if not self.log:
            return "difference in per cent"
        return f"times as {'much' if self.of_throughput else 'long'} (logarithmic)"

    @property
    def ends(self) -> tuple[str, str]:
        """What lies to the left and to the right."""
        return ("← less done", "more done →") if self.of_throughput else ("← faster", "slower →")

    @property
    def length(self) -> float:
        """On the log scale, so that both kinds can be set against each other."""
        return math.log1p(self.high) - math.log1p(max(self.low, -0.999))


def _step(at_least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``at_least``."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= at_least * (1 - 1e-9))


def log_factors(low: float, high: float) -> list[float]:
    """Round numbers between the two, as many as there is room for on a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 1.5, 2, 3, 4, 5, 7), (1, 1.5, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        factors = [
            m * 10.0**d for d in decades for m in mantissas if low <= m * 10.0**d * (1 + 1e-9) and m * 10.0**d <= high
        ]
        nearest = min((b / a for a, b in pairwise(factors)), default=math.inf)
        if len(factors) <= TICKS_MAX and math.log(nearest) * TICKS_MAX >= math.log(high / low):
            return factors
    return factors[:: math.ceil(len(factors) / TICKS_MAX)]


def axis_for(changes: Iterable[float], margin: float, *, of_throughput: bool = False) -> Axis:
    """An axis that holds ``changes``, zero and the margin, with some air."""
    values = [*changes, -margin, margin]
    low, high = min(values), max(values)
    if math.log1p(high) >= _LOG_FROM:
        lowest, highest = math.log1p(max(low, -0.999)), math.log1p(high)
        air = 0.04 * (highest - lowest)
        return Axis(math.expm1(lowest - air), math.expm1(highest + air), True, of_throughput)
    air = 0.04 * (high - low)
    return Axis(low - air, high + air, False, of_throughput)


_SHARED_UP_TO = 6.0
"""Panels side by side have one axis unless the longest of their own is more than so many times the shortest."""


def shared_axis(panels: Iterable[Sequence[float]], margin: float) -> Axis | None:
    """One axis for all panels; None where it would squeeze one of them."""
    held = [list(effects) for effects in panels]
    lengths = [axis_for(effects, margin).length for effects in held]
    if not lengths or max(lengths) > _SHARED_UP_TO * min(lengths):
        return None
    return axis_for([effect for effects in held for effect in effects], margin)
