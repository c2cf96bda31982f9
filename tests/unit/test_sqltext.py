"""Statements, placeholders and literals against an SQL parser that is not ours."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbtoll.workload_parts import sql_text

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"))


@given(TEXT)
def test_a_value_becomes_one_literal_whatever_it_holds(value: str) -> None:
    assert duckdb.execute(sql_text.fill('select $1, \'not $1\', "$1" from (select 7 as "$1")', [value])).fetchall() == [
        (value, "not $1", 7)
    ]


@given(st.lists(TEXT, min_size=1, max_size=12))
def test_statements_are_split_where_they_end(values: list[str]) -> None:
    script = ";\n".join(f'-- one; more\n/* a; b */ select {sql_text.literal(value)} as "a;b"' for value in values)
    parts = sql_text.split(script, "x.sql")
    assert [duckdb.execute(part.sql).fetchall() for part in parts] == [[(value,)] for value in values]


def test_the_line_is_that_of_the_first_word() -> None:
    parts = sql_text.split("-- head\n\nselect 1;\n;\n /* two\n lines */ select 2;\n-- end\n", "x.sql")
    assert [(part.sql, part.where) for part in parts] == [("select 1", "x.sql:3"), ("select 2", "x.sql:6")]


def test_what_is_quoted_is_left_alone() -> None:
    script = "do $$ begin perform 1; end $$; create function f() as $body$ select $1; $body$; select e'\\';', $2"
    assert [part.sql[:6] for part in sql_text.split(script, "x.sql")] == ["do $$ ", "create", "select"]
    assert sql_text.placeholders(script) == {2}
    assert sql_text.fill("select $1, $10, '$1' -- $1", [*"abcdefghi", None]) == "select 'a', null, '$1' -- $1"


@pytest.mark.parametrize("template", ["select $2", "select $0"])
def test_a_number_without_a_value_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="has no value"):
        sql_text.fill(template, ["a"])


def test_a_zero_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        sql_text.literal("a\0b")
