"""PostgreSQL 13 to 18, from the system image.

What is not data lies in the server's own directory (`ServerPlace.run`; mode 0700, its own user's): the socket,
postgresql.conf, pg_hba.conf. So a data directory is the same bytes in every arm, and nobody else on the machine can
reach the server.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from dbtoll.engines.postgres import configuration
from dbtoll.errors import AgentFailure, EngineError, SpecError, Unavailable
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Process, Session
from dbtoll.interfaces.machine import Server as AnyServer
from dbtoll.model.description import RUNNING, EngineDescription, Wait
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.model.software import Software
from dbtoll.secretive import demand_none
from dbtoll.servers import server_process
from dbtoll.servers.parallel_engine import said_twice
from dbtoll.servers.ports import free_port

USER = "postgres"
"""Of the image, and of the database. The server refuses to run as root."""

DATABASE = "postgres"

PORT = 5432
"""Only part of the socket's name, unless the server listens on TCP."""

CREATE_DEADLINE_S = 300.0
"""initdb takes 1 s here and was seen to take 18 s in an emulated guest."""

START_DEADLINE_S = 120.0
"""Seen: 0.1 s here, 3 s in an emulated guest."""

STOP_DEADLINE_S = 300.0
"""A fast shutdown writes every dirty buffer."""

LOAD_DEADLINE_S = 6 * 3600.0
"""Vacuum and checkpoint of data that have just been loaded read and write all of them."""

_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}

PAGES = {
    "Shared Hit Blocks": "hit_pages",
    "Shared Read Blocks": "read_pages",
    "Shared Dirtied Blocks": "dirtied_pages",
    "Shared Written Blocks": "written_pages",
    "Temp Read Blocks": "temporary_read_pages",
    "Temp Written Blocks": "temporary_written_pages",
}
"""What EXPLAIN calls them, and this program: of 8 KiB each."""

WAITS: Mapping[str, Wait] = {
    "IO: ": Wait.DATA_FILES,
    "IO: WAL": Wait.LOG_FILES,
    "IO: Wal": Wait.LOG_FILES,
    "LWLock: ": Wait.OTHER_LOCKS,
    "LWLock: WALInsert": Wait.LOG_INSERT_LOCK,
    "LWLock: WALWrite": Wait.LOG_WRITE_LOCK,
    "Lock: ": Wait.OTHER_LOCKS,
    "BufferPin: ": Wait.OTHER_LOCKS,
    "Client: ": Wait.CLIENT,
}
"""Wait events by type and name, as versions 13 to 18 have them (manual, "Wait Events"). ``WALSync`` is ``WalSync`` from 17 on; the
locks have kept their names."""

DURABILITY: Mapping[str, Mapping[str, str]] = {
    "device": {},
    "os_cache": {"fsync": "off"},
    "server_buffer": {"synchronous_commit": "off"},
}
"""Where an acknowledged commit is -> settings that differ from a commit that is on the device."""


@dataclass(slots=True)
class Server(server_process.Server):
    """``data``: its data directory, on its machine."""

    data: str = ""


DIALECT = Dialect(
    "postgres",
    foreign_keys="SELECT conrelid::regclass, conname, 0 FROM pg_constraint"
    " WHERE contype = 'f' AND conparentid = 0 AND connamespace = current_schema()::regnamespace",
)

SOFTWARE = Software(
    packages=("postgresql",),
    versions={"bookworm": "15", "trixie": "17"},
    before="""
set -e
mkdir -p "$1/etc/postgresql-common"
echo 'create_main_cluster = false' > "$1/etc/postgresql-common/createcluster.conf"
""",
)

LOG_DIRECTORY = "pg_wal"
"""In a data directory."""

_PATH = "a path, and made for each start"


