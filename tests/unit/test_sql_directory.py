"""The user's directory: what is wrong with it is said with file and line, before anything is started."""

from __future__ import annotations

import datetime
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from dbtoll.engines.postgres import DIALECT
from dbtoll.errors import SpecError, UsageError
from dbtoll.workloads.sql import Workload

EXAMPLE = Path(__file__).parents[2] / "examples/sql"


def write(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def workload(path: Path, **options: object) -> Workload:
    return Workload({"directory": str(path), **options})


def test_the_example() -> None:
    example = workload(EXAMPLE)
    assert example.queries == ("best", "countries", "customer", "month")
    assert all(workload(EXAMPLE).statements(DIALECT, seed) == example.statements(DIALECT, seed) for seed in range(20))
    drawn = [example.statements(DIALECT, seed) for seed in range(500)]
    assert {s["best"].parameters[0] for s in drawn} == {"open", "paid", "shipped", "returned"}
    assert all(Decimal(100) <= Decimal(s["best"].parameters[1] or "") <= 500 for s in drawn)
    assert all(1 <= int(s["customer"].parameters[0] or "") <= 20000 for s in drawn)
    days = {datetime.date.fromisoformat(s["month"].parameters[0] or "") for s in drawn}
    assert datetime.date(2020, 1, 1) <= min(days) < max(days) <= datetime.date(2023, 11, 30)
    assert len(days) > 250
    assert {s["countries"].parameters for s in drawn} == {()}


def test_bounds_are_drawn_too(tmp_path: Path) -> None:
    lines = "-- parameter $1 decimal -0.1..0.15\n-- parameter $2 integer -1..1\n-- parameter $3 choice 'it''s'\n"
    path = write(tmp_path, {"statements/a.sql": lines + "select $1, $2, $3"})
    drawn = [workload(path).statements(DIALECT, seed)["a"] for seed in range(600)]
    assert {s.parameters[0] for s in drawn} == {f"{n / 100:.2f}" for n in range(-10, 16)}
    assert {s.parameters[1] for s in drawn} == {"-1", "0", "1"}
    assert {s.parameters[2] for s in drawn} == {"it's"}
    assert drawn[0].text.endswith(", 'it''s'")


def test_the_key_is_that_of_the_data_not_of_the_questions(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(EXAMPLE, path)
    key = workload(path).key()
    assert key == workload(EXAMPLE).key()
    write(path, {"statements/more.sql": "select 1", "README": "x"})
    assert workload(path).key() == key
    write(path, {"load/country.csv": "code,name\nDE,Deutschland\n"})
    assert workload(path).key() != key


def test_names_are_in_the_order_that_people_expect(tmp_path: Path) -> None:
    path = write(tmp_path, {f"statements/q{n}.sql": "select 1" for n in (10, 9, 1)})
    assert workload(path).queries == ("q1", "q9", "q10")
    assert workload(path, queries=["q10", "q1"]).queries == ("q1", "q10")
    with pytest.raises(UsageError, match="no statement 'q2'"):
        workload(path, queries=["q2"])


GOOD = {"statements/a.sql": "select 1"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, r"statements: there is no statement to measure"),
        ({"statements/README": ""}, r"statements: there is no statement to measure"),
        (GOOD | {"index.sql": ""}, r"index\.sql: the workload sql does not know what to do with it"),
        (GOOD | {"load/x.tbl": ""}, r"load/x\.tbl: the workload sql does not know"),
        (GOOD | {"expected/b.csv": "n\n1\n"}, r"expected/b\.csv: there is no statement b"),
        (GOOD | {"load/x.csv": ""}, r"load/x\.csv:1: the first line must name the columns"),
        (GOOD | {"load/x.csv": "a,b\n1,2\n3\n"}, r"load/x\.csv:3: 1 fields, but 2 columns"),
        (GOOD | {"load/x.csv": 'a,b\n1,"2\n'}, r"load/x\.csv:2: unexpected end of data"),
        (GOOD | {"load/x.csv": "a,b\n1,2\n1,\0\n"}, r"load/x\.csv:3: a zero byte"),
        ({"statements/a b.sql": "select 1"}, r"a b\.sql: 'a b' is no name for a statement"),
        ({"statements/a.sql": "-- nothing\n"}, r"statements/a\.sql: there is no statement in it"),
        ({"statements/a.sql": "select 1;\n\nselect 2"}, r"statements/a\.sql:3: a second statement"),
        ({"statements/a.sql": "-- x\ndelete from t"}, r"statements/a\.sql:2: this is not a statement that reads"),
        ({"statements/a.sql": "selection"}, r"statements/a\.sql:1: this is not a statement that reads"),
        ({"statements/a.sql": "select $1"}, r"statements/a\.sql:1: \$1 is not declared"),
        ({"statements/a.sql": "-- parameter $1 integer 1..2\nselect 1"}, r"a\.sql:2: \$1 is declared but not used"),
        ({"statements/a.sql": "-- parameter $2 integer 1..2\nselect $2"}, r"a\.sql:2: .* not numbered from \$1"),
        (
            {"statements/a.sql": "\n-- parameter $1 number 1..2\nselect $1"},
            r"a\.sql:2: 'number' is no kind of parameter",
        ),
        ({"statements/a.sql": "-- parameter 1 integer 1..2\nselect $1"}, r"a\.sql:1: a parameter is declared as in"),
        ({"statements/a.sql": "-- parameter $1 integer 2..1\nselect $1"}, r"a\.sql:1: the range ends before it begins"),
        (
            {"statements/a.sql": "-- parameter $1 integer 1-2\nselect $1"},
            r"a\.sql:1: '1-2' is not a range such as 1\.\.100",
        ),
        ({"statements/a.sql": "-- parameter $1 decimal 1..x\nselect $1"}, r"a\.sql:1: '1\.\.x' is not a range such as"),
        (
            {"statements/a.sql": "-- parameter $1 date 1995-02-30..1995-03-01\nselect $1"},
            r"a\.sql:1: day is out of range",
        ),
        ({"statements/a.sql": "-- parameter $1 choice a, b\nselect $1"}, r"a\.sql:1: 'a, b' is not a list such as"),
        (
            {"statements/a.sql": "-- parameter $1 integer 1..2\n-- parameter $1 integer 1..2\nselect $1"},
            r"a\.sql:2: \$1 is declared a second time",
        ),
        ({"statements/a.sql": "-- answer: exactly\nselect 1"}, r"a\.sql:1: 'exactly' is no way to compare a column"),
        (
            {"statements/a.sql": "-- answer: exact exact\nselect 1", "expected/a.csv": "n\n1\n"},
            r"expected/a\.csv:1: 1 columns, but the statement declares 2",
        ),
        (
            {"statements/a.sql": "-- parameter $1 integer 1..2\nselect $1", "expected/a.csv": "n\n1\n"},
            r"expected/a\.csv: a has parameters",
        ),
    ],
)
def test_what_is_wrong_is_said(files: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        workload(write(tmp_path, files))
    assert caught.value.message.startswith(str(tmp_path))
    assert caught.value.hint


def test_more_rows_than_a_control_stream_should_carry(tmp_path: Path) -> None:
    write(tmp_path, GOOD | {"load/x.csv": "a\n"})
    with (tmp_path / "load/x.csv").open("ab") as file:
        file.truncate(65 << 20)
    with pytest.raises(SpecError, match="at most 64 MiB are taken") as caught:
        workload(tmp_path)
    assert "generate_series" in caught.value.hint


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such directory"):
        workload(tmp_path / "none")
    with pytest.raises(UsageError, match="has no directory"):
        Workload({})


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "schema.sql").write_bytes(b"-- a\n-- \xff\n")
    with pytest.raises(SpecError, match=r"schema\.sql:2: not UTF-8"):
        workload(tmp_path)
