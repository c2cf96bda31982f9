"""What the units of an arm brought in one visit, as one: everything behind this sees an arm as a whole.

Units work at the same time, so what they did adds up: transactions, processor time, faults, reads. What an execution takes does
not: `over_units` has the geometric mean of what each unit found, so that an arm costs as much as its units do on average.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec

from dbtoll.model.json import Json
from dbtoll.store.executions import packed
from dbtoll.store.reader import Run
from dbtoll.store.schema import Batch, Devices, Neighbour, Shared, Timing, UnitVisit, Visit

SUMS_OF_WINDOW = (
    *("driver_cpu_ns", "round_trips", "backlog_at_end", "connections_lost", "reconnects"),
    *("statements", "sent_bytes", "received_bytes"),
)
"""What is added up of the windows of several units, where it was counted."""
SUMS_OF_KIND = ("committed", "rolled_back", "not_found", "lost", "unknown")


T = TypeVar("T")


class VisitTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A visit with what its units brought, taken together: executions one unit after the other, windows as one.

    ``start_ns``, ``end_ns``: of the first unit, by its agent's clock; ``host_start_ns``, ``host_end_ns``: from the first that began
    to the last that ended, by the host's. ``units``: each by itself.
    """

    round: int
    arm: str
    levels: dict[str, str]
    block: int
    query: str
    order: int
    first_execution: bool
    asleep_ok: bool | None
    parameter_set: int | None
    counts: Json | None
    units: tuple[UnitVisit, ...]
    start_ns: int
    end_ns: int
    host_start_ns: int | None
    host_end_ns: int | None
    executions: Sequence[Timing]
    window: Json | None
    batches: tuple[Batch, ...] | None
    problem: str | None
    disk_read_bytes: int | None
    cpu: Json | None
    minor_faults: int | None
    samples: Json | None
    devices: tuple[Devices, ...] = ()
    neighbour: Neighbour | None = None


def totals(visit: Visit) -> VisitTotals:
    """The visit as that of its whole arm."""
    return _totals(visit, visit.units, visit.shared)


def totals_of_run(run: Run) -> list[VisitTotals]:
    """The visits of the rounds that count."""
    return [totals(visit) for visit in run.records(Visit)]


def of_each_unit(visit: VisitTotals) -> list[VisitTotals]:
    """The visit as each of its units had it, as if that had been alone; without what it shared with others."""
    if len(visit.units) == 1:
        return [visit]
    return [_totals(visit, (unit,)) for unit in visit.units]


def over_units(
    values: Callable[[Sequence[VisitTotals]], list[float | None]],
) -> Callable[[Sequence[VisitTotals]], list[float | None]]:
    """The geometric mean of what ``values`` finds for each unit: infinite where one is, NaN where one failed, None where one has
    none."""

    def reduced(visits: Sequence[VisitTotals]) -> list[float | None]:
        if all(len(visit.units) == 1 for visit in visits):
            return values(visits)
        parts = [of_each_unit(visit) for visit in visits]
        found = iter(values([part for its in parts for part in its]))
        return [_mean([next(found) for _ in its]) for its in parts]

    return reduced


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(values) == 1 or len(known) < len(values):
        return values[0] if len(values) == 1 else None
    if any(value <= 0 for value in known):  # a cold probe may cost less than nothing
        return math.fsum(known) / len(known)
    return math.exp(math.fsum(map(math.log, known)) / len(known))


def _totals(visit: Visit | VisitTotals, units: tuple[UnitVisit, ...], shared: Sequence[Shared] = ()) -> VisitTotals:
    first, several = units[0], len(units) > 1
    return VisitTotals(
        round=visit.round,
        arm=visit.arm,
        levels=visit.levels,
        block=visit.block,
        query=visit.query,
        order=visit.order,
        first_execution=visit.first_execution,
        asleep_ok=visit.asleep_ok,
        parameter_set=visit.parameter_set,
        counts=visit.counts,
        units=units,
        start_ns=first.start_ns,
        end_ns=first.end_ns,
        host_start_ns=_of_all(min, [unit.host_start_ns for unit in units]),
        host_end_ns=_of_all(max, [unit.host_end_ns for unit in units]),
        executions=packed([each for unit in units for each in unit.executions]) if several else first.executions,
        window=_together([unit.window for unit in units]) if several else first.window,
        batches=_of_all(_joined, [unit.batches for unit in units]) if several else first.batches,
        problem=_first_problem(units) if several else first.problem,
        disk_read_bytes=_counted(sum, "disk_read_bytes", units, shared) if several else first.disk_read_bytes,
        cpu=_counted(_added, "cpu", units, shared) if several else first.cpu,
        minor_faults=_counted(sum, "minor_faults", units, shared) if several else first.minor_faults,
        samples=first.samples,
        devices=visit.devices,
        neighbour=visit.neighbour,
    )


def _first_problem(units: Sequence[UnitVisit]) -> str | None:
    return next((f"unit {number}: {unit.problem}" for number, unit in enumerate(units) if unit.problem), None)


