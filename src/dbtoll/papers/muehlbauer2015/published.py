"""The paper's own tables, and its authors' samples, which are not copied here: a clone of their repository has them.

The tables are computed from those samples (github.com/muehlbau/mmdbms-virtualized): one file for each system, threads and
environment, one row for each TPC-H query, ten runs, HyPer in seconds and MonetDB in milliseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from dbtoll.analysis.effects.comparisons import round_totals
from dbtoll.analysis.effects.stats import independent_interval
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


BARE = "bare"
CONFIDENCE = 0.95
MOST = 4
"""Threads of Figures 2 and 4 and of the claims: all processors of that machine. Ours are set beside them with all of theirs."""

MEANS, FIRST, LATER = "mean_s", "first_run_s", "mean_of_later_runs_s"
"""Statistics of a query's ten runs: as the paper has them, of the first after a start, of all others."""


def seconds(
    system: str, threads: int, environment: str, statistic: str = MEANS, queries: Collection[str] | None = None
) -> float | None:
    """A total over queries; None where the paper has none."""
    if threads not in threads_of(system, environment):
        return None
    times = run_times(system, threads, (environment,), statistic)
    chosen = [queries is None or query in queries for query in times.queries]
    return float(times.ns[0, 0, chosen, 0].sum()) / 1e9


def overhead(
    system: str, threads: int, environment: str, statistic: str = LATER, queries: Collection[str] | None = None
) -> float | None:
    """By the ratio of totals over those queries, of that statistic of a query's ten runs; a fraction. None: the paper has none.

    First runs are apart here, so `LATER` is of what is measured; the paper's own figures are of `MEANS`, which they are among.
    """
    own, bare = (seconds(system, threads, name, statistic, queries) for name in (environment, BARE))
    return None if not own or not bare else own / bare - 1


def threads_of(system: str, environment: str) -> tuple[int, ...]:
    """The numbers of threads of which the paper has run times, rising."""
    rows = table("tpch_sf10_by_query")
    return tuple(
        sorted({int(row["threads"]) for row in rows if (row["system"], row["environment"]) == (system, environment)})
    )


def speed_ups(system: str, environment: str) -> dict[int, float]:
    """Threads -> so many times as fast as on the fewest, the geometric mean over queries of later runs; empty of one number."""
    numbers = threads_of(system, environment)
    if len(numbers) < 2:
        return {}
    times = {number: run_times(system, number, (environment,), LATER).ns[0, 0, :, 0] for number in numbers}
    return {number: float(np.exp(np.log(times[numbers[0]] / own).mean())) for number, own in times.items()}


def transactions_overhead(benchmark: str, environment: str) -> float:
    """In time per transaction, of the printed transactions a second; a fraction."""
    rates = {
        (row["benchmark"], row["environment"]): float(row["transactions_per_s"]) for row in table("oltp_throughput")
    }
    return rates[benchmark, BARE] / rates[benchmark, environment] - 1


def transactions_elsewhere() -> float:
    """So many times as dear TPC-C's transactions are on the other host as on bare metal, over the same of TATP's."""
    there = {row["benchmark"]: float(row["value"]) for row in table("table2_gce") if row["unit"] == "transactions/s"}
    bare = {
        row["benchmark"]: float(row["transactions_per_s"])
        for row in table("oltp_throughput")
        if row["environment"] == BARE
    }
    return bare["tpcc"] / there["tpcc"] / (bare["tatp"] / there["tatp"])


def spread(
    folder: Path, system: str, threads: int, environment: str, queries: Collection[str] | None = None
) -> tuple[float, float]:
    """The interval of the ratio of totals over the runs after the first, from the authors' samples; fractions.

    BIAS: all runs of a side are of one server life, so it says nothing about another start. Raises UsageError, as `samples`.
    """
    times = samples(folder, system, threads, (environment, BARE))
    chosen = [queries is None or query in queries for query in times.queries]
    # Run by run in the place of round by round: [run, one block, query, side].
    runs = times.ns[0, 1:, chosen].swapaxes(0, 1)[:, np.newaxis]
    found = independent_interval(round_totals(runs, 0, [1]), 1 - CONFIDENCE)
    assert found is not None  # of nine runs
    return float(np.expm1(found.low)), float(np.expm1(found.high))


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
