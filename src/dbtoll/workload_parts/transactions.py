"""What the transaction workloads have in common: how they are loaded, driven and checked (interfaces.TransactionWorkload)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from statistics import NormalDist
from typing import Any, ClassVar, Self

from dbtoll import units
from dbtoll.errors import EngineError, UsageError
from dbtoll.interfaces import workload as interface
from dbtoll.interfaces.cache import BuildCache
from dbtoll.interfaces.engine import TRANSACTIONS
from dbtoll.interfaces.machine import Machine, Server, Session
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import TRANSACTION_FACTORS
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.model.options import Option
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.workload_parts import scripts, sql_text
from dbtoll.workload_parts.loading import by_tenths, run_in_order, run_side_by_side

LOADED = "dbtoll_loaded"
"""Table with the names of the parts that are there while a load goes on."""

CHECK_DEADLINE_S = 3600.0
"""A condition joins the largest tables; seen: 2 s for 5 warehouses here, a minute in an emulated guest."""

MAX_TERMINALS, MAX_THREADS = 10_000, 256
"""Of the agent's method ``oltp``."""

BEYOND_CHANCE = 1e-6
"""What a chi-square test finds to be rarer shows a defect: a sound run is called unsound once in a million."""

MIX = "mix"
"""The one query of a transaction workload, as far as plans go: a window with all its transactions."""

DRIVING: Mapping[str, Option] = {
    "terminals": Option("integer", 1, "connections that work at the same time"),
    "threads": Option("integer", 1, "threads of the driver"),
    "rate": Option(
        "number", 0.0, "transactions that arrive in a second (an open loop); 0: each follows the one before"
    ),
    "window": Option("duration", 1_000_000_000, "length of a measurement window"),
    "ramp_up": Option("duration", 1_000_000_000, "how long the terminals work before it, uncounted"),
    "response_timeout": Option(
        "duration", 60_000_000_000, "how long an answer may take before its connection is given up"
    ),
}

PROCEDURES = "procedures"
"""The script whose statements have bodies."""

CONSTRAINT_DEADLINE_S = 3600.0
"""Each row is looked up once."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must hold of the data: ``sql`` counts what violates it."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Shares:
    """How something is distributed: ``sql`` brings its values as text and how often there is each."""

    name: str
    sql: str
    expected: Mapping[str, float]
    """Value -> share."""


def unlikely(name: str, counts: Mapping[str, int], expected: Mapping[str, float]) -> str | None:
    """What Pearson's chi-square test finds to be beyond chance; None if nothing."""
    total = sum(counts.values())
    if strange := sorted(counts.keys() - expected.keys()):
        return f"{name}: {', '.join(strange)} should not be there"
    if total == 0:
        return None
    whole = sum(expected.values())
    wanted = {value: total * share / whole for value, share in expected.items()}
    statistic = sum((counts.get(value, 0) - count) ** 2 / count for value, count in wanted.items())
    if statistic <= _chi_square_beyond_chance(len(expected) - 1):
        return None
    seen = ", ".join(f"{value} {counts.get(value, 0) / total:.2%} of {s / whole:.2%}" for value, s in expected.items())
    return f"{name}: {seen} (chi-square {statistic:.0f})"


def _chi_square_beyond_chance(freedom: int) -> float:
    """Wilson and Hilferty 1931: the cube root of chi-square is nearly normal. At 1e-6 and 1 to 6 degrees of freedom it is at
    most 2 % too great."""
    z = NormalDist().inv_cdf(1 - BEYOND_CHANCE)
    part = 2 / (9 * freedom)
    return freedom * float((1 - part + z * part**0.5) ** 3)


