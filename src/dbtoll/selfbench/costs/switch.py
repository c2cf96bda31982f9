"""What a switch costs the next statement in each environment, and whether neighbours and the measurement time change a result.

Only one arm is awake at a time (DESIGN §1.3). After a switch the arm finds the caches and the TLB of the processor full of its
neighbour's, and a guest the ticks that it missed. What of that is left after the lead-in falls on the first timed executions.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy import stats as distributions

from dbtoll.defaults import BASELINE
from dbtoll.errors import DbtollError, Invalid, UsageError
from dbtoll.interfaces.machine import TimestampedStream
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.model.plan import Round
from dbtoll.model.reply import Statement
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.budget import Budget
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench.support import available, switch_agreement
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.schema import Record, Start

SUMMARY = (
    "switches: residual_us in every environment, measurement_time_over_residual, clock_step_us; whether neighbours and "
    "measurement time matter"
)
OPTIONS = {
    "environments": available.ENVIRONMENTS,
    "starts": Option("integer", 2, "fresh starts of each environment", least=1),
    "visits": Option("integer", 30, "visits of each kind in each start; 0 leaves the cost of a switch out", least=0),
    "rounds": Option(
        "integer", 20, "fresh starts of each variant whose results have to agree; 0 leaves them out", least=0
    ),
    "blocks": Option("integer", 8, "blocks after each of these starts", least=1),
    "arm": Option("text", "", "stack whose overhead is measured in every variant; else the first beside native"),
    "scale": Option("number", 0.05, "scale factor of TPC-H"),
}

WINDOW_NS = 12_000_000
"""What the switch costs is looked for in the executions that begin so soon after the lead-in, at least FIRST_LEAST and at most
FIRST_MOST of them; USUAL further ones show what is usual. A later cost would be no smaller a share of the measurement time than
noise is."""
FIRST_LEAST, FIRST_MOST, USUAL = 2, 12, 10

SHORT = "SELECT count(*), sum(c_acctbal), max(c_mktsegment) FROM customer"
"""1.4 MB of pages at scale factor 0.05 and about a millisecond: more than a processor's inner caches hold."""

THRASH = "SELECT sum(l_extendedprice * l_discount), count(DISTINCT l_partkey) FROM lineitem"
"""40 MB of pages and a sort: nothing of anybody else is left in the inner caches, little in the outer."""

NEIGHBOUR = f"{BASELINE} (A/A)"

SWITCHED, BARE, STAYED = "switched", "switched, no lead-in", "stayed awake"
KINDS = (SWITCHED, BARE, STAYED)

STEP_US_MOST = 1000.0
"""A clock that steps by a millisecond in a visit of 50 ms makes it wrong by 2 %."""
BOUNDS = {
    "measurement_time_over_residual": Bound(min=20),
    "clock_step_us": Bound(max=STEP_US_MOST),
    "clock_backwards": Bound(max=0),
    "agree": Bound(min=1),
}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """First every environment with one native neighbour, then the variants of one comparison (`agreement`)."""
    stacks, missing = available.present(options["environments"], say)
    chosen = options["arm"] or next((name for name in stacks if name != BASELINE), NEIGHBOUR)
    if chosen not in (*stacks, NEIGHBOUR):
        raise UsageError(f"the arm {chosen!r} is not among {', '.join(stacks)}", "name it under environments, too")
    asked = available.over(
        stacks,
        {"name": "postgres", "profile": "serial"},
        {"name": "tpch", "scale": options["scale"], "queries": ["Q6"]},
        factors={"connection": ["per_statement"]},
    )
    watch = Quiet(say)
    figures: dict[str, Any] = {}
    bounds: dict[str, Bound] = {}
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), watch) as prepared:
        told: Json = {"host": prepared.facts["host"], "missing": missing}
        if options["visits"]:
            seen = switched(prepared, stacks, options["starts"], options["visits"], watch)
            figures |= residual_figures(seen, asked.visit_timing)
            bounds |= {
                name: BOUNDS[name] for name in ("measurement_time_over_residual", "clock_step_us", "clock_backwards")
            }
            told["visits"] = {name: each.as_json() for name, each in seen.items()}
        if options["rounds"]:
            statements = {"connect": "SELECT 1", "customer": SHORT}
            agreed = switch_agreement.measure(prepared, chosen, statements, options["rounds"], options["blocks"], watch)
            figures |= agreed.figures
            bounds["agree"] = BOUNDS["agree"]
            told["agreement"] = agreed.facts
    return Certificate("switch", figures, bounds, told)


