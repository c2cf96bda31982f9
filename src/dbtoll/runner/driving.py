"""What is done in one visit of an arm: a statement, repeated, or a measurement window of a transaction workload."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from dbtoll.errors import DbtollError, EngineError, Unavailable, UsageError
from dbtoll.interfaces import Collector, DurabilityEngine, Machine, ProbeWorkload, StatisticsEngine, TransactionWorkload
from dbtoll.machines.observers import risen
from dbtoll.model import AGENT, EXECUTOR_PROBES, AnswerReference, Block, Experiment, Json, Phase, Statement
from dbtoll.runner.arms import DATA, RunningArm
from dbtoll.store import schema

REUSES = 5
"""Executions on a connection that is made for one visit: what each of them costs shows how soon its making is paid off
(minhas2008, Figure 2: page faults of the first run on a connection against those of the second and later ones). As many
as the analysis looks at (`analysis.samples.REUSES`)."""


@dataclass(frozen=True, slots=True)
class VisitResult:
    """What a visit brought, as the history keeps it (`schema.Visit`)."""

    start_ns: int
    end_ns: int
    host_start_ns: int | None
    host_end_ns: int | None
    executions: tuple[schema.Timing, ...] = ()
    window: Json | None = None
    batches: tuple[schema.Batch, ...] | None = None
    counts: Json | None = None
    problem: str | None = None
    disk_read_bytes: int | None = None
    cpu: Json | None = None
    minor_faults: int | None = None
    samples: Json | None = None


class VisitDriver(Protocol):
    """How the arms of an experiment are driven. Every arm is awake when it is asked to do something."""

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """Untimed: what the levels of the phase ask of the server."""
        ...

    def make_ready(self, running: RunningArm, phase: Phase, *, first_touch: bool) -> None:
        """Untimed, before each visit."""
        ...

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_touch: bool
    ) -> VisitResult: ...

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """What must hold of the data, ``initially`` or at the end of a round, and does not; None if nothing is known of them."""
        ...


@dataclass(frozen=True, slots=True)
class Statements:
    """One statement after the other on one session. ``statements`` and ``answers`` by parameter set."""

    experiment: Experiment
    host: Machine
    statements: Sequence[Mapping[str, Statement]]
    answers: Sequence[Mapping[str, AnswerReference]]

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """Nothing: all levels are the session's."""

    def make_ready(self, running: RunningArm, phase: Phase, *, first_touch: bool) -> None:
        """A cold one begins with a restart."""
        if is_cold(phase) and not first_touch:
            running.restart_cold(self.host)

    def drive(self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_touch: bool) -> VisitResult:
        """See Driving."""
        levels = phase.levels
        steady_warm = not first_touch and not is_cold(phase)
        session = running.session(levels["connection"])
        if per_visit := levels["connection"] == "per_visit":
            session.disconnect()
        before = running.counters()
        reply = session.visit(
            [self.statements[block.parameter_set][query]],
            mode=levels["protocol"],
            pace=self.experiment.pace,
            answers=self.answers[block.parameter_set],
            lead_in=steady_warm and phase.kind == "timed",  # what is counted is counted in all executions
            dwell=steady_warm,
            least=REUSES if per_visit and steady_warm else 1,
        )
        after = running.counters()
        problems = [
            e.difference or str((e.error or {}).get("message", "")) for e in reply.executions if e.outcome != "ok"
        ]
        # The backend of a connection per statement has ended with its counters: then what the whole machine read.
        # BIAS: that holds other programs' reads as well; all other arms are asleep.
        by_server = levels["connection"] == "one"
        source, counter = ("processes", "read_bytes") if by_server else ("machine", "pages_in_bytes")
        read = _difference(before, after, source, (counter,))
        faults = _difference(before, after, "processes", ("minor_faults",))
        return VisitResult(
            start_ns=reply.start_ns,
            end_ns=reply.end_ns,
            host_start_ns=reply.host_start_ns,
            host_end_ns=reply.host_end_ns,
            executions=tuple(
                schema.Timing(e.start_ns, e.connected_ns, e.first_byte_ns, e.end_ns, e.rows, e.result_bytes, e.outcome)
                for e in reply.executions
            ),
            problem=problems[0][:PROBLEM_MAX] if problems else None,
            disk_read_bytes=read[counter] if read else None,
            cpu=_difference(before, after, "processes", ("user_ns", "system_ns")),
            minor_faults=faults["minor_faults"] if faults else None,
        )

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """Each answer was compared."""
        return None


