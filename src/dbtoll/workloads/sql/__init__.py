"""The user's own tables and statements, from a directory. directory.py says how it is laid out.

Answers are compared with the user's, where the directory has them; where not, there is no independent reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from dbtoll.errors import UsageError
from dbtoll.interfaces import workload as interface
from dbtoll.interfaces.cache import BuildCache
from dbtoll.interfaces.machine import Machine, Server
from dbtoll.model.description import WorkloadDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.model.options import Option
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.workload_parts import sql_text
from dbtoll.workload_parts.drawing import Draw
from dbtoll.workload_parts.loading import PART_DEADLINE_S, run_in_order
from dbtoll.workloads.sql.directory import Asked, Table, read

ROWS_PER_INSERT = 1000


class Workload(interface.Workload):
    """interfaces.Workload for one directory."""

    name = "sql"
    primary = "directory"
    description = WorkloadDescription("own queries")
    options: ClassVar[Mapping[str, Option]] = {
        "directory": Option("path", "", "with schema.sql, load.sql, load/, indexes.sql, statements/, expected/"),
        "queries": Option("list", ["all"], "which of the statements, by file name without .sql, or all"),
    }

    @classmethod
    def contract_options(cls, folder: Path) -> Mapping[str, Any]:
        """A directory with one statement."""
        (folder / "statements").mkdir(exist_ok=True)
        (folder / "statements/one.sql").write_text("-- parameter $1 integer 1..1000000\nselect $1\n", encoding="utf-8")
        return {"directory": str(folder)}

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {key: option.default for key, option in self.options.items()} | dict(options)
        if not chosen["directory"]:
            raise UsageError(
                "the workload sql has no directory", "write sql:DIR, or directory = DIR in a specification"
            )
        self._directory = read(Path(chosen["directory"]))
        self.description = replace(Workload.description, size=f"of {Path(chosen['directory']).resolve().name}")
        self.queries = _chosen(chosen["queries"], tuple(self._directory.statements))

    def key(self) -> str:
        """A digest of the files that make the data; statements and expected answers are not among them."""
        return f"sql-{self._directory.key}"

    def estimate_bytes(self) -> int:
        """What load.sql makes cannot be known; rows of CSV files take about three times their size, with indexes."""
        return (1 << 30) + 4 * self._directory.load_bytes

    def load(self, machine: Machine, sql: Dialect, server: Server, progress: Callable[[str], None]) -> Json:
        """The scripts in their order, the CSV files as inserts after load.sql.

        Returns ``{"rows": {TABLE: N}, "schema_ns", "load_ns", "index_ns"}``, agent's clock. Raises EngineError that
        begins with ``file:line`` of what the server refused.
        """
        scripts = self._directory.scripts
        address = server.address
        progress("schema.sql")
        schema_ns = run_in_order(machine, address, scripts["schema.sql"])
        progress("load.sql")
        load_ns = run_in_order(machine, address, scripts["load.sql"])
        for table in self._directory.tables:
            progress(f"load/{table.name}.csv")
            load_ns += run_in_order(machine, address, list(_inserts(table)))
        progress("indexes.sql")
        index_ns = run_in_order(machine, address, scripts["indexes.sql"])
        return {"rows": _counts(machine, address), "schema_ns": schema_ns, "load_ns": load_ns, "index_ns": index_ns}

    def statements(self, sql: Dialect, seed: int) -> dict[str, Statement]:
        """name -> statement, its parameters drawn from ``seed``; the same text for every engine."""
        return {name: _statement(self._directory.statements[name], seed) for name in self.queries}

    def references(
        self, machine: Machine, statements: Mapping[str, Statement], cache: BuildCache, progress: Callable[[str], None]
    ) -> dict[str, AnswerReference]:
        """The answers in ``expected/``; none is computed."""
        known = {key: self._directory.statements[statement.query].answer for key, statement in statements.items()}
        return {key: answer for key, answer in known.items() if answer is not None}


def _statement(asked: Asked, seed: int) -> Statement:
    draw = Draw("sql", asked.name, seed)
    values = tuple(parameter.next_value(draw) for parameter in asked.parameters)
    return Statement(asked.name, sql_text.fill(asked.template, values), asked.template, values)


def _inserts(table: Table) -> Iterator[sql_text.Part]:
    """The rows of a CSV file as statements; a value is only ever a literal, whose type the column gives."""
    head = f"insert into {_identifier(table.name)} ({', '.join(map(_identifier, table.columns))}) values\n"
    for first in range(0, len(table.rows), ROWS_PER_INSERT):
        rows = table.rows[first : first + ROWS_PER_INSERT]
        values = (f"({', '.join(map(sql_text.literal, row))})" for row in rows)
        yield sql_text.Part(head + ",\n".join(values), table.file, first + 2)


def _counts(machine: Machine, address: Address) -> dict[str, int]:
    session = machine.serial(address, connection="persistent")
    try:
        tables = session.query(
            "select table_schema, table_name from information_schema.tables where table_type = 'BASE TABLE' "
            "and table_schema not in ('pg_catalog', 'information_schema') order by 1, 2"
        )
        counts = {}
        for schema, table in tables:
            name = f"{_identifier(schema or '')}.{_identifier(table or '')}"
            counts[f"{schema}.{table}"] = int(
                session.query(f"select count(*) from {name}", timeout_s=PART_DEADLINE_S)[0][0] or 0
            )
        return counts
    finally:
        session.close()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _chosen(asked: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    names = [asked] if isinstance(asked, str) else list(asked)
    if names == ["all"]:
        return known
    for name in names:
        if name not in known:
            raise UsageError(f"there is no statement {name!r}", f"choose among: {', '.join(known)}")
    if not names:
        raise UsageError("no statement is chosen", f"choose among: {', '.join(known)}")
    return tuple(name for name in known if name in names)
