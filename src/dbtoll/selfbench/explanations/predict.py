"""How well a native profile and an arm's probes predict what queries lose there, beside what they lose (`dbtoll predict`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dbtoll.analysis.attribution import prediction
from dbtoll.analysis.attribution.ledger import CostRange
from dbtoll.analysis.attribution.prediction import PredictedArm, Score
from dbtoll.analysis.effects.stats import FEWEST_DRAWS, Floats
from dbtoll.analysis.result.schema import QueryLedger, Result, Unbooked
from dbtoll.errors import Invalid
from dbtoll.model.json import Json
from dbtoll.selfbench.explanations import ledger
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say

SUMMARY = (
    "median_absolute_error of predicted overheads (logarithm of the factor), and how many of the measured lie inside"
)
OPTIONS = ledger.OPTIONS


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Over the arms that lose more than a tenth, each at its levels, and the queries with the baseline's plan; and, in figures of
    their own, over everything that was predicted and measured, whatever came out."""
    result = ledger.explained(options, say)
    alpha = 1 - result.confidence
    everything = predicted_arms(result, chosen=False)
    arms = predicted_arms(result, chosen=True)
    if not arms:
        raise Invalid("no arm loses more than a tenth and was predicted", "choose other environments")
    found, whole = prediction.score(arms, alpha), prediction.score(everything, alpha)
    figures = {
        **_figures(found),
        "ratio_to_trivial": found.ratio.estimate,
        "ratio_to_trivial_interval": _bounds(found.ratio),
        "rank_correlations": {arm: _bounds(each) for arm, each in found.ranks.items()},
        "arms": len(arms),
        "queries": len(arms[0].queries),
        "everything": {
            **_figures(whole),
            "arms": len(everything),
            "factors": sum(len(arm.queries) for arm in everything),
        },
        "rounds_least": min(each.rounds for each in result.ledgers),
    }
    bounds = {
        "median_absolute_error": Bound(max=0.25),
        "inside": Bound(min=result.confidence),
        "ratio_to_trivial": Bound(max=0.5),
        "arms": Bound(min=3),
        "queries": Bound(min=22),
        "rounds_least": Bound(min=FEWEST_DRAWS),
    }
    told: Json = {
        "run": result.run,
        "host": result.facts.get("host"),
        "nominal_inside": result.confidence,
        "chosen": [each.arm for each in arms],
        "other_plans": {
            ledger.named(each): [query.query for query in each.unbooked] for each in result.ledgers if each.unbooked
        },
        "predicted": {each.arm: _by_query(each, each.low, each.predicted, each.high) for each in everything},
        "measured": {each.arm: dict(zip(each.queries, each.measured.tolist(), strict=True)) for each in everything},
    }
    return Certificate("predict", figures, bounds, told)


def predicted_arms(result: Result, *, chosen: bool) -> list[PredictedArm]:
    """What was both predicted and measured, of each arm at its levels but the baseline's copy. ``chosen``: of the arms that lose
    enough to be explained, the queries with the baseline's plan; else of all arms all queries."""
    found = []
    for each in result.ledgers:
        if ledger.is_copy(result, each.arm) or each.cpu_ratio is None:
            continue
        if chosen and not ledger.is_worth_explaining(each):
            continue
        queries: list[QueryLedger | Unbooked] = [*each.queries, *(() if chosen else each.unbooked)]
        known = [
            (query.query, query.predicted, query.measured)
            for query in queries
            if query.predicted is not None and query.measured is not None
        ]
        if known:
            found.append(
                PredictedArm(
                    arm=ledger.named(each),
                    queries=tuple(query for query, _, _ in known),
                    predicted=_factors(predicted.estimate for _, predicted, _ in known),
                    low=_factors(predicted.low for _, predicted, _ in known),
                    high=_factors(predicted.high for _, predicted, _ in known),
                    measured=_factors(measured for _, _, measured in known),
                    cpu_factor=each.cpu_ratio,
                )
            )
    return found


def _factors(overheads: Iterable[float | None]) -> Floats:
    """[query]; NaN for None."""
    return np.array([math.nan if each is None else 1 + each for each in overheads])


def _figures(found: Score) -> Json:
    return {
        "median_absolute_error": found.error.estimate,
        "median_absolute_error_interval": _bounds(found.error),
        "inside": _known(found.inside.estimate),
        "inside_interval": _bounds(found.inside),
        "error_of_one": _bounds(found.of_one),
        "error_of_cpu_probe": _bounds(found.of_cpu),
    }


def _by_query(arm: PredictedArm, *columns: Floats) -> Json:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {query: [_known(value) for value in row] for query, row in zip(arm.queries, rows, strict=True)}


def _bounds(cost_range: CostRange) -> list[float | None]:
    return [_known(value) for value in (cost_range.low, cost_range.estimate, cost_range.high)]


def _known(value: float | None) -> float | None:
    """JSON has no NaN."""
    return None if value is None or math.isnan(value) else value
