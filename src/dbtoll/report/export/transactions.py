"""Tables of measurement windows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dbtoll.analysis.transactions.windows import merged
from dbtoll.report.export.columns import arm_cells
from dbtoll.store.schema import DeviceCounts

if TYPE_CHECKING:
    from dbtoll.analysis.visits.valid import ValidVisits
    from dbtoll.model.json import Json
    from dbtoll.store.schema import Visit

WINDOW_COLUMNS = {
    "block": "BIGINT",
    "order": "BIGINT",
    "first_execution": "BOOLEAN",
    "void": "BOOLEAN",
    "unit": "BIGINT",
    "problem": "VARCHAR",
}

TOTALS_COLUMNS = {
    "length_ns": "BIGINT",
    "round_trips": "BIGINT",
    "statements": "BIGINT",
    "sent_bytes": "BIGINT",
    "received_bytes": "BIGINT",
    "driver_cpu_ns": "BIGINT",
    "backlog_at_end": "BIGINT",
    "connections_lost": "BIGINT",
    "reconnects": "BIGINT",
}

OUTCOME_COLUMNS = {"transaction": "VARCHAR", "outcome": "VARCHAR", "cause": "VARCHAR", "count": "BIGINT"}

INTERVAL_COLUMNS = {"from_ns": "BIGINT", "interval_ns": "BIGINT", "transactions": "BIGINT"}

DEVICE_COLUMNS = {
    "block": "BIGINT",
    "order": "BIGINT",
    "first_execution": "BOOLEAN",
    "void": "BOOLEAN",
    "kernel": "BIGINT",
    "device": "VARCHAR",
    "holds": "VARCHAR",
    "elapsed_ns": "BIGINT",
    **dict.fromkeys(DeviceCounts.__struct_fields__, "BIGINT"),
}

BUCKET_COLUMNS = {"windows": "BIGINT", "transaction": "VARCHAR", "value_ns": "BIGINT", "count": "BIGINT"}


def window_rows(
    measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]
) -> Iterator[tuple[dict[str, Any], Json]]:
    """What tells a window of one unit from all others, and what was counted in it."""
    for visit, at in _visits(measured, factors, emulated):
        for number, unit in enumerate(visit.units):
            yield {**at, "unit": number, "problem": unit.problem}, unit.window or {}


def device_rows(measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """A row for each device of each kernel around a window."""
    for visit, at in _visits(measured, factors, emulated):
        for used in visit.devices:
            for name, counts in used.devices.items():
                said = {counter: getattr(counts, counter) for counter in counts.__struct_fields__}
                yield {
                    **at,
                    "kernel": used.kernel,
                    "device": name,
                    "holds": used.roles.get(name),
                    "elapsed_ns": used.elapsed_ns,
                    **said,
                }


def _visits(
    measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]
) -> Iterator[tuple[Visit, dict[str, Any]]]:
    """Of every attempt, each with what tells it from all others."""
    run = measured.run
    kept = {(visit.round, visit.order) for visit in measured.visits}
    for visit, attempt, complete in run.all_visits():
        yield (
            visit,
            {
                "run": run.begin.run,
                "round": visit.round,
                "attempt": attempt,
                "complete": complete,
                **arm_cells(visit.arm, emulated=visit.arm in emulated),
                **{factor: visit.levels.get(factor) for factor in factors},
                **{name: getattr(visit, name) for name in ("block", "order", "first_execution")},
                "void": complete and (visit.round, visit.order) not in kept,
            },
        )


def window_totals(window: Json) -> dict[str, Any]:
    """The totals of one window."""
    return {name: window.get(name) for name in TOTALS_COLUMNS}


def outcome_rows(window: Json) -> Iterator[dict[str, Any]]:
    """What did not happen has no row, but for ``committed``."""
    for name, kind in window.get("transactions", {}).items():
        for outcome in ("committed", "rolled_back", "not_found", "lost", "unknown"):
            if kind[outcome] or outcome == "committed":
                yield {"transaction": name, "outcome": outcome, "count": kind[outcome]}
        for outcome in ("failed", "retried"):
            for cause, count in kind[outcome].items():
                yield {"transaction": name, "outcome": outcome, "cause": cause, "count": count}


def interval_rows(window: Json) -> Iterator[dict[str, Any]]:
    """A row for each interval of one window."""
    for index, count in enumerate(window.get("series", ())):
        yield {"from_ns": index * window["interval_ns"], "interval_ns": window["interval_ns"], "transactions": count}


def response_time_rows(
    measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Of the windows that count, merged in each round."""
    together: dict[tuple[int, str, tuple[str | None, ...]], list[Json]] = {}
    for visit in measured.visits:
        if visit.window is not None and not visit.first_execution:
            key = (visit.round, visit.arm, tuple(visit.levels.get(factor) for factor in factors))
            together.setdefault(key, []).append(visit.window["transactions"])
    for (number, arm, levels), windows in together.items():
        at = {
            "run": measured.run.begin.run,
            "round": number,
            **arm_cells(arm, emulated=arm in emulated),
            **dict(zip(factors, levels, strict=True)),
            "windows": len(windows),
        }
        for name in windows[0]:
            for value_ns, count in merged([kinds[name] for kinds in windows]):
                yield {**at, "transaction": name, "value_ns": value_ns, "count": count}
