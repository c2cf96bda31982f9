"""Do the intervals cover, and does A/A stay quiet? Planted effects in disturbed worlds, stopping rule in force.

A thousand experiments for each of four effects in each of four worlds go through the very code that analyses a run:
`compare.compare` for the intervals, `stopping.decide` after every round. Only the times are made up, and made up as
they arise: in the order of a plan, so that what happens to the machine hits neighbouring visits alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dbtoll.analysis import stopping
from dbtoll.analysis.compare import GEOMEAN, RATIO_OF_TOTALS, compare, round_effects
from dbtoll.analysis.samples import Times
from dbtoll.analysis.stats import Floats
from dbtoll.model import Option, Precision, Verdict
from dbtoll.selfbench import Bound, Certificate, Say

ABOUT = "the statistics: coverage and A/A alarms under drift, steps and outliers, with the stopping rule on"
OPTIONS = {
    "experiments": Option("integer", 1000, "how many for each effect in each world; the bounds are made for 1000"),
    "seed": Option("integer", 1, "of the simulated worlds"),
}

EFFECTS = (0.0, 0.01, 0.07, 0.50)
ARMS = ("native", "native (A/A)", "arm")
QUERIES = ("Q1", "Q2", "Q3", "Q4")
BLOCKS = 3
PRECISION = Precision(target=0.0125, margin=0.02, confidence=0.95, rounds_min=5, rounds_max=20)

BASE_NS = np.array([300e6, 40e6, 90e6, 15e6])
SHARE_OF_EFFECT = np.array([0.5, 0.8, 1.2, 1.5])
"""Each query has its own part in the effect; their mean is 1, so the planted effect is that of the geometric mean."""
START_SD = 0.010
"""Of a whole start, and half of it again for each query of that start."""
VISIT_SD = np.array([0.02, 0.03, 0.04, 0.05])


@dataclass(frozen=True, slots=True)
class Cell:
    """What 'experiments' with one effect in one world showed; all but ``rounds`` are shares of them."""

    coverage: float
    coverage_of_totals: float
    coverage_of_queries: float
    families_missed: float
    aa_alarms: float
    wrong_verdicts: float
    rounds: float


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """The certificate: every cell, and the worst of them against the bounds."""
    cells = run(options["experiments"], options["seed"], say)
    coverage = [cell.coverage for cell in cells.values()]
    alarms = sum(cell.aa_alarms for cell in cells.values()) / len(cells)
    figures: dict[str, Any] = {
        "coverage_least": min(coverage),
        "coverage_most": max(coverage),
        "aa_alarms": alarms,
        "wrong_verdicts_most": max(cell.wrong_verdicts for cell in cells.values()),
    }
    for (world, effect), cell in cells.items():
        figures[f"{world}, {effect:+.0%}"] = {name: round(getattr(cell, name), 4) for name in Cell.__dataclass_fields__}
    bounds = {
        "coverage_least": Bound(least=0.93),
        "coverage_most": Bound(most=0.97),
        "aa_alarms": Bound(least=0.03, most=0.07),
        "wrong_verdicts_most": Bound(most=0.05),
    }
    facts = {"experiments": options["experiments"], "seed": options["seed"], "blocks": BLOCKS, "queries": len(QUERIES)}
    return Certificate("simulation", figures, bounds, facts)


def run(experiments: int = 1000, seed: int = 1, say: Say = lambda text: None) -> dict[tuple[str, float], Cell]:
    """World and effect -> what was seen there. Every cell has random numbers of its own."""
    cells = {}
    for place, world in enumerate(WORLDS):
        for effect in EFFECTS:
            chance = np.random.default_rng([seed, place, round(effect * 100)])
            cells[world, effect] = _cell(experiments, effect, WORLDS[world], chance)
            found = cells[world, effect]
            say(f"{world}, {effect:+.0%}: coverage {found.coverage:.1%}, A/A alarms {found.aa_alarms:.1%}")
    return cells


# --- the worlds ----------------------------------------------------------------------------------------------------

World = Callable[[Floats, Generator], Floats]
"""From the times [experiment, …] of all visits (in rounds since the start) to what the machine adds to their logs."""


def _quiet(times: Floats, chance: Generator) -> Floats:
    return np.zeros_like(times)


def _drift(times: Floats, chance: Generator) -> Floats:
    """A trend of up to 20 % over 20 rounds, and a wave of 4 % with a period of two to six rounds."""
    shape = (len(times), 1, 1, 1, 1)
    trend = chance.uniform(-0.01, 0.01, shape)
    period, phase = chance.uniform(2, 6, shape), chance.uniform(0, 2 * np.pi, shape)
    return np.asarray(trend * times + 0.04 * np.sin(2 * np.pi * times / period + phase))


def _steps(times: Floats, chance: Generator) -> Floats:
    """A neighbour that comes and goes: the level jumps (sd 10 %) at random times, on average every half round."""
    count = 2 * PRECISION.rounds_max
    result = np.empty_like(times)
    for index in range(len(times)):
        at = np.sort(chance.uniform(0, PRECISION.rounds_max, count))
        levels = chance.normal(0, 0.10, count + 1)
        result[index] = levels[np.searchsorted(at, times[index])]
    return result


def _outliers(times: Floats, chance: Generator) -> Floats:
    """Three visits in a hundred take longer, by 30 % on average and sometimes by a multiple."""
    return np.where(chance.random(times.shape) < 0.03, chance.exponential(0.3, times.shape), 0.0)


WORLDS: dict[str, World] = {"none": _quiet, "drift": _drift, "steps": _steps, "outliers": _outliers}


def simulate(experiments: int, effect: float, world: World, chance: Generator) -> Floats:
    """Times in ns [experiment, round, block, query, arm], as many rounds as there may be."""
    rounds, queries, arms = PRECISION.rounds_max, len(QUERIES), len(ARMS)
    shape = (experiments, rounds, BLOCKS, queries, arms)
    starts = chance.normal(0, START_SD, (experiments, rounds, 1, 1, arms))
    starts = starts + chance.normal(0, START_SD / 2, (experiments, rounds, 1, queries, arms))
    noise = chance.normal(0, 1, shape) * VISIT_SD[:, np.newaxis]
    planted = np.zeros((queries, arms))
    planted[:, -1] = planted_logs(effect)
    disturbed = world(_visit_times(shape, chance), chance)
    return np.asarray(np.exp(np.log(BASE_NS)[:, np.newaxis] + planted + starts + noise + disturbed))


def planted_logs(effect: float) -> Floats:
    """[query]: the true effect of the arm on each query."""
    return np.asarray(math.log1p(effect) * SHARE_OF_EFFECT)


def _visit_times(shape: tuple[int, ...], chance: Generator) -> Floats:
    """When each visit happens, in rounds since the start: queries in random order, arms in random order within each."""
    experiments, rounds, blocks, queries, arms = shape
    query_rank = _ranks((experiments, rounds, blocks, queries, 1), -2, chance)
    arm_rank = _ranks(shape, -1, chance)
    block = np.arange(blocks)[:, np.newaxis, np.newaxis]
    place = (block * queries + query_rank) * arms + arm_rank
    begun = np.arange(rounds)[:, np.newaxis, np.newaxis, np.newaxis]
    # The first tenth of a round is for the starts.
    return np.asarray(begun + 0.1 + 0.9 * (place + 0.5) / (blocks * queries * arms))


def _ranks(shape: tuple[int, ...], axis: int, chance: Generator) -> NDArray[np.intp]:
    return chance.random(shape).argsort(axis=axis).argsort(axis=axis)


# --- the experiments -----------------------------------------------------------------------------------------------


def _cell(experiments: int, effect: float, world: World, chance: Generator) -> Cell:
    ns = simulate(experiments, effect, world, chance)
    arm, copy = (round_effects(ns, 2, [0, 1]).mean(axis=-1), round_effects(ns, 1, [0]).mean(axis=-1))
    logs = planted_logs(effect)
    truth = {GEOMEAN: math.log1p(effect)}
    truth[RATIO_OF_TOTALS] = math.log(float((BASE_NS * np.exp(logs)).sum() / BASE_NS.sum()))
    truth |= {f"query:{query}": float(log) for query, log in zip(QUERIES, logs, strict=True)}
    # A row per experiment: geomean, totals and queries covered, family missed, A/A alarm, wrong verdict, rounds.
    seen = np.array([_experiment(ns[i], arm[i], copy[i], truth) for i in range(experiments)])
    return Cell(*(float(value) for value in seen.mean(axis=0)))


def _experiment(ns: Floats, arm: Floats, copy: Floats, truth: Mapping[str, float]) -> tuple[float, ...]:
    """One run: rounds until the rule stops it, then everything that a report would say."""
    rounds = PRECISION.rounds_min
    while not _stops(stopping.deciding([arm[:rounds]], [copy[:rounds]]), rounds):
        rounds += 1
    times = Times(tuple(range(rounds)), QUERIES, ARMS, ns[:rounds], np.zeros((len(QUERIES), len(ARMS))))
    effects = compare(times, None, ARMS[0], ARMS[1:2], PRECISION, per_query=True)
    own = {effect.estimand: effect for effect in effects if not effect.is_aa}
    covered = {name: bool(e.shown and e.shown.low <= truth[name] <= e.shown.high) for name, e in own.items()}
    queries = [name for name in own if name.startswith("query:")]
    families = [bool(e.holm and e.holm.low <= truth[n] <= e.holm.high) for n, e in own.items() if n in queries]
    floor = next(effect for effect in effects if effect.is_aa and effect.estimand == GEOMEAN)
    return (
        float(covered[GEOMEAN]),
        float(covered[RATIO_OF_TOTALS]),
        sum(covered[name] for name in queries) / len(queries),
        float(not all(families)),
        float(bool(floor.shown and floor.shown.excludes_zero)),
        float(_wrong(own[GEOMEAN].verdict, truth[GEOMEAN])),
        float(rounds),
    )


def _stops(effects: list[Floats], rounds: int) -> bool:
    return stopping.decide(effects, elapsed_s=0, next_round_s=0, precision=PRECISION, rounds=rounds).stop


def _wrong(verdict: Verdict, truth: float) -> bool:
    """A verdict that the planted effect contradicts; `cannot tell` never is."""
    inside = math.log1p(-PRECISION.margin) < truth < math.log1p(PRECISION.margin)
    match verdict:
        case Verdict.LOSES:
            return truth <= 0
        case Verdict.GAINS:
            return truth >= 0
        case Verdict.NO_DIFFERENCE:
            return not inside
    return False
