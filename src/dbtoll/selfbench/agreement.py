"""The same overhead measured with one neighbour and with four, with a short dwell and with a long one (for `switch`)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats as distributions

from dbtoll.analysis import compare, stats
from dbtoll.analysis.samples import METRICS, collect
from dbtoll.analysis.stats import Floats
from dbtoll.errors import Invalid
from dbtoll.model import Arm, Experiment, Json, Pace, Statement
from dbtoll.plan import Plan
from dbtoll.runner.preparation import Prepared
from dbtoll.selfbench import here
from dbtoll.selfbench.precision import Quiet, measured
from dbtoll.store.schema import Visit

LEVEL = 0.05
SHORT_NS, LONG_NS = 10_000_000, 250_000_000
"""A fifth of the shipped dwell and five times as much."""

PAIRS = (("one_neighbour", "four_neighbours"), ("short_dwell", "long_dwell"))


@dataclass(frozen=True, slots=True)
class Agreed:
    """``figures``: each variant's overhead with its interval, and ``agree``; ``facts``: effects by round, tests."""

    figures: dict[str, Any]
    facts: Json


def variants(experiment: Experiment, name: str) -> dict[str, Experiment]:
    """The arm against one native copy; further native copies, or another dwell, are all that differs."""
    native, arm = experiment.arm(here.BASELINE), experiment.arm(name)
    others = tuple(Arm(f"{here.BASELINE} {number}", native.stack) for number in (2, 3, 4))
    pair = replace(experiment, arms=(native, arm))
    return {
        "one_neighbour": pair,
        "four_neighbours": replace(pair, arms=(native, arm, *others)),
        "short_dwell": replace(pair, pace=_dwelling(pair, SHORT_NS)),
        "long_dwell": replace(pair, pace=_dwelling(pair, LONG_NS)),
    }


def _dwelling(experiment: Experiment, dwell_ns: int) -> Pace:
    return replace(experiment.pace, dwell_ns=dwell_ns)


def measure(
    prepared: Prepared, name: str, statements: Mapping[str, str], rounds: int, blocks: int, watch: Quiet
) -> Agreed:
    """``rounds`` rounds of each variant, by turns in random order; a round is a fresh start of the variant's arms."""
    asked = {key: Statement(key, sql, sql) for key, sql in statements.items()}
    chance = random.Random(rounds)
    visits: dict[str, list[Visit]] = {}
    for number in range(rounds):
        tried = list(variants(prepared.inputs.experiment, name).items())
        for variant, experiment in chance.sample(tried, len(tried)):
            plan = Plan(replace(experiment, parameter_sets=1), tuple(asked), blocks, {})
            inputs = replace(prepared.inputs, experiment=experiment, statements=[asked], answers=[{}])
            found = measured(replace(prepared, inputs=inputs), [plan.round(number)], watch)
            visits.setdefault(variant, []).extend(found)
        watch.say(f"agreement: round {number + 1} of {rounds}")
    effects = {variant: effects_of(each, tuple(asked), name) for variant, each in visits.items()}
    figures: dict[str, Any] = {variant: _interval(values) for variant, values in effects.items()}
    tests = {f"{a}, {b}": p_of_difference(effects[a], effects[b]) for a, b in PAIRS}
    # Each pair is tested at its share of the level (Bonferroni), so that all agree in 19 certificates of 20.
    figures["agree"] = all(p > LEVEL / len(PAIRS) for p in tests.values())
    facts: Json = {"arm": name, "p": tests, "effects": {key: list(map(float, each)) for key, each in effects.items()}}
    return Agreed(figures, facts)


def effects_of(visits: Sequence[Visit], queries: tuple[str, ...], name: str) -> Floats:
    """[round]: the arm against the one native copy that all variants have, over all statements; log scale."""
    arms = (here.BASELINE, name)
    times = collect([visit for visit in visits if visit.arm in arms], queries, arms, METRICS["run_time"])
    (pair,) = compare.pairs(arms, here.BASELINE, [])
    effects = compare.geomean_rounds(times, pair) if times else None
    if effects is None or len(effects) < 2:
        raise Invalid(f"{name}: fewer than two rounds have all statements", "see what was said of its starts")
    return effects


def p_of_difference(first: Floats, second: Floats) -> float:
    """Of Welch's test that two variants have the same effect: their starts are independent, their spreads may differ."""
    return float(distributions.ttest_ind(first, second, equal_var=False).pvalue)


def _interval(values: Floats) -> list[float]:
    """[estimate, low, high] as fractions."""
    found = stats.interval(values, LEVEL, len(values))
    assert found is not None
    return [math.expm1(value) for value in (found.estimate, found.low, found.high)]
