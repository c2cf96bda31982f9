"""An engine's SQL is data that a workload is given: which script is taken, what is written otherwise, in which order."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dbtoll import registry
from dbtoll.engines.mariadb import DIALECT as MARIADB
from dbtoll.engines.postgres import DIALECT as POSTGRES
from dbtoll.errors import EngineError
from dbtoll.interfaces.machine import Session
from dbtoll.model.dialect import Dialect
from dbtoll.model.software import Software
from dbtoll.runner.preparation.software import image_software
from dbtoll.workload_parts.transactions import PROCEDURES
from dbtoll.workloads.tatp import Workload as Tatp
from dbtoll.workloads.tpcc import Workload as Tpcc

NEW = Dialect(
    "new", types={" timestamp ": " moment "}, drop_foreign_key="FORGET {name} OF {table}", drop_index="DROP {name}"
)


class Asked(Session):
    """Answers one question, and keeps all."""

    def __init__(self, rows: list[list[str | None]]) -> None:
        self.rows, self.said = rows, list[str]()

    def query(self, sql: str, *, timeout_s: float = 300.0) -> list[list[str | None]]:
        self.said.append(sql)
        return self.rows if len(self.said) == 1 else []


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    """A dialect whose engine brings scripts for TPC-C along."""
    folder = tmp_path / "brought_sql/tpcc"
    folder.mkdir(parents=True)
    (tmp_path / "brought_sql/__init__.py").touch()
    (folder / "procedures.sql").write_text("CREATE ROUTINE a;\nCREATE ROUTINE b;\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "brought_sql", raising=False)
    return replace(NEW, scripts="brought_sql")


def test_each_dialect_has_its_own_procedures() -> None:
    postgres, mariadb = (Tpcc({}).parts(PROCEDURES, dialect) for dialect in (POSTGRES, MARIADB))
    assert len(postgres) == len(mariadb) == 6
    assert all(part.sql.startswith("CREATE FUNCTION") and "$$" in part.sql for part in postgres)
    assert all(re.match("CREATE (PROCEDURE|FUNCTION) tpcc_", part.sql) and part.sql.endswith("END") for part in mariadb)


def test_an_engine_may_bring_scripts_of_a_workload(brought: Dialect) -> None:
    assert [part.sql for part in Tpcc({}).parts(PROCEDURES, brought)] == ["CREATE ROUTINE a", "CREATE ROUTINE b"]
    assert Tpcc({}).text("schema", brought) == Tpcc({}).text("schema", POSTGRES)


def test_a_script_that_nobody_has_is_said_with_where_it_could_be() -> None:
    with pytest.raises(EngineError, match="tpcc has no procedures in the dialect new") as caught:
        Tpcc({}).parts(PROCEDURES, NEW)
    assert "scripts" in caught.value.hint


def test_types_are_written_as_the_engine_calls_them() -> None:
    text = {
        dialect.name: "".join(part.sql for part in Tpcc({}).parts("schema", dialect))
        for dialect in (POSTGRES, MARIADB, NEW)
    }
    assert " timestamp " in text["postgres"] and " datetime " in text["mariadb"] and " moment " in text["new"]
    assert text["new"].replace(" moment ", " timestamp ") == text["postgres"]


def test_foreign_keys_are_dropped_as_the_engine_says() -> None:
    session = Asked([["orders", "of_customer", "1"], ["stock", "of_item", "0"]])
    Tpcc({}).constrain(session, replace(NEW, foreign_keys="WHICH KEYS"), "no")
    assert session.said == ["WHICH KEYS", "FORGET of_customer OF orders", "DROP of_customer", "FORGET of_item OF stock"]


@pytest.mark.parametrize("dialect", [POSTGRES, MARIADB])
def test_foreign_keys_come_once(dialect: Dialect) -> None:
    session = Asked([])
    Tatp({}).constrain(session, dialect, "yes")
    assert session.said[0] == dialect.foreign_keys and len(session.said) == 4
    there = Asked([["a", "b", "0"]])
    Tatp({}).constrain(there, dialect, "yes")
    assert there.said == [dialect.foreign_keys]


def test_what_is_loaded_has_one_key_for_all_dialects() -> None:
    assert Tpcc({}).key() == Tpcc({"terminals": 4}).key() != Tpcc({"warehouses": 2}).key()


def test_software_of_two_is_each_thing_once() -> None:
    one, other = Software(("a", "b"), before="x", after="y"), Software(("b", "c"), before="x", after="z")
    assert one | other == Software(("a", "b", "c"), before="x", after="y\nz")
    assert one | one == one | Software() == one


def test_the_image_of_any_engine_holds_the_default_one() -> None:
    usual = image_software()
    assert "postgresql" in usual.packages and "createcluster.conf" in usual.before
    for name in registry.names("engines"):
        software = image_software(registry.find("engines", name)({}))
        assert set(usual.packages) <= set(software.packages) and usual.before in software.before
    assert "mariadb-server" in image_software(registry.find("engines", "mariadb")({})).packages
