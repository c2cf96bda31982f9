"""The runs that a reproduction goes by, and what one execution of a query did in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dbtoll.analysis.booking import KINDS_OF_CALLS, OTHER_CALLS, PROCESSES, Book
from dbtoll.analysis.measured import Measured
from dbtoll.analysis.result import Result, analyze_run
from dbtoll.analysis.shape import Comparison, LedgerResult, Levels
from dbtoll.model import Json
from dbtoll.store.reader import Run

OWN, ONE = "per_statement", "one"
"""Levels of the factor connection: the paper's Tables 1 and 5, and its Table 4."""
CALLS = tuple(kind.name for kind in (OTHER_CALLS, *KINDS_OF_CALLS) if kind != PROCESSES)
"""Items of the ledger that are system calls."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Of one execution, means over rounds; None: not counted. ``outer_read_bytes``: of the devices of the machine around."""

    calls: float | None
    faults: float | None
    user_ns: float | None
    system_ns: float | None
    elapsed_ns: float | None
    iowait_ns: float | None
    read_bytes: float | None
    outer_read_bytes: float | None


@dataclass(frozen=True)
class Part:
    """One of the runs."""

    run: Run

    @cached_property
    def result(self) -> Result:
        return analyze_run(self.run)

    @cached_property
    def book(self) -> Book:
        return Book(Measured(self.run))

    @property
    def baseline(self) -> str:
        return self.run.plan.experiment.baseline

    @cached_property
    def arm(self) -> str:
        """The one that is compared."""
        arms = self.run.plan.experiment.arms
        return next(
            arm.name for arm in arms if arm.copy_of is None and arm.name != self.baseline and arm.clock == "time"
        )

    @property
    def is_cold(self) -> bool:
        return "cold" in self.run.plan.experiment.factors.get("temperature", ())

    @property
    def reads_ahead(self) -> bool:
        """Whether the arm's kernel may do that."""
        arm = self.run.plan.experiment.arm(self.arm)
        return all(step.options.get("read_ahead") is None for step in arm.stack)

    def levels(self, connection: str) -> Levels | None:
        return next((each for each in self.book.measured.levels if each.get("connection") == connection), None)

    def comparison(self, connection: str, estimand: str, metric: str = "run_time") -> Comparison | None:
        for each in self.result.comparisons:
            if (each.arm, each.estimand, each.metric) == (self.arm, estimand, metric) and each.levels.get(
                "connection", connection
            ) == connection:
                return each
        return None

    def queries(self, connection: str) -> list[Comparison]:
        """Comparisons of single queries that have an estimate."""
        names = self.run.plan.queries
        found = (self.comparison(connection, f"query:{name}") for name in names)
        return [each for each in found if each is not None and each.estimate is not None]

    def median_s(self, arm: str, connection: str, query: str) -> float | None:
        for each in self.result.times:
            if (each.arm, each.query, each.levels.get("connection")) == (arm, query, connection):
                return None if each.median_ns is None else each.median_ns / 1e9
        return None

    def ledger(self, connection: str) -> LedgerResult | None:
        for each in self.result.ledgers:
            if each.arm == self.arm and each.levels.get("connection") == connection:
                return each
        return None

    def by_round(self, arm: str, connection: str, query: str) -> dict[int, Counted]:
        levels = self.levels(connection)
        rounds = {} if levels is None else self.book.counts(arm, levels, query)
        return {number: _counted(each) for number, each in rounds.items()}

    def counted(self, arm: str, connection: str, query: str) -> Counted | None:
        """The means over rounds."""
        rounds = list(self.by_round(arm, connection, query).values())
        if not rounds:
            return None
        return Counted(*(mean([getattr(each, name) for each in rounds]) for name in Counted.__slots__))

    def calls_ns(self, query: str) -> tuple[float, float] | None:
        """What the system calls of one execution cost in the baseline and in the arm, ns."""
        ledger = self.ledger(OWN)
        entries = [each.items for each in ledger.queries if each.query == query] if ledger else []
        if not entries:
            return None
        booked = [entry for entry in entries[0] if entry.amount.name in CALLS]
        return (
            sum(entry.baseline_count * entry.baseline_cost_ns for entry in booked),
            sum(entry.count * entry.cost_ns for entry in booked),
        )

    def fault_rate(self, query: str) -> float | None:
        """Page faults of the arm in a second of its run time."""
        faults, seconds = of(self.counted(self.arm, OWN, query), "faults"), self.median_s(self.arm, OWN, query)
        return None if faults is None or not seconds else faults / seconds


def of(counted: Counted | None, name: str) -> float | None:
    """One of its figures; None where nothing was counted."""
    return None if counted is None else getattr(counted, name)


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _counted(counts: Json) -> Counted:
    calls, processes, machine = (counts.get(name, {}) for name in ("calls", "processes", "machine"))

    def each(told: Json, value: float | None) -> float | None:
        return None if value is None or not told.get("executions") else value / told["executions"]

    def own(name: str) -> float | None:
        return each(processes, (processes.get("counted") or {}).get(name))

    def read(level: str) -> float | None:
        disks = ((machine.get("counted") or {}).get(level) or {}).get("disk")
        return None if disks is None else each(machine, sum(disk["read_bytes"] or 0 for disk in disks.values()))

    inside = (machine.get("counted") or {}).get("inside") or {}
    known = calls.get("counted")
    return Counted(
        calls=each(calls, None if known is None else sum(call["count"] for call in known.values())),
        faults=own("minor_faults"),
        user_ns=own("user_ns"),
        system_ns=own("system_ns"),
        elapsed_ns=each(processes, processes.get("elapsed_ns")),
        iowait_ns=each(machine, inside.get("iowait_ns")),
        read_bytes=read("inside"),
        outer_read_bytes=read("around"),
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """What there is to go by. ``unread``: cold, in a guest that does not read ahead."""

    warm: Part
    cold: Part | None = None
    unread: Part | None = None
