"""Published tables and figures with this machine's figures beside the printed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dbtoll.analysis.result.schema import Comparison, Levels
from dbtoll.model.experiment import Verdict

Unit = Literal[
    "s",
    "ms",
    "ns",
    "percent",
    "percent of all",
    "count",
    "per second",
    "transactions/s",
    "tpmC",
    "MB",
    "times",
    "text",
    "difference",
    "verdict",
]
"""``percent``: a change; ``percent of all``: a share. ``times``: so many times as fast."""

Mark = Literal["", "point", "hollow"]


@dataclass(frozen=True, slots=True)
class Column:
    """``ours``: measured here; else as the paper prints it.

    ``decimals``: how many the paper prints, if the figure is shown so; None: as many digits as dbtoll shows of that unit.
    ``mark``: how its differences are drawn; empty: not at all.
    """

    name: str
    unit: Unit
    ours: bool
    decimals: int | None = None
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """What an arm costs against its baseline by ``metric``: overheads as the analysis has them, fractions."""

    metric: str
    estimate: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Quantity:
    """An absolute figure with its interval, in the column's unit."""

    estimate: float
    low: float | None = None
    high: float | None = None


Cell = float | str | Verdict | Difference | Quantity | None


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a picture: ``places`` on the axis, which are whole numbers, with a figure at each."""

    name: str
    ours: bool
    places: tuple[int, ...]
    figures: tuple[Quantity, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over one another, the paper's and ours: a picture of a table."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table or figure of a paper. A cell is None where the paper or we have no such figure.

    ``rows``: each begins with its head, one of ``rows_are``. ``arm``: the one that it is about, where it is about one alone;
    ``levels``: at which of the run's. ``curves``: drawn above it; of ``places``, which is what they are numbers of, in ``of``.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    rows_are: str = "query"
    arm: str = ""
    levels: Levels | None = None
    curves: tuple[Curves, ...] = ()
    places: str = ""
    of: str = ""

    @property
    def published(self) -> int:
        """How many of the columns are the paper's; they come first."""
        return sum(not column.ours for column in self.columns)


def compared(metric: str, found: Comparison | None) -> tuple[Cell, Cell]:
    """Difference by ``metric`` with the interval that decides, and verdict; in the latter's place why there is none."""
    if found is None:
        return None, "not measured in this run"
    if found.estimate is None or found.low_decisive is None or found.high_decisive is None:
        return None, found.reason
    return Difference(metric, found.estimate, found.low_decisive, found.high_decisive), found.verdict