def switched(prepared: Prepared, stacks: Sequence[str], starts: int, visits: int, watch: Quiet) -> dict[str, Seen]:
    """Every environment, one after the other, with one native neighbour."""
    found: dict[str, Seen] = {}
    chance = random.Random(visits)
    for name in stacks:
        seen = found[name] = Seen()
        for _ in range(starts):
            with started(prepared, (NEIGHBOUR, name), watch) as arms:
                visit_by_turns(
                    arms[name], arms[NEIGHBOUR], prepared.inputs.experiment.visit_timing, visits, seen, chance
                )
        watch.say(f"{name}: " + ", ".join(f"{kind} {cost.text}" for kind, cost in seen.costs().items()))
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """A median over visits with its 95 % interval, us."""

    us: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.us:+.0f} us ({self.low:+.0f} … {self.high:+.0f})"


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant by the host's agent and by the arm's; ``unsure_ns``: half the bracket around the latter."""

    host_ns: float
    arm_ns: int
    unsure_ns: float


@dataclass(slots=True)
class Seen:
    """All of one environment. ``times``: by kind, the executions of each visit, ns; the ``first`` of them may bear the cost.

    Clocks: see `awake` and `asleep`.
    """

    first: int = 0
    times: dict[str, list[list[int]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    steps_ns: list[float] = field(default_factory=list)
    backwards: int = 0
    runs_on: list[float] = field(default_factory=list)

    def costs(self) -> dict[str, Cost]:
        """What the first executions of a visit of each kind bore."""
        return {
            kind: median_cost([visit_cost_ns(times, self.first) / 1e3 for times in each])
            for kind, each in self.times.items()
        }

    def awake(self, begin: Moment, end: Moment) -> None:
        """By how much the arm's clock strayed from the host's between two instants without a sleep, beyond doubt."""
        strayed = abs((end.arm_ns - begin.arm_ns) - (end.host_ns - begin.host_ns))
        self.steps_ns.append(max(0.0, strayed - begin.unsure_ns - end.unsure_ns))

    def asleep(self, before: Moment, after: Moment) -> None:
        """Whether the arm's clock went on while it slept (1), stood still (0), or went backwards."""
        self.backwards += after.arm_ns < before.arm_ns
        self.runs_on.append((after.arm_ns - before.arm_ns) / (after.host_ns - before.host_ns))

    def as_json(self) -> Json:
        """For the facts: medians of execution number 1, 2 … of each kind, us, and what the clocks did."""
        curves = {
            kind: [statistics.median(column) / 1e3 for column in zip(*each, strict=True)]
            for kind, each in self.times.items()
        }
        means = {
            kind: statistics.fmean(visit_cost_ns(times, self.first) for times in each) / 1e3
            for kind, each in self.times.items()
            if each
        }
        clocks = {"clock_runs_on": self.runs_on, "steps_ns": self.steps_ns}
        return {"first": self.first, "execution_us": curves, "mean_cost_us": means, **clocks}


def first_of(usual_ns: float) -> int:
    """How many executions of that length begin in the window."""
    return min(max(math.ceil(WINDOW_NS / usual_ns), FIRST_LEAST), FIRST_MOST)


def visit_cost_ns(times: Sequence[int], first: int) -> float:
    """How much longer the first executions of a visit took together than as many usual ones; paired within the visit."""
    return sum(times[:first]) - first * statistics.median(times[first:])


def median_cost(values: Sequence[float]) -> Cost:
    """With the interval from order statistics (Conover 1999, ch. 3.2), which assumes nothing about the distribution."""
    ordered = sorted(values)
    cut = int(distributions.binom.ppf(0.025, len(ordered), 0.5))
    low = max(cut - 1, 0)
    return Cost(statistics.median(ordered), ordered[low], ordered[-1 - low])


