"""What is asked in that world: statements, and terminals."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dbtoll import registry
from dbtoll.environments.simulated.events import counts_of
from dbtoll.environments.simulated.world import GAP_NS, uniform
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.reply import AnswerReference, Execution, Statement, VisitReply, WindowReply

if TYPE_CHECKING:
    from dbtoll.environments.simulated.machine import SimulatedMachine


Reply = TypeVar("Reply", bound=VisitReply | WindowReply)


class SimulatedBegun(Generic[Reply]):
    """Implements interfaces.Begun: what is told to go at one moment begins at that moment, or as late as the world has it, also
    where it is simulated later."""

    def __init__(self, machine: SimulatedMachine, work: Callable[[], Reply]) -> None:
        self._machine, self._work = machine, work
        self._held_ns: int | None = None
        self._told_ns: int | None = None

    def ready(self) -> None:
        """At once."""
        self._held_ns = self._machine.timeline.now_ns

    def go(self, in_ns: int = 0) -> None:
        """Now: nobody here takes time to be told."""
        self._told_ns = self._machine.timeline.now_ns

    def result(self) -> Reply:
        """The timeline is at the end of what lasted longest."""
        machine, timeline = self._machine, self._machine.timeline
        if self._told_ns is None:
            return self._work()
        reached_ns, late_ms = timeline.now_ns, machine.world.late_ms
        timeline.now_ns = self._told_ns + (round(late_ms * 1e6 * machine.draws.random()) if late_ms else 0)
        result = replace(self._work(), host_start_ns=self._told_ns, held_ns=self._held_ns, host_held_ns=self._held_ns)
        timeline.now_ns = max(timeline.now_ns, reached_ns)
        return result


class SimulatedSession:
    """Implements interfaces.Session in the simulated world."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    def visit(self, statements: Sequence[Statement], *, hold: bool = False, **asked: Any) -> SimulatedBegun[VisitReply]:
        """Advances the run's timeline when its result is asked for."""
        return SimulatedBegun(self._machine, lambda: self._visit(statements, **asked))

    def _visit(
        self,
        statements: Sequence[Statement],
        *,
        query_protocol: str,
        timing: VisitTiming,
        answers: Mapping[str, AnswerReference],
        lead_in: bool = True,
        repeat: bool = True,
        min_executions: int = 1,
        keep_rows: bool = False,
    ) -> VisitReply:
        self._machine.expect_awake()
        timeline = self._machine.timeline
        start_ns = timeline.now_ns + GAP_NS
        timeline.now_ns = start_ns
        led_in = None
        if lead_in:
            led_in = {"executions": 1, "elapsed_ns": timing.lead_in_ns}
            self._spend(timing.lead_in_ns)
        executions: list[Execution] = []
        for statement in statements:
            spent_ns = count = 0
            while count < min_executions or (repeat and spent_ns < timing.measurement_time_ns):
                count += 1
                execution = self._execute(statement.query, timing.statement_timeout_ns, keep_rows=keep_rows)
                executions.append(execution)
                spent_ns += execution.end_ns - execution.start_ns
        end_ns = timeline.now_ns
        timeline.now_ns += GAP_NS
        return VisitReply(
            start_ns=start_ns,
            end_ns=end_ns,
            executions=tuple(executions),
            lead_in=led_in,
            counters=None,
            host_start_ns=start_ns - GAP_NS,
            host_end_ns=end_ns + GAP_NS,
        )

    def query(self, sql: str, *, timeout_s: float = 300.0) -> list[list[str | None]]:
        """An empty result."""
        self._machine.expect_awake()
        return []

    def disconnect(self) -> None:
        """It holds no connection."""
        self._machine.expect_awake()

    def close(self) -> None:
        """It holds nothing."""

    def _execute(self, query: str, timeout_ns: int, *, keep_rows: bool) -> Execution:
        machine = self._machine
        start_ns = machine.timeline.now_ns
        duration_ns = machine.world.duration_ns(query, machine.offset, start_ns, machine.draws)
        timed_out = duration_ns > timeout_ns
        duration_ns = min(duration_ns, timeout_ns)
        self._spend(duration_ns)
        machine.done.update({"executions": 1, **counts_of(query, uniform)})
        end_ns = machine.timeline.now_ns
        machine.timeline.now_ns += GAP_NS
        return Execution(
            statement=query,
            start_ns=start_ns,
            connected_ns=None,
            first_byte_ns=None if timed_out else end_ns,
            end_ns=end_ns,
            rows=0,
            result_bytes=0,
            outcome="timeout" if timed_out else "ok",
            result=[] if keep_rows else None,
        )

    def _spend(self, duration_ns: int) -> None:
        self._machine.timeline.now_ns += duration_ns
        self._machine.spent_ns += duration_ns