class Transactions(interface.Workload):
    """Base of a workload that is an interfaces.TransactionWorkload, whose folder is named as it is."""

    requires = frozenset({TRANSACTIONS})
    factors: ClassVar[Mapping[str, tuple[str, ...]]] = TRANSACTION_FACTORS
    writes = True
    queries = (MIX,)
    mix: Mapping[str, float]
    throughput_transaction: str | None
    multi_statement: bool
    folder: str
    """Package that holds schema.sql, keys.sql, indexes.sql, foreign-keys.sql."""
    sizes: tuple[str, int, int]
    """The option that says how many rows there are, its least and its greatest value; and what tenants are told apart by."""
    tenant, tenants = 0, 1
    """Which of how many that share the tables."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.chosen = {key: option.default for key, option in self.options.items()} | dict(options)
        self._check(*self.sizes)
        self._check("terminals", 1, MAX_TERMINALS)
        self._check("threads", 1, min(MAX_THREADS, self.chosen["terminals"]))
        self._check("rate", 0, 1_000_000_000)
        self._check("window", 1_000_000, 86_400_000_000_000)
        self._check("ramp_up", 0, 86_400_000_000_000)
        self._check("response_timeout", 1_000_000, 86_400_000_000_000)
        self._check("data_seed", 0, (1 << 63) - 1)

    def as_tenant(self, number: int, of: int) -> Self:
        """See interfaces.TenantKeyWorkload."""
        made = copy(self)
        made.tenant, made.tenants = number, of
        name, _, most = self.sizes
        if made.count > most:
            raise UsageError(
                f"workload {self.name}: {of} tenants would have {made.count} {name}", f"choose {most // of} at most"
            )
        return made

    @property
    def count(self) -> int:
        """Of warehouses, or subscribers: of all tenants that share the tables."""
        return int(self.chosen[self.sizes[0]]) * self.tenants

    def _check(self, name: str, least: int, most: int) -> None:
        value = self.chosen[name]
        if not least <= value <= most:
            shown = units.duration_text if self.options[name].kind == "duration" else str
            raise UsageError(
                f"workload {self.name}: {name} is {shown(value)}", f"choose from {shown(least)} to {shown(most)}"
            )

    @abstractmethod
    def size(self) -> Json:
        """What the agent's methods call the workload: ``{"tpcc": {…}}``."""

    @abstractmethod
    def scripts(self) -> Sequence[str]:
        """Scripts that are run after the rows, keys and indexes, in order."""

    def key(self) -> str:
        """The size in words, and a digest of what the tables are made with."""
        stems = ("schema", "keys", "indexes", *self.scripts())
        files = [text for stem in stems for text in scripts.of_all_dialects(self.folder, stem)]
        digest = sha256("\0".join([repr(self.size()), *files]).encode()).hexdigest()[:16]
        (size,) = self.size().values()
        words = "-".join(str(value) for name, value in size.items() if name != "seed")
        return f"{self.name}-{words}-{digest}"

    def load(self, machine: Machine, sql: Dialect, server: Server, progress: Callable[[str], None]) -> Json:
        """Schema, rows (made by the agent and streamed), keys, indexes, what else the options ask for.

        Returns ``{"rows": {TABLE: N}, "generate_ns", "load_ns", "index_ns"}`` by the agent's clock. Raises EngineError, or
        AgentFailure of ``oltp_load``.
        """
        address = server.address
        session = machine.serial(address, connection="persistent")
        try:
            done = self.loaded(session)
            if done:
                progress(f"{len(done)} parts are there")
            early, late = (
                (["schema", "keys"], ["indexes"]) if sql.keys_before_rows else (["schema"], ["keys", "indexes"])
            )
            for stem in early:
                self._build(machine, address, sql, stem, done, progress)
            progress("rows")
            parameters = {**address.parameters(), "workload": self.size(), "connections": sql.connections}
            loaded = machine.call(
                "oltp_load", parameters, timeout_s=self.load_deadline_s(), progress=by_tenths(progress)
            )
            index_ns = 0
            for stem in [*late, *self.scripts()]:
                index_ns += self._build(machine, address, sql, stem, done, progress)
            session.query(f"DROP TABLE {LOADED}")
            self.require_sound(session)
        finally:
            session.close()
        return {
            "rows": loaded["rows"],
            "generate_ns": loaded["generate_ns"],
            "load_ns": loaded["wall_ns"],
            "index_ns": index_ns,
            "resumed_parts": len(done),
        }

    def loaded(self, session: Session) -> frozenset[str]:
        """See interfaces.ResumableWorkload. The agent adds those of the rows itself (``oltp_load``)."""
        session.query(f"CREATE TABLE IF NOT EXISTS {LOADED} (piece varchar(64) NOT NULL)")
        return frozenset(str(piece) for (piece,) in session.query(f"SELECT piece FROM {LOADED}"))

    def _build(
        self,
        machine: Machine,
        address: Address,
        sql: Dialect,
        stem: str,
        done: frozenset[str],
        progress: Callable[[str], None],
    ) -> int:
        """Runs what is left of a script; ns. Each statement that is done is noted, in its own transaction where that can be.
        Else, if the server is killed between the two, the statement is refused the next time, and the load begins anew."""
        progress(stem.replace("-", " "))
        named = {f"{stem} {number}": part for number, part in enumerate(self.parts(stem, sql))}
        left = {name: part for name, part in named.items() if name not in done}
        note = f"INSERT INTO {LOADED} VALUES ('{{}}')"
        if sql.atomic_scripts:
            both = [replace(part, sql=f"{part.sql};\n{note.format(name)}") for name, part in left.items()]
            return run_side_by_side(
                machine, address, both, connections=sql.connections if stem in {"keys", "indexes"} else 1
            )
        after = [(part, replace(part, sql=note.format(name))) for name, part in left.items()]
        return run_in_order(machine, address, [each for pair in after for each in pair])

    def load_deadline_s(self) -> float:
        """For all rows."""
        return 600.0 + self.estimate_bytes() / 1e6

    @abstractmethod
    def estimate_bytes(self) -> int:
        """See interfaces.Workload."""

    def statements(self, sql: Dialect, seed: int) -> dict[str, Statement]:
        """None: the agent has the transactions."""
        return {}

    def references(
        self, machine: Machine, statements: Mapping[str, Statement], cache: BuildCache, progress: Callable[[str], None]
    ) -> dict[str, AnswerReference]:
        """None: what proves the answers is the state of the data (`conditions`)."""
        return {}

    # --- interfaces.TransactionWorkload --------------------------------------------------------------------------------------

    def driver_parameters(self, levels: Mapping[str, str], seed: int) -> Json:
        """See interfaces.TransactionWorkload."""
        size = self.size()
        if self.tenants > 1:
            each = self.count // self.tenants
            (rows,) = size.values()
            rows["own"] = [self.tenant * each + 1, (self.tenant + 1) * each]
        return {
            "workload": size,
            "interaction": levels.get("interaction", self.factors["interaction"][0]),
            "terminals": self.chosen["terminals"],
            "threads": self.chosen["threads"],
            "seed": seed,
            "response_timeout_ns": self.chosen["response_timeout"],
        }

    def window_timing(self) -> tuple[int, int, float | None]:
        """See interfaces.TransactionWorkload."""
        return self.chosen["ramp_up"], self.chosen["window"], self.chosen["rate"] or None

    @abstractmethod
    def conditions(self) -> Sequence[Condition]:
        """What must hold of the data at any time."""

    def shares(self, *, initially: bool) -> Sequence[Shares]:
        """How rows are distributed at any time, or ``initially``."""
        return ()

    def violations(self, session: Session, *, initially: bool = False) -> list[str]:
        """See interfaces.TransactionWorkload. ``initially``: also of what only holds before the first transaction."""
        found = []
        for condition in self.conditions():
            ((count,),) = session.query(condition.sql, timeout_s=CHECK_DEADLINE_S)
            if count != "0":
                found.append(f"{condition.name} ({count} violations)")
        for shares in self.shares(initially=initially):
            rows = session.query(shares.sql, timeout_s=CHECK_DEADLINE_S)
            counts = {str(value): int(count or 0) for value, count in rows}
            if problem := unlikely(shares.name, counts, shares.expected):
                found.append(problem)
        return found

    def require_sound(self, session: Session) -> None:
        """EngineError unless all that must hold initially does."""
        if found := self.violations(session, initially=True):
            raise EngineError(f"the loaded data are not as specified: {'; '.join(found)}", "it is a defect of dbtoll")

    def constrain(self, session: Session, sql: Dialect, foreign_keys: str) -> None:
        """See interfaces.TransactionWorkload. Errors as `Session.query`."""
        if not sql.foreign_keys:
            return  # nothing tells of any
        there = session.query(sql.foreign_keys)
        if foreign_keys == "yes" and not there:
            for part in self.parts("foreign-keys", sql):
                session.query(part.sql, timeout_s=CONSTRAINT_DEADLINE_S)
        elif foreign_keys == "no":
            for table, name, own_index in there:
                session.query(sql.drop_foreign_key.format(table=table, name=name))
                if own_index == "1":
                    session.query(sql.drop_index.format(table=table, name=name))

    def unlikely_mix(self, counts: Mapping[str, int]) -> str | None:
        """See interfaces.TransactionWorkload."""
        return unlikely("transactions", counts, self.mix)

    # --- scripts -----------------------------------------------------------------------------------------------------

    def text(self, stem: str, sql: Dialect | None = None) -> str:
        """See `scripts.text`."""
        return scripts.text(self.folder, stem, sql)

    def parts(self, stem: str, sql: Dialect) -> list[sql_text.Part]:
        """See `scripts.parts`."""
        return scripts.parts(self.folder, stem, sql, bodies=stem == PROCEDURES)