class Engine(interface.Engine):
    """See interfaces.Engine."""

    name = "postgres"
    also_called = ("postgresql", "pg", "pgsql", "psql")
    description = EngineDescription(
        "PostgreSQL",
        location_settings={
            "port": "drawn for each start, so that no two arms on one network meet",
            "data_directory": "a path, and an arm may have its data elsewhere",
            **dict.fromkeys(("config_file", "hba_file", "ident_file", "external_pid_file"), _PATH),
            "unix_socket_directories": "a path; it says only where the driver finds the server",
        },
        waits=WAITS,
    )
    offers = frozenset({interface.SQL, interface.BULK_ROWS, interface.TRANSACTIONS})
    sql = DIALECT
    software = SOFTWARE
    contract = interface.ContractStatements(
        lock_timeout="set lock_timeout = '1s'",
        sleep="select pg_sleep(1)",
        asleep="Timeout: PgSleep",
        scan=("hit_pages", "read_pages"),
        scan_touches=(51, 1000),
    )
    loss_window_s = 0.6  # three times wal_writer_delay (manual, section 30.4)
    buffer_setting = "shared_buffers"
    buffer_least_bytes = 1 << 20  # the server takes 128 KiB, and runs out of unpinned pages with several sessions
    thread_settings = ("max_parallel_workers_per_gather", "max_parallel_workers", "max_worker_processes")
    following_settings = ()
    decided = frozenset({"fsync", "synchronous_commit", "default_transaction_isolation"})
    options: ClassVar[Mapping[str, Option]] = {
        "profile": Option("text", "default", "server settings to begin with", configuration.PROFILES),
        "settings_file": Option("path", "", "a postgresql.conf; wins over the profile"),
        "settings": Option("table", {}, "setting = value; wins over the file"),
        "background": Option(
            "text",
            "off",
            "autovacuum and timed checkpoints: off, as arms sleep, or as the settings say",
            ("off", "as set"),
        ),
        "listen": Option(
            "text", "unix", "where the server listens: its socket, or loopback TCP as well", ("unix", "tcp")
        ),
        "port": Option("integer", 0, "the TCP port; 0 takes any"),
        "bin": Option("text", "", "directory of the programs in the image; empty finds the newest"),
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {name: options.get(name, option.default) for name, option in self.options.items()}
        self._profile: str = chosen["profile"]
        self._as_set: bool = chosen["background"] == "as set"
        self._tcp: bool = chosen["listen"] == "tcp"
        self._port: int = chosen["port"]
        self._bin: str = chosen["bin"]
        if not 0 <= self._port <= 65535:
            raise SpecError(f"engine postgres: there is no port {self._port}", "choose 1 to 65535, or 0 for any")
        read = configuration.read(Path(chosen["settings_file"])) if chosen["settings_file"] else {}
        given = {name: setting.value for name, setting in read.items()}
        self._written_at = {name: setting.where for name, setting in read.items()}
        demand_none(chosen["settings"], "write it into a file, and name that: settings_file = FILE")
        for name, value in chosen["settings"].items():
            given[configuration.canonical(name)] = _as_text(name, value)
            self._written_at.pop(configuration.canonical(name), None)
        configuration.write(given)  # refuses here, with the spec at hand, what could not be written in the arm
        self._given, self.ignored_settings = configuration.ignored_settings(given, asleep=not self._as_set)

    # --- settings ---

    def settings(self, resources: Resources) -> dict[str, str]:
        """See ``configuration.profile``; the file wins over the profile, the table over the file."""
        settings = {
            **configuration.SAME_EVERYWHERE,
            "max_connections": str(resources.sessions),
            **configuration.profile(self._profile, resources),
            **configuration.buffer_pool(resources),
            **self._given,
        }
        return settings if self._as_set else {**settings, **configuration.WHILE_ASLEEP}

    def has_buffer_setting(self) -> bool:
        """See interfaces.BufferedEngine."""
        return self.buffer_setting in self._given

    def load_settings(self, resources: Resources) -> dict[str, str]:
        """See ``configuration.loading``."""
        return configuration.loading(resources)

    def settings_of_threads(self, threads: int) -> dict[str, str]:
        """The leader and as many workers as are left, in all of a plan's gatherings together. See interfaces.ThreadedEngine."""
        if taken := [name for name in self.thread_settings if name in self._given]:
            raise SpecError(*said_twice(self.name, f"setting {taken[0]}"))
        workers = threads - 1
        return dict(zip(self.thread_settings, map(str, (workers, workers, max(8, workers))), strict=True))

    def threads_asked_for(self) -> tuple[str, int] | None:
        """The leader, and the workers of one gathering: the other two settings are of the whole server, and only bound it. See
        interfaces.ThreadedEngine."""
        per_query = self.thread_settings[0]
        given = [self._given[name] for name in self.thread_settings if name in self._given]
        if per_query not in self._given or not all(text.isdecimal() for text in given):
            return None
        return f"setting {per_query}", 1 + min(map(int, given))

    def threads(self, session: Session) -> int:
        """See interfaces.ThreadedEngine."""
        return 1 + min(_integers(session, f"SHOW {name}")[0] for name in self.thread_settings)

    # --- a data directory ---

    def key(self, machine: Machine) -> str:
        """The full version line of its build: minor versions share the page format, not the planner and its samples."""
        program = self._program(machine, "postgres")
        with _there(machine, program):
            return machine.run([program, "--version"]).output.decode().strip()

    def create(self, machine: Machine, data: str) -> None:
        """An empty cluster: UTF-8, byte order, one superuser."""
        server_process.own_directory(machine, data, USER)
        # Locale C: byte order, the same in every C library, and what the answers of other engines are compared by.
        # --no-sync: whoever keeps the directory syncs it once it is whole. Checksums: as the distribution has them.
        argv = [self._program(machine, "initdb"), "-D", data, "--username", USER, "--encoding", "UTF8", "--locale", "C"]
        argv += ["--auth-local", "trust", "--auth-host", "scram-sha-256", "--no-sync"]
        try:
            machine.run(argv, user=USER, env=_ENVIRONMENT, timeout_s=CREATE_DEADLINE_S)
        except AgentFailure as error:
            if error.code == "not_found":
                raise Unavailable(f"{machine.name}: {error.message}", f"use an image with the user {USER}") from error
            raise

    def move_log(self, machine: Machine, place: ServerPlace) -> None:
        """A link leads there, as `initdb --waldir` makes one. See interfaces.LogEngine."""
        assert place.log is not None
        inside = f"{place.data}/{LOG_DIRECTORY}"
        server_process.own_directory(machine, place.log, USER)
        machine.run(["cp", "--archive", "--sparse=never", "--", f"{inside}/.", place.log], timeout_s=CREATE_DEADLINE_S)
        machine.remove(inside, recursive=True)
        machine.run(["ln", "-s", "--", place.log, inside])

    # --- a server ---

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        """Its socket only its own user and root can reach (``trust`` there); over TCP it asks for a generated
        password."""
        data, run, network = place.data, place.run, place.network
        hosts = dict.fromkeys([*([server_process.LOOPBACK] if self._tcp else []), *([network] if network else [])])
        port = self._port or (free_port(machine) if hosts else PORT)
        where = {
            "unix_socket_directories": run,
            "listen_addresses": ",".join(hosts),
            "port": str(port),
            "hba_file": f"{run}/pg_hba.conf",
            "ssl": "off",
            "password_encryption": "scram-sha-256",
            "logging_collector": "off",
            "log_destination": "stderr",
            # A run folder keeps the log; what a user's statements hold is none of it (manual, §20.8).
            "log_min_error_statement": "panic",
        }
        server_process.own_directory(machine, run, USER)
        machine.put(f"{run}/postgresql.conf", configuration.write({**settings, **where}), mode=0o600, user=USER)
        machine.put(
            f"{run}/pg_hba.conf",
            b"local all all trust\nhost all all %s scram-sha-256\n" % (b"all" if network else b"127.0.0.1/32"),
            mode=0o600,
            user=USER,
        )
        process = machine.spawn(
            [self._program(machine, "postgres"), "-D", data, "-c", f"config_file={run}/postgresql.conf"],
            user=USER,
            env=_ENVIRONMENT,
            cwd=data,
            stop_signal=signal.SIGINT,  # fast shutdown
            stop_grace_ms=round(STOP_DEADLINE_S * 1000),
        )
        local = Address(wire="postgres", user=USER, database=DATABASE, unix=f"{run}/.s.PGSQL.{port}")
        try:
            self._wait_until_ready(machine, local, process)
            if not hosts:
                return Server(local, process.pid, process, data=data)
            password = secrets.token_urlsafe(24)
            server_process.ask(machine, local, f"ALTER ROLE {USER} PASSWORD '{password}'")
        except BaseException:
            if process.running():
                process.signal(signal.SIGQUIT)  # immediate shutdown: the postmaster takes its children along
                process.wait(STOP_DEADLINE_S)
            raise
        reached = Address(
            wire="postgres", user=USER, database=DATABASE, tcp=(server_process.LOOPBACK, port), password=password
        )
        outside = replace(reached, tcp=(network, port)) if network else None
        return Server(reached if self._tcp else local, process.pid, process, outside, data)

    def stop(self, machine: Machine, server: AnyServer) -> None:
        """Fast shutdown. A postmaster ends with 0 only after its last child has ended and its last checkpoint is
        written (postmaster.c: PM_WAIT_DEAD_END, PM_NO_CHILDREN), and then pg_control says so; both are asked for.
        """
        assert isinstance(server, Server)
        server_process.end(machine, server, "PostgreSQL", signal.SIGINT, STOP_DEADLINE_S)
        control = machine.run(
            [self._program(machine, "pg_controldata"), "-D", server.data], user=USER, env=_ENVIRONMENT
        ).output.decode()
        state = re.search(r"^Database cluster state:\s*(.*)$", control, re.MULTILINE)
        if state is None or state[1] != "shut down":
            found = state[1] if state else "unknown"
            raise EngineError(f"{machine.name}: PostgreSQL ended, but its data directory is {found!r}, not 'shut down'")

    def _wait_until_ready(self, machine: Machine, address: Address, process: Process) -> None:
        def not_ready() -> str | None:
            ((pid,),) = server_process.ask(
                machine, address, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)"
            )
            return None if pid == str(process.pid) else "another server has its socket"

        def origins(said: str) -> str:
            named = [name for name in dict.fromkeys(re.findall(r"[\w.]+", said)) if name in self._written_at]
            return "".join(f"; {name} is set at {self._written_at[name]}" for name in named)

        server_process.wait_until_ready(machine, "PostgreSQL", process, START_DEADLINE_S, not_ready, origins)

    def _program(self, machine: Machine, program: str) -> str:
        if not self._bin:
            with _there(machine, "find"):
                found = machine.run(
                    ["find", "/usr", "/opt", "-maxdepth", "5", "-path", "*/bin/postgres"], check=False
                ).output.decode().split()  # fmt: skip
            if not found:
                raise Unavailable(
                    f"{machine.name}: its image has no PostgreSQL server",
                    "use another image, or set the engine's option bin",
                )
            newest = max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path)])
            self._bin = newest.rpartition("/")[0]
        return f"{self._bin}/{program}"

    # --- inside a server ---

    def finish_load(self, session: Session) -> None:
        """Statistics, frozen rows, a checkpoint."""
        # ANALYZE samples rows at random and its generator cannot be seeded; done once here and never again
        # (autovacuum is off), its statistics, and so the plans, are the same in every copy of this data directory.
        session.query("VACUUM (FREEZE, ANALYZE)", timeout_s=LOAD_DEADLINE_S)
        session.query("CHECKPOINT", timeout_s=LOAD_DEADLINE_S)

    def settle(self, session: Session) -> None:
        """A checkpoint."""
        session.query("CHECKPOINT")

    def create_database(self, session: Session, name: str) -> None:
        """See interfaces.DatabasesEngine."""
        if not session.query(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            session.query(f"CREATE DATABASE {name}")

    def create_schema(self, session: Session, name: str) -> None:
        """See interfaces.SchemasEngine."""
        session.query(f"CREATE SCHEMA IF NOT EXISTS {name}")

    def rewriting(self, session: Session) -> list[str]:
        """VACUUM FULL, with all that it can do (interfaces.RewritingEngine)."""
        tables = session.query(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
        )
        return [f"VACUUM (FULL, FREEZE, ANALYZE) {table}" for (table,) in tables]

    def commit(self, session: Session) -> None:
        """A message of its own in the write-ahead log and nothing else (interfaces.CommittingEngine)."""
        session.query("SELECT pg_logical_emit_message(true, 'dbtoll', 'commit')")

    def peer(self, session: Session) -> str | None:
        """See interfaces.ListeningEngine."""
        ((address,),) = session.query("SELECT host(inet_client_addr())")
        return address

    def session(self, isolation: str, *, multi_statement: bool) -> list[str]:
        """See interfaces.DurabilityEngine; every transaction of several statements begins with BEGIN."""
        level = isolation.replace("_", " ")
        return [f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}"]

    def isolation(self, session: Session) -> str:
        """See interfaces.DurabilityEngine."""
        return str(session.query("SHOW default_transaction_isolation")[0][0]).replace(" ", "_")

    def make_durable(self, session: Session, durability: str) -> None:
        """See interfaces.DurabilityEngine. Without synchronous_commit the log writer follows up to three times wal_writer_delay
        later; without fsync it is written but not flushed (manual §30.4 and §20.5)."""
        wanted = {"fsync": "on", "synchronous_commit": "on", **DURABILITY[durability]}
        for name, value in wanted.items():
            session.query(f"ALTER SYSTEM SET {name} = {value}")
        session.query("SELECT pg_reload_conf()")
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            found = {name: session.query(f"SHOW {name}")[0][0] for name in wanted}
            if found == wanted:
                return
            if time.monotonic() > deadline:
                raise EngineError(f"PostgreSQL has {found} and not {wanted}", "look at its log")
            time.sleep(server_process.POLL_S)

    def disconnect_others(self, session: Session) -> None:
        """See interfaces.DurabilityEngine."""
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        session.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")

    def background_work(self, session: Session) -> Json:
        """Since the data directory was made. Keys end in ``_count``, ``_bytes`` or ``_buffers``."""
        checkpoints = (
            "SELECT num_timed, num_requested, buffers_written FROM pg_stat_checkpointer"
            if _version(session) >= 170000
            else "SELECT checkpoints_timed, checkpoints_req, buffers_checkpoint FROM pg_stat_bgwriter"
        )
        timed, requested, buffers = _integers(session, checkpoints)
        vacuums, autovacuums, analyzes, autoanalyzes = _integers(
            session,
            "SELECT coalesce(sum(vacuum_count), 0), coalesce(sum(autovacuum_count), 0),"
            " coalesce(sum(analyze_count), 0), coalesce(sum(autoanalyze_count), 0) FROM pg_stat_all_tables",
        )
        files, temporary_bytes = _integers(
            session, "SELECT temp_files, temp_bytes FROM pg_stat_database WHERE datname = current_database()"
        )
        return {
            "checkpoints_timed_count": timed,
            "checkpoints_requested_count": requested,
            "checkpoint_buffers": buffers,
            "vacuums_count": vacuums,
            "autovacuums_count": autovacuums,
            "analyzes_count": analyzes,
            "autoanalyzes_count": autoanalyzes,
            "temporary_files_count": files,
            "temporary_bytes": temporary_bytes,
        }

    # --- interfaces.StatisticsEngine ---

    def query_statistics(self, session: Session, statement: Statement) -> Json:
        """Pages by where they were found, with those of planning (manual, EXPLAIN: BUFFERS)."""
        if not _has_plan(statement.text):
            raise Unavailable("EXPLAIN tells of single statements that have a plan")
        rows = session.query(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF, FORMAT JSON) {statement.text}")
        (told,) = json.loads("\n".join(row[0] or "" for row in rows))
        parts = (told["Plan"], told.get("Planning", {}))
        return {column: sum(part.get(name, 0) for part in parts) for name, column in PAGES.items()}

    def server_statistics(self, session: Session) -> Json:
        """Of all its databases. BIAS: a session that works adds its own about once a second (PGSTAT_MIN_INTERVAL)."""
        names = ("blks_hit", "blks_read", "temp_files", "temp_bytes", "xact_commit", "xact_rollback", "deadlocks")
        sums = ", ".join(f"sum({name})" for name in names)
        found = _integers(session, f"SELECT {sums} FROM pg_stat_database WHERE datname IS NOT NULL")
        return dict(zip(names, found, strict=True))

    def wait_events(self, session: Session) -> dict[int, str]:
        """Wait events (manual, 28.2.3), with their type."""
        rows = session.query(
            "SELECT pid, wait_event_type || ': ' || wait_event FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()"
        )
        return {int(pid or 0): event or RUNNING for pid, event in rows}

    def serving(self, session: Session) -> list[int]:
        """Its backends."""
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return [int(row[0] or 0) for row in session.query(f"SELECT pid FROM pg_stat_activity WHERE {others}")]

    def fingerprint(self, session: Session, statement: Statement) -> tuple[str, str]:
        """Two plans of one shape have one fingerprint, whatever the parameters: literals do not count, nor do costs.

        A text of several statements, or one that has no plan, has the fingerprint ``none``.
        """
        if not _has_plan(statement.text):
            return "none", "several statements have no single plan, and some have none"
        plan = "\n".join(row[0] or "" for row in session.query(f"EXPLAIN (COSTS OFF) {statement.text}"))
        told = shape(plan)
        return hashlib.sha256(told.encode()).hexdigest()[:16], told

    def facts(self, session: Session) -> Json:
        """``settings``: all that differ from the built-in defaults; ``ignored_settings``: of the user's, those that
        are the arm's to say, or work in the background."""
        settings = session.query(
            "SELECT name, current_setting(name) FROM pg_settings WHERE setting IS DISTINCT FROM boot_val"
            # Where it listens is the machine's, and among the facts of the paths to it.
            " AND source NOT IN ('client', 'session') AND name <> 'listen_addresses' ORDER BY name"
        )
        ((version, encoding, collation, size),) = session.query(
            "SELECT version(), pg_encoding_to_char(encoding), datcollate, pg_database_size(oid)"
            " FROM pg_database WHERE datname = current_database()"
        )
        return {
            "version": version,
            "encoding": encoding,
            "collation": collation,
            "database_bytes": int(size or 0),
            "settings": {name: value for name, value in settings if name is not None},
            "ignored_settings": sorted(self.ignored_settings),
        }


@contextmanager
def _there(machine: Machine, program: str) -> Iterator[None]:
    """Unavailable if the program that is run is not in the image."""
    try:
        yield
    except AgentFailure as error:
        if error.code != "not_found":
            raise
        raise Unavailable(
            f"{machine.name}: there is no {program} in its image",
            "set the engine's option bin to the directory of its PostgreSQL programs",
        ) from error


def shape(plan: str) -> str:
    """A plan's text (EXPLAIN without costs) without its literals. Counts of planned workers are part of the plan and
    stay."""
    return "\n".join(
        line if line.lstrip().startswith("Workers") else _LITERAL.sub("?", line) for line in plan.splitlines()
    )


_LITERAL = re.compile(r"'(?:[^']|'')*'|(?<![\w.$\"])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.\"])")
_QUOTED = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|/\*.*?\*/""", re.DOTALL | re.ASCII
)
_PLANNED = re.compile(r"[\s(]*(?:select|with|values|table|insert|update|delete|merge)\b", re.IGNORECASE)


def _has_plan(sql: str) -> bool:
    """One statement alone: of several, EXPLAIN would explain the first and execute the others."""
    return len(_statements(sql)) == 1 and _PLANNED.match(_uncommented(sql)) is not None


def _uncommented(sql: str) -> str:
    return re.sub(r"--[^\n]*|/\*.*?\*/", " ", sql, flags=re.DOTALL)


def _statements(sql: str) -> list[str]:
    return [
        part for part in _QUOTED.sub(lambda match: "" if match[0][:1] in "-/" else "q", sql).split(";") if part.strip()
    ]


def _version(session: Session) -> int:
    """170004 for 17.4."""
    return _integers(session, "SHOW server_version_num")[0]


def _integers(session: Session, sql: str) -> list[int]:
    (row,) = session.query(sql)
    return [int(value) for value in row if value is not None]


def _as_text(name: str, value: Any) -> str:
    """A TOML value as PostgreSQL writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str | int | float):
        return str(value)
    raise SpecError(f"engine postgres: the setting {name} is neither text nor number", f"write: {name} = 'value'")
