"""Columns that several tables have, and how a row of them is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.durable import move_durably
from dbtoll.errors import RunFolderError
from dbtoll.report.text import names

if TYPE_CHECKING:
    from dbtoll.store.reader import Run
    from dbtoll.store.schema import Visit


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
    "visit_start_ns": "BIGINT",
    "visit_end_ns": "BIGINT",
    "host_start_ns": "BIGINT",
    "host_end_ns": "BIGINT",
    "disk_read_bytes": "BIGINT",
    "minor_faults": "BIGINT",
    "problem": "VARCHAR",
}


def visit_rows(run: Run, factors: Sequence[str], emulated: Collection[str]) -> Iterator[tuple[Visit, dict[str, Any]]]:
    """Each visit of the run with the cells that tell which one it is, also of attempts that do not count."""
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
                **arm_cells(visit.arm, emulated=visit.arm in emulated),
                **{factor: visit.levels.get(factor) for factor in factors},
                **_of_visit(visit),
                "void": complete and visit.counts is None and id(visit) not in kept,
            },
        )


def arm_cells(name: str, *, emulated: bool) -> dict[str, Any]:
    """The arm as every table calls it."""
    return {"arm": names.arm_label(name, emulated=emulated), "emulated": emulated}


def _of_visit(visit: Visit) -> dict[str, Any]:
    return {
        "block": visit.block,
        "parameter_set": visit.parameter_set,
        "query": visit.query,
        "order": visit.order,
        "first_execution": visit.first_execution,
        "visit_start_ns": visit.start_ns,
        "visit_end_ns": visit.end_ns,
        "host_start_ns": visit.host_start_ns,
        "host_end_ns": visit.host_end_ns,
        "disk_read_bytes": visit.disk_read_bytes,
        "minor_faults": visit.minor_faults,
        "problem": visit.problem,
    }


def write_table(target: Path, name: str, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> list[Path]:
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
