"""What every engine must keep to."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dbtoll import registry
from dbtoll.contracts.machines import OpenArm, arms_of_baseline, local_machine
from dbtoll.contracts.shape import demand_shape
from dbtoll.errors import EngineError
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.engine import (
    QUIET,
    TRANSACTIONS,
    DurabilityEngine,
    Engine,
    ListeningEngine,
    SchemasEngine,
    StatisticsEngine,
    ThreadedEngine,
)
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.layout import Layout
from dbtoll.model.machine import DATA, Artifact, Provision, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.model.software import Software

RESOURCES = Resources(memory_bytes=1 << 30)

LOCK_FILES = ("-name", ".*lock*", "-o", "-name", "*.lock", "-o", "-name", "*.pid")
"""For find(1): that somebody uses a data directory, in the manner of all servers here."""

SEES = {"read_committed": True, "repeatable_read": False, "serializable": False}
"""Level of isolation -> whether a transaction sees what others commit meanwhile."""
SKEWS = {"read_committed": True, "repeatable_read": True, "serializable": False}
"""Level -> whether two transactions may each write what the other has read."""


class EngineContract:
    """``member``: the engine's class. Its servers run in arms of the baseline, on a system image with its software."""

    member: ClassVar[type[Engine]]

    @pytest.fixture
    def engine(self) -> Engine:
        return self.member({})

    @pytest.fixture
    def open_arm(self, tmp_path: Path) -> Iterator[OpenArm]:
        with local_machine() as local, arms_of_baseline(local, tmp_path / "run") as open_arm:
            yield open_arm

    def created(self, engine: Engine, open_arm: OpenArm, tmp_path: Path) -> Machine:
        """A machine with an empty data directory of it."""
        data = tmp_path / "data"
        data.mkdir()
        provision = Provision(Artifact("test-data", str(data)), DATA, writable=True)
        machine = open_arm(provision, resources=RESOURCES, engine=engine)
        assert engine.key(machine) == engine.key(machine) != ""
        engine.create(machine, DATA)
        return machine

    # --- what it says of itself ------------------------------------------------------------------------------------------

    def test_it_has_the_shape_of_an_engine(self, engine: Engine) -> None:
        demand_shape(type(engine), interface.Engine)
        assert isinstance(engine.returns_rows, bool)
        assert isinstance(engine.description, EngineDescription)
        assert engine.description.title
        assert isinstance(engine.software, Software)
        assert isinstance(engine.sql, Dialect)
        assert re.fullmatch("[a-z0-9_]+", engine.sql.name)
        assert engine.offers

    def test_the_registry_knows_it(self, engine: Engine) -> None:
        assert registry.find("engines", engine.name) is type(engine)
        assert not {*engine.also_called} & {*registry.names("engines")}

    def test_its_options_are_a_table_with_working_defaults(self, engine: Engine) -> None:
        for key, option in engine.options.items():
            assert isinstance(option, Option), key
            assert option.help
            if option.choices:
                assert option.default in option.choices

    def test_settings_are_text_and_the_same_for_equal_resources(self, engine: Engine) -> None:
        resources = Resources(cpus=2, memory_bytes=8 << 30)
        for settings in (engine.settings(resources), engine.load_settings(resources)):
            assert all(isinstance(key, str) and isinstance(value, str) for key, value in settings.items())
        assert engine.settings(resources) == type(engine)({}).settings(Resources(cpus=2, memory_bytes=8 << 30))

    def test_it_tells_of_foreign_keys_or_has_none(self, engine: Engine) -> None:
        """Else both levels of the factor would be measured without them."""
        if TRANSACTIONS in engine.offers and engine.returns_rows:
            assert bool(engine.sql.foreign_keys) != ("yes" in engine.unsupported.get("foreign_keys", {}))

    # --- its servers -----------------------------------------------------------------------------------------------------

    def test_its_life(self, engine: Any, open_arm: OpenArm, tmp_path: Path) -> None:
        """Create, start, ask, stop, start again, for real; after a stop nothing of it is left."""
        machine = self.created(engine, open_arm, tmp_path)
        network = "127.0.0.1" if isinstance(engine, ListeningEngine) else None
        for settings, at in ((engine.load_settings(RESOURCES), None), (engine.settings(RESOURCES), network)):
            server = engine.start(machine, ServerPlace(network=at), settings)
            assert (server.pid is None) == (QUIET in engine.offers)
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
                assert fingerprint
                assert plan
                work = engine.background_work(session)
                assert all(isinstance(value, int) for value in work.values())
                assert all(engine.background_work(session)[key] >= value for key, value in work.items())
                assert isinstance(engine.facts(session), dict)
            finally:
                session.close()
            of_server = tree(machine, server.pid)
            assert (server.pid is None) == (not of_server)
            engine.stop(machine, server)
            assert not of_server & processes(machine).keys()
            assert machine.run(["find", DATA, *LOCK_FILES]).output == b""

    def test_a_query_has_as_many_threads_as_it_is_told(self, engine: Any, open_arm: OpenArm, tmp_path: Path) -> None:
        """By the server's own word; all else that it says of its settings stays as it is."""
        can_be_told = isinstance(engine, ThreadedEngine)
        if not can_be_told:
            return
        machine = self.created(engine, open_arm, tmp_path)
        found: dict[int, dict[str, str]] = {}
        for threads in (1, 2, 3):
            settings = engine.settings_of_threads(threads)
            assert settings.keys() == {*engine.thread_settings}
            server = engine.start(machine, ServerPlace(), {**engine.settings(RESOURCES), **settings})
            session = machine.serial(server.address, connection="persistent")
            assert engine.threads(session) == threads
            found[threads] = engine.facts(session)["settings"]
            session.close()
            engine.stop(machine, server)
        varied = {*engine.thread_settings, *engine.following_settings, *engine.description.location_settings}
        others = [{name: told[name] for name in told if name not in varied} for told in found.values()]
        assert others[0] == others[1] == others[2]

    def test_its_isolation_is_what_it_says(self, engine: Any, open_arm: OpenArm, tmp_path: Path) -> None:
        """Berenson et al. 1995: does a transaction see what others commit meanwhile (non-repeatable read, A2), and may two of
        them each write what the other has read (write skew, A5B)?"""
        if TRANSACTIONS not in engine.offers or not engine.returns_rows:
            return
        machine = self.created(engine, open_arm, tmp_path)
        server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
        sees, skews = {}, {}
        levels = [level for level in SEES if level not in engine.unsupported.get("isolation", {})]
        assert levels
        for level in levels:
            first, second, third = (machine.serial(server.address, connection="persistent") for _ in range(3))
            for table in ("t", "u"):  # two: some engines let but one transaction write into a table at a time
                third.query(f"drop table if exists {table}")
                third.query(f"create table {table} (a integer {engine.contract.key}, b integer)")
                third.query(f"insert into {table} values (1, 1), (2, 1)")
            for session in (first, second, third) if engine.contract.lock_timeout else ():
                session.query(engine.contract.lock_timeout)
            for session in (first, second) if has(engine, DurabilityEngine) else ():
                for statement in engine.session(level, multi_statement=True):
                    session.query(statement)
                assert engine.isolation(session) == level
            read = [("first", "begin"), ("first", "select b from t where a = 1")]
            before = done(read, first=first)
            done([("third", "update t set b = 7 where a = 1")], third=third)  # a reader's locks may keep it out
            sees[level] = before != done(read[1:], first=first)
            first.query("rollback")
            third.query("update t set b = 1")
            script = [
                ("first", "begin"),
                ("second", "begin"),
                ("first", "select sum(t.b + u.b) from t join u on t.a = u.a"),
                ("second", "select sum(t.b + u.b) from t join u on t.a = u.a"),
            ]
            script += [("first", "update t set b = 0 where a = 1"), ("second", "update u set b = 0 where a = 2")]
            script += [("first", "commit"), ("second", "commit")]
            skews[level] = done(script, first=first, second=second) is not None
            for session in (first, second, third):
                session.close()
        engine.stop(machine, server)
        assert sees == {level: SEES[level] for level in levels}
        assert skews == {level: SKEWS[level] for level in levels}

    def test_a_connection_begins_in_its_schema(self, engine: Any, open_arm: OpenArm, tmp_path: Path) -> None:
        """Every one does, and there are the tables, and the foreign keys, that it knows without a schema's name."""
        if not has(engine, SchemasEngine):
            return
        machine = self.created(engine, open_arm, tmp_path)
        server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
        addresses = [server.address.of(unit) for unit in Layout(schemas=3).units]
        first = machine.serial(server.address, connection="persistent")
        for _ in range(2):  # it may be there
            for address in addresses[1:]:
                engine.create_schema(first, address.schema)
        for number, address in enumerate(addresses):
            session = machine.serial(address, connection="persistent")
            session.query(f"create table t (a integer {engine.contract.key})")
            session.query(f"insert into t values ({number})")
            session.disconnect()
            if number:
                session.query("create table u (a integer references t (a))")
            assert len(session.query(engine.sql.foreign_keys)) == min(number, 1)
            session.close()
        for number, address in enumerate(addresses):
            for connection in ("persistent", "per_statement"):
                session = machine.serial(address, connection=connection)
                assert session.query("select a from t") == [[str(number)]]
                session.close()
        first.close()
        engine.stop(machine, server)

    def test_it_ends_the_other_sessions(self, engine: Any, open_arm: OpenArm, tmp_path: Path) -> None:
        if not has(engine, DurabilityEngine):
            return
        assert engine.loss_window_s > 0
        machine = self.created(engine, open_arm, tmp_path)
        server = engine.start(machine, ServerPlace(), engine.settings(RESOURCES))
        session, other = (machine.serial(server.address, connection="persistent") for _ in range(2))
        other.query("select 1")
        engine.disconnect_others(session)
        assert session.query("select 1") == [["1"]]
        with pytest.raises(EngineError):
            other.query("select 1")
        session.close()
        other.close()
        engine.stop(machine, server)

    def test_its_accounts_tell_of_pages_and_of_waits(self, engine: Any, open_arm: OpenArm, tmp_path: Path) -> None:
        if not has(engine, StatisticsEngine):
            return
        contract = engine.contract
        machine = self.created(engine, open_arm, tmp_path)
        server = engine.start(machine, ServerPlace(), {**engine.settings(RESOURCES), **contract.settings})
        session, other = (machine.serial(server.address, connection="persistent") for _ in range(2))
        try:
            session.query("create table t (a integer, b char(200))")
            row = f"(1, '{'A' * 200}')"
            session.query(f"insert into t values {', '.join([row] * 2000)}")
            before = engine.server_statistics(session)
            told = engine.query_statistics(session, Statement("Q", "select count(*) from t", "select count(*) from t"))
            least, most = contract.scan_touches
            assert least <= sum(told[name] for name in contract.scan) <= most, told
            after = engine.server_statistics(session)
            assert all(after[key] >= value for key, value in before.items() if isinstance(value, int))
            assert engine.wait_events(session) == {}
            other.query("select 1")
            (thread,) = engine.serving(session)
            assert machine.counters(brief=True, single_threads=[thread])["single_threads"].keys() == {str(thread)}
            sleeping = threading.Thread(target=other.query, args=(contract.sleep,))
            sleeping.start()
            deadline = time.monotonic() + 5
            # It is seen running before it sleeps, on a busy machine.
            while (found := engine.wait_events(session)) != {thread: contract.asleep} and time.monotonic() < deadline:
                time.sleep(0.01)
            sleeping.join()
            assert found == {thread: contract.asleep}
        finally:
            session.close()
            other.close()
        engine.stop(machine, server)


def has(engine: object, power: type) -> bool:
    """Whether it has the power that a test is about; else there is nothing to hold it to."""
    return isinstance(engine, power)


def processes(machine: Machine) -> dict[int, int]:
    """Number -> its parent's."""
    told = machine.run(["sh", "-c", "cat /proc/[0-9]*/stat"], check=False).output.decode()  # some end meanwhile
    stats = (line.rpartition(")") for line in told.splitlines())
    return {int(head.split()[0]): int(rest.split()[1]) for head, _, rest in stats}


def tree(machine: Machine, root: int | None) -> set[int]:
    """That process and all below it; of a server without one, none."""
    parents = processes(machine)
    found = set() if root is None else {root} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def done(script: list[tuple[str, str]], **sessions: Session) -> list[list[str | None]] | None:
    """The last answer; None if the server refused one of the statements."""
    answer: list[list[str | None]] = []
    try:
        for who, sql in script:
            answer = sessions[who].query(sql)
    except EngineError:
        return None
    return answer
