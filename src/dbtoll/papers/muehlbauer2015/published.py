"""The paper's own tables, and its authors' samples, which are not copied here: a clone of their repository has them.

The tables are computed from those samples (github.com/muehlbau/mmdbms-virtualized): one file for each system, threads and
environment, one row for each TPC-H query, ten runs, HyPer in seconds and MonetDB in milliseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dbtoll.analysis.reproduction.published import column, one_round, tables_beside
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.errors import UsageError

RAW_RUNS = 10
"""Of every query in a row, in one life of one server: their spread says nothing about another start."""


table = tables_beside(__file__)


def run_times(system: str, threads: int, environments: Sequence[str], statistic: str = "mean_s") -> TimeArray:
    """Run times of TPC-H, one number per query: the mean or the ``median_s`` of ten runs."""
    rows = [row for row in table("tpch_sf10_by_query") if row["system"] == system and int(row["threads"]) == threads]
    per_arm = [column((row for row in rows if row["environment"] == name), statistic) for name in environments]
    queries = [f"Q{row['query']}" for row in rows if row["environment"] == environments[0]]
    return one_round(np.stack(per_arm, axis=-1)[np.newaxis], queries, environments)


def samples(folder: Path, system: str, threads: int, environments: Sequence[str]) -> TimeArray:
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
    return one_round(seconds, queries, environments)
