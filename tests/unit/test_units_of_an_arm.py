"""What the units of an arm brought in one visit, as one; how alike they were, and whether they began together."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from dbtoll.analysis.checks.caches import cold_reads_disk
from dbtoll.analysis.checks.clocks import started_together
from dbtoll.analysis.checks.evidence import Evidence, expected_plans
from dbtoll.analysis.checks.servers import same_plans
from dbtoll.analysis.visits.metrics import VALUES, as_cut
from dbtoll.analysis.visits.units import VisitTotals, merged, of_each_unit, spread_of, start_spread_ns, totals
from dbtoll.collectors import calls, machine, processes
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Arm, Step
from dbtoll.model.layout import ONE_UNIT, UNITS_MAX, Layout, Unit
from dbtoll.model.machine import Address
from dbtoll.runner import arms
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.counting import work_seen
from dbtoll.runner.drivers.protocol import CPU, ServerCounters, VisitResult
from dbtoll.store.contents import Expected
from dbtoll.store.schema import Fingerprint, PlanFile, RoundBegin, Shared, Timing, UnitVisit, Visit
from tests.support.make_run import experiment

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
    return totals(visit_record(*units, **values))


def visit_record(*units: UnitVisit, **values: Any) -> Visit:
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
    return Visit(**{**about, **values}, units=units)


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
        Unit(0, 0, 0, 0, 0, 0),
        Unit(1, 0, 0, 1, 0, 0),
        Unit(2, 1, 0, 0, 0, 0),
        Unit(3, 1, 0, 1, 0, 0),
    )
    assert Layout(schemas=2, keys=2).units == (
        Unit(0, 0, 0, 0, 0, 0),
        Unit(1, 0, 0, 0, 0, 1),
        Unit(2, 0, 0, 0, 1, 0),
        Unit(3, 0, 0, 0, 1, 1),
    )
    assert (Layout(2, 3).all_servers, Layout(2, 3).text, ONE_UNIT.text) == (6, "machines=2, servers=3", "")
    assert Layout(UNITS_MAX).is_possible and ONE_UNIT.is_possible
    for layout in (
        Layout(0),
        Layout(machines=-1),
        Layout(UNITS_MAX + 1),
        Layout(2, UNITS_MAX),
        Layout(10**9, 10**9, 10**9),
        Layout(schemas=0),
        Layout(keys=-1),
        Layout(schemas=8, keys=9),
    ):
        assert not layout.is_possible


def test_a_layout_knows_what_a_server_holds_and_how_many_sets_of_tables_there_are() -> None:
    whole = Layout(2, 3, 1, 4, 2)
    assert whole.in_server == Layout(schemas=4, keys=2) and whole.in_server.text == "schemas=4, keys=2"
    assert (len(whole.units), whole.sets_of_tables, whole.in_server.sets_of_tables) == (48, 24, 4)


def test_a_unit_enters_its_database_and_its_schema() -> None:
    server = Address("postgres", "me", "own", unix="/s")
    found = [server.of(each) for each in Layout(databases=2, schemas=2, keys=2).units]
    assert [(each.database, each.schema) for each in found[::2]] == [
        ("own", None), ("own", "unit_1"), ("unit_1", None), ("unit_1", "unit_1"),
    ]  # fmt: skip
    assert found[::2] == found[1::2]  # a key is no place
    assert found[2].parameters()["schema"] == "unit_1"


def test_who_works_on_one_set_of_tables_is_known_by_its_key() -> None:
    running = running_arm(Layout(servers=2, keys=3), "native")
    sets = running.units_by_tables()
    assert [[each.unit.number for each in units] for units in sets] == [[0, 1, 2], [3, 4, 5]]
    named = [running.named(units, "text") for units in (running.units, sets[1], sets[1][:1])]
    assert named == ["text", "units 3 to 5: text", "unit 3: text"]
    alone = running_arm(Layout(keys=3), "native")
    assert alone.named(*alone.units_by_tables(), "text") == "text"
    databases = running_arm(Layout(databases=3), "native")
    assert [len(units) for units in databases.units_by_tables()] == [1, 1, 1]


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


BOOT = {"kernel_boot": "a1"}
ONE_KERNEL = {0: (BOOT, BOOT)}
TWO_KERNELS = {0: (BOOT, {"kernel_boot": "b2"})}


def guest(*, ahead_ns: int, late_ns: int, line_ns: int = MS, **values: Any) -> UnitVisit:
    """Of a guest whose clock is so far ahead of the host's; it said at 100 ms that it was ready, was told at 120 ms, and began so
    late. ``line_ns``: what the line in which it said so took to be read."""
    host_start_ns, start_ns = 120 * MS, 120 * MS + late_ns + ahead_ns
    executions = (Timing(start_ns + MS, None, None, start_ns + 50 * MS, 1, 1, "ok"),)
    return unit(
        **{
            "host_start_ns": host_start_ns,
            "start_ns": start_ns,
            "end_ns": start_ns + 50 * MS,
            "host_end_ns": host_start_ns + late_ns + 90 * MS,  # a long answer, which takes 40 ms to come
            "held_ns": 100 * MS + ahead_ns,
            "host_held_ns": 100 * MS + line_ns,
            "executions": executions,
            **values,
        }
    )


def together(*visits: VisitTotals, starts: Any = TWO_KERNELS) -> Any:
    finding = started_together(Evidence("vms", visits=visits, starts=starts))
    assert finding is not None
    return finding


def test_on_one_kernel_the_units_themselves_say_when_they_began() -> None:
    """The host told all of them at one moment, and one heard it late."""
    told = {"host_start_ns": 0, "held_ns": 1, "host_held_ns": 1}

    def begun(at_ns: int, **values: Any) -> UnitVisit:
        return unit(executions=(Timing(at_ns, None, None, at_ns + MS, 1, 1, "ok"),), **told, **values)

    near = visit(begun(10 * MS), begun(19 * MS), order=1)
    far = visit(begun(10 * MS), begun(21 * MS), order=2)
    long = visit(*(unit(window=window(1), start_ns=ns, **told) for ns in (5, 500 * MS)), order=3)
    too_far = visit(*(unit(window=window(1), start_ns=ns, **told) for ns in (5, 700 * MS)), order=4)
    # Each heard it late, and was told how long it was until they begin.
    due = visit(*(unit(window=window(1), start_ns=ns, begin_ns=800 * MS, **told) for ns in (5, 700 * MS)), order=5)
    finding = together(near, far, long, too_far, due, starts=ONE_KERNEL)
    assert finding.check.passed is False and finding.void_visits == {(0, 2), (0, 4)}
    assert "in 2 of 5 visits" in finding.check.finding and "700.00 ms at most" in finding.check.finding
    alone = started_together(Evidence("one", visits=(visit(unit([1])),), starts=ONE_KERNEL))
    assert alone is None


def test_of_guests_the_host_knows_between_which_moments_they_began() -> None:
    hour = 3_600_000 * MS
    near = visit(guest(ahead_ns=0, late_ns=2 * MS), guest(ahead_ns=hour, late_ns=4 * MS), order=1)
    late = visit(guest(ahead_ns=hour, late_ns=2 * MS), guest(ahead_ns=5 * hour, late_ns=30 * MS), order=2)
    assert start_spread_ns(near, one_clock=False) == 5 * MS  # 4 ms, and 1 ms that the line of the second may have taken
    assert start_spread_ns(late, one_clock=False) == 31 * MS
    finding = together(near, late)
    assert finding.check.passed is False and finding.void_visits == {(0, 2)}
    # It may have been late: nobody knows what of this time its line took.
    blurred = visit(guest(ahead_ns=0, late_ns=0), guest(ahead_ns=hour, late_ns=0, line_ns=15 * MS), order=3)
    assert together(blurred).void_visits == {(0, 3)}


def test_a_line_that_was_asked_for_tells_of_a_late_one() -> None:
    """Both begin at 140 ms, as they were to; the second was told at 132 ms, of which the host knows nothing but its lines."""
    hour = 3_600_000 * MS

    def at_140(ahead_ns: int) -> tuple[Timing]:
        return (Timing(140 * MS + ahead_ns, None, None, 170 * MS + ahead_ns, 1, 1, "ok"),)

    first = guest(ahead_ns=0, late_ns=0, line_ns=0, executions=at_140(0))
    second = guest(ahead_ns=hour, late_ns=12 * MS, line_ns=2 * MS, executions=at_140(hour))
    assert start_spread_ns(visit(first, second), one_clock=False) == 12 * MS
    asked = structs.replace(second, host_asked_ns=99 * MS)
    assert start_spread_ns(visit(first, asked), one_clock=False) == 2 * MS


def test_a_visit_from_before_its_units_said_when_they_were_held_has_its_end() -> None:
    old = {"held_ns": None, "host_held_ns": None}
    assert start_spread_ns(visit(*(guest(ahead_ns=n, late_ns=0, **old) for n in (0, MS))), one_clock=False) == 40 * MS


def test_where_the_host_saw_nothing_it_is_not_known() -> None:
    unseen = visit(guest(ahead_ns=0, late_ns=0), guest(ahead_ns=0, late_ns=0, host_start_ns=None, host_end_ns=None))
    assert together(unseen).check.passed is None
    # Nor is one clock taken for granted where a server does not tell of its kernel.
    assert together(unseen, starts={0: (BOOT, {})}).check.passed is None
    assert together(unseen, starts={}).check.passed is None
    assert together(unseen, starts=ONE_KERNEL).check.passed is True


def test_terminals_outside_are_told_by_the_agent_around() -> None:
    apart = visit(
        unit(host_start_ns=None, start_ns=5), unit(host_start_ns=None, start_ns=25), levels={"placement": "outside"}
    )
    assert start_spread_ns(apart, one_clock=False) == 20


# --- what is counted of several together ------------------------------------------------------------------------------------


def test_what_several_units_did_together_counts_once() -> None:
    own = {"cpu": {"user_ns": 1, "system_ns": 2}, "minor_faults": 3}
    kernel = Shared(units=(0, 1), disk_read_bytes=4096)
    servers = visit(unit([1], **own), unit([1], **own), shared=(kernel,))
    assert (servers.disk_read_bytes, servers.minor_faults) == (4096, 6)
    assert servers.cpu == {"user_ns": 2, "system_ns": 4}
    first = Shared(units=(0, 1), disk_read_bytes=10, minor_faults=20, cpu={"user_ns": 1, "system_ns": 1})
    databases = visit(*(unit([1]) for _ in range(4)), shared=(first, structs.replace(first, units=(2, 3))))
    assert (databases.disk_read_bytes, databases.minor_faults) == (20, 40)
    assert databases.cpu == {"user_ns": 2, "system_ns": 2}
    assert [each.disk_read_bytes for each in of_each_unit(databases)] == [None] * 4  # which cannot be told apart
    unknown = visit(*(unit([1]) for _ in range(4)), shared=(first,))
    assert (unknown.disk_read_bytes, unknown.cpu) == (None, None)


@dataclass
class CountedServer:
    """Tells of its process and of its machine, the second time more."""

    read_bytes: int
    asked: int = 0

    def counters(self, *, brief: bool = False) -> dict[str, Any]:
        self.asked += 1
        told = {"user_ns": 5, "system_ns": 7, "minor_faults": 3, "read_bytes": self.read_bytes}
        processes = {name: value * self.asked for name, value in told.items()}
        return {"processes": processes, "machine": None if brief else {"pages_in_bytes": 4096 * self.asked}}


def running_arm(layout: Layout, stack: str) -> RunningArm:
    arm = Arm("vms", (Step(stack),), layout=layout)
    running = RunningArm(arm, (object(),) * layout.machines, None, {}, ExitStack())  # type: ignore[arg-type]
    running.servers = tuple(CountedServer(read_bytes=10 + n) for n in range(layout.all_servers))  # type: ignore[misc]
    for each in running.units:
        each.server = running.servers[each.unit.number // len(layout.in_server.units)]
    return running


@pytest.mark.parametrize(
    ("layout", "agents"),
    [
        (Layout(), 0),
        (Layout(machines=3), 0),
        (Layout(servers=3), 3),
        (Layout(databases=2), 2),
        (Layout(machines=2, keys=2), 4),
    ],
)
def test_every_design_has_as_many_driving_processes_as_units(
    layout: Layout, agents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[AgentMachine] = []
    closed: list[str] = []

    def agent(parent: AgentMachine, name: str, argv: list[str]) -> tuple[AgentMachine, None]:
        assert argv == ["/dbtoll/agent", "serve"] and parent in machines
        opened.append(AgentMachine(name, SimpleNamespace(close=lambda: closed.append(name))))  # type: ignore[arg-type]
        return opened[-1], None

    monkeypatch.setattr(arms, "open_nested", agent)
    machines = tuple(AgentMachine(f"m{number}", SimpleNamespace()) for number in range(layout.machines))  # type: ignore[arg-type]
    with ExitStack() as closing:
        running = RunningArm(Arm("vms", (Step("native"),), layout=layout), machines, None, {}, closing)  # type: ignore[arg-type]
        drivers = [each.driver_machine("inside") for each in running.units]
        assert drivers == [each.driver_machine("inside") for each in running.units], "opened once"
        assert len(set(drivers)) == len(running.units) and len(opened) == agents
        if not agents:
            assert drivers == list(machines)
    assert len(closed) == agents and len(set(closed)) == agents


def counted(layout: Layout, part: str, stack: str = "native") -> Visit:
    around, _ = ServerCounters.around(running_arm(layout, stack), lambda: None, brief=part == "processes")
    name = "read_bytes" if part == "processes" else "pages_in_bytes"
    found = around.of({**CPU, "disk_read_bytes": (part, (name,))})
    return structs.replace(visit_record(*(unit([1], **own) for own in found.own)), shared=found.shared)


@pytest.mark.parametrize(
    ("layout", "stack", "part", "read_bytes", "own"),
    [
        (Layout(), "native", "processes", 10, True),
        (Layout(servers=2), "native", "processes", 21, True),
        (Layout(databases=2), "native", "processes", 10, False),
        (Layout(servers=2, databases=2), "native", "processes", 21, False),
        (Layout(servers=2, schemas=2), "native", "processes", 21, False),
        (Layout(keys=3), "native", "processes", 10, False),
        # A kernel counts what all on it read: once for all servers and for all containers, once in each guest.
        (Layout(), "native", "machine", 4096, True),
        (Layout(servers=2), "native", "machine", 4096, False),
        (Layout(machines=3), "docker", "machine", 4096, False),
        (Layout(machines=3), "qemu", "machine", 3 * 4096, True),
        (Layout(machines=2, databases=2), "qemu", "machine", 2 * 4096, False),
    ],
)
def test_each_counter_is_counted_once(layout: Layout, stack: str, part: str, read_bytes: int, own: bool) -> None:
    record = counted(layout, part, stack)
    assert totals(record).disk_read_bytes == read_bytes
    assert all((each.disk_read_bytes is not None) is own for each in record.units)
    many = layout.all_servers
    assert totals(record).cpu == {"user_ns": 5 * many, "system_ns": 7 * many}


@pytest.mark.parametrize(
    ("layout", "stack", "of_server", "of_kernel"),
    [
        (Layout(servers=2, databases=2), "native", 2, 4),
        (Layout(servers=2, schemas=2, keys=2), "native", 4, 8),
        (Layout(machines=3), "docker", 1, 3),
        (Layout(machines=3, databases=2), "qemu", 2, 2),
    ],
)
def test_a_collector_is_held_against_the_work_that_it_saw(
    layout: Layout, stack: str, of_server: int, of_kernel: int
) -> None:
    result = VisitResult(tuple(unit([1]) for _ in layout.units))
    # What disturbs looks at one server, what does not at all of them.
    of_all = len(layout.units)
    for collector, seen in (
        (calls.Collector(), of_server),
        (machine.Collector(), of_kernel),
        (processes.Collector(), of_all),
    ):
        assert work_seen(running_arm(layout, stack), collector, result)["executions"] == seen


def test_an_arm_of_several_databases_shows_whether_it_is_cold() -> None:
    cold = {"cache": "cold"}
    read, none = (
        totals(
            visit_record(
                unit([1]), unit([1]), levels=cold, order=n, shared=(Shared(units=(0, 1), disk_read_bytes=n << 20),)
            )
        )
        for n in (1, 0)
    )
    finding = cold_reads_disk(Evidence("databases", visits=(read, none)))
    assert finding is not None and finding.check.passed is False and finding.void_visits == {(0, 0)}


# --- plans ------------------------------------------------------------------------------------------------------------------


def test_a_plan_that_differs_in_another_unit_is_another_plan() -> None:
    def plan(arm: str, unit: int, fingerprint: str) -> Fingerprint:
        return Fingerprint(round=0, arm=arm, query="Q3", parameter_set=0, fingerprint=fingerprint, unit=unit)

    baseline = [plan("three", 0, "a"), plan("three", 1, "b")]
    own = [plan("vms", 0, "a"), plan("vms", 1, "a"), plan("vms", 2, "b")]
    expected = expected_plans(baseline)
    for its, units in ((own, "unit 2"), (baseline, "unit 1")):
        finding = same_plans(Evidence("vms", fingerprints=tuple(its), baseline_plans=expected))
        assert finding is not None and finding.check.passed is False
        assert finding.check.finding == f"other plans than the baseline: Q3 ({units})"
    equal = same_plans(Evidence("vms", fingerprints=tuple(own[:2]), baseline_plans=expected))
    assert equal is not None and equal.check.passed is True


def test_a_record_that_tells_of_units_that_there_are_not_is_refused() -> None:
    arm = Arm("vms", (Step("native"),), layout=Layout(databases=2))
    demand = Expected(PlanFile(experiment=replace(experiment(), arms=(arm,)), queries=("mix",), blocks=1)).demand
    demand(RoundBegin(round=0, attempt=0, elapsed_s=0.0))
    levels = {"cache": "warm", "connection": "persistent"}
    shared = Shared(units=(0, 1), disk_read_bytes=1)
    demand(visit_record(unit([1]), unit([1]), levels=levels, shared=(shared,), order=0))
    for units in ((0, 2), (1, 1)):
        wrong = structs.replace(shared, units=units)
        with pytest.raises(ValueError, match="together"):
            demand(visit_record(unit([1]), unit([1]), levels=levels, shared=(wrong,), order=1 + units[0]))
    told = Fingerprint(round=0, arm="vms", query="mix", parameter_set=0, fingerprint="a", unit=1)
    demand(told)
    with pytest.raises(ValueError, match="has no unit 2"):
        demand(structs.replace(told, unit=2))
