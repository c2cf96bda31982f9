"""Overheads that a native profile and an arm's probes predict (docs/method/predictions.md), and how good such predictions are.

An error is the absolute difference of the logarithms of two overhead factors (1 + overhead). No time of a query in an arm enters a
prediction. Its rules were chosen by looking at some of the runs that it is judged by (docs/adr/0014 to 0016, CALIBRATION), and
where instructions are emulated a line is fitted to the arm's probes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from dbtoll.analysis.attribution.cost_model import LEAST_FACTOR, CostModel
from dbtoll.analysis.attribution.ledger import CostRange
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import Forecast, Levels
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.errors import UsageError
from dbtoll.store.reader import Run


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one arm at one combination of levels: the overhead of each query, and of their geometric mean. ``rounds``: of the profile
    or of the probes, the fewer; on fewer than ``rounds_to_decide`` nothing is decided.

    ``left_out``: queries of the profile of which nothing is predicted, for they failed or were not counted. ``unprobed``: items
    that are predicted to cost what they do in the baseline, for the arm's probes do not tell; then there are no bounds. An arm of
    which not even that is known how fast it computes has no queries.
    """

    arm: str
    levels: Levels
    rounds: int
    rounds_to_decide: int
    geomean: Forecast | None
    queries: dict[str, Forecast]
    left_out: tuple[str, ...]
    unprobed: tuple[str, ...]


def find_all(profile: Run, probes: Run, arms: Sequence[str]) -> list[Prediction]:
    """For each of ``arms``; for all that were probed if it is empty. UsageError where the runs do not hold what is needed."""
    measured, probed = ValidVisits(profile), ValidVisits(probes)
    book = CostModel(measured, probed)
    chosen = arms or [arm for arm in probed.arms if arm not in (book.baseline, *probed.copies)]
    rounds = min(len(profile.counted), len(probes.counted))
    enough = max(run.plan.experiment.precision.rounds_to_decide for run in (profile, probes))
    hint = "a profile is a run with --explain; probes are a run of `dbtoll probe`"
    if bars := measured.invalid(book.baseline) or probed.invalid(book.baseline):
        raise UsageError(f"what {book.baseline} did cannot be built upon: {bars}", hint)
    found: list[Prediction] = []
    for levels in profile.plan.experiment.combinations:
        for arm in chosen:
            queries, unprobed = book.predicted(arm, levels)
            left_out = tuple(query for query in profile.plan.queries if query not in queries)
            geomean = _geomean(queries) if queries else None
            found.append(Prediction(arm, levels, rounds, enough, geomean, queries, left_out, tuple(unprobed)))
    if not any(each.queries for each in found):
        failed = "; ".join(f"{arm}: {why}" for arm in (book.baseline, *chosen) for why in probed.failures(arm))
        raise UsageError(
            f"{profile.folder} has no query that was timed and counted in {book.baseline}, or {probes.folder} does not tell how "
            f"fast {' and '.join(chosen) or 'any arm'} computes{f' ({failed})' if failed else ''}",
            hint,
        )
    return found


def _geomean(queries: dict[str, Forecast]) -> Forecast:
    """Of the factors; bounds as if all costs were wrong in the same direction, which they may be."""

    def mean(values: Sequence[float]) -> float:
        return math.expm1(sum(math.log(max(1 + value, LEAST_FACTOR)) for value in values) / len(values))

    low, high = ([getattr(each, name) for each in queries.values()] for name in ("low", "high"))
    known = None not in low and None not in high
    return Forecast(
        mean([each.estimate for each in queries.values()]), mean(low) if known else None, mean(high) if known else None
    )


# --- how good they are -----------------------------------------------------------------------------------------------

RESAMPLES = 2000
SEED = 1
FEWEST_FOR_RANKS = 4


@dataclass(frozen=True, slots=True)
class PredictedArm:
    """Of one arm: overhead factors of the same queries [query], as predicted, with bounds (NaN where there are none), and as
    measured; ``cpu_factor``: of a search of primes."""

    arm: str
    queries: tuple[str, ...]
    predicted: Floats
    low: Floats
    high: Floats
    measured: Floats
    cpu_factor: float


