"""How far `unexplained_fraction` lies from the truth, and how often its interval covers it, in ledgers that are planted.

A query's events explain too little of its overhead, too much, or some of each; visits are quiet, noisy, or disturbed, which only
ever makes them longer; costs are known, or lie anywhere between the two that a ledger has of each event. The ledgers are the real
ones, and so is the figure; only counts, costs and times are made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.random import Generator

from dbtoll.analysis.attribution.ledger import CostRange, Costs, Item, Ledger, unexplained_fraction
from dbtoll.analysis.effects.stats import Floats
from dbtoll.model.options import Option
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say

SUMMARY = (
    "unexplained_fraction itself: its bias, and how often its interval covers, in planted ledgers at several noises"
)
OPTIONS = {
    "experiments": Option("integer", 400, "ledgers in each world", least=1),
    "seed": Option("integer", 2, "of the planted worlds; the interval's rule was looked at with 1", least=0),
}

QUERIES, ROUNDS, ALPHA = 22, 5, 0.05
BASE_NS, BASE_SPREAD, OVERHEAD_SPREAD = 50e6, 1.0, 0.5
"""A query's time natively; standard deviations over queries of the logarithms of that and of its overhead."""
PROBE_SD = 0.03
"""Of a cost from start to start, the same for all queries."""
DOUBT = 0.2
"""Of what costs explain: how far they may be wrong, in either direction."""
EXPLAINED: Mapping[str, tuple[float, float]] = {
    "all": (1.0, 1.0),
    "too little": (0.8, 0.8),
    "too much": (1.2, 1.2),
    "some of each": (0.8, 1.2),
}
"""Which part of a query's overhead its events are, of every other query by turns."""
OVERHEADS = {"+20 %": 0.2, "+1000 %": 10.0}


@dataclass(frozen=True, slots=True)
class Noise:
    """Of the time of a round: ``sd`` as a fraction; with the chance ``often`` it is longer, on average by ``longer``."""

    sd: float
    often: float = 0.0
    longer: float = 0.0

    def factors(self, chance: Generator) -> Floats:
        """[round]"""
        disturbed = (chance.random(ROUNDS) < self.often) * chance.exponential(self.longer, ROUNDS)
        return np.asarray(1 + chance.normal(0, self.sd, ROUNDS) + disturbed)


NOISES = {"quiet": Noise(0.02), "noisy": Noise(0.10), "disturbed": Noise(0.02, often=0.1, longer=0.5)}
BOUNDS = {"coverage_least": Bound(min=0.93)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Every world, and the worst of them."""
    figures: dict[str, Any] = {}
    for number, (explained, size, noise) in enumerate(product(EXPLAINED, OVERHEADS, NOISES)):
        name = f"{explained}, {size}, {noise}"
        chance = np.random.default_rng([options["seed"], number])
        found = _world(EXPLAINED[explained], OVERHEADS[size], NOISES[noise], options["experiments"], chance)
        figures[name] = {figure: round(value, 4) for figure, value in found.items()}
        say(f"{name}: {found['truth']:.2f} found as {found['found']:.2f}, covered {found['coverage']:.0%}")
    worlds = list(figures.values())
    worst = {
        "coverage_least": min(world["coverage"] for world in worlds),
        "coverage_of_known_costs_least": min(world["coverage_of_known_costs"] for world in worlds),
        "bias_least": min(world["found"] - world["truth"] for world in worlds),
        "bias_most": max(world["found"] - world["truth"] for world in worlds),
    }
    told = {"experiments": options["experiments"], "seed": options["seed"], "queries": QUERIES, "rounds": ROUNDS}
    return Certificate("unexplained", {**worst, **figures}, BOUNDS, told)


def _world(
    parts: tuple[float, float], overhead: float, noise: Noise, experiments: int, chance: Generator
) -> dict[str, float]:
    """``found``: mean over experiments, where costs are known; ``coverage``: where they are doubtful."""
    known = [_experiment(parts, overhead, noise, 0.0, chance) for _ in range(experiments)]
    doubtful = [_experiment(parts, overhead, noise, DOUBT, chance) for _ in range(experiments)]
    return {
        "truth": float(np.mean([truth for truth, _ in known])),
        "found": float(np.mean([found.estimate for _, found in known])),
        "coverage": _coverage(doubtful),
        "coverage_of_known_costs": _coverage(known),
    }


def _coverage(found: list[tuple[float, CostRange]]) -> float:
    return float(np.mean([(cost_range.low or 0.0) <= truth <= (cost_range.high or 0.0) for truth, cost_range in found]))


def _experiment(
    parts: tuple[float, float], overhead: float, noise: Noise, doubt: float, chance: Generator
) -> tuple[float, CostRange]:
    """The fraction that the true costs would leave of undisturbed times, and what the ledgers of one run say of it."""
    base_ns = np.exp(chance.normal(np.log(BASE_NS), BASE_SPREAD, QUERIES))
    overhead_ns = base_ns * overhead * np.exp(chance.normal(0, OVERHEAD_SPREAD, QUERIES))
    part = np.resize(parts, QUERIES)
    # Whatever the caches hold, they hold it for all queries: one place between the two costs.
    misplaced = doubt * chance.uniform(-1, 1)
    probed = np.exp(chance.normal(0, PROBE_SD, ROUNDS))
    one, nothing = np.ones(ROUNDS), np.zeros(ROUNDS)
    ledgers = []
    for number in range(QUERIES):
        native_ns = base_ns[number] * noise.factors(chance)
        arm_ns = (base_ns[number] + overhead_ns[number]) * noise.factors(chance)
        cost_ns = part[number] * overhead_ns[number] * probed
        costs = Costs(cost_ns * (1 + misplaced - doubt), cost_ns * (1 + misplaced + doubt))
        item = Item("events", one, nothing, costs, Costs.known(0.0, ROUNDS))
        ledgers.append(Ledger(f"Q{number + 1}", arm_ns - native_ns, (item,), native_ns))
    truth = float(np.abs((1 - part) * overhead_ns).sum() / overhead_ns.sum())
    return truth, unexplained_fraction(ledgers, ALPHA)
