"""The files of the 22 queries: what they declare is what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import duckdb
import pytest

from dbtoll.engines.postgres import DIALECT
from dbtoll.model.dialect import Dialect
from dbtoll.workload_parts import sql_text
from dbtoll.workloads import tpch
from dbtoll.workloads.tpch import parameters, queries

all_queries = pytest.mark.parametrize("name", queries.NAMES)


@pytest.fixture(scope="module")
def empty_tables() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute((resources.files(tpch) / "schema.sql").read_text())
    yield connection
    connection.close()


@all_queries
def test_the_header_names_clause_and_parameters(name: str) -> None:
    query = queries.query(name, DIALECT)
    assert query.clause == f"2.4.{name[1:]}"
    assert sql_text.placeholders(query.template) == set(range(1, len(query.parameters) + 1))
    assert len(parameters.drawn(name, 1, 1)) == len(parameters.for_validation(name, 1)) == len(query.parameters)


@all_queries
def test_every_placeholder_has_a_cast(name: str) -> None:
    template = queries.query(name, DIALECT).template
    assert len(re.findall(r"cast\(\$[0-9]+ as [a-z]+(?:\([0-9,]+\))?\)", template)) == template.count("$")


@all_queries
def test_the_header_says_how_each_column_is_compared(name: str, empty_tables: duckdb.DuckDBPyConnection) -> None:
    query = queries.query(name, tpch.REFERENCE)
    sql = sql_text.fill(query.template, parameters.for_validation(name, 1))
    kinds = [str(kind) for _, kind, *_ in empty_tables.execute(f"describe {sql}").fetchall()]
    assert len(kinds) == len(query.answer)
    for declared, kind in zip(query.answer, kinds, strict=True):
        if kind.startswith("DECIMAL") or kind == "DOUBLE":
            assert declared == "numeric"
        elif kind == "VARCHAR":
            assert declared in {"exact", "trimmed"}
        else:
            assert declared == "exact"


def test_an_engine_may_have_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "-- TPC-H 2.4.7 Title\n-- parameters: A\n-- answer: exact\n-- a remark\n"
    (tmp_path / "q07.sql").write_text(header + "select $1\n")
    (tmp_path / "q07.mariadb.sql").write_text(header + "select $1 from dual\n")
    monkeypatch.setattr(queries.resources, "files", lambda package: tmp_path)
    monkeypatch.setattr(queries, "_query", queries._query.__wrapped__)
    assert queries.query("Q7", Dialect("mariadb")).template == "select $1 from dual"
    assert queries.query("Q7", DIALECT).template == "select $1"
    (tmp_path / "tpch" / "queries").mkdir(parents=True)
    (tmp_path / "tpch" / "queries" / "q07.sql").write_text(header + "select $1 from mine\n")
    assert queries.query("Q7", Dialect("mariadb", scripts="mine")).template == "select $1 from mine"


def test_text_and_template_are_the_same_question(empty_tables: duckdb.DuckDBPyConnection) -> None:
    statement = tpch.Workload({"scale": 1}).statements(DIALECT, 5)["Q16"]
    assert "$" not in statement.text
    assert sql_text.fill(statement.template, statement.parameters) == statement.text
    assert empty_tables.execute(statement.text).fetchall() == []
