"""Many tenants at once: what driving them adds, how far apart windows begin, and what agents and starts take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import cycle, permutations
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.visits.units import share_a_clock, start_spread_ns, totals
from dbtoll.defaults import BASELINE
from dbtoll.errors import Invalid
from dbtoll.interfaces.machine import Begun, Machine, Terminals
from dbtoll.interfaces.workload import TransactionWorkload
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.nested import open_nested
from dbtoll.model.experiment import Arm
from dbtoll.model.json import AGENT, Json
from dbtoll.model.options import Option
from dbtoll.model.plan import Phase
from dbtoll.model.reply import WindowReply, ended_well
from dbtoll.model.tenancy import arm_name
from dbtoll.plan import Plan
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.budget import Budget
from dbtoll.runner.drivers.protocol import settle, together
from dbtoll.runner.drivers.transactions import driver_parameters
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.selfbench.support.tenants import of_tenants
from dbtoll.store.schema import CheckRecord, Record, Start, Visit

SUMMARY = "tenancy: driver_ratio, one_agent_ratio, one_agent_cpu_ratio, window_skew_ms, and of each design start_s and agents_mib"
OPTIONS = {
    "tenants": Option("integer", 8, "of each design", least=2),
    "environments": Option("list", [], "in which tenants are isolated, joined by +; by default in none"),
    "rounds": Option("integer", 12, "fresh starts of every design", least=1),
    "blocks": Option("integer", 3, "windows of every design after each start", least=1),
    "pairs": Option(
        "integer",
        12,
        "windows of each start as arms are driven, by drivers apart and by one agent, in turn; 0: none",
        least=0,
    ),
    "engine": Option("text", "postgres", "which"),
    "memory": Option("text", "8 GiB", "of each design"),
}

DRIVERS = OWN, APART, ONE = "as arms are driven", "drivers apart", "one agent"
"""Of all tenants: by the agents that units of an arm have, by others that are opened for this alone, by the machine's."""

SHARED, DEDICATED, ISOLATED = "shared", "dedicated", "isolated"
RATIO_MARGIN = 0.03
SKEW_MS = 5.0
START_S = 60.0
AGENTS_MIB = 256.0
ALPHA = 0.05

