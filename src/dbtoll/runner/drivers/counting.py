"""The same visits again while collectors look on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

from msgspec import structs

from dbtoll.errors import Unavailable
from dbtoll.interfaces.collector import Collector
from dbtoll.interfaces.engine import StatisticsEngine
from dbtoll.machines.observers import added
from dbtoll.model.json import Json
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.arms import RunningArm, RunningServer
from dbtoll.runner.drivers.protocol import VisitDriver, VisitResult, is_cold, work_done
from dbtoll.runner.drivers.statements import StatementDriver
from dbtoll.runner.drivers.wait_samples import account_of_statement, account_of_window

ENGINE = "engine"
"""What the server tells, among what collectors do."""


@dataclass(frozen=True, slots=True)
class CountingDriver:
    """The same again while collectors look on: first all that do not disturb it, then each of the others by itself. In the last
    window of transactions the server is asked too what its sessions do, beside those collectors that count nothing of it.

    Of an arm with several servers those that do not disturb look on at all of them, or at the kernel that the first stands on;
    those that do, at the first, while all work. BIAS: what they count in the machine around that kernel holds what the arm's other
    guests asked for.
    """

    driver: VisitDriver
    collectors: Sequence[Collector]
    baselines: Collection[str]

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """As when it is timed."""
        self.driver.begin_phase(running, phase)

    def make_ready(self, running: RunningArm, phase: Phase, *, first_execution: bool) -> None:
        """Each pass by itself."""

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool
    ) -> VisitResult:
        """See VisitDriver; the times are those of the last pass. What cannot be counted in an arm says why."""
        result: VisitResult | None = None
        if not is_cold(phase) and phase.levels.get("connection", "persistent") == "persistent":
            # On a connection that is kept, its server process maps what it needs in the first execution.
            self.driver.make_ready(running, phase, first_execution=True)
            result = self.driver.drive(running, phase, block, query, first_execution=True)
        counts: Json = {}
        asks_server = isinstance(running.engine, StatisticsEngine) and not is_cold(phase)
        of_window = asks_server and not isinstance(self.driver, StatementDriver)
        passes, left_out = self._passes(running, phase, asked_beside=of_window)
        for together in passes:
            able = [each for each in together if each.name not in running.uncounted]
            asked = of_window and together is passes[-1]
            if able or asked:
                seen, counted = self._look(
                    running, phase, block, query, able, asks_server=asked, first_execution=first_execution
                )
                result = seen or result
                counts |= counted
        counts |= {name: {"missing": why} for name, why in {**running.uncounted, **left_out}.items()}
        if asks_server and isinstance(self.driver, StatementDriver):
            counts[ENGINE] = account_of_statement(self.driver, running, block, query)
        result = result or self.driver.drive(running, phase, block, query, first_execution=first_execution)
        units = (structs.replace(unit, executions=(), window=None) for unit in result.units)
        return VisitResult(tuple(units), counts, result.shared)

    def _look(
        self,
        running: RunningArm,
        phase: Phase,
        block: Block,
        query: str,
        able: Sequence[Collector],
        *,
        asks_server: bool,
        first_execution: bool,
    ) -> tuple[VisitResult | None, Json]:
        """One pass: its times, None where nobody could look on; and what was counted, or why it was not."""
        self.driver.make_ready(running, phase, first_execution=first_execution)
        result: VisitResult | None = None
        told: dict[str, Callable[[], Json]] = {}
        account: Json | None = None
        counts: Json = {}
        try:
            with ExitStack() as looking:
                told |= _look_on(running, able, looking)
                if told or asks_server:
                    least_s = 0 if is_cold(phase) else max((each.least_s for each in able), default=0.0)
                    with account_of_window(running) if asks_server else nullcontext() as account:
                        result = self._drive(
                            running, phase, block, query, first_execution=first_execution, least_s=least_s
                        )
        except Unavailable as error:
            counts = {name: {"missing": error.message} for name in told}
        if result is not None:
            counts |= {
                each.name: {**work_seen(running, each, result), "counted": told[each.name]()}
                for each in able
                if each.name in told and each.name not in counts
            }
            if account:
                counts[ENGINE] = {**work_done(result.units), "counted": account}
        return result, counts

    def _drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool, least_s: float
    ) -> VisitResult:
        """Statements, for the measurement time in each visit, until ``least_s`` of them were executed; a window once."""
        result = self.driver.drive(running, phase, block, query, first_execution=first_execution)
        while _can_go_on(result) and work_done(result.units)["elapsed_ns"] < least_s * 1e9:
            more = self.driver.drive(running, phase, block, query, first_execution=first_execution)
            result = VisitResult(
                tuple(
                    structs.replace(after, executions=(*before.executions, *after.executions))
                    for before, after in zip(result.units, more.units, strict=True)
                )
            )
        return result

    def _passes(
        self, running: RunningArm, phase: Phase, *, asked_beside: bool
    ) -> tuple[list[list[Collector]], dict[str, str]]:
        """Which collectors look on together, and why others do not: some are for the baseline alone, and cold, where each pass
        needs a restart, so are all that disturb. ``asked_beside``: in the last pass the server is asked meanwhile."""
        left_out = {}
        if running.arm.name not in self.baselines:
            for each in self.collectors:
                if not each.everywhere or (each.disturbs and is_cold(phase)):
                    left_out[each.name] = "it is counted in the baseline alone"
        able = [each for each in self.collectors if each.name not in left_out]
        quiet = [each for each in able if not each.disturbs]
        beside = [each for each in quiet if each.beside_questions] if asked_beside else []
        first = [each for each in quiet if each not in beside]
        last = [beside] if asked_beside else []
        return [first, *([each] for each in able if each.disturbs), *last], left_out

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """As when it is timed."""
        return self.driver.violations(running, initially=initially)


def _can_go_on(result: VisitResult) -> bool:
    return all(unit.window is None and unit.problem is None for unit in result.units)


def work_seen(running: RunningArm, collector: Collector, result: VisitResult) -> Json:
    """What was done in the units that it looks at."""
    seen = running.servers_by_kernel()[0] if collector.of_kernel else _looked_at(running, collector)
    return work_done(result.units[: sum(len(running.units_of(server)) for server in seen)])


def _looked_at(running: RunningArm, collector: Collector) -> Sequence[RunningServer]:
    """The servers whose processes it is given: one stands for its kernel, and all where that costs next to nothing."""
    return running.servers[:1] if collector.of_kernel or collector.disturbs else running.servers


def _look_on(running: RunningArm, collectors: Sequence[Collector], looking: ExitStack) -> dict[str, Callable[[], Json]]:
    """Name -> what tells afterwards, until ``looking`` ends. What cannot be counted in this arm is not tried again."""
    told = {}
    for collector in collectors:
        try:
            told[collector.name] = _together(
                [
                    looking.enter_context(collector.around(server.machine, _pid(server)))
                    for server in _looked_at(running, collector)
                ]
            )
        except Unavailable as error:
            running.uncounted[collector.name] = error.message
    return told


def _together(told: Sequence[Callable[[], Json]]) -> Callable[[], Json]:
    return lambda: added([each() for each in told])


def _pid(server: RunningServer) -> int:
    assert server.server is not None and server.server.pid is not None
    return server.server.pid
