"""What every engine must keep to; a new one is found by its file."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.engines.postgres import Engine as Postgres
from dbtoll.errors import EngineError, UsageError
from dbtoll.interfaces.engine import DurabilityEngine, Engine, ListeningEngine, StatisticsEngine
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement

OpenArm = Callable[..., Machine]
DATA = "/dbtoll/data"

engines = pytest.mark.parametrize("name", registry.names("engines"))


def made(name: str) -> Any:
    return registry.find("engines", name)({})


@engines
def test_it_has_the_shape_of_an_engine(name: str) -> None:
    engine = made(name)
    assert engine.name == name
    assert isinstance(engine.returns_rows, bool)
    for method, wanted in inspect.getmembers(Engine, inspect.isfunction):
        if not method.startswith("_"):
            assert list(inspect.signature(getattr(type(engine), method)).parameters) == list(
                inspect.signature(wanted).parameters
            ), method


@engines
def test_its_options_are_a_table_with_working_defaults(name: str) -> None:
    for key, option in made(name).options.items():
        assert isinstance(option, Option), key
        assert option.help
        if option.choices:
            assert option.default in option.choices


@engines
def test_settings_are_text_and_the_same_for_equal_resources(name: str) -> None:
    resources = Resources(cpus=2, memory_bytes=8 << 30)
    for settings in (made(name).settings(resources), made(name).load_settings(resources)):
        assert all(isinstance(key, str) and isinstance(value, str) for key, value in settings.items())
    assert made(name).settings(resources) == made(name).settings(Resources(cpus=2, memory_bytes=8 << 30))


def test_an_engine_that_is_none_names_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("engines", "postgers")
    assert "postgres" in caught.value.hint


RESOURCES = Resources(memory_bytes=1 << 30)


def created(name: str, open_arm: OpenArm, tmp_path: Path) -> tuple[Any, Machine]:
    """An engine, and a machine with an empty data directory of it."""
    data = tmp_path / "data"
    data.mkdir()
    engine = made(name)
    provision = Provision(Artifact("test-data", str(data)), DATA, writable=True)
    machine = open_arm(provision, resources=RESOURCES, packages=engine.packages)
    assert engine.key(machine) == engine.key(machine) != ""
    engine.create(machine, DATA)
    return engine, machine


@engines
def test_its_life(name: str, open_arm: OpenArm, tmp_path: Path) -> None:
    """Create, start, ask, stop, start again, for real; after a stop nothing of it is left."""
    engine, machine = created(name, open_arm, tmp_path)
    network = "127.0.0.1" if isinstance(engine, ListeningEngine) else None
    for settings, at in ((engine.load_settings(RESOURCES), None), (engine.settings(RESOURCES), network)):
        server = engine.start(machine, DATA, settings, network=at)
        assert (server.pid is None) == (name == "no_server")
        assert (server.network is None) == (at is None)
        if at is not None:
            outside = machine.serial(server.network, connection="persistent")
            assert engine.peer(outside) == at
            outside.close()
        session = machine.serial(server.address, connection="persistent")
        assert at is None or engine.peer(session) is None
        try:
            engine.finish_load(session)
            engine.settle(session)
            statement = Statement("Q", "select 1 where 1 = 1", "select 1 where 1 = 1")
            fingerprint, plan = engine.fingerprint(session, statement)
            assert fingerprint and plan
            work = engine.background_work(session)
            assert all(isinstance(value, int) for value in work.values())
            assert all(engine.background_work(session)[key] >= value for key, value in work.items())
            assert isinstance(engine.facts(session), dict)
        finally:
            session.close()
        engine.stop(machine, server)
        if server.pid is not None:
            assert machine.run(["test", "-e", f"/proc/{server.pid}"], check=False).exit_code == 1


def test_the_postgres_engine_runs_without_options() -> None:
    assert isinstance(made("postgres"), Postgres)


durable = pytest.mark.parametrize(
    "name", [name for name in registry.names("engines") if isinstance(made(name), DurabilityEngine)]
)


@durable
def test_its_isolation_is_what_it_says(name: str, open_arm: OpenArm, tmp_path: Path) -> None:
    """Berenson et al. 1995: does a transaction see what others commit meanwhile (non-repeatable read, A2), and may two of them
    each write what the other has read (write skew, A5B)?"""
    engine, machine = created(name, open_arm, tmp_path)
    server = engine.start(machine, DATA, engine.settings(RESOURCES))
    sees, skews = {}, {}
    for level in ("read_committed", "repeatable_read", "serializable"):
        first, second, third = (machine.serial(server.address, connection="persistent") for _ in range(3))
        for sql in ("drop table if exists t", "create table t (a integer primary key, b integer)"):
            third.query(sql)
        third.query("insert into t values (1, 1), (2, 1)")
        for session in (first, second, third):
            session.query("set innodb_lock_wait_timeout = 1" if name == "mariadb" else "set lock_timeout = '1s'")
        for session in (first, second):
            for statement in engine.session(level, multi_statement=True):
                session.query(statement)
            assert engine.isolation(session) == level
        read = [("first", "begin"), ("first", "select b from t where a = 1")]
        before = done(read, first=first)
        done([("third", "update t set b = 7 where a = 1")], third=third)  # a reader of InnoDB's may keep it out
        sees[level] = before != done(read[1:], first=first)
        first.query("rollback")
        third.query("update t set b = 1")
        script = [
            ("first", "begin"),
            ("second", "begin"),
            ("first", "select sum(b) from t"),
            ("second", "select sum(b) from t"),
        ]
        script += [("first", "update t set b = 0 where a = 1"), ("second", "update t set b = 0 where a = 2")]
        script += [("first", "commit"), ("second", "commit")]
        skews[level] = done(script, first=first, second=second) is not None
        for session in (first, second, third):
            session.close()
    engine.stop(machine, server)
    assert sees == {"read_committed": True, "repeatable_read": False, "serializable": False}
    assert skews == {"read_committed": True, "repeatable_read": True, "serializable": False}


def done(script: list[tuple[str, str]], **sessions: Session) -> list[list[str | None]] | None:
    """The last answer; None if the server refused one of the statements."""
    answer: list[list[str | None]] = []
    try:
        for who, sql in script:
            answer = sessions[who].query(sql)
    except EngineError:
        return None
    return answer


accounting = pytest.mark.parametrize(
    "name", [name for name in registry.names("engines") if isinstance(made(name), StatisticsEngine)]
)
SLEEPS = {"postgres": ("select pg_sleep(1)", "Timeout: PgSleep"), "mariadb": ("select sleep(1)", "User sleep")}
SETTINGS = {"mariadb": {"performance-schema": "ON"}}


@accounting
def test_its_accounts_tell_of_pages_and_of_waits(name: str, open_arm: OpenArm, tmp_path: Path) -> None:
    engine, machine = created(name, open_arm, tmp_path)
    server = engine.start(machine, DATA, {**engine.settings(RESOURCES), **SETTINGS.get(name, {})})
    session, other = (machine.serial(server.address, connection="persistent") for _ in range(2))
    try:
        session.query("create table t (a integer, b char(200))")
        session.query(
            f"insert into t values {', '.join(['(1, repeat(char(65), 200))'] * 2000)}"
            if name == "mariadb"
            else "insert into t select 1, repeat('A', 200) from generate_series(1, 2000)"
        )
        before = engine.server_statistics(session)
        told = engine.query_statistics(session, Statement("Q", "select count(*) from t", "select count(*) from t"))
        if name == "postgres":
            ((pages,),) = session.query("select pg_relation_size('t') / 8192")
            assert told["hit_pages"] + told["read_pages"] >= int(pages or 0) > 50
            assert told["temporary_read_pages"] == 0
        else:
            assert told["handler_read_rnd_next"] == 2001
            assert sum(wait["count"] for wait in engine.server_statistics(session)["waits"].values()) > 0
        after = engine.server_statistics(session)
        assert all(after[key] >= value for key, value in before.items() if isinstance(value, int))
        asleep, state = SLEEPS[name]
        assert engine.wait_events(session) == []
        sleeping = threading.Thread(target=other.query, args=(asleep,))
        sleeping.start()
        deadline = time.monotonic() + 5
        while not (found := engine.wait_events(session)) and time.monotonic() < deadline:
            time.sleep(0.01)
        sleeping.join()
        assert found == [state]
    finally:
        session.close()
        other.close()
    engine.stop(machine, server)