@dataclass(frozen=True, slots=True)
class Windows:
    """Whole measurement windows, each begun with a checkpoint and never cut by a sleep (DESIGN §1.3)."""

    experiment: Experiment
    workload: TransactionWorkload

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """How durable commits are, and whether there are foreign keys; and whether the server gives the isolation that is asked
        for. The terminals of the phase connect when they are first needed."""
        engine, levels = running.engine, phase.levels
        if not isinstance(engine, DurabilityEngine):
            return
        engine.make_durable(running.session(), levels["durability"])
        self.workload.constrain(running.session(), engine.name, levels["foreign_keys"])
        assert running.server is not None
        session = running.machine.serial(running.server.address, connection="one")
        try:
            for statement in engine.session(levels["isolation"], multiple=self.workload.multiple):
                session.query(statement)
            told = engine.isolation(session)
        finally:
            session.close()
        if told != levels["isolation"]:
            raise EngineError(f"{running.arm.name}: its sessions are {told}, not {levels['isolation']}", "")

    def make_ready(self, running: RunningArm, phase: Phase, *, first_touch: bool) -> None:
        """Nothing: a window begins with its checkpoint."""

    def drive(self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_touch: bool) -> VisitResult:
        """See Driving. A first touch is a window too: the terminals' first."""
        levels = phase.levels
        engine = running.engine
        driving = self.workload.driving(levels["interaction"], self.experiment.seed * 1000 + block.parameter_set)
        session = (
            engine.session(levels["isolation"], multiple=self.workload.multiple)
            if isinstance(engine, DurabilityEngine)
            else []
        )
        terminals = running.terminals(
            levels["placement"], {**driving, "session": session, "imitation": not engine.answers}
        )
        _quiet(running)
        before = running.counters()
        ramp_up_ns, window_ns, rate = self.workload.pace()
        if phase.kind == "counted":
            ramp_up_ns = 0
        reply = terminals.window(ramp_up_ns=ramp_up_ns, window_ns=window_ns, rate=rate)
        after = running.counters()
        running.executed.update({name: _ended(kind) for name, kind in reply.counts["transactions"].items()})
        refusal = reply.counts.get("refusal")
        return VisitResult(
            start_ns=reply.start_ns,
            end_ns=reply.end_ns,
            host_start_ns=reply.host_start_ns,
            host_end_ns=reply.host_end_ns,
            window={"length_ns": reply.until_ns - reply.from_ns, "counted": self.workload.counted, **reply.counts},
            problem=f"connections were refused: {refusal}"[:PROBLEM_MAX] if refusal else None,
            cpu=_difference(before, after, "processes", ("user_ns", "system_ns")),
        )

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """Of the conditions that the workload's specification states, and of its mix; None where the server keeps nothing."""
        if not running.engine.answers:
            return None
        mix = self.workload.unlikely_mix(running.executed)
        return [*self.workload.violations(running.session(), initially=initially), *([mix] if mix else [])]


