"""Columns that several tables have, and how a row of them is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from dbtoll.analysis.result.schema import arm_label
from dbtoll.analysis.visits.units import totals
from dbtoll.durable import move_durably
from dbtoll.errors import RunFolderError

if TYPE_CHECKING:
    from dbtoll.analysis.visits.units import VisitTotals
    from dbtoll.analysis.visits.valid import ValidVisits
    from dbtoll.store.schema import UnitVisit


Columns = Mapping[str, str]
"""Name -> SQL type."""

RUN_COLUMNS = {"run": "VARCHAR", "round": "BIGINT", "attempt": "BIGINT", "complete": "BOOLEAN"}

ARM_COLUMNS = {"arm": "VARCHAR", "emulated": "BOOLEAN"}

VISIT_COLUMNS = {
    "block": "BIGINT",
    "parameter_set": "BIGINT",
    "query": "VARCHAR",
    "order": "BIGINT",
    "first_execution": "BOOLEAN",
    "void": "BOOLEAN",
}

UNIT_COLUMN = {"unit": "BIGINT"}
"""Of a table that has rows for each unit of an arm: its number, from 0."""

WORK_COLUMNS = {
    "visit_start_ns": "BIGINT",
    "visit_end_ns": "BIGINT",
    "host_start_ns": "BIGINT",
    "host_end_ns": "BIGINT",
    "disk_read_bytes": "BIGINT",
    "minor_faults": "BIGINT",
    "problem": "VARCHAR",
}


def visit_rows(
    measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]
) -> Iterator[tuple[VisitTotals, dict[str, Any]]]:
    """Each visit of the run with the cells that tell which one it is, also of attempts that do not count."""
    run = measured.run
    kept = {(visit.round, visit.order) for visit in (*measured.visits, *measured.instructions)}
    for recorded, attempt, complete in run.all_visits():
        visit = totals(recorded)
        yield (
            visit,
            {
                "run": run.begin.run,
                "round": visit.round,
                "attempt": attempt,
                "complete": complete,
                **arm_cells(visit.arm, emulated=visit.arm in emulated),
                **{factor: visit.levels.get(factor) for factor in factors},
                **_of_visit(visit),
                "void": complete and visit.counts is None and (visit.round, visit.order) not in kept,
            },
        )


def arm_cells(name: str, *, emulated: bool) -> dict[str, Any]:
    """The arm as every table calls it."""
    return {"arm": arm_label(name, emulated=emulated), "emulated": emulated}


def _of_visit(visit: VisitTotals) -> dict[str, Any]:
    return {name: getattr(visit, name) for name in ("block", "parameter_set", "query", "order", "first_execution")}


def work_cells(done: VisitTotals | UnitVisit) -> dict[str, Any]:
    """When a unit, or all of them, worked in a visit, and what that took."""
    return {
        "visit_start_ns": done.start_ns,
        "visit_end_ns": done.end_ns,
        "host_start_ns": done.host_start_ns,
        "host_end_ns": done.host_end_ns,
        "disk_read_bytes": done.disk_read_bytes,
        "minor_faults": done.minor_faults,
        "problem": done.problem,
    }


def write_table(
    target: Path,
    name: str,
    columns: Columns,
    rows: Iterable[Mapping[str, Any]],
    *,
    in_lists: Collection[str] = (),
) -> list[Path]:
    """Made in a directory of their own beside ``target``: DuckDB would write through a link, and leave a half-written file.

    ``in_lists``: columns of which each of ``rows`` has a list, all of one length: so many rows of the table, in which all else is
    the same.
    """
    encoder = msgspec.json.Encoder()
    written = [target / f"{name}.csv", target / f"{name}.parquet"]
    kinds = {column: f"{kind}[]" if column in in_lists else kind for column, kind in columns.items()}
    declared = ", ".join(f"{_quoted(column)}: '{kind}'" for column, kind in kinds.items())
    taken = ", ".join(f"unnest({_named(c)}) AS {_named(c)}" if c in in_lists else _named(c) for c in columns)
    cells = ", ".join(_cell(column) if kind == "VARCHAR" else _named(column) for column, kind in columns.items())
    with TemporaryDirectory(dir=target.parent, prefix=".tables.") as made, _database() as database:
        lines, csv, parquet = Path(made, "rows.ndjson"), *(Path(made, path.name) for path in written)
        with lines.open("wb") as file:
            file.writelines(encoder.encode(row) + b"\n" for row in rows)
        read = f"read_json({_quoted(str(lines))}, format = 'newline_delimited', columns = {{{declared}}})"
        source = f"(SELECT {taken} FROM {read})"
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


def _database() -> duckdb.DuckDBPyConnection:
    """Of one thread: each holds rows of its own until a part of the file is full, and two took twice the memory to save a tenth of
    the time (a million executions: 730 and 400 MB)."""
    return duckdb.connect(":memory:", config={"threads": 1})


FORMULA_BEGINS = (
    "=+-@\t\r\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""A spreadsheet takes a cell that begins so for a formula, and a formula may run programs (OWASP, "CSV Injection")."""


def _cell(column: str) -> str:
    """Text as it may stand in a CSV file: with an apostrophe before what looks like a formula. Parquet has types and needs none."""
    name, apostrophe = _named(column), _quoted("'")
    begins = ", ".join(map(_quoted, FORMULA_BEGINS))
    return f"CASE WHEN left({name}, 1) IN ({begins}) THEN {apostrophe} || {name} ELSE {name} END AS {name}"


def _named(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
