"""TPC-H: eight tables, 22 queries, every answer compared with DuckDB's.

Derived from the benchmark; times are not comparable with published TPC results.

Some answers are empty: Q18 asks for orders of more than 312 to 315 items, which scales up to 0.1 do not have; at scale
0.01 Q17 and Q19 are often null and Q2, Q11 and Q20 now and then empty. The server's work is there all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from dbtoll.errors import UsageError
from dbtoll.interfaces import workload as interface
from dbtoll.interfaces.cache import BuildCache
from dbtoll.interfaces.engine import BULK_ROWS
from dbtoll.interfaces.machine import Machine, Server
from dbtoll.model.description import WorkloadDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.model.options import Option
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.workload_parts import scripts, sql_text
from dbtoll.workload_parts.loading import by_tenths, run_in_order, run_side_by_side
from dbtoll.workloads.tpch import parameters, queries

DATA = "dbgen-3"
"""Which rows: those of the TPC's generator, whose output has not changed since version 2.6; in the dataset's key."""

REFERENCE = Dialect("duckdb-reference")
"""That of the engine which answers independently: its files are nobody else's."""

SCALE_MIN, SCALE_MAX = 0.01, 10_000
"""Below, supplier keys repeat themselves within a part; above, part keys leave four bytes."""

PROFILES = {"keys": ("keys",), "dates": ("indexes-dates", "keys")}
"""Index profile -> its files, in the order in which their statements are begun: the largest indexes first."""


DESCRIPTION = WorkloadDescription(
    "TPC-H", disclaimer="The workload is derived from TPC-H. Its results are not comparable with published TPC results."
)