@dataclass(frozen=True, slots=True)
class Counting:
    """The same again while collectors look on: first all that do not disturb it, then each of the others by itself."""

    driving: VisitDriver
    collectors: Sequence[Collector]
    baseline: str

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """As when it is timed."""
        self.driving.begin_phase(running, phase)

    def make_ready(self, running: RunningArm, phase: Phase, *, first_touch: bool) -> None:
        """Each pass by itself."""

    def drive(self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_touch: bool) -> VisitResult:
        """See Driving; the times are those of the last pass. What cannot be counted in an arm says why."""
        driven: VisitResult | None = None
        if not is_cold(phase) and phase.levels.get("connection", "one") == "one":
            # On a connection that is kept, its server process maps what it needs in the first execution.
            driven = self.driving.drive(running, phase, block, query, first_touch=True)
        counts: Json = {}
        passes, left_out = self._passes(running, phase)
        for together in passes:
            if able := [each for each in together if each.name not in running.uncounted]:
                self.driving.make_ready(running, phase, first_touch=first_touch)
                told: dict[str, Callable[[], Json]] = {}
                try:
                    with ExitStack() as looking:
                        told |= _look_on(running, able, looking)
                        if told:
                            least_s = 0 if is_cold(phase) else max(each.least_s for each in able)
                            driven = self._drive(running, phase, block, query, first_touch=first_touch, least_s=least_s)
                except Unavailable as error:
                    counts |= {name: {"missing": error.message} for name in told}
                    continue
                if driven is not None:
                    counts |= {name: {**_work(driven), "counted": tell()} for name, tell in told.items()}
        counts |= {name: {"missing": why} for name, why in {**running.uncounted, **left_out}.items()}
        if isinstance(running.engine, StatisticsEngine) and not is_cold(phase):
            counts["engine"] = _engine_account(self.driving, running, phase, block, query)
        driven = driven or self.driving.drive(running, phase, block, query, first_touch=first_touch)
        return replace(driven, executions=(), window=None, counts=counts)

    def _drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_touch: bool, least_s: float
    ) -> VisitResult:
        """Statements, which dwell in each visit, until ``least_s`` of them were executed; a window once."""
        driven = self.driving.drive(running, phase, block, query, first_touch=first_touch)
        while driven.window is None and driven.problem is None and _work(driven)["elapsed_ns"] < least_s * 1e9:
            more = self.driving.drive(running, phase, block, query, first_touch=first_touch)
            driven = replace(more, executions=(*driven.executions, *more.executions))
        return driven

    def _passes(self, running: RunningArm, phase: Phase) -> tuple[list[list[Collector]], dict[str, str]]:
        """Which collectors look on together, and why others do not: some are for the baseline alone, and cold, where each pass
        needs a restart, so are all that disturb."""
        left_out = {}
        if running.arm.name != self.baseline:
            for each in self.collectors:
                if not each.everywhere or (each.disturbs and is_cold(phase)):
                    left_out[each.name] = "it is counted in the baseline alone"
        able = [each for each in self.collectors if each.name not in left_out]
        quiet = [each for each in able if not each.disturbs]
        return [quiet, *([each] for each in able if each.disturbs)], left_out

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """As when it is timed."""
        return self.driving.violations(running, initially=initially)


def _look_on(running: RunningArm, collectors: Sequence[Collector], looking: ExitStack) -> dict[str, Callable[[], Json]]:
    """Name -> what tells afterwards, until ``looking`` ends. What cannot be counted in this arm is not tried again."""
    assert running.server is not None and running.server.pid is not None
    told = {}
    for collector in collectors:
        try:
            told[collector.name] = looking.enter_context(collector.around(running.machine, running.server.pid))
        except Unavailable as error:
            running.uncounted[collector.name] = error.message
    return told


LOOK_EVERY_S = 0.02
"""At what the sessions wait for: some hundred times in a window, and little enough work for the server."""


def _engine_account(driving: VisitDriver, running: RunningArm, phase: Phase, block: Block, query: str) -> Json:
    """What the server itself counts, of one execution, or in a window in which its sessions are looked at too."""
    engine = running.engine
    assert isinstance(engine, StatisticsEngine)
    if isinstance(driving, Statements):
        try:
            told = engine.account(running.session(), driving.statements[block.parameter_set][query])
        except Unavailable as error:
            return {"missing": error.message}
        return {"executions": 1, "round_trips": 1, "elapsed_ns": 0, "counted": told}
    before = engine.accounts(running.session())
    with _looks(running) as looks:
        driven = driving.drive(running, phase, block, query, first_touch=False)
    counted = {**risen(before, engine.accounts(running.session())), "waiting": dict(looks)}
    return {**_work(driven), "counted": counted}


