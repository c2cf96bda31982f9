"""Numbers as people read them. Fractions come in (0.01 is 1 %), text goes out.

Digits: an interval is shown with two significant digits of its half-width, and its estimate with as many decimals, so
that no digit is printed which another run would not repeat (the rule of the GUM, JCGM 100:2008, 7.2.6).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.model.reply import THROUGHPUTS
from dbtoll.text import noun

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Comparison

MINUS = "\N{MINUS SIGN}"

THIN = "\N{NARROW NO-BREAK SPACE}"

NOTHING = "\N{EN DASH}"
"""Stands where a value is missing; a missing value is never 0."""


# Beyond three decimals of a per cent the digits are those of the clock, not of the database.
_DECIMALS_MAX = 3


def decimals_of(half_width: float | None) -> int:
    """How many decimals of a per cent show two significant digits of ``half_width`` (a fraction); 1 if there is none."""
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        return 1
    return min(_DECIMALS_MAX, max(0, 1 - math.floor(math.log10(half_width * 100))))


def number(value: float, decimals: int = 0, *, plus: bool = False) -> str:
    """``value`` with a typographic minus, ``plus`` for positive ones, and no sign where it rounds to zero."""
    text = f"{abs(value):.{decimals}f}"
    if float(text) == 0:
        return text
    return f"{MINUS if value < 0 else '+' if plus else ''}{text}"


def percent(fraction: float | None, decimals: int = 1, *, plus: bool = True) -> str:
    """``+0.3 %``"""
    return NOTHING if fraction is None else f"{number(fraction * 100, decimals, plus=plus)}{THIN}%"


_SIGNED_ZERO = re.compile(r"(?<![\w.)-])[-+](?=0(\.0+)?%)")
_PLAIN_PERCENT, _PLAIN_MINUS = re.compile(r"(?<=\d)%"), re.compile(r"(?<![\w.)-])-(?=\d+(\.\d+)?%)")


def typeset(text: str) -> str:
    """Text of the analysis, whose figures are plain (``-1.2%``), with figures as everywhere in the report (``−1.2 %``)."""
    return _PLAIN_PERCENT.sub(f"{THIN}%", _PLAIN_MINUS.sub(MINUS, _SIGNED_ZERO.sub("", text)))


def margin(fraction: float) -> str:
    """``±2 %``, with no more digits than were asked for."""
    return f"±{fraction * 100:g}{THIN}%"


@dataclass(frozen=True, slots=True)
class IntervalText:
    """An estimate with its bounds, fractions; each may be missing. Formats all three with the same digits."""

    estimate: float | None
    low: float | None
    high: float | None

    @property
    def decimals(self) -> int:
        return decimals_of(None if self.low is None or self.high is None else (self.high - self.low) / 2)

    @property
    def value(self) -> str:
        """``+0.3 %``"""
        return percent(self.estimate, self.decimals)

    @property
    def bounds(self) -> str:
        """``−0.8 … 1.4`` (per cent), empty if there is no interval."""
        if self.low is None or self.high is None:
            return ""
        return f"{number(self.low * 100, self.decimals)} … {number(self.high * 100, self.decimals)}"

    @property
    def text(self) -> str:
        """``+0.3 % (−0.8 … 1.4)``"""
        return f"{self.value} ({self.bounds})" if self.bounds else self.value


_COST_LEAST = 1e-300
"""Of a bound that says nothing: its inverse is still a number."""

TIMES_FROM = 2.0
"""A change of +200 % is said as three times: from there on people think in factors."""


@dataclass(frozen=True, slots=True)
class EffectText:
    """What an arm costs against its baseline, as people say it; the one form of headline, table and picture.

    ``estimate``, ``low`` and ``high`` are overheads as the analysis has them (cost / baseline cost - 1, fractions), each may be
    missing. A time is shown as it is: ``+24 %`` takes 24 % longer. Of throughput it is shown how much more or less is done in the
    same time: an overhead of 685 % per transaction is ``-87 %``. From `TIMES_FROM` on all three are factors.
    """

    metric: str
    estimate: float | None
    low: float | None
    high: float | None

    @property
    def change(self) -> IntervalText:
        """Of the quantity that is shown: what is done in the same time, or the time; minus 1."""
        if not is_throughput(self.metric):
            return IntervalText(self.estimate, self.low, self.high)
        costs = (None if each is None else max(1 + each, _COST_LEAST) for each in (self.estimate, self.high, self.low))
        return IntervalText(*(None if cost is None else 1 / cost - 1 for cost in costs))

    @property
    def is_bound(self) -> bool:
        """Whether it is only known that the cost is no less than ``low``."""
        return self.estimate is None and self.low is not None and self.high is None

    @property
    def value(self) -> str:
        """``+24.0 %``, ``−87 %``, ``10.8×``; ``at least 24 % longer``, ``at least −3 %``."""
        if self.is_bound:
            return self._size if (self.low or 0) >= 0 else f"at least {percent(self.low)}"
        return f"{self._factors[0]}×" if self._is_factor and self.estimate is not None else self.change.value

    @property
    def bounds(self) -> str:
        """``21.0 … 27.0``, in the form of `value`; empty if there is no interval."""
        if self.low is None or self.high is None:
            return ""
        return " … ".join(self._factors[-2:]) if self._is_factor else self.change.bounds

    @property
    def text(self) -> str:
        """``+24.0 % (21.0 … 27.0)``"""
        return f"{self.value} ({self.bounds})" if self.bounds else self.value

    @property
    def inside(self) -> str:
        """``(+0.3 %, −0.8 … 1.4)``: behind a verdict that does not itself name the figure."""
        return f"({self.value}, {self.bounds})" if self.bounds else f"({self.value})"

    @property
    def said(self) -> str:
        """``takes 24.0 % longer``, ``takes 10.8 times as long``, ``does 87 % less``, ``takes at least 24 % longer``."""
        return f"{_verb(self.metric)} {self._size}" if self._known else NOTHING

    @property
    def said_bounds(self) -> str:
        """Those of `said`, in the same direction: ``21.0 … 27.0``."""
        change = self.change
        if change.estimate is None or change.estimate >= 0 or change.low is None or change.high is None:
            return self.bounds
        return IntervalText(None, -change.high, -change.low).bounds

    @property
    def _size(self) -> str:
        change, before = self._known[0], "at least " if self.is_bound else ""
        more, less, as_much = (
            ("more", "less", "as much") if is_throughput(self.metric) else ("longer", "less time", "as long")
        )
        if self._is_factor:
            return f"{before}{self._factors[0]} times {as_much}"
        return f"{before}{percent(abs(change), self.change.decimals, plus=False)} {more if change >= 0 else less}"

    @property
    def _is_factor(self) -> bool:
        return bool(self._known) and self._known[0] >= TIMES_FROM

    @property
    def _factors(self) -> tuple[str, ...]:
        return figures(*(1 + each for each in self._known))

    @property
    def _known(self) -> list[float]:
        change = self.change
        return [each for each in (change.estimate, change.low, change.high) if each is not None]


def effect(found: Comparison) -> EffectText:
    """Of a comparison, with its own interval."""
    return EffectText(found.metric, found.estimate, found.low, found.high)


def decisive(found: Comparison) -> EffectText:
    """What its verdict rests on."""
    return EffectText(found.metric, found.estimate, found.low_decisive, found.high_decisive)


def _verb(metric: str) -> str:
    if is_throughput(metric):
        return "does"
    if metric.startswith("response_p"):
        return "answers take"
    return "an event takes" if metric == "event_time" else "takes"


def p_value(p: float | None) -> str:
    """``0.031``; below a thousandth only that: the tails of a t over a few rounds carry no more."""
    if p is None:
        return NOTHING
    return "<\N{NARROW NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"


def figure(value: float, low: float | None = None, high: float | None = None) -> str:
    """``27 700 (27 100 … 28 300)``: any quantity, by the same rule of digits; three significant ones without bounds."""
    text, *bounds = figures(value) if low is None or high is None else figures(value, low, high)
    return f"{text} ({' … '.join(bounds)})" if bounds else text


def figures(*values: float) -> tuple[str, ...]:
    """A value, or with its two bounds, or these alone: each with the same digits."""
    half = (values[-1] - values[-2]) / 2 if len(values) > 1 else math.nan
    if math.isnan(half):
        digits = 2 - math.floor(math.log10(abs(values[0]))) if values[0] else 0
    else:
        digits = min(_DECIMALS_MAX, 1 - math.floor(math.log10(half))) if half > 0 and math.isfinite(half) else 0
    if len(values) == 3 and values[0] > 0 <= values[1]:
        # However wide its interval is, what cannot be negative does not read as zero where it is not.
        digits = max(digits, min(_DECIMALS_MAX, -math.floor(math.log10(values[0]))))
    return tuple(_rounded(each, digits) for each in values)


def _rounded(value: float, digits: int) -> str:
    """``digits`` after the point; before it, where they are negative."""
    return count(round(value, digits)) if digits <= 0 else number(value, digits)


_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def time_of(ns: float | None) -> str:
    """Three significant digits: ``14.2 ms``, ``1.41 s``, ``1 234 s``."""
    if ns is None:
        return NOTHING
    # 999.6 µs is 1.00 ms: the unit is chosen by the value as it will be printed.
    scale, unit = next((u for u in _TIME_UNITS if abs(ns) / u[0] >= 0.9995), _TIME_UNITS[-1])
    value = ns / scale
    decimals = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005))) if value else 0
    return f"{count(value) if decimals == 0 else number(value, decimals)}{THIN}{unit}"


def round_time(ns: float) -> str:
    """A round one, on an axis: ``2 ms``."""
    scale, unit = next((u for u in _TIME_UNITS if ns / u[0] >= 0.9995), _TIME_UNITS[-1])
    return f"{ns / scale:g}{THIN}{unit}"


def milliseconds(value_ms: float | None) -> str:
    """A time in ms with the unit that fits it."""
    return time_of(None if value_ms is None else value_ms * 1e6)


def span(seconds: float | None) -> str:
    """How long something lasted, for people: ``45 s``, ``4½ min``, ``15 min``, ``2 h 5 min``."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 120:
        return f"{whole}{THIN}s"
    if whole < 600:
        minutes, half = divmod(round(whole / 30), 2)
        return f"{minutes}{'½' * half}{THIN}min"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes}{THIN}min"
    hours, rest = divmod(minutes, 60)
    return f"{hours}{THIN}h" + (f" {rest}{THIN}min" if rest else "")


def count(value: float) -> str:
    """A whole number in groups of three: ``12 345``."""
    return f"{abs(round(value)):,}".replace(",", THIN) if value >= 0 else f"{MINUS}{count(-value)}"


def size_of(size_bytes: int) -> str:
    """``4 GiB``, ``287 MiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g}{THIN}{unit}"
    return f"{size_bytes}{THIN}B"


def plural(n: int, one: str, many: str | None = None) -> str:
    """``1 round``, ``5 rounds``"""
    return f"{count(n)} {noun(n, one, many)}"


def is_throughput(metric: str) -> bool:
    """Whether the metric, a cost as all are, is the inverse of what is done in a second: then people speak of that."""
    return metric in THROUGHPUTS
