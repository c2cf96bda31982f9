"""What checks look at, and what they find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.description import EngineDescription
from dbtoll.model.json import Json
from dbtoll.model.machine import Check
from dbtoll.store.schema import CheckRecord, Counters, Fingerprint, Start


@dataclass(frozen=True, slots=True)
class AskedOfServer:
    """What a server was asked to be other than the baseline's. ``another``: the engine, its version, its image or its part of the
    arm's memory (by the layout), so that whatever else follows from that was asked for with it; ``settings``: by name."""

    another: bool = False
    settings: frozenset[str] = frozenset()


R = TypeVar("R", VisitTotals, Fingerprint, Counters, CheckRecord, Start)


VisitKey = tuple[int, int]
"""Round and order: names a visit of the last attempts."""

PlanKey = tuple[int, int, str, tuple[tuple[str, str], ...]]
"""Round, parameter set, query, and the levels on which plans can depend: names a plan of each arm."""


def plan_key(fingerprint: Fingerprint) -> PlanKey:
    """Of which the arms are compared, and the units of each: all begin as copies of the same data."""
    return fingerprint.round, fingerprint.parameter_set, fingerprint.query, tuple(fingerprint.levels.items())


def expected_plans(fingerprints: Iterable[Fingerprint]) -> dict[PlanKey, str]:
    """Of an arm's plans those of its first unit, which all others are held against."""
    return {plan_key(each): each.fingerprint for each in fingerprints if each.unit == 0}


@dataclass(frozen=True, slots=True)
class Finding:
    """A check of an arm, the rounds in which it failed, and what that voids."""

    arm: str
    check: Check
    rounds_failed: tuple[int, ...] = ()
    void_rounds: frozenset[int] = frozenset()
    void_visits: frozenset[VisitKey] = frozenset()


@dataclass(frozen=True)
class Evidence:
    """What the checks look at: the counted records of one arm, and what the baseline's are.

    ``starts``: the facts of each server of those that came up, by round; ``expected``: the facts that all of them must be like, of
    the baseline's first server. ``baseline_plans``: None where the baseline has another engine. ``asked``: facts that the arm asked
    to be other than the baseline's, by options of its environments or by its resources; ``server``: the same of its server.
    ``probes``: what is believed of each probe that was run. ``asks_statements``: whether the workload does, and not transactions
    or probes alone. ``shares_kernel``: every start ran on the host's own kernel.
    """

    arm: str
    visits: tuple[VisitTotals, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    counters: tuple[Counters, ...] = ()
    checks: tuple[CheckRecord, ...] = ()
    baseline_plans: Mapping[PlanKey, str] | None = field(default_factory=dict)
    starts: Mapping[int, Sequence[Json]] = field(default_factory=dict)
    expected: Mapping[int, Json] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    server: AskedOfServer = AskedOfServer()
    probes: Mapping[str, Json] = field(default_factory=dict)
    asks_statements: bool = True
    shares_kernel: bool = False
    engine: EngineDescription = field(default_factory=lambda: EngineDescription(""))

    @cached_property
    def in_windows(self) -> bool:
        """Whether the visits are measurement windows of transactions."""
        return any(visit.window is not None for visit in self.visits)

    @cached_property
    def of_statements(self) -> list[VisitTotals]:
        """The visits that time statements: neither windows of transactions nor probes nor passes that only count."""
        return [v for v in self.visits if v.window is None and v.batches is None and v.counts is None]


def worst_share(
    evidence: Evidence,
    name: str,
    share: Callable[[Counters, Counters], float | None],
    bound: float,
    finding: str,
    unknown: str,
) -> Finding:
    """A label where the ``share`` of a phase exceeded ``bound``. ``finding``: with a place for the worst one."""
    shares: dict[int, float] = {}
    for begin, end in phases(evidence.counters):
        if (known := share(begin, end)) is not None:
            shares[begin.round] = max(shares.get(begin.round, 0.0), known)
    if not shares:
        return Finding(evidence.arm, Check(name, None, unknown, voids=False))
    failed = {number for number, worst in shares.items() if worst > bound}
    return label(evidence.arm, name, failed, finding.format(max(shares.values())))


def label(arm: str, name: str, failed: set[int], finding: str) -> Finding:
    """A finding that is noted and voids nothing."""
    return Finding(arm, Check(name, not failed, finding, voids=False), tuple(sorted(failed)))


def void_visits(arm: str, name: str, void: Sequence[VisitTotals], finding: str) -> Finding:
    """A finding that voids those visits."""
    rounds = tuple(sorted({visit.round for visit in void}))
    keys = frozenset((visit.round, visit.order) for visit in void)
    return Finding(arm, Check(name, not void, finding), rounds, void_visits=keys)


def phases(counters: Iterable[Counters]) -> Iterable[tuple[Counters, Counters]]:
    """Counters at the begin and at the end of each phase."""
    begun: dict[tuple[int, str], Counters] = {}
    for record in counters:
        key = (record.round, str(record.levels))
        if record.when == "begin":
            begun[key] = record
        elif key in begun:
            yield begun.pop(key), record


def rise_of(begin: Mapping[str, object], end: Mapping[str, object], key: str) -> float | None:
    """By how much a counter rose; None where it is not known."""
    first, last = begin.get(key), end.get(key)
    if isinstance(first, int | float) and isinstance(last, int | float):
        return float(last - first)
    return None


def grouped_by_arm(records: Iterable[R]) -> dict[str, list[R]]:
    """Arm -> its records."""
    result: dict[str, list[R]] = defaultdict(list)
    for record in records:
        result[record.arm].append(record)
    return result
