"""Reference answers from DuckDB, an engine that shares nothing with the measured ones.

In the cache lie the rows (kind ``rows``, a DuckDB file), one entry for each scale, and the answers (kind ``answers``, JSON), one
for each set of questions that was asked at a time. The rows are those that the agent generates, read through a pipe: no file of
text in between.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from dbtoll.errors import DbtollError
from dbtoll.interfaces.cache import BuildCache
from dbtoll.interfaces.machine import Machine
from dbtoll.model.json import Json
from dbtoll.model.reply import AnswerReference

LIMITS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "memory_limit": "2GB",
    "autoinstall_known_extensions": False,
}
"""It runs beside other things on small machines; what does not fit in memory goes to disk. Nothing is downloaded."""

ROWS_FILE = "rows.duckdb"
ANSWERS_FILE = "answers.json"

BYTES_PER_SCALE = 1 << 30
"""At scale factor 1 the rows take 260 MB, and as much again while they are loaded; sorting them takes more."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows come from: ``machine``'s agent, one scale, and the statements that make the tables."""

    machine: Machine
    scale: float
    schema: str

    def recipe(self) -> Json:
        """What the file of rows depends on."""
        return {"duckdb": duckdb.__version__, "scale": self.scale, "schema": self.schema}


@dataclass(frozen=True, slots=True, order=True)
class Question:
    """A complete statement and the kind of each column of its answer (docs/PROTOCOL.md, ANSWER)."""

    sql: str
    columns: tuple[str, ...]


def answers(
    rows: Rows, questions: Mapping[str, Question], cache: BuildCache, progress: Callable[[str], None]
) -> dict[str, AnswerReference]:
    """The answer to each question, from ``cache`` where they are there already."""
    asked = sorted(set(questions.values()))
    estimate_bytes = int(rows.scale * BYTES_PER_SCALE)

    def ask(content: Path) -> Json:
        kept = cache.obtain(
            "rows", rows.recipe(), lambda place: _make(rows, place, progress),
            estimate_bytes=estimate_bytes, progress=progress,
        )  # fmt: skip
        with (
            TemporaryDirectory(dir=content.parent) as spill,
            closing(_opened(kept.content / ROWS_FILE, Path(spill), read_only=True)) as connection,
        ):
            progress(f"{len(asked)} reference answers")
            found = [_answer(connection, question) for question in asked]
        (content / ANSWERS_FILE).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        return {}

    recipe: Json = {"rows": rows.recipe(), "questions": [[question.sql, question.columns] for question in asked]}
    entry = cache.obtain("answers", recipe, ask, estimate_bytes=estimate_bytes, progress=progress)
    found = dict(zip(asked, json.loads((entry.content / ANSWERS_FILE).read_bytes()), strict=True))
    return {
        name: AnswerReference(question.columns, tuple(tuple(row) for row in found[question]))
        for name, question in questions.items()
    }


def _make(rows: Rows, content: Path, progress: Callable[[str], None]) -> Json:
    with (
        TemporaryDirectory(dir=content.parent) as spill,
        closing(_opened(content / ROWS_FILE, Path(spill), read_only=False)) as connection,
    ):
        connection.execute(rows.schema)
        for (table,) in connection.execute("select table_name from duckdb_tables()").fetchall():
            progress(f"reference rows of {table}")
            _fill(rows, connection, table)
    return {}


def _opened(database: Path, spill: Path, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """``spill``: where what does not fit in memory goes, which by default lies beside the file."""
    return duckdb.connect(database, read_only=read_only, config={**LIMITS, "temp_directory": str(spill)})


def _fill(rows: Rows, connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Stream one table from the agent into DuckDB. A truncated stream is an error, never fewer rows."""
    columns = {name: kind for name, kind, *_ in connection.execute(f"describe {table}").fetchall()}
    columns["end_of_line"] = "varchar"  # each line of the TBL form ends with a separator
    reading, writing = os.pipe()
    refusal: duckdb.Error | None = None
    made = 0
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(_send, rows, table, writing)
        try:
            made = connection.execute(
                f"insert into {table} select * exclude (end_of_line) from read_csv($file, columns = $columns, "
                "delim = '|', header = false, quote = '', escape = '', auto_detect = false, parallel = false)",
                {"file": f"/dev/fd/{reading}", "columns": columns},
            ).fetchall()[0][0]
        except duckdb.Error as error:
            refusal = error
        finally:
            os.close(reading)  # who still sends gets EPIPE and ends
    failure = sending.exception()
    if failure is not None and not isinstance(failure, BrokenPipeError):
        raise failure
    if refusal is not None:
        raise DbtollError(f"DuckDB could not read the rows of {table}: {refusal}") from None
    if failure is not None or sending.result() != made:
        raise DbtollError(f"DuckDB read {made} rows of {table}, the agent sent others", "run again")


def _send(rows: Rows, table: str, writing: int) -> int:
    """Write one table into the pipe, in TBL form; returns the number of rows."""
    with os.fdopen(writing, "wb") as pipe:

        def write(data: bytes) -> None:
            pipe.write(data)

        asked = {"table": table, "scale": rows.scale}
        return int(rows.machine.call("tpch_table", asked, timeout_s=600 + 600 * rows.scale, data=write)["rows"])


def _answer(connection: duckdb.DuckDBPyConnection, question: Question) -> list[list[str | None]]:
    result = connection.execute(question.sql)
    width = len(result.description or ())
    if width != len(question.columns):
        raise DbtollError(f"an answer has {width} columns, {len(question.columns)} were declared: {question.sql[:200]}")
    return [[_text(value) for value in row] for row in result.fetchall()]


def _text(value: Any) -> str | None:
    """As a server writes it: dates in ISO form, decimals without an exponent."""
    match value:
        case None:
            return None
        case Decimal():
            return format(value, "f")
        case float():
            return repr(value)
    return str(value)