class Workload(interface.Workload):
    """interfaces.Workload for TPC-H at one scale."""

    name = "tpch"
    also_called = ("tpc-h",)
    primary = "scale"
    description = DESCRIPTION
    requires = frozenset({BULK_ROWS})
    options: ClassVar[Mapping[str, Option]] = {
        "scale": Option("number", 0.1, "scale factor, at least 0.01; 1 is about 1 GB of rows"),
        "indexes": Option(
            "text", "keys", "keys, or dates: the date columns as well, as was usual in 2008", choices=tuple(PROFILES)
        ),
        "indexes_file": Option("path", "", "more indexes: a file of your own with CREATE INDEX statements"),
        "queries": Option("list", ["all"], "which of Q1 to Q22, or all"),
        "parameters": Option(
            "text",
            "drawn",
            "drawn from the seed for each block, or the specification's own for validation",
            choices=("drawn", "validation"),
        ),
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {key: option.default for key, option in self.options.items()} | dict(options)
        self.scale = _valid_scale(chosen["scale"])
        self.description = replace(DESCRIPTION, size=f"at scale factor {self.scale:g}")
        self.queries = _valid_queries(chosen["queries"])
        self._indexes: str = chosen["indexes"]
        self._own_indexes = _own_indexes(chosen["indexes_file"]) if chosen["indexes_file"] else []
        self._validation = chosen["parameters"] == "validation"

    def key(self) -> str:
        """Scale and indexes in words, and a digest of what the tables are made with."""
        stems = ("schema", "constraints", "primary-keys", *PROFILES[self._indexes])
        files = [text for stem in stems for text in scripts.of_all_dialects(__name__, stem)]
        own = [part.sql for part in self._own_indexes]
        digest = sha256("\0".join([DATA, repr(self.scale), *files, *own]).encode()).hexdigest()[:16]
        return f"tpch-{self.scale:g}-{self._indexes}-{digest}"

    def estimate_bytes(self) -> int:
        """Measured with PostgreSQL 15 at scale 0.1: 0.2 GB on disk; half as much again while indexes are sorted."""
        return int(3e9 * self.scale)

    def load(self, machine: Machine, sql: Dialect, server: Server, progress: Callable[[str], None]) -> Json:
        """Schema, rows (made by the agent and streamed, no file in between), indexes, constraints.

        Returns ``{"rows": {TABLE: N}, "generate_ns", "load_ns", "index_ns", "constraint_ns"}`` by the agent's clock;
        generating is inside ``load_ns``. Raises EngineError, or AgentFailure of ``tpch_load``.
        """
        address = server.address

        def parts(*stems: str) -> list[sql_text.Part]:
            return [part for stem in stems for part in scripts.parts(__name__, stem, sql)]

        progress("schema")
        run_in_order(machine, address, parts("schema", *(["primary-keys"] if sql.keys_before_rows else [])))
        progress("rows")
        loaded = self.make_rows(machine, sql, address, progress)
        progress("indexes")
        indexes = [*self._own_indexes, *parts(*PROFILES[self._indexes])]
        index_ns = run_side_by_side(machine, address, indexes, connections=sql.connections)
        progress("constraints")
        constraint_ns = run_in_order(machine, address, parts("constraints"))
        return {
            "rows": loaded["rows"],
            "generate_ns": loaded["generate_ns"],
            "load_ns": loaded["wall_ns"],
            "index_ns": index_ns,
            "constraint_ns": constraint_ns,
        }

    def make_rows(self, machine: Machine, sql: Dialect, address: Address, progress: Callable[[str], None]) -> Json:
        """Fill the empty tables: the END of the agent's ``tpch_load``."""
        return machine.call(
            "tpch_load",
            {
                **address.parameters(),
                "scale": self.scale,
                "connections": sql.connections,
            },
            timeout_s=600 + 600 * self.scale,
            progress=by_tenths(progress),
        )

    def statements(self, sql: Dialect, seed: int) -> dict[str, Statement]:
        """query name -> statement in the words of ``sql``; parameters drawn from ``seed``, or for validation."""
        return {name: _statement(name, sql, self._values(name, seed)) for name in self.queries}

    def references(
        self, machine: Machine, statements: Mapping[str, Statement], cache: BuildCache, progress: Callable[[str], None]
    ) -> dict[str, AnswerReference]:
        """DuckDB's answers to the same questions on rows that ``machine`` makes."""
        from dbtoll.workloads.tpch.reference import Question, Rows, answers

        questions = {}
        for key, statement in statements.items():
            same = _statement(statement.query, REFERENCE, statement.parameters)
            questions[key] = Question(same.text, self.answer_columns(statement.query))
        return answers(Rows(machine, self.scale, scripts.text(__name__, "schema")), questions, cache, progress)

    def answer_columns(self, query: str) -> tuple[str, ...]:
        """As its file says."""
        return queries.query(query, REFERENCE).answer

    def _values(self, name: str, seed: int) -> tuple[str, ...]:
        if self._validation:
            return parameters.for_validation(name, self.scale)
        return parameters.drawn(name, seed, self.scale)


def _statement(name: str, dialect: Dialect, values: tuple[str | None, ...]) -> Statement:
    template = queries.query(name, dialect).template
    return Statement(query=name, text=sql_text.fill(template, values), template=template, parameters=values)


def _own_indexes(file: str) -> list[sql_text.Part]:
    """The user's. UsageError naming file and line for a statement that makes no index."""
    try:
        found = sql_text.split(Path(file).read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}:1: the indexes cannot be read: {error}", "give a file of SQL") from None
    for part in found:
        if not re.match(r"create\s+(unique\s+)?index\b", part.sql, re.IGNORECASE):
            raise UsageError(f"{part.where}: this makes no index: {part.sql[:80]!r}", "write CREATE INDEX … ON …")
    return found


def _valid_scale(scale: float) -> float:
    if not SCALE_MIN <= scale <= SCALE_MAX:
        raise UsageError(f"tpch has no scale {scale:g}", f"choose one from {SCALE_MIN} to {SCALE_MAX}")
    if _repeats_a_key(scale):
        raise UsageError(
            f"at scale {scale:g} the specification's formula gives some parts the same supplier twice",
            "choose 0.01, 0.02 or any scale from 0.023 on",
        )
    return scale


def _repeats_a_key(scale: float) -> bool:
    """Whether two of the four suppliers of a part are the same one (clause 4.2.3, PS_SUPPKEY).

    The formula is meant for whole scales; some of those below 0.023 break the primary key of partsupp.
    """
    suppliers, parts = int(10_000 * scale), int(200_000 * scale)
    steps = {suppliers // 4 + part // suppliers for part in range(0, parts, suppliers)}
    return any(apart * step % suppliers == 0 for apart in (1, 2, 3) for step in steps)


def _valid_queries(given: Any) -> tuple[str, ...]:
    """``["all"]``, or names such as ``Q9`` (also ``q9``, ``9``), in the order of the specification, each once."""
    asked = [given] if isinstance(given, str | int) else list(given)
    if asked == ["all"]:
        return queries.NAMES
    names = {f"Q{str(name).strip().upper().removeprefix('Q')}" for name in asked}
    unknown = sorted(names.difference(queries.NAMES))
    if unknown or not names:
        what = f"no query {unknown[0]}" if unknown else "nothing to do without queries"
        raise UsageError(f"tpch has {what}", 'name some of Q1 to Q22, as in queries = ["Q1", "Q9"], or "all"')
    return tuple(name for name in queries.NAMES if name in names)