@dataclass(frozen=True, slots=True)
class Score:
    """Medians over arms and queries; intervals by bootstrap over queries, drawn together for all arms (Efron, Tibshirani: An
    Introduction to the Bootstrap, 1993, chapter 13). ``of_one``: the error of predicting no overhead; ``of_cpu``: of predicting the
    processor probe's ratio for every query. ``ratio``: our error over the smaller of the two. ``inside``: see `share_inside`."""

    error: CostRange
    of_one: CostRange
    of_cpu: CostRange
    ratio: CostRange
    ranks: Mapping[str, CostRange]
    inside: CostRange


def score(arms: Sequence[PredictedArm], alpha: float) -> Score:
    """Raises ValueError where there is nothing to score."""
    queries = sorted({query for arm in arms for query in arm.queries})
    if not queries:
        raise ValueError("no query was both predicted and measured")
    drawn = np.random.default_rng(SEED).integers(0, len(queries), (RESAMPLES, len(queries)))

    def medians(of: Callable[[PredictedArm], Floats]) -> Floats:
        """[one more than resamples]: of the errors; the first is of the queries as they are."""
        errors = np.full((len(arms), len(queries)), np.nan)
        for number, arm in enumerate(arms):
            errors[number, [queries.index(query) for query in arm.queries]] = np.abs(np.log(of(arm) / arm.measured))
        with warnings.catch_warnings(action="ignore"):  # a resample of queries that no arm has: NaN
            return np.append(np.nanmedian(errors), np.nanmedian(errors[:, drawn], axis=(0, 2)))

    def spread(values: Floats) -> CostRange:
        found = values[1:][np.isfinite(values[1:])]
        low, high = np.quantile(found, [alpha / 2, 1 - alpha / 2]) if len(found) else (np.nan, np.nan)
        return CostRange(float(values[0]), float(low), float(high))

    def ranks(arm: PredictedArm) -> Floats:
        rows = (queries, *([queries[index] for index in row] for row in drawn))
        return np.array([rank_correlation(arm, row) for row in rows])

    ours = medians(lambda arm: arm.predicted)
    of_one = medians(lambda arm: np.ones(len(arm.queries)))
    of_cpu = medians(lambda arm: np.full(len(arm.queries), arm.cpu_factor))
    return Score(
        error=spread(ours),
        of_one=spread(of_one),
        of_cpu=spread(of_cpu),
        ratio=spread(ours / np.minimum(of_one, of_cpu)),
        ranks={arm.arm: spread(ranks(arm)) for arm in arms},
        inside=share_inside(arms, alpha),
    )


def share_inside(arms: Sequence[PredictedArm], alpha: float) -> CostRange:
    """Which part of the measured factors lies inside the predicted bounds, of those that have any.

    Its interval is that of Clopper and Pearson (Biometrika 26, 1934) as if only as many had been seen as there are queries, for
    what is wrong with a query's counts is so in all arms (Korn, Graubard: Survey Methodology 24, 1998). BIAS: a measured factor has
    an error of its own, which lets fewer lie inside. What is wrong with an arm's probes is so for all its queries: of other arms
    and machines this says nothing.
    """
    inside = np.concatenate([(arm.low <= arm.measured) & (arm.measured <= arm.high) for arm in arms])
    bounded = np.concatenate([np.isfinite(arm.low) & np.isfinite(arm.high) for arm in arms])
    if not bounded.any():
        return CostRange(math.nan, None, None)
    share = float(inside[bounded].mean())
    count = len({query for arm in arms for query, low in zip(arm.queries, arm.low, strict=True) if np.isfinite(low)})
    hits = share * count
    low = float(distributions.beta.ppf(alpha / 2, hits, count - hits + 1)) if hits > 0 else 0.0
    high = float(distributions.beta.ppf(1 - alpha / 2, hits + 1, count - hits)) if hits < count else 1.0
    return CostRange(share, low, high)


def rank_correlation(arm: PredictedArm, queries: Sequence[str]) -> float:
    """Spearman's, over queries; NaN of too few."""
    indexes = [arm.queries.index(query) for query in queries if query in arm.queries]
    if len(set(indexes)) < FEWEST_FOR_RANKS:
        return float("nan")
    return float(distributions.spearmanr(arm.predicted[indexes], arm.measured[indexes]).statistic)
