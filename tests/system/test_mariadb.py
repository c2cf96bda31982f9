"""MariaDB on a native arm, for real: the settings of its user's option file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dbtoll.engines.mariadb import Engine
from dbtoll.errors import EngineError
from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision, ServerPlace

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
