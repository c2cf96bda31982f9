"""How well a native profile and an arm's probes foretell what queries lose there, beside what they lose (`dbtoll predict`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dbtoll.analysis import prediction
from dbtoll.analysis.ledger import Span
from dbtoll.analysis.prediction import Foretold
from dbtoll.analysis.result import Result
from dbtoll.errors import Invalid
from dbtoll.model import Json
from dbtoll.selfbench import Bound, Certificate, Say, ledger

ABOUT = "median_absolute_error of predicted overheads (logarithm of the factor), beside that of two trivial predictors"
OPTIONS = ledger.OPTIONS


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Over the arms that lose more than a tenth, each at its levels."""
    result = ledger.explained(options, say)
    arms = foretold(result)
    if not arms:
        raise Invalid("no arm loses more than a tenth and was predicted", "choose other environments")
    found = prediction.score(arms, 1 - result.confidence)
    figures = {
        "median_absolute_error": found.error.estimate,
        "median_absolute_error_interval": _bounds(found.error),
        "error_of_one": _bounds(found.of_one),
        "error_of_cpu_probe": _bounds(found.of_cpu),
        "ratio_to_trivial": found.ratio.estimate,
        "ratio_to_trivial_interval": _bounds(found.ratio),
        "rank_correlations": {arm: _bounds(each) for arm, each in found.ranks.items()},
        "arms": len(arms),
        "queries": len(arms[0].queries),
    }
    bounds = {
        "median_absolute_error": Bound(most=0.25),
        "ratio_to_trivial": Bound(most=0.5),
        "arms": Bound(least=3),
        "queries": Bound(least=22),
    }
    told: Json = {
        "run": result.run,
        "host": result.facts.get("host"),
        "predicted": {each.arm: dict(zip(each.queries, map(float, each.predicted), strict=True)) for each in arms},
        "measured": {each.arm: dict(zip(each.queries, map(float, each.measured), strict=True)) for each in arms},
    }
    return Certificate("predict", figures, bounds, told)


def foretold(result: Result) -> list[Foretold]:
    """Of the arms that lose enough to be predicted, each at its levels."""
    found = []
    for each in result.ledgers:
        known = [
            (query.query, query.predicted, query.measured)
            for query in each.queries
            if query.predicted is not None and query.measured is not None
        ]
        if ledger.relative(each) > ledger.WORTH_EXPLAINING and each.cpu_ratio is not None and known:
            found.append(
                Foretold(
                    ledger.named(each),
                    tuple(query for query, _, _ in known),
                    np.array([1 + predicted.estimate for _, predicted, _ in known]),
                    np.array([1 + measured for _, _, measured in known]),
                    each.cpu_ratio,
                )
            )
    return found


def _bounds(span: Span) -> list[float | None]:
    return [span.low, span.estimate, span.high]
