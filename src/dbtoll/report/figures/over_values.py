"""A measure of each design over the values of a sweep, with the crossovers of designs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dbtoll.report.figures.axis import Axis, Tick, log_factors

_LEFT, _RIGHT = 14.0, 6.0
"""Per cent of the width that are left free at the sides: at the left the scale has its labels."""

_APART = 0.9
"""Per cent of the width between the marks of two designs at one value, so that their intervals can be told apart."""

_NEAR = 7.0
"""Per cent of the width that a value's label needs."""

Figure = tuple[float, float | None, float | None]
"""An estimate and its bounds."""


@dataclass(frozen=True, slots=True)
class ValuePoint:
    """Per cent of the width, and of the height from the top; ``low`` and ``high`` are None where there is no interval."""

    x: float
    y: float
    low: float | None
    high: float | None
    title: str


@dataclass(frozen=True, slots=True)
class ValueLine:
    """One design's. ``kind``: its colour and dash; ``path``: in a box of 1000 x 1000, empty where values are no numbers."""

    name: str
    kind: int
    path: str
    points: list[ValuePoint]


@dataclass(frozen=True, slots=True)
class CrossingMark:
    """Per cent of the width: from ``x1``, ``width`` wide, with its estimate at ``x``."""

    x1: float
    width: float
    x: float
    title: str


@dataclass(frozen=True, slots=True)
class OverValues:
    """``margin``: from and to per cent of the height, of a picture of ratios, whose ``zero`` is no difference."""

    title: str
    caption: str
    lines: list[ValueLine]
    across: list[Tick]
    up: list[Tick]
    crossings: list[CrossingMark]
    zero: float | None = None
    margin: tuple[float, float] | None = None


class Across:
    """Where values lie: by their number, or, where they are none, one beside the other. ``values``: all of them."""

    def __init__(self, values: Sequence[object], scale: str | None) -> None:
        self.values, self.scale = list(values), scale
        self._places = [self._place(index, value) for index, value in enumerate(values)]

    def _place(self, index: int, value: object) -> float:
        if self.scale is None:
            return float(index)
        return self._number(float(value))  # type: ignore[arg-type]

    def _number(self, number: float) -> float:
        return math.log(number) if self.scale == "log" else number

    def _percent(self, place: float) -> float:
        first, last = self._places[0], self._places[-1]
        part = (place - first) / (last - first) if last > first else 0.5
        return round(_LEFT + (100 - _LEFT - _RIGHT) * part, 2)

    def of(self, value: object) -> float:
        """Per cent of the width."""
        return self._percent(self._places[self.values.index(value)])

    def at(self, number: float) -> float:
        """The same of a number between the values."""
        return self._percent(self._number(number))

    def ticks(self, text: Callable[[object], str]) -> list[Tick]:
        """A label for each value that has room for it."""
        found: list[Tick] = []
        for value in self.values:
            x = self.of(value)
            if not found or x - found[-1].x >= _NEAR or self.scale is None:
                found.append(Tick(x, text(value)))
        return found


WIDEST = 3.0
"""A bound farther from all estimates than by this factor tells so little that no axis is made for it: its line leads out."""


def ends(figures: Iterable[Sequence[float | None]]) -> list[float]:
    """What an axis has to hold: all estimates, and bounds that are not far from them. ``figures``: all above 0, or 0."""
    held = [figure for figure in figures if figure[0] is not None]
    estimates = [figure[0] for figure in held if figure[0] is not None]
    if not estimates:
        return []
    least, most = min(estimates) / WIDEST, max(estimates) * WIDEST
    bounds = [min(max(bound, least), most) for figure in held for bound in figure[1:] if bound is not None]
    return [*estimates, *bounds]


def up_from_zero(most: float, label: Callable[[float], str]) -> tuple[Callable[[float], float], list[Tick]]:
    """Linear, from 0: the place of a figure in per cent of the height from the top, and ticks."""
    top = (most or 1.0) * 1.06
    step = _round_step(top / 5)

    def place(value: float) -> float:
        return round(100 - 100 * value / top, 2)

    return place, [Tick(place(step * n), label(step * n)) for n in range(1, math.floor(top / step) + 1)]


def up_by_factors(
    low: float, high: float, label: Callable[[float], str]
) -> tuple[Callable[[float], float], list[Tick]]:
    """Logarithmic: as high everywhere is as many times as much."""
    low, high = low / 1.15, high * 1.15
    scale = math.log(high / low)

    def place(value: float) -> float:
        return round(100 - 100 * min(1.0, max(0.0, math.log(max(value, low) / low) / scale)), 2)

    return place, [Tick(place(mark), label(mark)) for mark in log_factors(low, high)]


def up_by_changes(axis: Axis) -> tuple[Callable[[float], float], list[Tick]]:
    """Of changes against another design: upwards is more."""

    def place(change: float) -> float:
        return round(100 - axis.place(change), 2)

    return place, [Tick(round(100 - tick.x, 2), tick.label) for tick in axis.ticks]


def _round_step(at_least: float) -> float:
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= at_least * (1 - 1e-9))


def lines(
    curves: Mapping[str, Mapping[object, Figure]],
    kinds: Mapping[str, int],
    across: Across,
    place: Callable[[float], float],
    title: Callable[[str, object, Figure], str],
) -> list[ValueLine]:
    """``curves``: name -> value -> figure. ``title``: what is shown where somebody points at a mark."""
    found = []
    for number, (name, figures) in enumerate(curves.items()):
        aside = _APART * (number - (len(curves) - 1) / 2)
        points = [
            ValuePoint(
                round(across.of(value) + aside, 2),
                place(figure[0]),
                None if figure[1] is None else place(figure[1]),
                None if figure[2] is None else place(figure[2]),
                title(name, value, figure),
            )
            for value, figure in figures.items()
        ]
        drawn = across.scale is not None and len(points) > 1
        path = "M" + "L".join(f"{10 * p.x:.0f} {10 * p.y:.0f}" for p in points) if drawn else ""
        found.append(ValueLine(name, kinds[name], path, points))
    return found