def _of_all(reduce: Callable[[list[T]], T], values: Iterable[T | None]) -> T | None:
    """None where one is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return reduce(known) if len(known) == len(found) else None


def _counted(
    reduce: Callable[[list[Any]], Any], name: str, units: Sequence[UnitVisit], shared: Sequence[Shared]
) -> Any:
    """Of each unit's own figure, and of what several have together, once; None where it is not known of one."""
    parts = [*(((number,), unit) for number, unit in enumerate(units)), *((each.units, each) for each in shared)]
    known = [(numbers, value) for numbers, part in parts if (value := getattr(part, name)) is not None]
    if sorted(number for numbers, _ in known for number in numbers) != [*range(len(units))]:
        return None
    return reduce([value for _, value in known])


def _joined(values: Sequence[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(each for value in values for each in value)


def _added(values: Sequence[Json]) -> Json:
    total: Counter[str] = Counter()
    for value in values:
        total.update(value)
    return dict(total)


def _together(windows: Sequence[Json | None]) -> Json | None:
    """One window in which all of them happened.

    BIAS: each unit counts in a window of its own, all of one length. They begin apart by the spread of the starts, which check
    `started_together` bounds: so much of each lies outside of what is common to all, in which the rate is taken to be the same.
    """
    known = [window for window in windows if window is not None]
    if len(known) < len(windows):
        return None
    first = known[0]
    counted = [name for name in SUMS_OF_WINDOW if all(window.get(name) is not None for window in known)]
    return {
        **first,
        "length_ns": max(window["length_ns"] for window in known),
        "series": [sum(counts) for counts in zip(*(window["series"] for window in known), strict=False)],
        "transactions": {
            name: _kinds([window["transactions"][name] for window in known]) for name in first["transactions"]
        },
        **{name: sum(window[name] for window in known) for name in counted},
    }


def _kinds(kinds: Sequence[Json]) -> Json:
    return {
        **{name: sum(kind[name] for kind in kinds) for name in SUMS_OF_KIND},
        **{name: _added([kind[name] for kind in kinds]) for name in ("failed", "retried")},
        "response_ns": {"buckets": merged([kind["response_ns"]["buckets"] for kind in kinds])},
    }


def merged(histograms: Iterable[Iterable[Sequence[int]]]) -> list[tuple[int, int]]:
    """One histogram of several: upper end of a bucket, and count, in order."""
    counts: Counter[int] = Counter()
    for buckets in histograms:
        for value, count in buckets:
            counts[value] += count
    return sorted(counts.items())


# --- how alike the units are ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Of what units did at the same time. ``fairness``: Jain's index, 1 where all did the same, 1/k where one of k did everything
    (Jain, Chiu and Hawe 1984, DEC TR-301)."""

    least: float
    most: float
    fairness: float


def spread_of(values: Sequence[float]) -> Spread:
    """``values``: one of each unit, none below 0."""
    squares = math.fsum(value * value for value in values)
    fairness = math.fsum(values) ** 2 / (len(values) * squares) if squares else 1.0
    return Spread(min(values), max(values), min(fairness, 1.0))


def share_a_clock(servers: Sequence[Json]) -> bool:
    """Whether what these facts of an arm's servers tell of runs on one kernel, whose clock all of its processes read."""
    boots = {facts.get("kernel_boot") for facts in servers}
    return len(boots) == 1 and None not in boots


def start_spread_ns(visit: VisitTotals, *, one_clock: bool) -> int | None:
    """What at most lies between the moments in which the first and the last unit began; None if unknown.

    A unit begins with its first execution or its window. ``one_clock``: all units read one (`share_a_clock`), which then tells; as
    does that of the agent around the machines, which drives all terminals outside of them. Else the host tells of each unit
    between which moments of its own clock it began, and one may have begun at the end of that time, another at the beginning.
    """
    if one_clock or visit.levels.get("placement") == "outside":
        begun = [_begun_ns(unit) for unit in visit.units]
        return max(begun) - min(begun)
    known = [between for between in map(_begun_between_ns, visit.units) if between is not None]
    if len(known) < len(visit.units):
        return None
    first, second = nsmallest(2, (earliest for earliest, _ in known))
    return max(latest - (second if earliest == first else first) for earliest, latest in known)


def _begun_ns(unit: UnitVisit) -> int:
    """By its agent's clock."""
    if unit.executions:
        return unit.executions[0].start_ns
    return unit.start_ns if unit.begin_ns is None else unit.begin_ns


def _begun_between_ns(unit: UnitVisit) -> tuple[int, int] | None:
    """By the host's clock: after `go` was written, as long as the unit then took, and before the line in which it had said that it
    was ready and that was read by then, as long as it waited; not before the question that this line answers. Of a visit from
    before that line was kept the end stands for it."""
    held_ns, host_held_ns = unit.held_ns, unit.host_held_ns
    if held_ns is None or host_held_ns is None:
        held_ns, host_held_ns = unit.end_ns, unit.host_end_ns
    if unit.host_start_ns is None or host_held_ns is None:
        return None
    earliest = unit.host_start_ns + _begun_ns(unit) - unit.start_ns
    if unit.host_asked_ns is not None:
        earliest = max(earliest, unit.host_asked_ns + _begun_ns(unit) - held_ns)
    return earliest, max(earliest, host_held_ns + _begun_ns(unit) - held_ns)
