"""What the units of an arm brought in one visit, as one; how alike they were, and whether they began together."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import structs

from dbtoll.analysis.checks.clocks import started_together
from dbtoll.analysis.checks.evidence import Evidence
from dbtoll.analysis.visits.metrics import VALUES, as_cut
from dbtoll.analysis.visits.units import VisitTotals, merged, of_each_unit, spread_of, start_spread_ns, totals
from dbtoll.model.layout import ONE_UNIT, UNITS_MAX, Layout, Unit
from dbtoll.store.schema import Timing, UnitVisit, Visit

MS = 1_000_000


def unit(durations_ms: list[int] | None = None, *, host_start_ns: int | None = 0, **values: Any) -> UnitVisit:
    timings = [
        Timing(100 * MS * n, None, None, 100 * MS * n + each * MS, 1, 1, "ok")
        for n, each in enumerate(durations_ms or [])
    ]
    host_end_ns = None if host_start_ns is None else host_start_ns + 1000 * MS
    return UnitVisit(
        **{
            "start_ns": 5,
            "end_ns": 900 * MS,
            "host_start_ns": host_start_ns,
            "host_end_ns": host_end_ns,
            "executions": timings,
            **values,
        }
    )


def visit(*units: UnitVisit, **values: Any) -> VisitTotals:
    about = {
        "round": 0,
        "arm": "vms",
        "levels": {},
        "block": 0,
        "query": "mix",
        "order": 1,
        "first_execution": False,
        "asleep_ok": True,
    }
    return totals(Visit(**{**about, **values}, units=units))


def window(committed: int, buckets: list[list[int]] | None = None, **values: Any) -> dict[str, Any]:
    kind = dict.fromkeys(("rolled_back", "not_found", "lost", "unknown"), 0)
    of_kind = {
        **kind,
        "committed": committed,
        "failed": {"deadlock": 1},
        "retried": {},
        "response_ns": {"buckets": buckets or []},
    }
    counts = dict.fromkeys(("driver_cpu_ns", "round_trips", "backlog_at_end", "connections_lost", "reconnects"), 10)
    return {
        "length_ns": 60_000 * MS, "interval_ns": 600 * MS, "series": [committed, 1],
        "throughput_transaction": "new_order", "refusal": None, **counts,
        "transactions": {"new_order": of_kind, "payment": {**of_kind, "committed": 5 * committed}}, **values,
    }  # fmt: skip


def value(metric: str, of: VisitTotals) -> float | None:
    (found,) = VALUES[metric]([of])
    return found


def test_a_layout_names_its_units_in_order() -> None:
    assert Layout(machines=2, databases=2).units == (
        Unit(0, 0, 0, 0),
        Unit(1, 0, 0, 1),
        Unit(2, 1, 0, 0),
        Unit(3, 1, 0, 1),
    )
    assert (Layout(2, 3).all_servers, Layout(2, 3).text, ONE_UNIT.text) == (6, "machines=2, servers=3", "")
    assert Layout(UNITS_MAX).is_possible and ONE_UNIT.is_possible
    for layout in (
        Layout(0),
        Layout(machines=-1),
        Layout(UNITS_MAX + 1),
        Layout(2, UNITS_MAX),
        Layout(10**9, 10**9, 10**9),
    ):
        assert not layout.is_possible


def test_the_windows_of_all_units_are_one() -> None:
    found = visit(
        unit(window=window(900, [[10, 2], [20, 1]]), cpu={"user_ns": 1, "system_ns": 2}),
        unit(window=window(1000, [[20, 4]]), cpu={"user_ns": 3, "system_ns": 4}),
        unit(window=window(1100, [[5, 1]]), cpu={"user_ns": 5, "system_ns": 6}, problem="connections were refused"),
    )
    assert found.window is not None and found.window["length_ns"] == 60_000 * MS
    assert found.window["series"] == [3000, 3] and found.window["round_trips"] == 30
    assert "statements" not in found.window
    orders = found.window["transactions"]["new_order"]
    assert (orders["committed"], orders["failed"], orders["retried"]) == (3000, {"deadlock": 3}, {})
    assert orders["response_ns"]["buckets"] == merged([[[5, 1], [10, 2], [20, 5]]])
    assert found.cpu == {"user_ns": 9, "system_ns": 12}
    assert found.problem == "unit 2: connections were refused"


def test_throughput_is_the_sum_and_beside_it_that_of_the_least_unit() -> None:
    several = visit(*(unit(window=window(number)) for number in (900, 1000, 1100)))
    assert value("time_per_transaction", several) == pytest.approx(60_000 * MS / 3000)
    assert value("time_per_transaction_least", several) == pytest.approx(60_000 * MS / 900)
    assert value("time_per_transaction_least", visit(unit(window=window(900)))) is None
    nothing = visit(unit(window=window(900)), unit(window=window(0)))
    assert value("time_per_transaction", nothing) == pytest.approx(60_000 * MS / 900)
    assert math.isnan(value("time_per_transaction_least", nothing) or 0)


def test_an_execution_takes_the_geometric_mean_of_what_it_takes_in_each_unit() -> None:
    several = visit(unit([10, 20, 30]), unit([45]))
    assert value("run_time", several) == pytest.approx(30 * MS)
    assert len(several.executions) == 4
    assert [value("run_time", each) for each in of_each_unit(several)] == [20 * MS, 45 * MS]
    mixed = VALUES["run_time"]([visit(unit([7])), several, visit(unit([8]), unit([8]))])
    assert mixed == pytest.approx([7 * MS, 30 * MS, 8 * MS])


def test_what_failed_or_was_cut_in_one_unit_is_so_of_the_arm() -> None:
    (timing,) = unit([40]).executions
    late = unit(executions=(structs.replace(timing, outcome="timeout"),))
    bad = unit(executions=(structs.replace(timing, outcome="error"),), problem="no such table")
    assert value("run_time", visit(unit([10]), late)) == math.inf
    assert value("run_time", as_cut(visit(unit([10]), late))) == pytest.approx(20 * MS)
    assert math.isnan(value("run_time", visit(unit([10]), bad)) or 0)
    assert visit(unit([10]), bad).problem == "unit 1: no such table"


def test_what_one_unit_cannot_tell_is_not_known_of_the_arm() -> None:
    found = visit(unit([10], disk_read_bytes=4, minor_faults=2), unit([10], minor_faults=3))
    assert (found.disk_read_bytes, found.minor_faults, found.cpu) == (None, 5, None)


def test_the_spread_is_as_the_method_says() -> None:
    spread = spread_of([900, 1000, 1100])
    assert (spread.least, spread.most) == (900, 1100)
    assert spread.fairness == pytest.approx(9_000_000 / 9_060_000)
    assert spread_of([5, 5]).fairness == 1 and spread_of([9, 0, 0]).fairness == pytest.approx(1 / 3)
    assert spread_of([0, 0]).fairness == 1


def test_units_that_began_apart_void_their_visit() -> None:
    near = visit(unit([1]), unit([1], host_start_ns=9 * MS), order=1)
    far = visit(unit([1]), unit([1], host_start_ns=11 * MS), order=2)
    long = visit(*(unit(window=window(1), host_start_ns=ns) for ns in (0, 500 * MS)), order=3)
    too_far = visit(*(unit(window=window(1), host_start_ns=ns) for ns in (0, 700 * MS)), order=4)
    finding = started_together(Evidence("vms", visits=(near, far, long, too_far)))
    assert finding is not None and finding.check.passed is False
    assert finding.void_visits == {(0, 2), (0, 4)}
    assert "in 2 of 4 visits" in finding.check.finding and "700.00 ms at most" in finding.check.finding
    alone = started_together(Evidence("one", visits=(visit(unit([1])),)))
    assert alone is None
    unseen = started_together(Evidence("vms", visits=(visit(unit([1]), unit([1], host_start_ns=None)),)))
    assert unseen is not None and unseen.check.passed is None


def test_terminals_outside_are_told_by_the_agent_around() -> None:
    apart = visit(
        unit(host_start_ns=None, start_ns=5), unit(host_start_ns=None, start_ns=25), levels={"placement": "outside"}
    )
    assert start_spread_ns(apart) == 20
