"""MonetDB 11.41: the library of its embedded form, out of a wheel, in dbtoll's server of embedded engines.

A commit is durable: MonetDB syncs its write-ahead log. Columns are memory-mapped files, one for each.

BIAS: the memory limit bounds the addresses that it maps (``gdk_vm_maxsize``). How much it holds to be its own
(``gdk_mem_maxsize``) is 0.815 of what its machine has, and its library has no option for that. So each of several servers in one
machine plans with the memory of all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dbtoll.interfaces.machine import Session
from dbtoll.model.description import EngineDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.json import Json
from dbtoll.model.software import Software, Wheel
from dbtoll.servers.embedded import PROGRAMS, EmbeddedEngine
from dbtoll.servers.parallel_engine import LOAD_DEADLINE_S

PLACE = "/opt/dbtoll/monetdb"

LIBRARIES = (
    *("libpcre-9513aab5.so.1.2.0", "libstream-f10add00.so.15.0.1", "libbat-8d78345c.so.23.0.4"),
    *("libmapi-b69257cb.so.13.0.1", "libmonetdb5-ae380661.so.31.0.4", "libmonetdbsql-807dccaa.so.11.41.14"),
)
"""What the library needs, each after what it needs itself: they find one another in the wheel only from a certain directory."""

WHEEL = Wheel(
    "monetdbe",
    "0.11",
    builds={
        "x86_64": ("manylinux2014_x86_64", "4f42d6328ac2ffddc6de07271671431c90c40c5560ce4790e789a24ef6dfa55d"),
    },
    files={"monetdbe.libs/": PLACE, "monetdbe-0.11.dist-info/LICENSE": f"{PLACE}/LICENSE"},
    python=("3.10", "cp310"),
)

_SNAPSHOT = "every transaction reads from a snapshot, and the first to commit wins"


class Engine(EmbeddedEngine):
    """See interfaces.Engine."""

    name = "monetdb"
    also_called = ("monet", "monetdbe")
    description = EngineDescription(
        "MonetDB",
        location_settings={"gdk_dbpath": "a path: of several servers in a machine each has data of its own"},
        auto_tuned_settings={
            "gdk_mem_maxsize": "0.815 of the memory that it finds, that of its control group included (gdk/gdk_utils.c)",
            "gdk_mmap_minsize_transient": "a sixteenth of gdk_mem_maxsize",
        },
    )
    # Of two transactions that insert into one table (that of what is loaded) it refuses one.
    # A cast to varchar needs a length, which is that of the longest column here.
    sql = Dialect(
        "monetdb",
        types={" varchar)": " varchar(199))"},
        atomic_scripts=False,
        foreign_keys="select t.name, k.name, 0 from sys.keys k join sys.tables t on k.table_id = t.id where k.type = 2",
        connections=1,
        scripts=__name__,
    )
    software = Software(programs=PROGRAMS, wheels=(WHEEL,), versions=dict.fromkeys(("bookworm", "trixie"), "11.41"))
    library = f"{PLACE}/libmonetdbe-afeb6526.so.2.0.2"
    preload: ClassVar[Sequence[str]] = tuple(f"{PLACE}/{name}" for name in LIBRARIES)
    thread_settings = ("nr_threads",)
    following_settings = ("sql_optimizer",)  # with one thread it plans nothing to be done at the same time
    memory_setting = "memorylimit"
    unsupported: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "interaction": {"procedure": "its procedures do not end transactions"},
        "isolation": {"read_committed": _SNAPSHOT, "serializable": _SNAPSHOT},
        "durability": dict.fromkeys(("os_cache", "server_buffer"), "every commit is synced"),
    }

    def memory(self, size_bytes: int) -> str:
        """In MiB."""
        return str(size_bytes >> 20)

    def finish_load(self, session: Session) -> None:
        """Statistics, and a table for `commit`."""
        session.query("analyze sys", timeout_s=LOAD_DEADLINE_S)
        session.query("create table if not exists dbtoll_commits (commits bigint)")
        session.query("insert into dbtoll_commits select 0 where not exists (select 1 from dbtoll_commits)")

    def settle(self, session: Session) -> None:
        """Nothing can be asked to be written now."""

    def commit(self, session: Session) -> None:
        """One row that is counted up (interfaces.CommittingEngine)."""
        session.query("update dbtoll_commits set commits = commits + 1")

    def background_work(self, session: Session) -> Json:
        """None that it tells of."""
        return {}

    def fingerprint(self, session: Session, statement: Any) -> tuple[str, str]:
        """Of the relational plan."""
        return self.planned(session, f"plan {statement.text}")

    def plan(self, rows: Sequence[Sequence[str | None]]) -> str:
        """The operators with their columns, without literals."""
        return "\n".join(_LITERAL.sub("?", row[0] or "") for row in rows)

    def facts(self, session: Session) -> Json:
        """Version, and its settings as they are now, less what says only which process this is."""
        rows = session.query("select name, value from sys.env() where name <> 'monet_pid' order by name")
        ((threads,),) = session.query("show nr_threads")
        told = {**{str(name): value for name, value in rows}, "nr_threads": threads}
        return {"version": told.get("monet_version"), "settings": told}


_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"(?=\])|(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])')
"""A text or a number in brackets, as a plan has them."""
