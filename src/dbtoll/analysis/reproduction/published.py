"""The published tables, read into the same arrays as dbtoll's own samples."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from dbtoll.analysis.effects.comparisons import Location, mean, round_effects, round_totals
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.errors import UsageError

Row = dict[str, str]

RAW_RUNS = 10
"""Of every query in a row, in one life of one server: their spread says nothing about another start."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of claims.csv, as it stands there."""

    id: str
    paper: str
    where: str
    claim: str
    published_value: str
    unit: str
    checkable_from_published_tables: str
    kind: str
    estimand: str
    tolerance: str


def claims() -> tuple[Claim, ...]:
    """Every claim of the papers that a reproduction sets its own measurement beside."""
    return tuple(Claim(**row) for row in table("claims"))


def table(name: str) -> list[Row]:
    """A published table by its path without ``.csv``, e.g. ``minhas2008/table1_warm_overhead``."""
    text = resources.files("dbtoll").joinpath("published", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def column(rows: Iterable[Row], name: str) -> Floats:
    """One column as numbers."""
    return np.array([float(row[name]) for row in rows])


def minhas2008(name: str, queries: Sequence[str] | None = None) -> TimeArray:
    """Run times of a table of minhas2008: arms ``base`` and ``xen``, one round, one block (the means it prints)."""
    rows = [row for row in table(f"minhas2008/{name}") if queries is None or row["query"] in queries]
    seconds = np.stack([column(rows, "base_runtime_s"), column(rows, "xen_runtime_s")], axis=-1)
    return _times(seconds[np.newaxis, np.newaxis], [row["query"] for row in rows], ("base", "xen"))


def muehlbauer2015(system: str, threads: int, environments: Sequence[str], statistic: str = "mean_s") -> TimeArray:
    """Run times of muehlbauer2015, one number per query: the mean or the ``median_s`` of ten runs."""
    rows = [
        row
        for row in table("muehlbauer2015/tpch_sf10_by_query")
        if row["system"] == system and int(row["threads"]) == threads
    ]
    per_arm = [column((row for row in rows if row["environment"] == name), statistic) for name in environments]
    queries = [f"Q{row['query']}" for row in rows if row["environment"] == environments[0]]
    return _times(np.stack(per_arm, axis=-1)[np.newaxis, np.newaxis], queries, environments)


def muehlbauer2015_raw(folder: Path, system: str, threads: int, environments: Sequence[str]) -> TimeArray:
    """The authors' own samples from a clone of their repository (TPC-H files in ``folder``), ten runs as ten blocks.

    Raises UsageError naming the file for one that is missing or has another form.
    """
    unit_s = {"hyper": 1.0, "monetdb": 1e-3}[system.lower()]
    per_arm = []
    many = "thread" if threads == 1 else "threads"
    for name in environments:
        path = folder / f"tpch10-{system.lower()}-{threads}{many}-{name}.csv"
        try:
            with path.open(newline="", encoding="utf-8") as file:
                # By place: the columns' names differ between the files. A row SUM follows, one of them wrong: not used.
                rows = [row for row in csv.reader(file) if row and row[0].isdigit()]
            runs = np.array([[float(value) for value in row[1 : 1 + RAW_RUNS]] for row in rows])
            if runs.shape != (22, RAW_RUNS):
                raise ValueError(f"{runs.shape} is not 22 queries times {RAW_RUNS} runs")
        except (OSError, ValueError) as error:
            message = f"{path}: not the raw data of muehlbauer2015: {error!r}"
            raise UsageError(message, "give the TPC-H folder of the authors' repository") from None
        queries = [f"Q{row[0]}" for row in rows]
        per_arm.append(runs * unit_s)
    seconds = np.stack(per_arm, axis=-1).swapaxes(0, 1)
    return _times(seconds[np.newaxis], queries, environments)


def percent_of_totals(times: TimeArray, arm: str, baseline: str, location: Location = mean) -> float:
    """The ratio of totals, in per cent; with `mean` the papers' estimand, with `midmean` dbtoll's."""
    effect = round_totals(times.ns, times.arm(arm), [times.arm(baseline)], location)
    return float(np.expm1(effect[0])) * 100


def percent_geomean(times: TimeArray, arm: str, baseline: str) -> float:
    """dbtoll's first estimand in per cent."""
    return float(np.expm1(round_effects(times.ns, times.arm(arm), [times.arm(baseline)])[0].mean())) * 100


def _times(seconds: Floats, queries: Sequence[str], arms: Sequence[str]) -> TimeArray:
    failed = np.zeros((len(queries), len(arms)))
    return TimeArray((0,), tuple(queries), tuple(arms), seconds * 1e9, failed)
