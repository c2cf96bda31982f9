"""Reference answers from DuckDB, an engine that shares nothing with the measured ones.

Below the given directory::

    tpch-SCALE-KEY.duckdb    the rows, built once; read by several processes at a time
    tpch-SCALE-KEY.partial   the same, not whole yet
    tpch-SCALE-KEY.lock      held with flock(2) by who builds
    answers/KEY.json         one answer; KEY is made of the rows' key, the question's text and its kinds of columns

The rows are those that the agent generates, read through a pipe: no file of text in between.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb

from dbtoll.errors import DbtollError
from dbtoll.interfaces import Machine
from dbtoll.model import AnswerReference

LIMITS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "memory_limit": "2GB",
    "autoinstall_known_extensions": False,
}
"""It runs beside other things on small machines; what does not fit in memory goes to disk. Nothing is downloaded."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows come from: ``machine``'s agent, one scale, and the statements that make the tables."""

    machine: Machine
    scale: float
    schema: str

    def key(self) -> str:
        """What the file of rows depends on."""
        return sha256("\0".join([duckdb.__version__, repr(self.scale), self.schema]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Question:
    """A complete statement and the kind of each column of its answer (docs/PROTOCOL.md, ANSWER)."""

    sql: str
    columns: tuple[str, ...]


def answers(
    rows: Rows, questions: Mapping[str, Question], directory: Path, progress: Callable[[str], None]
) -> dict[str, AnswerReference]:
    """The answer to each question, from ``directory`` where it is there already."""
    rows_key = rows.key()
    kept = {name: directory / "answers" / f"{_key(rows_key, question)}.json" for name, question in questions.items()}
    missing = [name for name, file in kept.items() if not file.exists()]
    if missing:
        (directory / "answers").mkdir(parents=True, exist_ok=True)
        database = directory / f"tpch-{rows.scale:g}-{rows_key}.duckdb"
        _make(rows, database, progress)
        with closing(duckdb.connect(database, read_only=True, config=LIMITS)) as connection:
            progress(f"{len(missing)} reference answers")
            for name in missing:
                _keep(kept[name], _answer(connection, questions[name]))
    return {name: AnswerReference(questions[name].columns, _kept(file)) for name, file in kept.items()}


def _key(rows_key: str, question: Question) -> str:
    return sha256("\0".join([rows_key, question.sql, *question.columns]).encode()).hexdigest()[:32]


def _make(rows: Rows, database: Path, progress: Callable[[str], None]) -> None:
    """Build the file ``database`` unless it is there. It appears whole or not at all."""
    with database.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if database.exists():
            return
        partial = database.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        try:
            with closing(duckdb.connect(partial, config=LIMITS)) as connection:
                connection.execute(rows.schema)
                for (table,) in connection.execute("select table_name from duckdb_tables()").fetchall():
                    progress(f"reference rows of {table}")
                    _fill(rows, connection, table)
            partial.rename(database)
        finally:
            partial.unlink(missing_ok=True)
            partial.with_name(partial.name + ".wal").unlink(missing_ok=True)


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


def _keep(file: Path, rows: list[list[str | None]]) -> None:
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    unfinished.replace(file)


def _kept(file: Path) -> tuple[tuple[str | None, ...], ...]:
    try:
        return tuple(tuple(row) for row in json.loads(file.read_bytes()))
    except ValueError as error:
        raise DbtollError(f"{file} is damaged: {error}", f"remove {file}; it is computed again when needed") from None
