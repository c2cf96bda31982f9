"""Samples and results as CSV and Parquet, for whoever analyses with other tools.

DuckDB writes both from lines of JSON whose columns are declared here: text stays text, a missing value stays null, and
nothing is guessed from the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from dbtoll.analysis.transactions.windows import merged
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.durable import make_directory, move_durably
from dbtoll.errors import RunFolderError
from dbtoll.report import words
from dbtoll.store.schema import TABLES_FOLDER

if TYPE_CHECKING:
    from dbtoll.analysis.result.builder import Comparison, Result
    from dbtoll.analysis.result.schema import Amount
    from dbtoll.model import Json
    from dbtoll.store.reader import Run
    from dbtoll.store.schema import Timing, Visit

Columns = Mapping[str, str]
"""Name -> SQL type."""

_BEFORE_LEVELS = {"run": "VARCHAR", "round": "BIGINT", "attempt": "BIGINT", "complete": "BOOLEAN"}
_ARM = {"arm": "VARCHAR", "emulated": "BOOLEAN"}
_VISIT = {
    "block": "BIGINT",
    "parameter_set": "BIGINT",
    "query": "VARCHAR",
    "order": "BIGINT",
    "first_touch": "BOOLEAN",
    "void": "BOOLEAN",
    "visit_start_ns": "BIGINT",
    "visit_end_ns": "BIGINT",
    "host_start_ns": "BIGINT",
    "host_end_ns": "BIGINT",
    "disk_read_bytes": "BIGINT",
    "minor_faults": "BIGINT",
    "problem": "VARCHAR",
}
_EXECUTION = {
    "execution": "BIGINT",
    "start_ns": "BIGINT",
    "connected_ns": "BIGINT",
    "first_byte_ns": "BIGINT",
    "end_ns": "BIGINT",
    "rows": "BIGINT",
    "result_bytes": "BIGINT",
    "outcome": "VARCHAR",
}
_WINDOW = {
    "block": "BIGINT",
    "order": "BIGINT",
    "first_touch": "BOOLEAN",
    "void": "BOOLEAN",
    "problem": "VARCHAR",
}
_TOTALS = {
    "length_ns": "BIGINT",
    "round_trips": "BIGINT",
    "statements": "BIGINT",
    "sent_bytes": "BIGINT",
    "received_bytes": "BIGINT",
    "driver_cpu_ns": "BIGINT",
    "unserved": "BIGINT",
    "connections_lost": "BIGINT",
    "reconnects": "BIGINT",
}
_OUTCOME = {"transaction": "VARCHAR", "outcome": "VARCHAR", "cause": "VARCHAR", "count": "BIGINT"}
_INTERVAL = {"from_ns": "BIGINT", "interval_ns": "BIGINT", "transactions": "BIGINT"}
_BUCKET = {"windows": "BIGINT", "transaction": "VARCHAR", "value_ns": "BIGINT", "count": "BIGINT"}
_COMPARISON = {
    "metric": "VARCHAR",
    "estimand": "VARCHAR",
    "estimate": "DOUBLE",
    "low": "DOUBLE",
    "high": "DOUBLE",
    "p": "DOUBLE",
    "p_holm": "DOUBLE",
    "low_decisive": "DOUBLE",
    "high_decisive": "DOUBLE",
    "verdict": "VARCHAR",
    "rounds": "BIGINT",
    "first_touch_estimate": "DOUBLE",
    "first_touch_low": "DOUBLE",
    "first_touch_high": "DOUBLE",
    "reason": "VARCHAR",
    "left_out": "VARCHAR",
    "between_rounds": "DOUBLE",
    "within_rounds": "DOUBLE",
    "widened_by": "DOUBLE",
    "lengthened": "DOUBLE",
    "dependence": "DOUBLE",
    "throughput_drop_estimate": "DOUBLE",
    "throughput_drop_low": "DOUBLE",
    "throughput_drop_high": "DOUBLE",
}


_PROBE = {
    "probe": "VARCHAR",
    "order": "BIGINT",
    "void": "BOOLEAN",
    "batch": "BIGINT",
    "events": "BIGINT",
    "elapsed_ns": "BIGINT",
    "cpu_ns": "BIGINT",
}
_COUNT = {
    "query": "VARCHAR",
    "order": "BIGINT",
    "collector": "VARCHAR",
    "counter": "VARCHAR",
    "executions": "BIGINT",
    "count": "DOUBLE",
    "missing": "VARCHAR",
}
_BOOKED = {
    "query": "VARCHAR",
    "kind": "VARCHAR",
    "item": "VARCHAR",
    "ns": "DOUBLE",
    "low_ns": "DOUBLE",
    "high_ns": "DOUBLE",
    "count": "DOUBLE",
    "cost_ns": "DOUBLE",
    "baseline_count": "DOUBLE",
    "baseline_cost_ns": "DOUBLE",
}


def write(folder: Path, result: Result, run: Run) -> list[Path]:
    """``samples`` and ``results``, each as .csv and .parquet, in ``folder``/tables; returns their paths.

    Samples: a row per execution, also of attempts that do not count (``complete`` is false) and of visits that a check
    took out (``void``); a visit without any execution has one row, its ``problem`` says why. Results: a row per
    comparison, effects as fractions. A run of transactions has no samples but four tables of its windows (docs/SCHEMA.md).
    """
    target = make_directory(folder / TABLES_FOLDER)
    factors = list(run.plan.experiment.factors)
    levels = dict.fromkeys(factors, "VARCHAR")
    samples = {**_BEFORE_LEVELS, **_ARM, **levels, **_VISIT, **_EXECUTION}
    results = {"run": "VARCHAR", **_ARM, "baseline": "VARCHAR", "is_aa": "BOOLEAN", **levels, **_COMPARISON}
    emulated = frozenset(arm.name for arm in result.arms if arm.emulated)
    written = _write(target, "results", results, _results(result, factors))
    if any(visit.batches is not None for visit, *_ in run.all_visits()):
        probes = {**_BEFORE_LEVELS, **_ARM, **_PROBE}
        written += _write(target, "probes", probes, _probes(run, factors, emulated))
    if any(visit.counts is not None for visit, *_ in run.all_visits()):
        counts = {**_BEFORE_LEVELS, **_ARM, **levels, **_COUNT}
        written += _write(target, "counts", counts, _counts(run, factors, emulated))
    if result.ledgers:
        ledgers = {"run": "VARCHAR", **_ARM, "baseline": "VARCHAR", **levels, **_BOOKED}
        written += _write(target, "ledger", ledgers, _ledger(result, factors))
    if all(visit.window is None for visit, *_ in run.all_visits()):
        return [*_write(target, "samples", samples, _samples(run, factors, emulated)), *written]
    window = {**_BEFORE_LEVELS, **_ARM, **levels, **_WINDOW}
    times = {"run": "VARCHAR", "round": "BIGINT", **_ARM, **levels, **_BUCKET}
    found = list(_windows(run, factors, emulated))
    return [
        *written,
        *_write(target, "windows", {**window, **_TOTALS}, (at | _totals(counts) for at, counts in found)),
        *_write(
            target, "outcomes", {**window, **_OUTCOME}, (at | row for at, counts in found for row in _outcomes(counts))
        ),
        *_write(
            target,
            "throughput",
            {**window, **_INTERVAL},
            (at | row for at, counts in found for row in _intervals(counts)),
        ),
        *_write(target, "response_times", times, _response_times(run, factors, emulated)),
    ]


def _windows(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[tuple[dict[str, Any], Json]]:
    """What tells a window from all others, and what was counted in it."""
    kept = {id(visit) for visit in ValidVisits(run).visits}
    for visit, attempt, complete in run.all_visits():
        yield (
            {
                "run": run.begin.run,
                "round": visit.round,
                "attempt": attempt,
                "complete": complete,
                **_of_arm(visit.arm, emulated=visit.arm in emulated),
                **{factor: visit.levels.get(factor) for factor in factors},
                **{name: getattr(visit, name) for name in _WINDOW if name != "void"},
                "void": complete and id(visit) not in kept,
            },
            visit.window or {},
        )


def _totals(window: Json) -> dict[str, Any]:
    return {name: window.get(name) for name in _TOTALS}


def _outcomes(window: Json) -> Iterator[dict[str, Any]]:
    """What did not happen has no row, but for ``committed``."""
    for name, kind in window.get("transactions", {}).items():
        for outcome in ("committed", "rolled_back", "missed", "lost", "unknown"):
            if kind[outcome] or outcome == "committed":
                yield {"transaction": name, "outcome": outcome, "count": kind[outcome]}
        for outcome in ("failed", "retried"):
            for cause, count in kind[outcome].items():
                yield {"transaction": name, "outcome": outcome, "cause": cause, "count": count}


def _intervals(window: Json) -> Iterator[dict[str, Any]]:
    for index, count in enumerate(window.get("series", ())):
        yield {"from_ns": index * window["interval_ns"], "interval_ns": window["interval_ns"], "transactions": count}


def _response_times(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """Of the windows that count, merged in each round."""
    together: dict[tuple[int, str, tuple[str | None, ...]], list[Json]] = {}
    for visit in ValidVisits(run).visits:
        if visit.window is not None and not visit.first_touch:
            key = (visit.round, visit.arm, tuple(visit.levels.get(factor) for factor in factors))
            together.setdefault(key, []).append(visit.window["transactions"])
    for (number, arm, levels), windows in together.items():
        at = {
            "run": run.begin.run,
            "round": number,
            **_of_arm(arm, emulated=arm in emulated),
            **dict(zip(factors, levels, strict=True)),
            "windows": len(windows),
        }
        for name in windows[0]:
            for value_ns, count in merged([kinds[name] for kinds in windows]):
                yield {**at, "transaction": name, "value_ns": value_ns, "count": count}


def _samples(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    for visit, at in _visits(run, factors, emulated):
        if visit.batches is not None or visit.counts is not None:
            continue
        for index, timing in enumerate(visit.executions):
            yield {**at, "execution": index, **_of_timing(timing)}
        if not visit.executions:
            yield at


def _probes(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    for visit, at in _visits(run, factors, emulated):
        for index, batch in enumerate(visit.batches or ()):
            counts = {name: getattr(batch, name) for name in batch.__struct_fields__}
            yield {**at, "probe": visit.query, "batch": index, **counts}


def _counts(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """A row per counter, or one that says why a collector has none."""
    for visit, at in _visits(run, factors, emulated):
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


def _visits(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[tuple[Visit, dict[str, Any]]]:
    measured = ValidVisits(run)
    kept = {id(visit) for visit in (*measured.visits, *measured.instructions)}
    for visit, attempt, complete in run.all_visits():
        yield (
            visit,
            {
                "run": run.begin.run,
                "round": visit.round,
                "attempt": attempt,
                "complete": complete,
                **_of_arm(visit.arm, emulated=visit.arm in emulated),
                **{factor: visit.levels.get(factor) for factor in factors},
                **_of_visit(visit),
                "void": complete and visit.counts is None and id(visit) not in kept,
            },
        )


def _of_arm(name: str, *, emulated: bool) -> dict[str, Any]:
    """The arm as every table calls it."""
    return {"arm": words.shown(name, emulated=emulated), "emulated": emulated}


def _of_visit(visit: Visit) -> dict[str, Any]:
    return {
        "block": visit.block,
        "parameter_set": visit.parameter_set,
        "query": visit.query,
        "order": visit.order,
        "first_touch": visit.first_touch,
        "visit_start_ns": visit.start_ns,
        "visit_end_ns": visit.end_ns,
        "host_start_ns": visit.host_start_ns,
        "host_end_ns": visit.host_end_ns,
        "disk_read_bytes": visit.disk_read_bytes,
        "minor_faults": visit.minor_faults,
        "problem": visit.problem,
    }


def _of_timing(timing: Timing) -> dict[str, Any]:
    return {name: getattr(timing, name) for name in timing.__struct_fields__}


def _results(result: Result, factors: Sequence[str]) -> Iterator[dict[str, Any]]:
    result = words.labelled(result)
    emulated = {arm.name for arm in result.arms if arm.emulated}
    for comparison in result.comparisons:
        yield _result(result, comparison, factors) | {"emulated": comparison.arm in emulated}


def _result(result: Result, c: Comparison, factors: Sequence[str]) -> dict[str, Any]:
    touch, drop = c.first_touch, c.throughput_drop
    return {
        "run": result.run,
        "arm": c.arm,
        "baseline": c.baseline,
        "is_aa": c.is_aa,
        **{factor: c.levels.get(factor) for factor in factors},
        **{name: getattr(c, name) for name in _COMPARISON if hasattr(c, name)},
        "first_touch_estimate": touch.estimate if touch else None,
        "first_touch_low": touch.low if touch else None,
        "first_touch_high": touch.high if touch else None,
        "left_out": "; ".join(c.left_out) or None,
        "between_rounds": c.components.between_rounds,
        "within_rounds": c.components.within_rounds,
        "throughput_drop_estimate": drop.estimate if drop else None,
        "throughput_drop_low": drop.low if drop else None,
        "throughput_drop_high": drop.high if drop else None,
    }


def _ledger(result: Result, factors: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row per item of each query; ``kind`` keeps the two ledgers apart."""
    result = words.labelled(result)
    emulated = {arm.name for arm in result.arms if arm.emulated}
    for ledger in result.ledgers:
        head = {
            "run": result.run,
            "arm": ledger.arm,
            "emulated": ledger.arm in emulated,
            "baseline": ledger.baseline,
            **{factor: ledger.levels.get(factor) for factor in factors},
        }
        for query in ledger.queries:
            of_query = {**head, "query": query.query}
            for entry in query.items:
                counts = {name: getattr(entry, name) for name in _BOOKED if hasattr(entry, name)}
                yield of_query | {"kind": "explained", **_booked(entry.amount), **counts}
            for amount in (query.overhead, query.unexplained):
                yield of_query | {"kind": "explained", **_booked(amount)}
            for amount in query.accounted:
                yield of_query | {"kind": "accounted", **_booked(amount)}