def residual_figures(seen: Mapping[str, Seen], timing: VisitTiming) -> dict[str, Any]:
    """``residual_us``: after a switch and the lead-in. The measurement time is held against the far end of its interval."""
    costs = {name: each.costs() for name, each in seen.items()}
    worst_us = max(cost[SWITCHED].high for cost in costs.values())
    return {
        "residual_us": {name: cost[SWITCHED].us for name, cost in costs.items()},
        "residual_us_interval": {name: [cost[SWITCHED].low, cost[SWITCHED].high] for name, cost in costs.items()},
        "without_lead_in_us": {name: cost[BARE].us for name, cost in costs.items()},
        "without_switch_us": {name: cost[STAYED].us for name, cost in costs.items()},
        "measurement_time_over_residual": timing.measurement_time_ns / 1e3 / max(worst_us, 1.0),
        "clock_runs_on_asleep": {name: statistics.median(each.runs_on) for name, each in seen.items()},
        "clock_backwards": sum(each.backwards for each in seen.values()),
        "clock_step_us": max(max(each.steps_ns) for each in seen.values()) / 1e3,
    }


# --- measuring -------------------------------------------------------------------------------------------------------


@contextmanager
def started(prepared: Prepared, names: Sequence[str], watch: Quiet) -> Iterator[Mapping[str, RunningArm]]:
    """These arms freshly started and asleep, as at the beginning of a round. Invalid if one does not start."""
    records: list[Record] = []
    run = RoundRun(
        prepared.context,
        prepared.inputs,
        Round(0, tuple(names), ()),
        records.append,
        watch,
        Budget(float("inf")),
        None,
        set(),
    )
    try:
        for name in names:
            run.start(prepared.inputs.experiment.arm(name))
        failed = [record for record in records if isinstance(record, Start) and record.outcome != "ok"]
        if failed:
            raise Invalid(f"{failed[0].arm} did not start: {failed[0].reason}", "see `dbtoll doctor`")
        yield run.arms
    finally:
        run.end()


def visit_by_turns(
    arm: RunningArm, neighbour: RunningArm, timing: VisitTiming, visits: int, seen: Seen, chance: random.Random
) -> None:
    """``visits`` visits of each kind in random order; before each that follows a switch the neighbour fills the caches."""
    arm.wake()
    usual_ns = statistics.median(executed(arm, SHORT, FIRST_MOST, timing, lead_in=True))
    seen.first = seen.first or first_of(usual_ns)
    count = seen.first + USUAL
    left = moment(arm.machine)
    arm.sleep()
    for _ in range(visits):
        for kind in chance.sample(KINDS, len(KINDS)):
            neighbour.wake()
            executed(neighbour, THRASH, 1, timing, lead_in=True)
            neighbour.sleep()
            arm.wake()
            woken = moment(arm.machine) if kind == STAYED else None
            if kind == STAYED:
                executed(arm, SHORT, count, timing, lead_in=True)
            arm.counters(brief=True)  # as before each visit of a run
            seen.times[kind].append(executed(arm, SHORT, count, timing, lead_in=kind != BARE))
            now = moment(arm.machine)
            if woken is not None:
                # BIAS: asking for the time wakes the arm up; so it is asked only where the switch is not what is measured.
                seen.asleep(left, woken)
                seen.awake(woken, now)
            arm.sleep()
            left = now


def executed(arm: RunningArm, sql: str, times: int, timing: VisitTiming, *, lead_in: bool) -> list[int]:
    """The run times of so many executions in one visit, ns. Invalid if one failed."""
    statement = Statement("switch", sql, sql)
    reply = (
        arm.unit.session()
        .visit(
            [statement],
            query_protocol="simple",
            timing=timing,
            answers={},
            lead_in=lead_in,
            repeat=False,
            min_executions=times,
        )
        .result()
    )
    if any(execution.outcome != "ok" for execution in reply.executions):
        raise Invalid(f"{arm.arm.name}: a statement failed: {reply.executions[-1].error}", "look at the server's log")
    return [execution.end_ns - execution.start_ns for execution in reply.executions]


def moment(machine: Any, tries: int = 3) -> Moment:
    """The narrowest of a few brackets around the arm's clock by the host's agent."""
    if not isinstance(machine, AgentMachine):
        raise DbtollError(f"{machine.name} has no agent whose clock could be read")
    found: list[Moment] = []
    line = machine.channel.line
    assert isinstance(line, TimestampedStream)
    for _ in range(tries):
        stream = machine.channel.open("ping", {})
        while stream.receive() is not None:
            pass
        arm_ns = stream.result()["at_ns"]
        begin_ns, end_ns = line.written_at(stream.written_count), line.read_at(stream.end_count)
        assert begin_ns is not None
        assert end_ns is not None
        found.append(Moment((begin_ns + end_ns) / 2, arm_ns, (end_ns - begin_ns) / 2))
    return min(found, key=lambda each: each.unsure_ns)
