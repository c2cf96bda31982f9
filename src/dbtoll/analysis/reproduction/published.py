"""Published tables, read into the same arrays as dbtoll's own samples."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from dbtoll.analysis.effects.comparisons import Location, mean, round_effects, round_totals
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.visits.arrays import TimeArray

Row = dict[str, str]


def read_table(path: Path) -> list[Row]:
    """A published table; every cell as it is printed."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables_beside(module: str) -> Callable[[str], list[Row]]:
    """``table(name)`` for a paper's modules: reads ``tables/NAME.csv`` in the folder of the file ``module``."""

    def table(name: str) -> list[Row]:
        return read_table(Path(module).parent / "tables" / f"{name}.csv")

    return table


def column(rows: Iterable[Row], name: str) -> Floats:
    """One column as numbers."""
    return np.array([float(row[name]) for row in rows])


def one_round(seconds: Floats, queries: Sequence[str], arms: Sequence[str]) -> TimeArray:
    """Published times as an array of one round. ``seconds``: [block, query, arm]."""
    failed = np.zeros((len(queries), len(arms)))
    return TimeArray((0,), tuple(queries), tuple(arms), seconds[np.newaxis] * 1e9, failed)


def percent_of_totals(times: TimeArray, arm: str, baseline: str, location: Location = mean) -> float:
    """The ratio of totals, in per cent; with `mean` the papers' estimand, with `midmean` dbtoll's."""
    effect = round_totals(times.ns, times.arm(arm), [times.arm(baseline)], location)
    return float(np.expm1(effect[0])) * 100


def percent_geomean(times: TimeArray, arm: str, baseline: str) -> float:
    """dbtoll's first estimand in per cent."""
    return float(np.expm1(round_effects(times.ns, times.arm(arm), [times.arm(baseline)])[0].mean())) * 100