def _booked(amount: Amount) -> dict[str, Any]:
    return {"item": amount.name, "ns": amount.ns, "low_ns": amount.low_ns, "high_ns": amount.high_ns}


def _write(target: Path, name: str, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Made in a directory of their own beside ``target``: DuckDB would write through a link, and leave a half-written file."""
    encoder = msgspec.json.Encoder()
    written = [target / f"{name}.csv", target / f"{name}.parquet"]
    declared = ", ".join(f"{_quoted(column)}: '{kind}'" for column, kind in columns.items())
    cells = ", ".join(_cell(column) if kind == "VARCHAR" else _named(column) for column, kind in columns.items())
    with TemporaryDirectory(dir=target.parent, prefix=".tables.") as made, duckdb.connect(":memory:") as database:
        lines, csv, parquet = Path(made, "rows.ndjson"), *(Path(made, path.name) for path in written)
        with lines.open("wb") as file:
            file.writelines(encoder.encode(row) + b"\n" for row in rows)
        source = f"read_json({_quoted(str(lines))}, format = 'newline_delimited', columns = {{{declared}}})"
        try:
            database.execute(f"COPY (SELECT {cells} FROM {source}) TO {_quoted(str(csv))} (FORMAT csv, HEADER)")
            database.execute(f"COPY (FROM {source}) TO {_quoted(str(parquet))} (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.Error as error:
            said = str(error).splitlines()[0]
            raise RunFolderError(
                f"{target / name}: cannot be written as a table: {said}", "make room there, or see what it says"
            ) from None
        for one, path in zip((csv, parquet), written, strict=True):
            move_durably(one, path)
    return written


_FORMULA = (
    "=+-@\t\r\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""A spreadsheet takes a cell that begins so for a formula, and a formula may run programs (OWASP, "CSV Injection")."""


def _cell(column: str) -> str:
    """Text as it may stand in a CSV file: with an apostrophe before what looks like a formula. Parquet has types and needs none."""
    name, apostrophe = _named(column), _quoted("'")
    begins = ", ".join(map(_quoted, _FORMULA))
    return f"CASE WHEN left({name}, 1) IN ({begins}) THEN {apostrophe} || {name} ELSE {name} END AS {name}"


def _named(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