BOUNDS = {
    "driver_ratio_low": Bound(min=1 - RATIO_MARGIN),
    "driver_ratio_high": Bound(max=1 + RATIO_MARGIN),
    "window_skew_ms": Bound(max=SKEW_MS),
    "start_s": Bound(max=START_S),
    "agents_mib": Bound(max=AGENTS_MIB),
    "violations": Bound(max=0),
}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Rounds as of a run, each with a fresh start of every design; at the end of each, in the dedicated one, windows that are
    driven as an arm's are, windows that a driver of its own for each tenant drives, and windows that one agent drives, in turn.
    A start of drivers is one draw: what it has of its own is in all of its windows."""
    named = options["environments"]
    stacks, _ = available.present(named, say) if named else ([BASELINE], {})
    tenants = options["tenants"]
    designs = [(BASELINE, DEDICATED), (BASELINE, SHARED), *((stack, ISOLATED) for stack in stacks if stack != BASELINE)]
    whole = of_tenants(designs, tenants, engine=options["engine"], memory=options["memory"])
    asked = replace(whole, arms=tuple(arm for arm in whole.arms if arm.copy_of is None))
    watch = Quiet(say)
    seen = _Seen()
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), watch) as prepared:
        plan = Plan(asked, prepared.queries, options["blocks"], {})
        for number in range(options["rounds"]):
            round_ = _Round(
                prepared.context,
                prepared.inputs,
                plan.round(number),
                seen.records.append,
                watch,
                Budget(math.inf),
                None,
                seen_plans=set(),
                left_out=frozenset(),
                seen=seen,
                pairs=options["pairs"],
                paired=arm_name(BASELINE, DEDICATED, tenants),
            )
            round_.measure()
            say(f"{number + 1} of {options['rounds']}: {_shown(seen)}")
        told = {"host": prepared.facts["host"], "skews_ms": seen.skews_ms(), "starts_s": seen.starts_s}
    return _certificate(seen, told)


@dataclass
class _Seen:
    """By arm: s that its starts took, MiB that its agents have after its windows. ``pairs``: of each round, by `DRIVERS`."""

    records: list[Record] = field(default_factory=list)
    starts_s: dict[str, list[float]] = field(default_factory=dict)
    agents_mib: dict[str, float] = field(default_factory=dict)
    pairs: list[list[dict[str, _Driven]]] = field(default_factory=list)

    def skews_ms(self) -> dict[str, list[float]]:
        """By arm, of each window: what at most lies between the begins of the first tenant's and of the last one's."""
        clocks = {
            (each.round, each.arm): share_a_clock(each.servers) for each in self.records if isinstance(each, Start)
        }
        found: dict[str, list[float]] = {}
        for each in self.records:
            if isinstance(each, Visit):
                spread = start_spread_ns(totals(each), one_clock=clocks[each.round, each.arm])
                found.setdefault(each.arm, []).append(math.inf if spread is None else spread / 1e6)
        return found


@dataclass(frozen=True, slots=True)
class _Driven:
    """A window of all tenants: transactions/s, and us of CPU time that their drivers took for each."""

    throughput: float
    driver_cpu_us: float


def _certificate(seen: _Seen, told: Json) -> Certificate:
    failed = [each.reason for each in seen.records if isinstance(each, Start) and each.outcome != "ok"]
    if failed:
        raise Invalid(f"a design did not start: {failed[0]}")
    skews = told["skews_ms"]
    checks = [each for each in seen.records if isinstance(each, CheckRecord) and each.check == "consistent"]
    figures: dict[str, Any] = {
        "window_skew_ms": max(max(each) for each in skews.values()),
        "start_s": max(max(each) for each in seen.starts_s.values()),
        "agents_mib": max(seen.agents_mib.values()),
        "violations": sum(not each.passed for each in checks),
        "designs": {
            arm: {
                "window_skew_ms": max(skews[arm]),
                "window_skew_ms_median": median(skews[arm]),
                "start_s": median(seen.starts_s[arm]),
                "agents_mib": seen.agents_mib[arm],
            }
            for arm in seen.starts_s
        },
    }
    if seen.pairs:
        for name, one, of in (
            ("driver_ratio", OWN, "throughput"),
            ("one_agent_ratio", ONE, "throughput"),
            ("one_agent_cpu_ratio", ONE, "driver_cpu_us"),
        ):
            logs = [[math.log(getattr(each[one], of) / getattr(each[APART], of)) for each in its] for its in seen.pairs]
            # BIAS: of one start alone it is over windows, which all have what that start has of its own.
            found = stats.independent_interval(
                np.array([fmean(its) for its in logs] if len(logs) > 1 else logs[0]), ALPHA
            )
            assert found is not None
            ends = {"": found.estimate, "_low": found.low, "_high": found.high}
            figures |= {f"{name}{end}": math.exp(value) for end, value in ends.items()}
        windows = [each for its in seen.pairs for each in its]
        figures["driver_cpu_us"] = {name: median(each[name].driver_cpu_us for each in windows) for name in DRIVERS}
        told = {
            **told,
            "pairs": [[{name: asdict(window) for name, window in each.items()} for each in its] for its in seen.pairs],
        }
    bounds = {name: bound for name, bound in BOUNDS.items() if name in figures}
    return Certificate("tenancy", figures, bounds, told)


@dataclass(slots=True, kw_only=True)
class _Round(RoundRun):
    """A round that looks at how long starts take, and at the agents before they end. ``paired``: the arm of the pairs."""

    seen: _Seen
    pairs: int
    paired: str

    def start(self, arm: Arm) -> None:
        host = self.context.host
        begin_ns = host.call("ping", {})["at_ns"]
        RoundRun.start(self, arm)
        took_s = (host.call("ping", {})["at_ns"] - begin_ns) / 1e9
        self.seen.starts_s.setdefault(arm.name, []).append(took_s)

    def end(self) -> None:
        for name in self.healthy():
            self.awake(self.arms[name], self._look)
        if self.pairs and self.paired in self.healthy():
            self.awake(self.arms[self.paired], self._drive_in_pairs)
        RoundRun.end(self)

    def _look(self, running: RunningArm) -> None:
        agents = dict.fromkeys([*running.machines, *(unit.driver for unit in running.units)])
        self.seen.agents_mib[running.arm.name] = sum(map(agent_mib, agents))

    def _drive_in_pairs(self, running: RunningArm) -> None:
        phase = next(phase for phase in self.plan.phases if phase.kind == "timed")
        self.driver(running, phase).begin_phase(running, phase)
        workload = self.inputs.by_arm[running.arm.name].workload
        assert isinstance(workload, TransactionWorkload) and isinstance(running.machine, AgentMachine)
        with ExitStack() as closing:
            apart = [
                closing.enter_context(open_nested(running.machine, f"driver {number}", [AGENT, "serve"])[0])
                for number in range(len(running.units))
            ]
            own: list[Machine] = [unit.driver for unit in running.units]
            drivers: Sequence[Sequence[Machine]] = (own, apart, [running.machine] * len(apart))
            terminals = {
                name: closing.enter_context(_terminals(running, phase, workload, its))
                for name, its in zip(DRIVERS, drivers, strict=True)
            }
            orders = cycle(permutations(DRIVERS))
            pairs: list[dict[str, _Driven]] = []
            for number in range(self.pairs):
                self.progress(f"pair {number + 1}")
                took: dict[str, _Driven] = {}
                for name in next(orders):
                    settle(running)
                    took[name] = _driven(workload, terminals[name])
                pairs.append(took)
            self.seen.pairs.append(pairs)


@contextmanager
def _terminals(
    running: RunningArm, phase: Phase, workload: TransactionWorkload, agents: Sequence[Machine]
) -> Iterator[list[Terminals]]:
    """Of each unit, driven by the agent that it has there."""
    with ExitStack() as closing:
        made = []
        for unit, agent in zip(running.units, agents, strict=True):
            made.append(agent.terminals(unit.address(), driver_parameters(running, unit, workload, phase.levels, 1)))
            closing.callback(made[-1].close)
        yield made


def _driven(workload: TransactionWorkload, terminals: Sequence[Terminals]) -> _Driven:
    """A window of all tenants."""
    ramp_up_ns, window_ns, rate = workload.window_timing()

    def begin(its: Terminals, hold: bool) -> Begun[WindowReply]:
        return its.window(ramp_up_ns=ramp_up_ns, window_ns=window_ns, rate=rate, hold=hold)

    replies = together([partial(begin, its) for its in terminals])
    ended = sum(ended_well(reply.counts) for reply in replies)
    cpu_ns = sum(reply.counts["driver_cpu_ns"] for reply in replies)
    return _Driven(ended / (window_ns / 1e9), cpu_ns / 1000 / max(ended, 1))


def agent_mib(machine: Machine) -> float:
    """What the agent in there takes for itself, and its part of what several share (proc(5): Pss)."""
    told = machine.get("/proc/self/smaps_rollup").decode(errors="replace")
    found = re.search(r"^Pss:\s+(\d+) kB$", told, re.MULTILINE)
    if found is None:
        raise Invalid(f"{machine.name} does not say what its agent takes")
    return int(found[1]) / 1024


def _shown(seen: _Seen) -> str:
    skews = seen.skews_ms()
    parts = [
        f"{arm}: started in {times[-1]:.1f} s, windows at most {max(skews.get(arm, [math.inf])):.2f} ms apart"
        for arm, times in seen.starts_s.items()
    ]
    return "; ".join(parts)
