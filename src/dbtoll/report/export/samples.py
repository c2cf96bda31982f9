"""Tables of executions and of visits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dbtoll.analysis.result.series import deviations
from dbtoll.report.export.columns import visit_rows
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
    """For each visit the rows of its executions at once: each of EXECUTION_COLUMNS is a list. A visit without any has one row, that
    says why."""
    for visit, at in visit_rows(measured, factors, emulated):
        if visit.batches is not None or visit.counts is not None:
            continue
        columns = packed(visit.executions).columns()
        many = len(visit.executions)
        yield at | (
            {"execution": list(range(many)), **columns} if many else {name: [None] for name in EXECUTION_COLUMNS}
        )


def visit_value_rows(
    measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]
) -> Iterator[dict[str, Any]]:
    """A row for each visit, with what the run-order plot has of it; null of visits that are not in it."""
    found = {id(each.visit): each for each in deviations(measured)}
    for visit, at in visit_rows(measured, factors, emulated):
        each = found.get(id(visit))
        values = {"elapsed_s": each.elapsed_s, "value_ns": each.ns, "log_deviation": each.log} if each else {}
        yield {**at, "executions": len(visit.executions), **values}
