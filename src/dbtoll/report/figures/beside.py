"""A published table as a picture: the paper's figures and ours on one axis, or as lines over one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dbtoll.analysis.reproduction.tables import Column, Curve, Curves, Difference, PublishedTable, Quantity
from dbtoll.report.figures.axis import Axis, Tick, axis_for
from dbtoll.report.figures.distances import blocks_text
from dbtoll.report.figures.forest import IntervalMark
from dbtoll.report.text import numbers

WIDEST = 10.0
"""An interval whose upper end is more than so many times its lower one tells so little that no axis is made for it."""

LONGEST = 40
"""Characters of a figure beside its picture; the table has all of them."""


@dataclass(frozen=True, slots=True)
class BesideMark:
    """One difference: its place in per cent of the width, its interval, and what it is."""

    x: float
    span: IntervalMark | None
    ours: bool
    hollow: bool
    title: str


@dataclass(frozen=True, slots=True)
class BesideRow:
    """A row of the table: ``printed`` and ``ours`` are the differences that it is about, as texts."""

    label: str
    marks: list[BesideMark]
    printed: str
    ours: str


@dataclass(frozen=True, slots=True)
class Beside:
    """Differences of a table, the paper's above ours in each row. ``hollow``: what hollow marks are; empty where there are none."""

    axis: Axis
    zero: float
    margin: IntervalMark
    rows: list[BesideRow]
    hollow: str

    @property
    def label_characters(self) -> int:
        """How wide the column of labels has to be."""
        return max(len(row.label) for row in self.rows)

    @property
    def figure_characters(self) -> int:
        """How wide the column of figures has to be."""
        return max(len(text) for row in self.rows for text in (row.printed, row.ours))


def beside(table: PublishedTable, margin: float) -> Beside | None:
    """None of a table that has no difference to be drawn."""
    cells = [(row, list(_drawn(table, row))) for row in table.rows]
    changes = [each for _, found in cells for _, effect in found for each in _known(effect)]
    if not changes:
        return None
    metric = next(effect.metric for _, found in cells for _, effect in found)
    axis = axis_for(changes, margin, of_throughput=numbers.is_throughput(metric))
    rows = [
        BesideRow(
            label=_label(table, row),
            # What lies on another mark is seen if the hollow one is below.
            marks=sorted((_mark(axis, *each) for each in found), key=lambda mark: not mark.hollow),
            printed=_text(found, ours=False),
            ours=_text(found, ours=True),
        )
        for row, found in cells
        if found
    ]
    hollow = next((column.name.partition(",")[0] for column in table.columns if column.mark == "hollow"), "")
    margins = IntervalMark(axis.place(-margin), axis.place(margin))
    return Beside(axis, axis.place(0.0), margins, rows, hollow)


def _label(table: PublishedTable, row: Sequence[object]) -> str:
    """Of a row that the paper has not: our arm."""
    own = (cell for column, cell in zip(table.columns, row[1:], strict=True) if column.ours and column.unit == "text")
    return str(next((each for each in (row[0], *own) if each is not None), numbers.NOTHING))


def _drawn(table: PublishedTable, row: Sequence[object]) -> Iterator[tuple[Column, numbers.EffectText]]:
    for column, cell in zip(table.columns, row[1:], strict=True):
        if column.mark and isinstance(cell, Difference):
            yield column, numbers.EffectText(cell.metric, cell.estimate, cell.low, cell.high)


def _known(effect: numbers.EffectText) -> list[float]:
    """What the axis has to hold: an interval of few rounds may reach over any, and runs off its edges."""
    change = effect.change
    found = [each for each in (change.estimate, change.low, change.high) if each is not None]
    return found if max(found) + 1 <= WIDEST * (min(found) + 1) else found[:1]


def _mark(axis: Axis, column: Column, effect: numbers.EffectText) -> BesideMark:
    change = effect.change
    span = (
        None
        if change.low is None or change.high is None
        else IntervalMark(axis.place(change.low), axis.place(change.high))
    )
    title = f"{'ours' if column.ours else 'published'}, {column.name}: {effect.text}"
    return BesideMark(axis.place(change.estimate or 0.0), span, column.ours, column.mark == "hollow", title)


def _text(found: Sequence[tuple[Column, numbers.EffectText]], *, ours: bool) -> str:
    """Of several arms each is in the table."""
    texts = [
        effect.text if len(effect.text) <= LONGEST else effect.value
        for column, effect in found
        if column.ours is ours and column.mark == "point"
    ]
    return texts[0] if len(texts) == 1 else ""


# --- lines -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dot:
    """Places in per cent of the plot, from its upper left corner."""

    x: float
    y: float
    low: float | None
    high: float | None
    title: str


@dataclass(frozen=True, slots=True)
class LinePlot:
    """One line: the path in a box of 1000 x 1000, and its dots."""

    name: str
    ours: bool
    path: str
    dots: list[Dot]


@dataclass(frozen=True, slots=True)
class LinePanel:
    """Lines over one another."""

    title: str
    lines: list[LinePlot]


@dataclass(frozen=True, slots=True)
class LinePanels:
    """All of a table, on the same axes."""

    panels: list[LinePanel]
    across: list[Tick]
    up: list[Tick]
    places: str
    of: str


def line_panels(table: PublishedTable) -> LinePanels | None:
    """None of a table that has no lines."""
    curves = [curve for each in table.curves for curve in each.curves]
    if not curves:
        return None
    places = sorted({place for curve in curves for place in curve.places})
    values = [each for curve in curves for figure in curve.figures for each in (figure.estimate, figure.high) if each]
    most = 1.1 * max(values)
    least = max(most / 6, 0.5)
    power = 10 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= least)
    up = [
        Tick(round(100 - 100 * number * step / most, 2), f"{number * step:g}")
        for number in range(1, math.floor(most / step) + 1)
    ]
    return LinePanels(
        panels=[_panel(each, places, most) for each in table.curves],
        across=[Tick(_across(place, places), _place_text(place)) for place in places],
        up=up,
        places=table.places,
        of=table.of,
    )


def _place_text(place: int) -> str:
    return blocks_text(place) if place.bit_count() == 1 else str(place)


def _across(place: int, places: Sequence[int]) -> float:
    """Equal factors are equally wide."""
    low, high = math.log2(places[0]), math.log2(places[-1])
    share = 0.5 if high == low else (math.log2(place) - low) / (high - low)
    return round(8 + 84 * share, 2)


def _panel(curves: Curves, places: Sequence[int], most: float) -> LinePanel:
    return LinePanel(curves.title, [_line(each, places, most) for each in curves.curves])


def _line(curve: Curve, places: Sequence[int], most: float) -> LinePlot:
    def up(value: float) -> float:
        return round(100 - 100 * value / most, 2)

    def dot(place: int, figure: Quantity) -> Dot:
        low, high = (None if bound is None else up(bound) for bound in (figure.low, figure.high))
        text = numbers.figure(figure.estimate, figure.low, figure.high)
        return Dot(
            _across(place, places), up(figure.estimate), low, high, f"{curve.name}, {_place_text(place)}: {text}"
        )

    dots = [dot(place, figure) for place, figure in zip(curve.places, curve.figures, strict=True)]
    path = "M" + "L".join(f"{10 * each.x:.0f} {10 * each.y:.0f}" for each in dots)
    return LinePlot(curve.name, curve.ours, path, dots)
