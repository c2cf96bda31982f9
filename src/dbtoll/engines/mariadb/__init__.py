"""MariaDB with InnoDB, from the system image.

What is not data lies in the server's own directory (`ServerPlace.run`; mode 0700, its own user's): the socket, my.cnf. So a data
directory is the same bytes in every arm, and nobody else on the machine can reach the server.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from dbtoll.engines.mariadb import configuration
from dbtoll.errors import AgentFailure, EngineError, SpecError, Unavailable
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Process, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.description import ASLEEP, ON_DISK, RUNNING, EngineDescription, Wait
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import ABOVE_ONE, THREADS, Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.model.software import Software
from dbtoll.secretive import demand_none
from dbtoll.servers import server_process
from dbtoll.servers.ports import free_port
from dbtoll.servers.server_process import Server

USER = "mysql"
"""Of the image."""

ADMIN = "root"
DATABASE = "dbtoll"
CREATE_DEADLINE_S = 600.0
START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 600.0
"""A slow shutdown (after loading) writes every dirty page and purges all that was removed."""

LOAD_DEADLINE_S = 6 * 3600.0

PROFILES = ("default", "modern")

SESSIONS = 1100
"""That a server admits; the arm may need more."""

SAME_EVERYWHERE = {
    "character-set-server": "utf8mb4",
    "collation-server": "utf8mb4_bin",
    "default-time-zone": "+00:00",
    "max-connections": f"{SESSIONS}",
    "local-infile": "ON",
    "skip-log-bin": "",
    "skip-name-resolve": "",
    "performance-schema": "OFF",
    "innodb-stats-auto-recalc": "OFF",
    "innodb-buffer-pool-dump-at-shutdown": "OFF",
    "innodb-buffer-pool-load-at-startup": "OFF",
}
"""The distribution's own, but: byte order for texts, as PostgreSQL's arms have it; no statistics that change by themselves; no
second log beside InnoDB's."""

DURABILITY = {"device": "1", "os_cache": "2", "server_buffer": "0"}
"""innodb_flush_log_at_trx_commit (MariaDB documentation, InnoDB System Variables): at 2 a commit is written and flushed once a
second, at 0 it is written once a second."""

POOL_EXTENT_BYTES = 8 << 20
"""By which the buffer pool grows (innodb_buffer_pool_extent on 64 bit)."""

ISOLATION = {
    "read_committed": "READ COMMITTED",
    "repeatable_read": "REPEATABLE READ",
    "serializable": "SERIALIZABLE",
}

CLEAN_DEADLINE_S = 600.0

FLUSH_ALL = {
    "innodb_max_dirty_pages_pct_lwm": "0",
    "innodb_max_dirty_pages_pct": "0",
    "innodb_io_capacity_max": "100000",
    "innodb_io_capacity": "100000",
}
"""What makes the page cleaner write everything at once: pages in a second, and how many may stay dirty. Set in this order and
set back in the reverse one, as each of a pair is checked against the other."""


DIALECT = Dialect(
    "mariadb",
    types={
        " timestamp ": " datetime ",  # a timestamp would change with each update of its row
        " varchar)": " char)",  # what a cast to text is called
    },
    keys_before_rows=True,  # it stores a table by its primary key
    atomic_scripts=False,
    plain_bodies=True,
    quotient_places=6,  # two of the operand and four more (div_precision_increment)
    # InnoDB makes an index for a foreign key that has none.
    foreign_keys="""SELECT k.table_name, k.constraint_name, count(s.index_name) > 0
        FROM information_schema.table_constraints AS k LEFT JOIN information_schema.statistics AS s
        ON s.table_schema = k.table_schema AND s.table_name = k.table_name AND s.index_name = k.constraint_name
        WHERE k.constraint_schema = database() AND k.constraint_type = 'FOREIGN KEY'
        GROUP BY k.table_name, k.constraint_name""",
    drop_foreign_key="ALTER TABLE {table} DROP FOREIGN KEY {name}",
    drop_index="ALTER TABLE {table} DROP INDEX {name}",
)

