"""A simulated world: its times, with planted effects, on one timeline."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist

from dbtoll.environments.simulated.events import Costs, counts_of
from dbtoll.model.options import Option

BASE_MIN_NS = 1_000_000

BASE_MAX_NS = 50_000_000

STEP_EVERY_NS = 20_000_000_000
"""How long one level of the world's speed lasts: a few blocks of a typical plan."""

OUTLIER_FACTOR = 5.0

GAP_NS = 20_000
"""Between two executions, and between the outer bracket and the inner times."""

OPTIONS: Mapping[str, Option] = {
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
    "neighbour": Option(
        "number", 0.0, "by what fraction all is slower while an aggressor acts in the arm; not by one that idles"
    ),
    "late_ms": Option("number", 0.0, "of several units: each begins up to so long after it was told"),
    "seed": Option("integer", 1, "of the simulated world; equal in all arms of an experiment"),
}


@dataclass(frozen=True, slots=True)
class World:
    """The planted truth; pure. Everything acts on the log scale, so that effects multiply.

    ``effect``: fraction by which this arm is slower (0.07 is 7 %). ``noise``: standard deviation of one execution.
    ``start_spread``: of one start. ``drift``: fraction by which the world slows down per hour. ``steps``: standard
    deviation of the levels between which its speed jumps. ``outliers``: probability that an execution takes five times
    as long. What else it takes is what its events cost (`fake_events`); of these, ``effect`` is the part that no event explains.
    ``neighbour``: fraction by which the arm is slower while an aggressor acts in it. ``late_ms``: how long at most `go` takes to be
    heard.
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
    neighbour: float = 0.0
    late_ms: float = 0.0
    seed: int = 1

    @property
    def costs(self) -> Costs:
        """Of its events."""
        return Costs(self.fault_ns, self.call_ns, self.round_trip_ns, self.slowdown)

    def base_ns(self, query: str) -> float:
        """Undisturbed duration of a query in the baseline: log-uniform from 1 to 50 ms by its name."""
        return BASE_MIN_NS * math.exp(uniform("query", query) * math.log(BASE_MAX_NS / BASE_MIN_NS))

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

    def duration_ns(self, query: str, offset: float, at_ns: int, draws: Random, *, beside: bool = False) -> int:
        """Duration of an execution that begins at ``at_ns``; takes two numbers from ``draws``. ``beside``: of an aggressor."""
        logarithm = (
            math.log1p(self.effect)
            + (math.log1p(self.neighbour) if beside else 0.0)
            + offset
            + self.disturbance(at_ns)
            + draws.gauss(0.0, self.noise)
        )
        factor = OUTLIER_FACTOR if draws.random() < self.outliers else 1.0
        undisturbed_ns = self.base_ns(query) * self.slowdown + self.costs.of_execution(counts_of(query, uniform))
        return max(1, round(undisturbed_ns * math.exp(logarithm) * factor))


def uniform(*key: object) -> float:
    """In (0, 1), the same for the same key everywhere (``hash`` is not)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) + 0.5) / 2**64


def _normal(*key: object) -> float:
    return NormalDist().inv_cdf(uniform(*key))


@dataclass(slots=True)
class Timeline:
    """The time of one run's world, and how often each arm has been started in it."""

    now_ns: int = 0
    starts: Counter[str] = field(default_factory=Counter)
    disturbed: set[str] = field(default_factory=set)
    """Arms in which an aggressor acts."""


timelines: dict[str, Timeline] = {}
"""By run: its machines share one. A few bytes per run of this process."""
