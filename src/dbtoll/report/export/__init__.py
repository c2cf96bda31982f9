"""Samples and results as CSV and Parquet, for whoever analyses with other tools.

DuckDB writes both from lines of JSON whose columns are declared here: text stays text, a missing value stays null, and
nothing is guessed from the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dbtoll.analysis.result import provenance
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.durable import make_directory
from dbtoll.report.export.columns import ARM_COLUMNS, RUN_COLUMNS, UNIT_COLUMN, VISIT_COLUMNS, WORK_COLUMNS, write_table
from dbtoll.report.export.probes import COUNT_COLUMNS, PROBE_COLUMNS, count_rows, probe_rows
from dbtoll.report.export.results import (
    COMPARISON_COLUMNS,
    CONFIGURATION_COLUMNS,
    LEDGER_COLUMNS,
    PROVENANCE_COLUMNS,
    ROUND_COLUMNS,
    ledger_rows,
    result_rows,
    round_rows,
)
from dbtoll.report.export.samples import DEVIATION_COLUMNS, EXECUTION_COLUMNS, sample_rows, visit_value_rows
from dbtoll.report.export.transactions import (
    BUCKET_COLUMNS,
    DEVICE_COLUMNS,
    INTERVAL_COLUMNS,
    OUTCOME_COLUMNS,
    TOTALS_COLUMNS,
    WINDOW_COLUMNS,
    device_rows,
    interval_rows,
    outcome_rows,
    response_time_rows,
    window_rows,
    window_totals,
)
from dbtoll.store.schema import TABLES_FOLDER

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run


def write(folder: Path, result: Result, run: Run) -> list[Path]:
    """``samples``, ``results``, ``rounds`` and ``visits``, each as .csv and .parquet, in ``folder``/tables; returns their paths.

    Samples: a row per execution, also of attempts that do not count (``complete`` is false) and of visits that a check
    took out (``void``); a unit without any execution has one row, its ``problem`` says why. Visits: a row for each. Results: a row
    per comparison, effects as fractions; rounds: a row per comparison and round. A run of transactions has no samples but five
    tables of its windows (docs/SCHEMA.md).
    """
    target = make_directory(folder / TABLES_FOLDER)
    factors = list(run.plan.experiment.factors)
    levels = dict.fromkeys(factors, "VARCHAR")
    samples = {
        **RUN_COLUMNS,
        **ARM_COLUMNS,
        **levels,
        **VISIT_COLUMNS,
        **UNIT_COLUMN,
        **WORK_COLUMNS,
        **EXECUTION_COLUMNS,
    }
    results = {
        **PROVENANCE_COLUMNS,
        **ARM_COLUMNS,
        **CONFIGURATION_COLUMNS,
        "baseline": "VARCHAR",
        "is_aa": "BOOLEAN",
        **levels,
        **COMPARISON_COLUMNS,
    }
    visits = {**RUN_COLUMNS, **ARM_COLUMNS, **levels, **VISIT_COLUMNS, **WORK_COLUMNS, **DEVIATION_COLUMNS}
    rounds = {"run": "VARCHAR", **ARM_COLUMNS, "baseline": "VARCHAR", "is_aa": "BOOLEAN", **levels, **ROUND_COLUMNS}
    measured = ValidVisits(run)
    emulated = frozenset(arm.name for arm in result.arms if arm.emulated)
    written = write_table(target, "results", results, result_rows(result, factors, provenance.of(run)))
    if any(unit.batches is not None for visit, *_ in run.all_visits() for unit in visit.units):
        probes = {**RUN_COLUMNS, **ARM_COLUMNS, **PROBE_COLUMNS}
        written += write_table(target, "probes", probes, probe_rows(measured, factors, emulated))
    if any(visit.counts is not None for visit, *_ in run.all_visits()):
        counts = {**RUN_COLUMNS, **ARM_COLUMNS, **levels, **COUNT_COLUMNS}
        written += write_table(target, "counts", counts, count_rows(measured, factors, emulated))
    if result.ledgers:
        ledgers = {"run": "VARCHAR", **ARM_COLUMNS, "baseline": "VARCHAR", **levels, **LEDGER_COLUMNS}
        written += write_table(target, "ledger", ledgers, ledger_rows(result, factors))
    written += write_table(target, "rounds", rounds, round_rows(measured, factors, emulated))
    written += write_table(target, "visits", visits, visit_value_rows(measured, factors, emulated))
    if all(unit.window is None for visit, *_ in run.all_visits() for unit in visit.units):
        rows = sample_rows(measured, factors, emulated)
        return [*write_table(target, "samples", samples, rows, in_lists=EXECUTION_COLUMNS), *written]
    window = {**RUN_COLUMNS, **ARM_COLUMNS, **levels, **WINDOW_COLUMNS}
    times = {"run": "VARCHAR", "round": "BIGINT", **ARM_COLUMNS, **levels, **BUCKET_COLUMNS}
    if any(visit.devices for visit, *_ in run.all_visits()):
        devices = {**RUN_COLUMNS, **ARM_COLUMNS, **levels, **DEVICE_COLUMNS}
        written += write_table(target, "devices", devices, device_rows(measured, factors, emulated))
    found = list(window_rows(measured, factors, emulated))
    return [
        *written,
        *write_table(
            target, "windows", {**window, **TOTALS_COLUMNS}, (at | window_totals(counts) for at, counts in found)
        ),
        *write_table(
            target,
            "outcomes",
            {**window, **OUTCOME_COLUMNS},
            (at | row for at, counts in found for row in outcome_rows(counts)),
        ),
        *write_table(
            target,
            "throughput",
            {**window, **INTERVAL_COLUMNS},
            (at | row for at, counts in found for row in interval_rows(counts)),
        ),
        *write_table(target, "response_times", times, response_time_rows(measured, factors, emulated)),
    ]