SOFTWARE = Software(
    packages=("mariadb-server",),
    versions={"bookworm": "10.11", "trixie": "11.8"},
    after="""
set -e
# The data directory that the package makes; an arm brings its own.
rm -rf "$1/var/lib/mysql"
""",
)


WAITS: Mapping[str, Wait] = {
    "Commit": Wait.LOG_FILES,
    "Waiting for ": Wait.OTHER_LOCKS,
    "User lock": Wait.OTHER_LOCKS,
    "User sleep": Wait.OTHER,
    ON_DISK: Wait.DATA_FILES,
    ASLEEP: Wait.OTHER_LOCKS,
}
"""States of a thread. A commit writes the log or waits until another one has written it: it does not say which. Without its
performance schema, which costs throughput, it does not tell of reads, nor of locks of rows and pages. BIAS: who sleeps for no disk
while it works is taken to wait for a lock; it may wait for a page that another thread reads, or for room in the log."""

TOLD = tuple(name for name in WAITS if name not in (ON_DISK, ASLEEP))


class Engine(interface.Engine):
    """See interfaces.Engine."""

    name = "mariadb"
    also_called = ("mysql", "maria")
    description = EngineDescription(
        "MariaDB",
        location_settings={
            "port": "drawn for each start, so that no two arms on one network meet",
            "report_port": "the same, to a server that replicates",
            "innodb_log_group_home_dir": "a path, and an arm may have its log on another device",
            "socket": "a path; it says only where the driver finds the server",
        },
        auto_tuned_settings={
            "innodb_log_write_ahead_size": "MariaDB takes it from the physical block size of the device that holds its log"
        },
        waits=WAITS,
    )
    offers = frozenset({interface.SQL, interface.BULK_ROWS, interface.TRANSACTIONS})
    unsupported: ClassVar[Mapping[str, Mapping[str, str]]] = {THREADS: {ABOVE_ONE: "a query has one thread"}}
    sql = DIALECT
    software = SOFTWARE
    contract = interface.ContractStatements(
        lock_timeout="set innodb_lock_wait_timeout = 1",
        sleep="select sleep(1)",
        asleep="User sleep",
        scan=("handler_read_rnd_next",),
        scan_touches=(2001, 2001),
        settings={"performance-schema": "ON"},
    )
    loss_window_s = 1.0  # innodb_flush_log_at_timeout
    decided = frozenset({"innodb-flush-log-at-trx-commit", "transaction-isolation"})
    options: ClassVar[Mapping[str, Option]] = {
        "profile": Option("text", "default", "server settings to begin with", PROFILES),
        "settings_file": Option("path", "", "a my.cnf; wins over the profile"),
        "settings": Option("table", {}, "setting = value; wins over the file"),
        "listen": Option(
            "text", "unix", "where the server listens: its socket, or loopback TCP as well", ("unix", "tcp")
        ),
        "port": Option("integer", 0, "the TCP port; 0 takes any"),
    }

    buffer_setting = "innodb-buffer-pool-size"
    buffer_least_bytes = 8 << 20

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {name: options.get(name, option.default) for name, option in self.options.items()}
        self._profile: str = chosen["profile"]
        self._tcp: bool = chosen["listen"] == "tcp"
        self._port: int = chosen["port"]
        if not 0 <= self._port <= 65535:
            raise SpecError(f"engine mariadb: there is no port {self._port}", "choose 1 to 65535, or 0 for any")
        read = configuration.read(Path(chosen["settings_file"])) if chosen["settings_file"] else {}
        demand_none(chosen["settings"], "leave it out: no figure needs it")
        table = {configuration.canonical(name): _as_text(name, value) for name, value in chosen["settings"].items()}
        given = {**{name: setting.value for name, setting in read.items()}, **table}
        configuration.write(given)  # refuses here, with the spec at hand, what could not be written in the arm
        self._written_at = {name: setting.where for name, setting in read.items() if name not in table}
        self._given = {name: value for name, value in given.items() if not configuration.is_the_arms(name)}
        self.ignored_settings = {name: value for name, value in given.items() if configuration.is_the_arms(name)}

    # --- settings ---

    def settings(self, resources: Resources) -> dict[str, str]:
        """The file wins over the profile, the table over the file."""
        return {
            **SAME_EVERYWHERE,
            "max-connections": str(max(SESSIONS, resources.sessions)),
            **_address_space(resources),
            **_profile(self._profile, resources),
            **_buffer_pool(resources),
            **self._given,
        }

    def has_buffer_setting(self) -> bool:
        """See interfaces.BufferedEngine."""
        return self.buffer_setting in self._given

    def load_settings(self, resources: Resources) -> dict[str, str]:
        """Durable only when it is whole; a slow shutdown leaves nothing to purge or merge to the arms."""
        memory_mib = resources.memory_bytes >> 20
        return {
            **SAME_EVERYWHERE,
            **_address_space(resources),
            "innodb-buffer-pool-size": f"{memory_mib // 2}M",
            "innodb-log-file-size": "512M",
            "innodb-flush-log-at-trx-commit": "0",
            "innodb-doublewrite": "OFF",
            "innodb-fast-shutdown": "0",
        }

    # --- a data directory ---

    def key(self, machine: Machine) -> str:
        """The full version line."""
        try:
            return machine.run(["mariadbd", "--version"]).output.decode().strip()
        except AgentFailure as error:
            if error.code != "not_found":
                raise
            raise Unavailable(
                f"{machine.name}: its image has no MariaDB server", "use another image, or the system image"
            ) from error

    def create(self, machine: Machine, data: str) -> None:
        """An empty data directory; its administrator enters by the socket without a password."""
        server_process.own_directory(machine, data, USER)
        argv = ["mariadb-install-db", "--no-defaults", f"--user={USER}", f"--datadir={data}", "--skip-test-db"]
        machine.run([*argv, "--auth-root-authentication-method=normal"], timeout_s=CREATE_DEADLINE_S)

    def move_log(self, machine: Machine, place: ServerPlace) -> None:
        """InnoDB's redo log. See interfaces.LogEngine."""
        assert place.log is not None
        server_process.own_directory(machine, place.log, USER)
        script = 'cp --archive --sparse=never -- "$1"/ib_logfile* "$2" && rm -- "$1"/ib_logfile*'
        machine.run(["sh", "-c", script, "sh", place.data, place.log], timeout_s=CREATE_DEADLINE_S)

    # --- a server ---

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        """Its socket only its own user and root can reach; over TCP it asks for a generated password."""
        data, run, network = place.data, place.run, place.network
        socket = f"{run}/socket"
        hosts = dict.fromkeys([*([server_process.LOOPBACK] if self._tcp else []), *([network] if network else [])])
        port = self._port or (free_port(machine) if hosts else 0)
        where = {"datadir": data, "socket": socket, "pid-file": f"{run}/pid", "tmpdir": "/tmp"}
        where |= {"innodb-log-group-home-dir": place.log} if place.log else {}
        where |= {"bind-address": ",".join(hosts), "port": str(port)} if hosts else {"skip-networking": ""}
        server_process.own_directory(machine, run, USER)
        machine.put(f"{run}/my.cnf", configuration.write({**settings, **where}), mode=0o600, user=USER)
        process = machine.spawn(
            ["mariadbd", f"--defaults-file={run}/my.cnf"],
            user=USER,
            cwd=str(PurePosixPath(data)),
            stop_signal=signal.SIGTERM,
            stop_grace_ms=round(STOP_DEADLINE_S * 1000),
        )
        local = Address(wire="mysql", user=ADMIN, database="mysql", unix=socket)
        try:
            self._wait_until_ready(machine, local, process)
            server_process.ask(machine, local, f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            inside = replace(local, database=DATABASE)
            if not hosts:
                return Server(inside, process.pid, process)
            password = secrets.token_urlsafe(24)
            server_process.ask(machine, local, f"CREATE OR REPLACE USER dbtoll@'%' IDENTIFIED BY '{password}'")
            server_process.ask(machine, local, "GRANT ALL ON *.* TO dbtoll@'%'")
        except BaseException:
            if process.running():
                process.signal(signal.SIGKILL)
                process.wait(STOP_DEADLINE_S)
            raise
        reached = Address("mysql", "dbtoll", DATABASE, tcp=(server_process.LOOPBACK, port), password=password)
        outside = replace(reached, tcp=(network, port)) if network else None
        return Server(reached if self._tcp else inside, process.pid, process, outside)

    def stop(self, machine: Machine, server: AnyServer) -> None:
        """Returns when it has ended with 0: then its last checkpoint is written."""
        assert isinstance(server, Server)
        server_process.end(machine, server, "MariaDB", signal.SIGTERM, STOP_DEADLINE_S)

    def _wait_until_ready(self, machine: Machine, address: Address, process: Process) -> None:
        def not_ready() -> None:
            server_process.ask(machine, address, "SELECT 1")

        def origins(said: str) -> str:
            names = dict.fromkeys(map(configuration.canonical, re.findall(r"[\w-]+", said)))
            return "".join(f"; {name} is set at {self._written_at[name]}" for name in names if name in self._written_at)

        server_process.wait_until_ready(machine, "MariaDB", process, START_DEADLINE_S, not_ready, origins)

    # --- inside a server ---

    def finish_load(self, session: Session) -> None:
        """Statistics, and a table for `commit`."""
        tables = session.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{DATABASE}' AND table_type = 'BASE TABLE'"
        )
        for (table,) in tables:
            session.query(f"ANALYZE TABLE `{table}`", timeout_s=LOAD_DEADLINE_S)
        session.query("CREATE TABLE IF NOT EXISTS mysql.dbtoll (commits bigint NOT NULL) ENGINE = InnoDB")
        session.query("INSERT INTO mysql.dbtoll SELECT 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM mysql.dbtoll)")

    def settle(self, session: Session) -> None:
        """Every dirty page is written, which is what a checkpoint is here."""
        (kept,) = session.query(f"SELECT {', '.join(f'@@{name}' for name in FLUSH_ALL)}")
        for name, value in FLUSH_ALL.items():
            session.query(f"SET GLOBAL {name} = {value}")
        deadline = time.monotonic() + CLEAN_DEADLINE_S
        try:
            while _status(session, "Innodb_buffer_pool_pages_dirty") > 0:
                if time.monotonic() > deadline:
                    raise EngineError("MariaDB has not written its dirty pages in time", "look at the disk's load")
                time.sleep(server_process.POLL_S)
        finally:
            for name, before in reversed(list(zip(FLUSH_ALL, kept, strict=True))):
                session.query(f"SET GLOBAL {name} = {before}")

    def create_database(self, session: Session, name: str) -> None:
        """See interfaces.DatabasesEngine."""
        session.query(f"CREATE DATABASE IF NOT EXISTS {name}")

    def rewriting(self, session: Session) -> list[str]:
        """OPTIMIZE TABLE, by which InnoDB makes it and its indexes anew (interfaces.RewritingEngine)."""
        tables = session.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = database() ORDER BY table_name"
        )
        return [f"OPTIMIZE TABLE `{table}`" for (table,) in tables]

    def commit(self, session: Session) -> None:
        """One row that is counted up (interfaces.CommittingEngine)."""
        session.query("UPDATE mysql.dbtoll SET commits = commits + 1")

    def background_work(self, session: Session) -> Json:
        """Since the server was started. Keys end in ``_count`` or ``_pages``."""
        return {
            "pages_flushed_pages": _status(session, "Innodb_buffer_pool_pages_flushed"),
            "temporary_tables_count": _status(session, "Created_tmp_disk_tables"),
        }

    # --- interfaces.StatisticsEngine ---

    def query_statistics(self, session: Session, statement: Statement) -> Json:
        """Pages and rows by how they were found. BIAS: InnoDB keeps its part for all sessions together."""
        before = _counts(session, "SESSION")
        session.query(statement.text)
        after = _counts(session, "SESSION")
        return {name: after[name] - before[name] for name in before}

    def server_statistics(self, session: Session) -> Json:
        """``waits`` by event with their time, where the server was started with performance_schema = ON."""
        waits = session.query(
            "SELECT event_name, count_star, round(sum_timer_wait / 1000)"
            " FROM performance_schema.events_waits_summary_global_by_event_name WHERE count_star > 0"
        )  # in picoseconds
        return {
            **_counts(session, "GLOBAL"),
            "waits": {str(name): {"count": int(count or 0), "elapsed_ns": int(ns or 0)} for name, count, ns in waits},
        }

    def wait_events(self, session: Session) -> dict[int, str]:
        """States of its threads that are waits (documentation, "General Thread States"); of most it says what they do."""
        rows = session.query(
            "SELECT tid, state FROM information_schema.processlist"
            " WHERE command IN ('Query', 'Execute') AND id <> connection_id()"
        )
        return {int(tid or 0): state if state and state.startswith(TOLD) else RUNNING for tid, state in rows}

    def serving(self, session: Session) -> list[int]:
        """A thread of the server for each; none where they share a pool of threads."""
        if session.query("SELECT @@thread_handling") != [["one-thread-per-connection"]]:
            return []
        others = "command <> 'Daemon' AND id <> connection_id()"
        return [
            int(row[0] or 0) for row in session.query(f"SELECT tid FROM information_schema.processlist WHERE {others}")
        ]

    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """The rows of EXPLAIN without numbers of rows; a text that has no plan has the fingerprint ``none``."""
        try:
            rows = session.query(f"EXPLAIN {statement.text}")
        except EngineError:
            return "none", "this statement has no plan"
        # id, select_type, table, type, possible_keys, key, key_len, ref, rows, Extra
        plan = "\n".join(" ".join(value or "-" for value in [*row[:8], *row[9:]]) for row in rows)
        return hashlib.sha256(plan.encode()).hexdigest()[:16], plan

    def facts(self, session: Session) -> Json:
        """Version, and every setting that differs from its built-in default."""
        settings = session.query(
            "SELECT variable_name, global_value FROM information_schema.system_variables"
            " WHERE global_value IS NOT NULL AND NOT global_value <=> default_value"
            " AND variable_name NOT IN ('PID_FILE', 'SERVER_UID', 'TIMESTAMP', 'SERVER_ID', 'HOSTNAME')"
            # where it listens is among the facts of the paths to it
            " AND variable_name NOT IN ('PORT', 'REPORT_PORT', 'BIND_ADDRESS')"
            " AND variable_name NOT LIKE '%LOG%FILE'"
            " ORDER BY variable_name"
        )
        ((version,),) = session.query("SELECT version()")
        return {"version": version, "settings": {str(name).lower(): value for name, value in settings}}

    def peer(self, session: Session) -> str | None:
        """See interfaces.ListeningEngine."""
        ((user,),) = session.query("SELECT USER()")
        host = (user or "").rpartition("@")[2]
        return None if host == "localhost" else host  # a socket's; numbers are not resolved

    # --- interfaces.DurabilityEngine ---

    def session(self, isolation: str, *, multi_statement: bool) -> list[str]:
        """Without autocommit a transaction of several statements begins by itself, as drivers have it."""
        statements = [f"SET SESSION TRANSACTION ISOLATION LEVEL {ISOLATION[isolation]}"]
        return [*statements, *(["SET autocommit = 0"] if multi_statement else [])]

    def isolation(self, session: Session) -> str:
        """See interfaces.DurabilityEngine."""
        return str(session.query("SELECT @@SESSION.tx_isolation")[0][0]).replace("-", "_").lower()

    def make_durable(self, session: Session, durability: str) -> None:
        """See interfaces.DurabilityEngine."""
        session.query(f"SET GLOBAL innodb_flush_log_at_trx_commit = {DURABILITY[durability]}")
        ((now,),) = session.query("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
        if now != DURABILITY[durability]:
            raise EngineError(f"innodb_flush_log_at_trx_commit is {now}, not {DURABILITY[durability]}", "")

    def disconnect_others(self, session: Session) -> None:
        """See interfaces.DurabilityEngine."""
        rows = session.query(
            "SELECT id FROM information_schema.processlist WHERE user <> 'system user' AND id <> connection_id()"
        )
        for (number,) in rows:
            with suppress(EngineError):  # it has just gone
                session.query(f"KILL CONNECTION {number}")


def _profile(name: str, resources: Resources) -> dict[str, str]:
    """``default``: the server's own. ``modern``: what its documentation advises for a server of this size."""
    memory_mib = resources.memory_bytes >> 20
    if name == "modern":
        return {
            "innodb-buffer-pool-size": f"{memory_mib * 6 // 10}M",
            "innodb-log-file-size": f"{max(128, memory_mib // 4)}M",
        }
    return {}


def _buffer_pool(resources: Resources) -> dict[str, str]:
    """Of the size that was asked for, in whole MiB, by which it is made."""
    if resources.buffer_pool_bytes is None:
        return {}
    return {"innodb-buffer-pool-size": f"{resources.buffer_pool_bytes >> 20}M"}


def _address_space(resources: Resources) -> dict[str, str]:
    """How far the buffer pool could grow. By default newer servers (seen: 10.11.19) reserve addresses for 8 TiB, which a guest of
    User Mode Linux does not have; older ones know no such setting (``loose``)."""
    return {
        "loose-innodb-buffer-pool-size-max": f"{-(-resources.memory_bytes // POOL_EXTENT_BYTES) * POOL_EXTENT_BYTES}"
    }


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    text = str(value)
    if not isinstance(value, str | int | float) or "\n" in text:
        raise SpecError(f"engine mariadb: the setting {name} is neither text nor number", f"write: {name} = 'value'")
    return text or configuration.EMPTY


ACCOUNTED = (
    "Handler_commit", "Handler_delete", "Handler_read_first", "Handler_read_key", "Handler_read_next", "Handler_read_rnd",
    "Handler_read_rnd_next", "Handler_update", "Handler_write", "Innodb_buffer_pool_read_requests",
    "Innodb_buffer_pool_reads", "Innodb_buffer_pool_write_requests", "Innodb_data_fsyncs", "Innodb_data_reads",
    "Innodb_data_writes", "Innodb_deadlocks", "Innodb_log_writes", "Innodb_os_log_written", "Innodb_row_lock_time",
    "Innodb_row_lock_waits", "Created_tmp_disk_tables", "Created_tmp_tables",
)  # fmt: skip
"""Status variables that only rise; a version that lacks one does not tell of it. Innodb_row_lock_time is in ms."""


def _counts(session: Session, scope: str) -> dict[str, int]:
    names = ", ".join(f"'{name}'" for name in ACCOUNTED)
    rows = session.query(f"SHOW {scope} STATUS WHERE variable_name IN ({names})")
    return {str(name).lower(): int(value or 0) for name, value in rows}


def _status(session: Session, name: str) -> int:
    ((_, value),) = session.query(f"SHOW GLOBAL STATUS LIKE '{name}'")
    return int(value or 0)
