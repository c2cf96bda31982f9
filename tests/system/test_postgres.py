"""PostgreSQL on a native arm, for real."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dbtoll.engines.postgres import Engine, Server
from dbtoll.errors import DbtollError, EngineError, ProgramFailed, Unavailable
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, Provision, ServerPlace
from dbtoll.model.reply import Statement

OpenArm = Callable[..., Machine]
DATA = "/dbtoll/data"
RUN = ServerPlace().run
RESOURCES = Resources(memory_bytes=1 << 30)


@pytest.fixture
def machine(open_arm: OpenArm, tmp_path: Path) -> Machine:
    data = tmp_path / "data"
    data.mkdir()
    machine = open_arm(Provision(Artifact("test-data", str(data)), DATA, writable=True), resources=RESOURCES)
    Engine({}).create(machine, DATA)
    return machine


@contextmanager
def running(machine: Machine, **options: Any) -> Iterator[tuple[Engine, Server, Session]]:
    engine = Engine(options)
    server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    session = machine.serial(server.address, connection="persistent")
    try:
        yield engine, server, session
    finally:
        session.close()
        engine.stop(machine, server)


def test_only_its_user_and_root_reach_it(machine: Machine) -> None:
    with running(machine) as (_, server, session):
        assert session.query("SELECT 40 + 2") == [["42"]]
        assert server.address.tcp is None
        assert session.query("SHOW listen_addresses") == [[""]]
        assert machine.run(["stat", "--format=%a %U", RUN]).output == b"700 postgres\n"
        ask = ["psql", "--host", RUN, "--username", "postgres", "--command", "SELECT 1"]
        assert machine.run(ask, user="postgres").exit_code == 0
        assert machine.run(ask, user="nobody", check=False).exit_code != 0
        assert machine.run(["stat", "--format=%a %U", DATA]).output == b"700 postgres\n"


def test_over_tcp_it_asks_for_the_generated_password(machine: Machine) -> None:
    with running(machine, listen="tcp") as (_, server, session):
        assert server.address.tcp is not None
        assert session.query("SELECT 40 + 2") == [["42"]]
        host, port = server.address.tcp
        ask = ["psql", "--host", host, "--port", str(port), "--username", "postgres", "--command", "SELECT 1"]
        for password in ("", "wrong"):
            done = machine.run(ask, env={"PGPASSWORD": password}, check=False)
            assert done.exit_code != 0, "without its password"
        done = machine.run(ask, env={"PGPASSWORD": server.address.password or ""})
        assert b"1 row" in done.output
        ((method,),) = session.query("SELECT left(rolpassword, 13) FROM pg_authid WHERE rolname = 'postgres'")
        assert method == "SCRAM-SHA-256"


def test_a_busy_port_is_one_clear_error(machine: Machine, open_arm: OpenArm, tmp_path: Path) -> None:
    other_data = tmp_path / "other"
    other_data.mkdir()
    provision = Provision(Artifact("other-data", str(other_data)), DATA, writable=True)
    with running(machine, listen="tcp") as (_, server, _session):
        assert server.address.tcp is not None
        engine, other = Engine({"listen": "tcp", "port": server.address.tcp[1]}), open_arm(provision, name="b")
        engine.create(other, DATA)
        with pytest.raises(EngineError, match="in use"):
            engine.start(other, ServerPlace(), engine.settings(RESOURCES))


def test_an_answer_from_another_server_is_no_start(machine: Machine) -> None:
    with running(machine) as (engine, _, _session):
        other = f"{RUN}/other"
        machine.run(["cp", "--archive", DATA, other], user="postgres")
        machine.run(["rm", f"{other}/postmaster.pid"])
        with pytest.raises(EngineError, match=r"lock file .* already exists"):
            engine.start(machine, ServerPlace(other), engine.settings(RESOURCES))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shared_buffers": "banana"}, "shared_buffers"),
        ({"no_such": 1}, "no_such"),
        ({"shared_buffers": "900GB"}, "memory"),
    ],
)
def test_a_setting_that_it_refuses_is_named(machine: Machine, settings: Json, said: str) -> None:
    engine = Engine({"settings": settings})
    with pytest.raises(EngineError, match=said) as caught:
        engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    assert caught.value.hint
    with running(machine) as (_, _, session):
        assert session.query("SELECT 1") == [["1"]]


@pytest.mark.parametrize("line", ["shared_bufers = 1GB", "work_mem = lots", "max_connections = 1", "jit = perhaps"])
def test_a_refused_setting_is_traced_to_where_its_user_wrote_it(machine: Machine, tmp_path: Path, line: str) -> None:
    (tmp_path / "more.conf").write_text(f"# more\n{line}\n")
    (tmp_path / "main.conf").write_text("include 'more.conf'\nseq_page_cost = 1.5\n")
    engine = Engine({"settings_file": str(tmp_path / "main.conf")})
    with pytest.raises(EngineError, match=rf"{line.split(maxsplit=1)[0]} is set at {tmp_path}/more\.conf:2") as caught:
        engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    assert "seq_page_cost is set" not in caught.value.message


def test_settings_arrive_and_are_told(machine: Machine) -> None:
    ties = {"synchronous_standby_names": "*", "archive_mode": "on"}
    settings = {"work_mem": "7MB", "search_path": '"it\'s", public', "data_directory": "/elsewhere", **ties}
    with running(machine, settings=settings) as (engine, _, session):
        facts = engine.facts(session)
        assert facts["settings"]["work_mem"] == "7MB"
        assert facts["settings"]["search_path"] == '"it\'s", public'
        assert facts["settings"]["autovacuum"] == "off"
        assert facts["settings"]["data_directory"] == DATA
        assert facts["ignored_settings"] == sorted(["data_directory", *ties])
        session.query("CREATE TABLE waits_for_no_standby ()")
        assert facts["collation"] == "C"
        assert facts["encoding"] == "UTF8"
        assert facts["version"].startswith("PostgreSQL 1")
        assert facts["database_bytes"] > 1 << 20
        assert "shared_buffers" not in facts["settings"], "equal to the default"


def test_an_unclean_end_is_found(machine: Machine) -> None:
    engine = Engine({})
    server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    server.process.signal(9)
    with pytest.raises(EngineError, match="did not stop cleanly: killed by signal 9"):
        engine.stop(machine, server)


def test_a_data_directory_that_is_none(machine: Machine) -> None:
    engine = Engine({})
    with pytest.raises(EngineError, match=r"postgresql|data directory|PG_VERSION"):
        engine.start(machine, ServerPlace(RUN), engine.settings(RESOURCES))
    with pytest.raises(ProgramFailed, match="not empty"):
        engine.create(machine, DATA)


def test_an_image_without_a_server_is_said(machine: Machine) -> None:
    with pytest.raises(Unavailable, match="/usr/no/bin/postgres") as caught:
        Engine({"bin": "/usr/no/bin"}).key(machine)
    assert "bin" in caught.value.hint


def counts_until(engine: Engine, session: Session, key: str, least: int) -> Json:
    """The server publishes statistics of a session up to a second later."""
    deadline = time.monotonic() + 15
    while True:
        counts = engine.background_work(session)
        if counts[key] >= least or time.monotonic() > deadline:
            return counts
        time.sleep(0.1)


def test_background_work_is_counted(machine: Machine) -> None:
    with running(machine, settings={"work_mem": "64kB"}) as (engine, _, session):
        session.query("CREATE TABLE t AS SELECT g AS a, md5(g::text) AS b FROM generate_series(1, 20000) g")
        before = engine.background_work(session)
        engine.settle(session)
        engine.settle(session)
        after = counts_until(engine, session, "checkpoints_requested_count", before["checkpoints_requested_count"] + 2)
        assert after["checkpoints_requested_count"] == before["checkpoints_requested_count"] + 2
        assert after["checkpoint_buffers"] > before["checkpoint_buffers"]
        session.query("VACUUM t")
        session.query("ANALYZE t")
        session.query("SELECT b FROM t ORDER BY b")
        after = counts_until(engine, session, "temporary_files_count", before["temporary_files_count"] + 1)
        assert after["vacuums_count"] == before["vacuums_count"] + 2, "the table and its TOAST table"
        assert after["analyzes_count"] == before["analyzes_count"] + 1
        assert after["temporary_bytes"] > before["temporary_bytes"]
        assert after["autovacuums_count"] == after["autoanalyzes_count"] == after["checkpoints_timed_count"] == 0


def statement(text: str) -> Statement:
    return Statement("Q", text, text)


def test_a_changed_plan_changes_the_fingerprint(machine: Machine) -> None:
    with running(machine) as (engine, _, session):
        session.query("CREATE TABLE t AS SELECT g AS a, md5(g::text) AS b FROM generate_series(1, 20000) g")
        engine.finish_load(session)
        scanned, plan = engine.fingerprint(session, statement("SELECT b FROM t WHERE a = 7;"))
        assert "Seq Scan" in plan
        assert engine.fingerprint(session, statement("SELECT b FROM t WHERE a = 4711"))[0] == scanned
        session.query("CREATE INDEX ON t (a)")
        indexed, plan = engine.fingerprint(session, statement("SELECT b FROM t WHERE a = 7"))
        assert "Index" in plan
        assert indexed != scanned


def test_asking_for_a_plan_executes_nothing(machine: Machine) -> None:
    with running(machine) as (engine, _, session):
        session.query("CREATE TABLE t (a int)")
        for text in (
            "SELECT 1; INSERT INTO t VALUES (1)",
            "INSERT INTO t VALUES (2)",
            "-- a comment;\nVACUUM t",
            "CREATE TABLE other (a int)",
            "SELECT ';' FROM t -- ; not the end",
            "/* ; */ SELECT $$;$$ FROM t",
        ):
            engine.fingerprint(session, statement(text))
        assert session.query("SELECT count(*) FROM t") == [["0"]]
        assert session.query("SELECT to_regclass('other')") == [[None]]
        assert engine.fingerprint(session, statement("SELECT ';' FROM t -- ; not the end"))[0] != "none"
        assert engine.fingerprint(session, statement("SELECT 1; SELECT 2"))[0] == "none"
        with pytest.raises(DbtollError, match="no_such_table"):
            engine.fingerprint(session, statement("SELECT * FROM no_such_table"))


def test_after_a_load_nothing_is_left_to_do(machine: Machine) -> None:
    engine = Engine({})
    server = engine.start(machine, ServerPlace(), engine.load_settings(RESOURCES))
    session = machine.serial(server.address, connection="persistent")
    session.query("CREATE TABLE t AS SELECT g AS a, md5(g::text) AS b FROM generate_series(1, 200000) g")
    engine.finish_load(session)
    assert session.query("SELECT relpages > 0, relallvisible = relpages FROM pg_class WHERE relname = 't'") == [
        ["t", "t"]
    ]
    session.close()
    engine.stop(machine, server)
    wal_mib = int(machine.run(["du", "--summarize", "--block-size=1M", f"{DATA}/pg_wal"]).output.split()[0])
    assert wal_mib <= 64, "spent WAL would be copied into every arm"
    with running(machine) as (engine, _, session):
        before = engine.background_work(session)
        session.query("SELECT count(*), min(b) FROM t")
        engine.settle(session)
        after = engine.background_work(session)
        # Reading set no hint bit and froze nothing: the checkpoint had next to nothing to write.
        assert after["checkpoint_buffers"] - before["checkpoint_buffers"] < 20
