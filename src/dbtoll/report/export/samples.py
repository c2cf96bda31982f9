"""Tables of executions and of visits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dbtoll.analysis.result.series import deviations
from dbtoll.report.export.columns import visit_rows, work_cells
from dbtoll.store.executions import packed

if TYPE_CHECKING:
    from dbtoll.analysis.visits.valid import ValidVisits

EXECUTION_COLUMNS = {
    "execution": "BIGINT",
    "start_ns": "BIGINT",
    "connected_ns": "BIGINT",
    "first_byte_ns": "BIGINT",
    "end_ns": "BIGINT",
    "rows": "BIGINT",
    "result_bytes": "BIGINT",
    "outcome": "VARCHAR",
}

DEVIATION_COLUMNS = {"executions": "BIGINT", "elapsed_s": "DOUBLE", "value_ns": "DOUBLE", "log_deviation": "DOUBLE"}


def sample_rows(measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """For each unit of a visit the rows of its executions at once: each of EXECUTION_COLUMNS is a list. A unit without any has one
    row, that says why."""
    for visit, at in visit_rows(measured, factors, emulated):
        if visit.batches is not None or visit.counts is not None:
            continue
        for number, unit in enumerate(visit.units):
            many = len(unit.executions)
            rows = {"execution": list(range(many)), **packed(unit.executions).columns()}
            yield {
                **at,
                "unit": number,
                **work_cells(unit),
                **(rows if many else {name: [None] for name in EXECUTION_COLUMNS}),
            }


def visit_value_rows(
    measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]
) -> Iterator[dict[str, Any]]:
    """A row for each visit, with what the run-order plot has of it; null of visits that are not in it."""
    found = {(each.visit.round, each.visit.order): each for each in deviations(measured)}
    for visit, at in visit_rows(measured, factors, emulated):
        each = found.get((visit.round, visit.order)) if at["complete"] else None
        values = {"elapsed_s": each.elapsed_s, "value_ns": each.ns, "log_deviation": each.log} if each else {}
        yield {**at, **work_cells(visit), "executions": len(visit.executions), **values}
