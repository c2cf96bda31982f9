"""The same overhead measured with one neighbour and with four, with a short measurement time and with a long one (for `switch`)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats as distributions

from dbtoll.analysis.effects import comparisons, stats
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.visits.arrays import collect
from dbtoll.analysis.visits.metrics import METRICS
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.defaults import BASELINE
from dbtoll.errors import Invalid
from dbtoll.model.experiment import Experiment, VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.reply import Statement
from dbtoll.plan import Plan
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.selfbench.support.quiet_run import Quiet, measured

LEVEL = 0.05
MARGIN = 0.05
"""Variants agree where the ratio of their times is shown to lie within ±5 %: a difference that nobody would act upon."""
SHORT_NS, LONG_NS = 10_000_000, 250_000_000
"""A fifth of the shipped measurement time and five times as much."""

PAIRS = (("one_neighbour", "four_neighbours"), ("short_time", "long_time"))


@dataclass(frozen=True, slots=True)
class Agreed:
    """``figures``: each variant's overhead with its interval, each pair's `difference`, ``agree``; ``facts``: effects by round."""

    figures: dict[str, Any]
    facts: Json


def variants(experiment: Experiment, name: str) -> dict[str, Experiment]:
    """The arm against one native copy; further native copies, or another measurement time, are all that differs."""
    native, arm = experiment.arm(BASELINE), experiment.arm(name)
    others = tuple(replace(native, name=f"{BASELINE} {number}", against=BASELINE) for number in (2, 3, 4))
    pair = replace(experiment, arms=(native, arm))
    return {
        "one_neighbour": pair,
        "four_neighbours": replace(pair, arms=(native, arm, *others)),
        "short_time": replace(pair, visit_timing=_with_measurement_time(pair, SHORT_NS)),
        "long_time": replace(pair, visit_timing=_with_measurement_time(pair, LONG_NS)),
    }


def _with_measurement_time(experiment: Experiment, measurement_time_ns: int) -> VisitTiming:
    return replace(experiment.visit_timing, measurement_time_ns=measurement_time_ns)


def measure(
    prepared: Prepared, name: str, statements: Mapping[str, str], rounds: int, blocks: int, watch: Quiet
) -> Agreed:
    """``rounds`` rounds of each variant, by turns in random order; a round is a fresh start of the variant's arms."""
    asked = {key: Statement(key, sql, sql) for key, sql in statements.items()}
    chance = random.Random(rounds)
    visits: dict[str, list[VisitTotals]] = {}
    for number in range(rounds):
        tried = list(variants(prepared.inputs.experiment, name).items())
        for variant, experiment in chance.sample(tried, len(tried)):
            plan = Plan(replace(experiment, parameter_sets=1), tuple(asked), blocks, {})
            own = replace(prepared.inputs.of_baseline, statements=[asked], answers=[{}])
            by_arm = {arm.name: own for arm in experiment.arms}
            inputs = replace(prepared.inputs, experiment=experiment, by_arm=by_arm)
            found = measured(replace(prepared, inputs=inputs), [plan.round(number)], watch)
            visits.setdefault(variant, []).extend(found)
        watch.say(f"agreement: round {number + 1} of {rounds}")
    effects = {variant: effects_of(each, tuple(asked), name) for variant, each in visits.items()}
    figures: dict[str, Any] = {variant: _interval(values) for variant, values in effects.items()}
    pairs = [difference(effects[one], effects[other]) for one, other in PAIRS]
    figures |= {f"{one}, {other}": told for (one, other), told in zip(PAIRS, pairs, strict=True)}
    # Each has to be shown at LEVEL: that all of them are is then seldomer false than that (Berger 1982).
    figures["agree"] = all(told["agree"] for told in pairs)
    facts: Json = {"arm": name, "effects": {key: list(map(float, each)) for key, each in effects.items()}}
    return Agreed(figures, facts)


def effects_of(visits: Sequence[VisitTotals], queries: tuple[str, ...], name: str) -> Floats:
    """[round]: the arm against the one native copy that all variants have, over all statements; log scale."""
    arms = (BASELINE, name)
    times = collect([visit for visit in visits if visit.arm in arms], queries, arms, METRICS["run_time"])
    (pair,) = comparisons.pairs(arms, {name: BASELINE}, {})
    effects = comparisons.geomean_rounds(times, pair) if times else None
    if effects is None or len(effects) < 2:
        raise Invalid(f"{name}: fewer than two rounds have all statements", "see what was said of its starts")
    return effects


def difference(first: Floats, second: Floats) -> Json:
    """Of two variants' effects by round (log scale): the second over the first with the 90 % interval of two one-sided tests,
    fractions.

    By Welch's test: starts of variants are independent, their spreads may differ. ``agree``: it lies within MARGIN; ``power``: the
    chance of that if there is no difference.
    """
    found = distributions.ttest_ind(second, first, equal_var=False)
    interval = found.confidence_interval(1 - 2 * LEVEL)
    estimate = float(second.mean() - first.mean())
    error = float((interval.high - interval.low) / 2 / distributions.t.ppf(1 - LEVEL, found.df))
    low, high = math.log1p(-MARGIN), math.log1p(MARGIN)
    return {
        "difference": [math.expm1(float(value)) for value in (estimate, interval.low, interval.high)],
        "agree": bool(low < interval.low and interval.high < high),
        "power": stats.equivalence_power(error, round(found.df), min(-low, high), LEVEL),
    }


def _interval(values: Floats) -> list[float]:
    """[estimate, low, high] as fractions."""
    found = stats.independent_interval(values, LEVEL)
    assert found is not None
    return [math.expm1(value) for value in (found.estimate, found.low, found.high)]
