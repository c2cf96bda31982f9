"""``fake``: machines in a simulated world with planted effects, to test plan, runner and statistics against known
truths.

No process runs and no real clock is read. All fake machines of a run live on one timeline, which only their visits
advance; what disturbs the world is a function of that time, so it hits whichever arm is awake.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist
from types import TracebackType
from typing import Any, Self

from dbtoll import registry
from dbtoll.environments.simulated.events import STATUS, Costs, Counting, counts_of, is_counting, is_probe, probed
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces import ByteStream, FetchKernel, Journal, Machine, Process
from dbtoll.model import (
    Address,
    AnswerReference,
    Artifact,
    Completed,
    Execution,
    Json,
    MissingRequirement,
    Option,
    Place,
    Statement,
    VisitReply,
    VisitTiming,
    WindowReply,
)

BASE_MIN_NS = 1_000_000
BASE_MAX_NS = 50_000_000
STEP_EVERY_NS = 20_000_000_000
"""How long one level of the world's speed lasts: a few blocks of a typical plan."""

OUTLIER_FACTOR = 5.0
GAP_NS = 20_000
"""Between two executions, and between the outer bracket and the inner times."""


@dataclass(frozen=True, slots=True)
class World:
    """The planted truth; pure. Everything acts on the log scale, so that effects multiply.

    ``effect``: fraction by which this arm is slower (0.07 is 7 %). ``noise``: standard deviation of one execution.
    ``start_spread``: of one start. ``drift``: fraction by which the world slows down per hour. ``steps``: standard
    deviation of the levels between which its speed jumps. ``outliers``: probability that an execution takes five times
    as long. What else it takes is what its events cost (`fake_events`); of these, ``effect`` is the part that no event explains.
    """

    effect: float = 0.0
    noise: float = 0.02
    start_spread: float = 0.005
    drift: float = 0.0
    steps: float = 0.0
    outliers: float = 0.0
    fault_ns: float = 0.0
    call_ns: float = 0.0
    round_trip_ns: float = 0.0
    slowdown: float = 1.0
    seed: int = 1

    @property
    def costs(self) -> Costs:
        """Of its events."""
        return Costs(self.fault_ns, self.call_ns, self.round_trip_ns, self.slowdown)

    def base_ns(self, query: str) -> float:
        """Undisturbed duration of a query in the baseline: log-uniform from 1 to 50 ms by its name."""
        return BASE_MIN_NS * math.exp(_uniform("query", query) * math.log(BASE_MAX_NS / BASE_MIN_NS))

    def disturbance(self, at_ns: int) -> float:
        """How slow the whole world is at that time: logarithm of a factor, the same for all arms."""
        level = self.steps * _normal("step", self.seed, at_ns // STEP_EVERY_NS) if self.steps else 0.0
        return math.log1p(self.drift) * at_ns / 3.6e12 + level

    def start_offset(self, arm: str, start: int) -> float:
        """What one start of an arm happens to be slower by: logarithm of a factor."""
        return self.start_spread * _normal("start", self.seed, arm, start)

    def draws(self, arm: str, start: int) -> Random:
        """The source of the noise of one start."""
        return Random(f"{self.seed}/{arm}/{start}")

    def duration_ns(self, query: str, offset: float, at_ns: int, draws: Random) -> int:
        """Duration of an execution that begins at ``at_ns``; takes two numbers from ``draws``."""
        logarithm = math.log1p(self.effect) + offset + self.disturbance(at_ns) + draws.gauss(0.0, self.noise)
        factor = OUTLIER_FACTOR if draws.random() < self.outliers else 1.0
        undisturbed_ns = self.base_ns(query) * self.slowdown + self.costs.of_execution(counts_of(query, _uniform))
        return max(1, round(undisturbed_ns * math.exp(logarithm) * factor))


def _uniform(*key: object) -> float:
    """In (0, 1), the same for the same key everywhere (``hash`` is not)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) + 0.5) / 2**64


def _normal(*key: object) -> float:
    return NormalDist().inv_cdf(_uniform(*key))


@dataclass(slots=True)
class Timeline:
    """The time of one run's world, and how often each arm has been started in it."""

    now_ns: int = 0
    starts: Counter[str] = field(default_factory=Counter)


_timelines: dict[str, Timeline] = {}
"""By run: its machines share one. A few bytes per run of this process."""


class FakeProcess:
    """A program that is said to run; it does nothing."""

    pid = 2

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._signal: int | None = None

    def running(self) -> bool:
        """Until it is signalled."""
        return self._signal is None

    def signal(self, number: int) -> None:
        """Any signal ends it."""
        self._signal = number

    def wait(self, timeout_s: float) -> Completed:
        """Raises DbtollError if nobody has signalled it."""
        if self._signal is None:
            raise DbtollError(f"{self._argv[0]} is simulated and never ends by itself")
        return Completed(self._argv, None, self._signal, b"", b"", {})

    def output(self) -> bytes:
        """It says nothing."""
        return b""


class FakeMachine:
    """Implements interfaces.Machine and Freezable. Whoever talks to it while it sleeps gets an error (DESIGN §1.3)."""

    def __init__(self, place: Place, world: World, timeline: Timeline) -> None:
        self.name = place.name
        self.world = world
        self.timeline = timeline
        self.awake = True
        self.spent_ns = 0
        self._place = place
        self._files: dict[str, bytes] = {f"/proc/{FakeProcess.pid}/status": STATUS}
        self.done: Counter[str] = Counter()
        """Events so far."""
        start = timeline.starts[place.arm]
        timeline.starts[place.arm] += 1
        self.offset = world.start_offset(place.arm, start)
        self.draws = world.draws(place.arm, start)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Completed:
        """A probe; Unavailable for all else: there is nothing to run."""
        if is_probe(list(argv)):
            self.expect_awake()
            return probed(list(argv), self.world.costs, lambda: math.exp(self.draws.gauss(0.0, self.world.noise)))
        raise Unavailable(
            f"{self.name}: a simulated machine runs no programs ({argv[0]})", "use the engine `null` with it"
        )

    def spawn(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stop_signal: int = 15,
        stop_grace_ms: int = 5000,
    ) -> Process:
        """A program that does nothing, or one that counts."""
        self.expect_awake()
        return Counting(tuple(argv), self.done) if is_counting(argv) else FakeProcess(argv)

    def put(
        self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None, in_place: bool = False
    ) -> None:
        """Kept in memory."""
        self.expect_awake()
        self._files[path] = data

    def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """What was put."""
        self.expect_awake()
        if path not in self._files:
            raise DbtollError(f"{self.name}: no file {path} was put on this simulated machine")
        return self._files[path]

    def provide(self, artifact: Artifact) -> str:
        """Where it was asked for; nothing is there."""
        return next((each.at for each in self._place.provisions if each.artifact == artifact), artifact.path)

    def connect(
        self, *, unix: str | None = None, tcp: tuple[str, int] | None = None, stamps: bool = False
    ) -> ByteStream:
        """Raises Unavailable."""
        raise Unavailable(f"{self.name}: nothing listens on a simulated machine")

    def serial(self, address: Address, *, connection: str) -> FakeSession:
        """A session in the simulated world."""
        self.expect_awake()
        return FakeSession(self)

    def terminals(self, address: Address, driver_parameters: Json) -> FakeTerminals:
        """Terminals in the simulated world."""
        self.expect_awake()
        return FakeTerminals(self, driver_parameters)

    def counters(self, *, tree_of: int | None = None, everything: bool = False, each: bool = False) -> Json:
        """CPU time is what its visits took."""
        self.expect_awake()
        executions = self.done["executions"]
        processes = {"count": 1, "user_ns": self.spent_ns, "system_ns": 0, "minor_faults": self.done["faults"]}
        processes |= {"voluntary_switches": executions, "involuntary_switches": 0}
        return {"at_ns": self.timeline.now_ns, "processes": processes, "machine": {"pages_in_bytes": 0}}

    def hello(self) -> Json:
        """Its clock is simulated."""
        clock = {"source": "simulated", "resolution_ns": 1}
        return {"magic": "dbtoll", "role": "agent", "architecture": "simulated", "pid": 1, "clock": clock}

    def facts(self) -> Json:
        """The planted truth."""
        return {"environment": {"name": "fake", **{name: getattr(self.world, name) for name in Environment.options}}}

    def logs(self) -> Mapping[str, bytes]:
        """None."""
        return {}

    def freeze(self) -> None:
        """Whoever speaks to it now gets an error."""
        self.awake = False

    def thaw(self) -> None:
        """It may be spoken to again."""
        self.awake = True

    def cpu_ns(self) -> int:
        """What its visits took."""
        return self.spent_ns

    def close(self) -> None:
        """Also twice."""
        self.awake = True
        self._files.clear()

    def expect_awake(self) -> None:
        """Raises DbtollError while it sleeps."""
        if not self.awake:
            raise DbtollError(f"{self.name} was spoken to while it sleeps", "this is a defect of dbtoll")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FakeSession:
    """Implements interfaces.Session in the simulated world."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine

    def visit(
        self,
        statements: Sequence[Statement],
        *,
        mode: str,
        pace: VisitTiming,
        answers: Mapping[str, AnswerReference],
        lead_in: bool = True,
        dwell: bool = True,
        least: int = 1,
        keep_rows: bool = False,
    ) -> VisitReply:
        """Advances the run's timeline."""
        self._machine.expect_awake()
        timeline = self._machine.timeline
        start_ns = timeline.now_ns + GAP_NS
        timeline.now_ns = start_ns
        led_in = None
        if lead_in:
            led_in = {"executions": 1, "elapsed_ns": pace.lead_in_ns}
            self._spend(pace.lead_in_ns)
        executions: list[Execution] = []
        for statement in statements:
            spent_ns = count = 0
            while count < least or (dwell and spent_ns < pace.dwell_ns):
                count += 1
                execution = self._execute(statement.query, pace.statement_timeout_ns, keep_rows=keep_rows)
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
        machine.done.update({"executions": 1, **counts_of(query, _uniform)})
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


class FakeTerminals:
    """Implements interfaces.Terminals in the simulated world: a server with room for all of them, so none waits for another.

    A transaction takes as long as a query of its name would.
    """

    def __init__(self, machine: FakeMachine, driver_parameters: Json) -> None:
        ((workload, _),) = driver_parameters["workload"].items()
        self._machine = machine
        self._mix: Mapping[str, float] = registry.find("workloads", workload).mix
        self._terminals: int = driver_parameters["terminals"]

    def window(self, *, ramp_up_ns: int, window_ns: int, rate: float | None) -> WindowReply:
        """Advances the run's timeline."""
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
            end_ns = begin_ns + machine.world.duration_ns(name, machine.offset, begin_ns, machine.draws)
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
                **{"committed": committed[name], "rolled_back": 0, "missed": 0, "lost": 0, "unknown": 0},
                **{"failed": {}, "retried": {}},
                **{"response_ns": _histogram(response[name]), "service_ns": _histogram(service[name])},
            }
            for name in self._mix
        }
        total = committed.total()
        traffic = {"round_trips": total, "statements": total, "sent_bytes": 0, "received_bytes": 0, "driver_cpu_ns": 0}
        lost: Json = {"unserved": 0, "connections_lost": 0, "reconnects": 0, "refusal": None, "acknowledged": []}
        return WindowReply(
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
    ends = {"least": buckets[0][0], "most": buckets[-1][0]} if buckets else {"least": 0, "most": 0}
    return {**ends, "sum": sum(value * count for value, count in buckets), "buckets": buckets}


class Environment:
    """Opens a machine that is not there. Its arm is slower than the undisturbed world by ``effect``."""

    name = "fake"
    primary = "effect"
    packages = ()
    simulated = True
    """Needs no image and no data."""

    options: Mapping[str, Option] = {
        "effect": Option("number", 0.0, "planted overhead, as a fraction"),
        "noise": Option("number", 0.02, "standard deviation of one execution, on the log scale"),
        "start_spread": Option("number", 0.005, "standard deviation between starts, on the log scale"),
        "drift": Option("number", 0.0, "fraction by which everything slows down per hour"),
        "steps": Option("number", 0.0, "standard deviation of the levels between which everything jumps"),
        "outliers": Option("number", 0.0, "probability that an execution takes five times as long"),
        "fault_ns": Option("number", 0.0, "what a page fault costs; a statement has some hundred"),
        "call_ns": Option("number", 0.0, "what a system call costs; a statement has some ten or hundred"),
        "round_trip_ns": Option("number", 0.0, "what a round trip costs; a statement has one"),
        "slowdown": Option("number", 1.0, "of user mode, a factor"),
        "seed": Option("integer", 1, "of the simulated world; equal in all arms of an experiment"),
    }

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Nothing is needed."""
        return []

    def open(self, machine: Machine, place: Place, journal: Journal) -> FakeMachine:
        """On any machine: it is not used."""
        world = World(**{name: place.options.get(name, option.default) for name, option in self.options.items()})
        return FakeMachine(place, world, _timelines.setdefault(place.run_id, Timeline()))
