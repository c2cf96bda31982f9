"""The runs that the reproduction goes by, and what one execution of a query did in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dbtoll.analysis.attribution.items import KINDS_OF_CALLS, OTHER_CALLS, PROCESSES
from dbtoll.analysis.attribution.ledger import Ledger
from dbtoll.analysis.effects import comparisons
from dbtoll.analysis.reproduction import parts
from dbtoll.model.json import Json

OWN, ONE = "per_statement", "persistent"
"""Levels of the factor connection: the paper's Tables 1 and 5, and its Table 4."""
Cost = Literal["ns", "hot_ns", "cold_ns"]
CALLS = tuple(kind.name for kind in (OTHER_CALLS, *KINDS_OF_CALLS) if kind != PROCESSES)
"""Items of the ledger that are system calls."""


@dataclass(frozen=True, slots=True)
class CountedFigure:
    """Of one execution, means over rounds; None: not counted. ``outer_read_bytes``: of the devices of the machine around."""

    calls: float | None
    faults: float | None
    user_ns: float | None
    system_ns: float | None
    elapsed_ns: float | None
    iowait_ns: float | None
    read_bytes: float | None
    outer_read_bytes: float | None


class Part(parts.Part):
    """One of the runs, by the levels of connection."""

    def geomean(self, connection: str, queries: Collection[str]) -> comparisons.Effect | None:
        """Over some of the queries alone."""
        return self.effect(comparisons.GEOMEAN, queries, connection=connection)

    def median_s(self, arm: str, connection: str, query: str) -> float | None:
        for each in self.result.times:
            if (each.arm, each.query, each.levels.get("connection")) == (arm, query, connection):
                return None if each.median_ns is None else each.median_ns / 1e9
        return None

    def by_round(self, arm: str, connection: str, query: str) -> dict[int, CountedFigure]:
        levels = self.levels(connection=connection)
        rounds = {} if levels is None else self.book.counts(arm, levels, query)
        return {number: _counted(each) for number, each in rounds.items()}

    def counted(self, arm: str, connection: str, query: str) -> CountedFigure | None:
        """The means over rounds."""
        rounds = list(self.by_round(arm, connection, query).values())
        if not rounds:
            return None
        return CountedFigure(*(_mean([getattr(each, name) for each in rounds]) for name in CountedFigure.__slots__))

    @cached_property
    def _ledgers(self) -> dict[str, Ledger]:
        levels = self.levels(connection=OWN)
        return {each.query: each for each in (self.book.ledgers(self.arm, levels) if levels else ())}

    def calls_by_round(self, query: str, cost: Cost = "ns") -> dict[int, tuple[float, float]]:
        """What the system calls of one execution cost in the baseline and in the arm, ns: counts times probed costs, on average, or
        as if all found their things in the caches (``hot_ns``) or none did (``cold_ns``)."""
        ledger = self._ledgers.get(query)
        if ledger is None:
            return {}
        base = own = np.zeros(len(ledger.rounds))
        for item in ledger.items:
            if item.name in CALLS:
                base = base + item.baseline_count * getattr(item.baseline_cost, cost)
                own = own + item.count * getattr(item.cost, cost)
        return dict(zip(ledger.rounds, zip(base.tolist(), own.tolist(), strict=True), strict=True))

    def calls_ns(self, query: str) -> tuple[float, float] | None:
        """The means over rounds."""
        base, own = np.array(list(self.calls_by_round(query).values())).reshape(-1, 2).T
        return (float(base.mean()), float(own.mean())) if len(base) else None

    def fault_rate(self, query: str) -> tuple[float | None, int]:
        """Page faults of the arm in a second of its run time, and of how many rounds."""
        rounds = [each for each in self.by_round(self.arm, OWN, query).values() if each.faults is not None]
        faults, seconds = _mean([each.faults for each in rounds]), self.median_s(self.arm, OWN, query)
        return (None if faults is None or not seconds else faults / seconds), len(rounds)


def of(counted: CountedFigure | None, name: str) -> float | None:
    """One of its figures; None where nothing was counted."""
    return None if counted is None else getattr(counted, name)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _counted(counts: Json) -> CountedFigure:
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
    return CountedFigure(
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
