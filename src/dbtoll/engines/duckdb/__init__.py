"""DuckDB: its library, out of a wheel, in dbtoll's server of embedded engines.

It is not the DuckDB that gives the reference answers of TPC-H (`workloads.tpch.reference`), which runs on the host in dbtoll's own
process: where this one is measured, another engine answers instead (``checked_by``).

A commit is durable: DuckDB syncs its write-ahead log. The data are one file, which is read through DuckDB's own buffers.

A statement that is sent as text (``query_protocol`` simple) has its whole answer in memory, beside the memory limit, before its
first row is sent: so do DuckDB's own clients. One whose parameters are sent apart is planned twice, as DuckDB plans at each
execution, and its answer streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dbtoll.defaults import ENGINE
from dbtoll.interfaces.machine import Session
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.software import Software, Wheel
from dbtoll.servers.embedded import PROGRAMS, EmbeddedEngine
from dbtoll.servers.parallel_engine import LOAD_DEADLINE_S

PLACE = "/opt/dbtoll/duckdb"
LIBRARY = f"{PLACE}/libduckdb.so"
PYTHON = f"{PLACE}/libpython.so"
"""The library is that of the Python package: it exports the whole C API, and asks for symbols of Python that it then never uses."""

VERSION = "2.0.1"


def _wheel(member: str, build: str, sha256: str, python: tuple[str, str]) -> Wheel:
    files = {member: LIBRARY, f"duckdb-{VERSION}.dist-info/licenses/LICENSE": f"{PLACE}/LICENSE"}
    return Wheel("duckdb", VERSION, {"x86_64": (build, sha256)}, files, python)


def _software(python: str, wheel: Wheel) -> Software:
    link = f'set -e\nmkdir -p "$1{PLACE}"\nln -s /usr/lib/x86_64-linux-gnu/{python}.so.1.0 "$1{PYTHON}"\n'
    return Software(packages=(python,), after=link, wheels=(wheel,))


SOFTWARE = Software(
    programs=PROGRAMS,
    suites={
        "bookworm": _software(
            "libpython3.11",
            _wheel(
                "_duckdb.cpython-311-x86_64-linux-gnu.so", "manylinux_2_28_x86_64",
                "eb32b389d99d14cbbec4c110f58237c77eacefc65ef6f737619f413c97a91a77", ("3.11", "cp311"),
            ),
        ),
        "trixie": _software(
            "libpython3.13",
            _wheel(
                "_duckdb.abi3.so", "manylinux_2_28_x86_64",
                "39ffeb136abed770a496e5592a464f18a07b1543e7ddb1ff6453215e179f1647", ("3.13", "abi3"),
            ),
        ),
    },
    versions=dict.fromkeys(("bookworm", "trixie"), "2.0"),
)  # fmt: skip

_SNAPSHOT = "every transaction reads from a snapshot, and the first writer of a row wins"


class Engine(EmbeddedEngine):
    """See interfaces.Engine."""

    name = "duckdb"
    also_called = ("duck",)
    description = EngineDescription("DuckDB")
    sql = Dialect("duckdb", atomic_scripts=False, scripts=__name__)
    software = SOFTWARE
    checked_by = ENGINE
    library = LIBRARY
    preload: ClassVar[Sequence[str]] = (PYTHON,)
    thread_settings = ("threads",)
    following_settings = ("worker_threads", "write_buffer_row_group_memory_limit")
    memory_setting = "memory_limit"
    unsupported: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "interaction": {"procedure": "it has no stored procedures"},
        "isolation": {"read_committed": _SNAPSHOT, "serializable": _SNAPSHOT},
        "durability": dict.fromkeys(("os_cache", "server_buffer"), "every commit is synced"),
        "foreign_keys": {"yes": "a table that is there can be given none"},
    }

    def settings(self, resources: Resources) -> dict[str, str]:
        """With as many threads for asynchronous work as it would take for itself: four for each processor, of which a container
        would show it those of its host."""
        return {"async_threads": str(4 * resources.cpus), **super().settings(resources)}

    def finish_load(self, session: Session) -> None:
        """Statistics, a table for `commit`, a checkpoint."""
        session.query("analyze", timeout_s=LOAD_DEADLINE_S)
        session.query("create table if not exists dbtoll_commits as select 0 as commits")
        session.query("checkpoint", timeout_s=LOAD_DEADLINE_S)

    def settle(self, session: Session) -> None:
        """A checkpoint."""
        session.query("checkpoint")

    def commit(self, session: Session) -> None:
        """One row that is counted up (interfaces.CommittingEngine)."""
        session.query("update dbtoll_commits set commits = commits + 1")

    def background_work(self, session: Session) -> Json:
        """None that it tells of."""
        return {}

    def fingerprint(self, session: Session, statement: Any) -> tuple[str, str]:
        """Of the physical plan."""
        return self.planned(session, f"explain (format json) {statement.text}")

    def plan(self, rows: Sequence[Sequence[str | None]]) -> str:
        """A line for each operator, with tables and kinds of joins."""
        return "\n".join(line for each in json.loads(rows[-1][-1] or "[]") for line in _operators(each, 0))

    def facts(self, session: Session) -> Json:
        """Version, and its settings as they are now."""
        ((version,),) = session.query("select version()")
        settings = session.query("select name, value from duckdb_settings() order by name")
        return {"version": version, "settings": {str(name): value for name, value in settings}}


def _operators(node: Json, depth: int) -> Iterator[str]:
    told = node.get("extra_info") or {}
    about = [str(told[name]) for name in ("Table", "Join Type", "Type") if told.get(name)]
    yield "  " * depth + " ".join([str(node.get("name", "")).strip(), *about])
    for child in node.get("children", ()):
        yield from _operators(child, depth + 1)
