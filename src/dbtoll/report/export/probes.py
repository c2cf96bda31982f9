"""Tables of what probes cost and of what was counted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dbtoll.report.export.columns import visit_rows

if TYPE_CHECKING:
    from dbtoll.analysis.visits.valid import ValidVisits
    from dbtoll.model.json import Json

PROBE_COLUMNS = {
    "probe": "VARCHAR",
    "order": "BIGINT",
    "void": "BOOLEAN",
    "batch": "BIGINT",
    "events": "BIGINT",
    "elapsed_ns": "BIGINT",
    "cpu_ns": "BIGINT",
}

COUNT_COLUMNS = {
    "query": "VARCHAR",
    "order": "BIGINT",
    "collector": "VARCHAR",
    "counter": "VARCHAR",
    "executions": "BIGINT",
    "count": "DOUBLE",
    "missing": "VARCHAR",
}


def probe_rows(measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """A row for each batch of each probe."""
    for visit, at in visit_rows(measured, factors, emulated):
        for index, batch in enumerate(visit.batches or ()):
            counts = {name: getattr(batch, name) for name in batch.__struct_fields__}
            yield {**at, "probe": visit.query, "batch": index, **counts}


def count_rows(measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """A row per counter, or one that says why a collector has none."""
    for visit, at in visit_rows(measured, factors, emulated):
        for collector, told in (visit.counts or {}).items():
            of_collector = {**at, "collector": collector, "executions": told.get("executions")}
            if "missing" in told:
                yield of_collector | {"missing": told["missing"]}
            for counter, count in _flat(told.get("counted", {})):
                said = {"missing": count} if isinstance(count, str) else {"count": count}
                yield {**of_collector, "counter": counter, **said}


def _flat(counted: Json, before: str = "") -> Iterator[tuple[str, float | str | None]]:
    """``inside.disk.vda.reads`` and the like."""
    for name, value in counted.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