INTERVALS = 100
"""Of a window."""


class SimulatedTerminals:
    """Implements interfaces.Terminals in the simulated world: a server with room for all of them, so none waits for another.

    A transaction takes as long as a query of its name would.
    """

    def __init__(self, machine: SimulatedMachine, driver_parameters: Json) -> None:
        ((workload, _),) = driver_parameters["workload"].items()
        self._machine = machine
        self._mix: Mapping[str, float] = registry.find("workloads", workload).mix
        self._terminals: int = driver_parameters["terminals"]

    def window(
        self, *, ramp_up_ns: int, window_ns: int, rate: float | None, hold: bool = False
    ) -> SimulatedBegun[WindowReply]:
        """Advances the run's timeline when its result is asked for."""
        return SimulatedBegun(self._machine, lambda: self._window(ramp_up_ns, window_ns, rate))

    def _window(self, ramp_up_ns: int, window_ns: int, rate: float | None) -> WindowReply:
        machine = self._machine
        machine.expect_awake()
        start_ns = machine.timeline.now_ns + GAP_NS
        from_ns = start_ns + ramp_up_ns
        until_ns = last_ns = from_ns + window_ns
        interval_ns = max(window_ns // INTERVALS, 1)
        series = [0] * math.ceil(window_ns / interval_ns)
        response = {name: Counter[int]() for name in self._mix}
        service = {name: Counter[int]() for name in self._mix}
        committed = Counter[str]()
        free, scheduled_ns = [start_ns] * self._terminals, start_ns
        while True:
            free_ns = heapq.heappop(free)
            if rate is None:
                scheduled_ns = free_ns
            else:
                scheduled_ns += round(machine.draws.expovariate(rate / 1e9))
            begin_ns = max(free_ns, scheduled_ns)
            if begin_ns >= until_ns:
                break
            (name,) = machine.draws.choices(list(self._mix), list(self._mix.values()))
            end_ns = begin_ns + machine.world.duration_ns(
                name, machine.offset, begin_ns, machine.draws, beside=machine.is_disturbed
            )
            heapq.heappush(free, end_ns)
            last_ns = max(last_ns, end_ns)
            if from_ns <= end_ns < until_ns:
                committed[name] += 1
                series[(end_ns - from_ns) // interval_ns] += 1
            if from_ns <= scheduled_ns < until_ns:
                response[name][_three_digits(end_ns - scheduled_ns)] += 1
                service[name][_three_digits(end_ns - begin_ns)] += 1
        machine.spent_ns += last_ns - start_ns
        machine.timeline.now_ns = last_ns + GAP_NS
        kinds = {
            name: {
                **{"committed": committed[name], "rolled_back": 0, "not_found": 0, "lost": 0, "unknown": 0},
                **{"failed": {}, "retried": {}},
                **{"response_ns": _histogram(response[name]), "service_ns": _histogram(service[name])},
            }
            for name in self._mix
        }
        total = committed.total()
        traffic = {"round_trips": total, "statements": total, "sent_bytes": 0, "received_bytes": 0, "driver_cpu_ns": 0}
        lost: Json = {"backlog_at_end": 0, "connections_lost": 0, "reconnects": 0, "refusal": None, "acknowledged": []}
        return WindowReply(
            begin_ns=start_ns,
            start_ns=start_ns,
            from_ns=from_ns,
            until_ns=until_ns,
            end_ns=last_ns,
            counts={"transactions": kinds, "series": series, "interval_ns": interval_ns, **traffic, **lost},
            host_start_ns=start_ns - GAP_NS,
            host_end_ns=last_ns + GAP_NS,
        )

    def close(self) -> None:
        """They hold nothing."""


def _three_digits(value: int) -> int:
    unit = int(10 ** max(0, len(str(value)) - 3))
    return value // unit * unit


def _histogram(counts: Counter[int]) -> Json:
    buckets = sorted(counts.items())
    ends = {"min": buckets[0][0], "max": buckets[-1][0]} if buckets else {"min": 0, "max": 0}
    return {**ends, "sum": sum(value * count for value, count in buckets), "buckets": buckets}
