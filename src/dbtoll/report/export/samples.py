"""Tables of executions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dbtoll.report.export.columns import visit_rows

if TYPE_CHECKING:
    from dbtoll.store.reader import Run
    from dbtoll.store.schema import Timing

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


def sample_rows(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """A row for each execution; of a visit without any, one that says why."""
    for visit, at in visit_rows(run, factors, emulated):
        if visit.batches is not None or visit.counts is not None:
            continue
        for index, timing in enumerate(visit.executions):
            yield {**at, "execution": index, **_of_timing(timing)}
        if not visit.executions:
            yield at


def _of_timing(timing: Timing) -> dict[str, Any]:
    return {name: getattr(timing, name) for name in timing.__struct_fields__}
