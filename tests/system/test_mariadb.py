"""MariaDB on a native arm, for real: the settings of its user's option file."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbtoll.engines.mariadb import Engine
from dbtoll.errors import EngineError
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.model.description import ASLEEP, RUNNING
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision, ServerPlace
from dbtoll.runner.drivers.wait_samples import WatchedServer

OpenArm = Callable[..., Machine]
DATA = "/dbtoll/data"
RESOURCES = Resources(memory_bytes=1 << 30)


@pytest.fixture
def machine(open_arm: OpenArm, tmp_path: Path) -> Machine:
    data = tmp_path / "data"
    data.mkdir()
    provision = Provision(Artifact("test-mariadb", str(data)), DATA, writable=True)
    machine = open_arm(provision, resources=RESOURCES, engine=Engine({}))
    Engine({}).create(machine, DATA)
    return machine


def test_settings_of_a_file_arrive_and_a_refused_one_is_traced_to_where_it_was_written(
    machine: Machine, tmp_path: Path
) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(
        "[client]\nport = 1\n[mysqld]\ninnodb_buffer_pool_size = 64M\nsql-mode =\ninit_connect = 'SET @a = \"#1;\"'\n"
        "big_tables\ndatadir = /var/lib/mysql\n"
    )
    engine = Engine({"settings_file": str(file)})
    server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    session = machine.serial(server.address, connection="persistent")
    told = engine.facts(session)["settings"]
    asked = session.query(
        "SELECT @@global.innodb_buffer_pool_size, @@global.sql_mode, @@global.init_connect, @@big_tables"
    )
    session.close()
    engine.stop(machine, server)
    assert asked == [[str(64 << 20), "", 'SET @a = "#1;"', "1"]]
    assert told["innodb_buffer_pool_size"] == str(64 << 20)
    assert engine.ignored_settings == {"datadir": "/var/lib/mysql"}
    for line, name in (("no_such = 1", "no-such"), ("Join_Buffer_Size = banana", "join-buffer-size")):
        file.write_text(f"[mariadb]\nsort_buffer_size = 4M\n{line}\n")
        engine = Engine({"settings_file": str(file)})
        with pytest.raises(EngineError, match=rf"{name} is set at {file}:3") as caught:
            engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
        assert "sort-buffer-size is set" not in caught.value.message


@contextmanager
def watched(machine: Machine) -> Iterator[tuple[WatchedServer, Session, Session]]:
    """A server with the table ``t``, and two sessions of it."""
    engine = Engine({})
    server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    looking, one, other = (machine.serial(server.address, connection="persistent") for _ in range(3))
    try:
        one.query("CREATE TABLE t (a integer PRIMARY KEY AUTO_INCREMENT, b integer)")
        one.query("INSERT INTO t (b) VALUES (1)")
        other.query("SELECT 1")
        yield WatchedServer(machine, engine, looking, engine.serving(looking), asks_kernel=True), one, other
    finally:
        for session in (looking, one, other):
            session.close()
        engine.stop(machine, server)


def test_who_wants_a_row_that_another_one_holds_waits_for_a_lock(machine: Machine) -> None:
    """Its server says that it updates."""
    with watched(machine) as (server, one, other):
        assert len(server.threads) == 2 and server.waits() == []
        one.query("BEGIN")
        one.query("UPDATE t SET b = 2 WHERE a = 1")
        waiting = threading.Thread(target=other.query, args=("UPDATE t SET b = 3 WHERE a = 1",))
        waiting.start()
        try:
            seen = {wait for _ in range(200) for wait in server.waits()}
        finally:
            one.query("COMMIT")
            waiting.join()
        assert ASLEEP in seen <= {ASLEEP, RUNNING}


def test_a_commit_is_a_wait_of_its_own(machine: Machine) -> None:
    with watched(machine) as (server, one, _):
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                one.query("BEGIN")
                one.query("UPDATE t SET b = b + 1")
                one.query("COMMIT")

        working = threading.Thread(target=work)
        working.start()
        seen: Counter[str] = Counter()
        deadline = time.monotonic() + 30
        try:
            while seen["Commit"] < 10 and time.monotonic() < deadline:
                seen.update(server.waits())
        finally:
            over.set()
            working.join()
        assert seen["Commit"] >= 10, seen


def test_sessions_that_share_a_pool_of_threads_are_served_by_none(machine: Machine) -> None:
    engine = Engine({"settings": {"thread_handling": "pool-of-threads"}})
    server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
    session = machine.serial(server.address, connection="persistent")
    try:
        assert engine.serving(session) == []
    finally:
        session.close()
        engine.stop(machine, server)
