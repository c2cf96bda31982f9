"""The engines that dbtoll brings, held to the contract; a new one is found by its name. And what is asked of one of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.contracts import EngineContract
from dbtoll.contracts.engine import RESOURCES
from dbtoll.contracts.machines import OpenArm
from dbtoll.engines.mariadb import Engine as MariaDb
from dbtoll.engines.postgres import Engine as Postgres
from dbtoll.errors import UsageError
from dbtoll.model.machine import ServerPlace
from dbtoll.model.reply import Statement

SCAN = Statement("Q", "select count(*) from t", "select count(*) from t")


class TestEngines(EngineContract):
    @pytest.fixture(params=registry.names("engines"))
    def engine(self, request: pytest.FixtureRequest) -> Any:
        return registry.find("engines", request.param)({})


def test_an_engine_that_is_none_names_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("engines", "postgers")
    assert "postgres" in caught.value.hint


def test_the_postgres_engine_runs_without_options() -> None:
    assert isinstance(registry.find("engines", "postgres")({}), Postgres)


def test_postgres_counts_all_pages(open_arm: OpenArm, tmp_path: Path) -> None:
    engine = Postgres({})
    machine = EngineContract().created(engine, open_arm, tmp_path)
    server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    session = machine.serial(server.address, connection="persistent")
    session.query("create table t (a integer, b char(200))")
    session.query("insert into t select 1, repeat('A', 200) from generate_series(1, 2000)")
    told = engine.query_statistics(session, SCAN)
    ((pages,),) = session.query("select pg_relation_size('t') / 8192")
    assert told["hit_pages"] + told["read_pages"] >= int(pages or 0) > 50
    assert told["temporary_read_pages"] == 0
    session.close()
    engine.stop(machine, server)


def test_mariadb_counts_waits_where_it_is_told_to(open_arm: OpenArm, tmp_path: Path) -> None:
    engine = MariaDb({})
    machine = EngineContract().created(engine, open_arm, tmp_path)
    server = engine.start(machine, ServerPlace(), {**engine.settings(RESOURCES), **engine.contract.settings})
    session = machine.serial(server.address, connection="persistent")
    assert sum(wait["count"] for wait in engine.server_statistics(session)["waits"].values()) > 0
    session.close()
    engine.stop(machine, server)