@contextmanager
def _looks(running: RunningArm) -> Iterator[Counter[str]]:
    """While it lasts: what sessions were found to wait for, and how often; ``looks``: how many there were."""
    engine, server = running.engine, running.server
    assert isinstance(engine, StatisticsEngine) and server is not None
    found: Counter[str] = Counter()
    over = threading.Event()
    session = running.machine.serial(server.address, connection="one")

    def look() -> None:
        # Whatever ends the window ends this too; its own failure must not.
        with suppress(DbtollError):
            while not over.wait(LOOK_EVERY_S):
                found.update([*engine.waiting(session), "looks"])

    looking = threading.Thread(target=look, name="what sessions wait for", daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()
        session.close()


PROBE_DEADLINE_S = 600.0
PROBLEM_MAX = 2000
"""Letters of what a server or a probe says of what went wrong; it may quote a row of any length."""


@dataclass(frozen=True, slots=True)
class Probes:
    """One micro-probe of the agent's, in a process of its own in the arm.

    BIAS: none is bracketed by the host; the clocks of the arms are judged where statements are measured.
    """

    experiment: Experiment
    host: Machine
    workload: ProbeWorkload

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """Nothing."""

    def make_ready(self, running: RunningArm, phase: Phase, *, first_touch: bool) -> None:
        """A probe prepares what it needs by itself."""

    def drive(self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_touch: bool) -> VisitResult:
        """See Driving. What an arm cannot do is its problem, not a failure."""
        looked_up = running.arm.name == self.experiment.baseline and query in EXECUTOR_PROBES
        request = {**self.workload.request(query, DATA), "samples": looked_up}
        if self.workload.uncached(query):
            if not self.experiment.exclusive:
                raise UsageError(f"{query} drops the page cache of the whole host", "--exclusive")
            running.drop_caches(self.host)
        done = running.machine.run([AGENT, "probe", json.dumps(request)], timeout_s=PROBE_DEADLINE_S)
        told = json.loads(done.output)
        batches = (schema.Batch(each["events"], each["elapsed_ns"], each["cpu_ns"]) for each in told.get("batches", ()))
        return VisitResult(
            start_ns=told["start_ns"],
            end_ns=told["end_ns"],
            host_start_ns=None,
            host_end_ns=None,
            batches=tuple(batches),
            problem=told.get("unsupported") and str(told["unsupported"])[:PROBLEM_MAX],
            samples=told.get("samples"),
        )

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """There are no data."""
        return None


def is_cold(phase: Phase) -> bool:
    """Whether the server is stopped and all caches are dropped before each statement."""
    return phase.levels.get("temperature") == "cold"


def _quiet(running: RunningArm) -> None:
    """A checkpoint, say; it is not counted as work that the server did by itself."""
    engine, session = running.engine, running.session()
    before = Counter(engine.background_work(session))
    engine.quiet(session)
    running.prepared_work.update(Counter(engine.background_work(session)) - before)


def _work(driven: VisitResult) -> Json:
    """How many executions or transactions there were, what they took together, and how often they went there and back."""
    if driven.window is not None:
        ended = sum(_ended(kind) for kind in driven.window["transactions"].values())
        trips = driven.window["round_trips"]
        return {"executions": ended, "round_trips": trips, "elapsed_ns": driven.window["length_ns"]}
    return {
        "executions": len(driven.executions),
        "round_trips": len(driven.executions),
        "elapsed_ns": sum(timing.end_ns - timing.start_ns for timing in driven.executions),
    }


def _ended(kind: Json) -> int:
    """How many transactions of the kind ended in a window, well or not."""
    counts = [kind[name] for name in ("committed", "rolled_back", "missed", "lost", "unknown")]
    return sum([*counts, *kind["failed"].values()])


def _difference(
    before: Mapping[str, object], after: Mapping[str, object], part: str, names: Sequence[str]
) -> dict[str, int] | None:
    """``after - before`` of some counters; None where one of them is not known."""
    old, new = before.get(part), after.get(part)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None
    if any(old.get(name) is None or new.get(name) is None for name in names):
        return None
    return {name: int(new[name]) - int(old[name]) for name in names}
