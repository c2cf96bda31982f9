"""Overheads that a native profile and an arm's probes foretell (docs/METHOD.md, "Ledgers"), and how good such predictions are.

An error is the absolute difference of the logarithms of two overhead factors (1 + overhead). Nothing is fitted to any arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from dbtoll.analysis.booking import LEAST_FACTOR, Book
from dbtoll.analysis.ledger import Span
from dbtoll.analysis.measured import Measured
from dbtoll.analysis.shape import EffectResult, Levels
from dbtoll.analysis.stats import Floats
from dbtoll.errors import UsageError
from dbtoll.store.reader import Run


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one arm at one combination of levels: the overhead of each query, and of their geometric mean. ``rounds``: of the profile
    or of the probes, the fewer."""

    arm: str
    levels: Levels
    rounds: int
    geomean: EffectResult
    queries: dict[str, EffectResult]


def find_all(profile: Run, probes: Run, arms: Sequence[str]) -> list[Prediction]:
    """For each arm that was probed; all of them if ``arms`` is empty. UsageError where the runs do not hold what is needed."""
    measured, probed = Measured(profile), Measured(probes)
    book = Book(measured, probed)
    chosen = arms or [arm for arm in probed.arms if arm not in (book.baseline, *probed.copies)]
    rounds = min(len(profile.counted), len(probes.counted))
    found = [
        Prediction(arm, levels, rounds, _geomean(queries), queries)
        for levels in measured.levels
        for arm in chosen
        if (queries := book.predicted(arm, levels))
    ]
    if not found:
        raise UsageError(
            f"{profile.folder} has no query that was timed and counted in {book.baseline}",
            "a profile is a run with --explain; probes are a run of `dbtoll probe`",
        )
    return found


def _geomean(queries: dict[str, EffectResult]) -> EffectResult:
    """Of the factors; bounds as if all costs were wrong in the same direction, which they may be."""

    def mean(values: Sequence[float]) -> float:
        return math.expm1(sum(math.log(max(1 + value, LEAST_FACTOR)) for value in values) / len(values))

    effects = list(queries.values())
    return EffectResult(*(mean([getattr(each, name) for each in effects]) for name in ("estimate", "low", "high")))


# --- how good they are -----------------------------------------------------------------------------------------------

RESAMPLES = 2000
SEED = 1
FEWEST_FOR_RANKS = 4


@dataclass(frozen=True, slots=True)
class Foretold:
    """Of one arm: overhead factors of the same queries, as predicted and as measured; ``cpu_factor``: of a search of primes."""

    arm: str
    queries: tuple[str, ...]
    predicted: Floats
    measured: Floats
    cpu_factor: float


@dataclass(frozen=True, slots=True)
class Score:
    """Medians over arms and queries; intervals by bootstrap over queries, drawn together for all arms (Efron, Tibshirani: An
    Introduction to the Bootstrap, 1993, chapter 13). ``of_one``: the error of predicting no overhead; ``of_cpu``: of predicting the
    processor probe's ratio for every query. ``ratio``: our error over the smaller of the two."""

    error: Span
    of_one: Span
    of_cpu: Span
    ratio: Span
    ranks: Mapping[str, Span]


def score(arms: Sequence[Foretold], alpha: float) -> Score:
    """Raises ValueError where there is nothing to score."""
    queries = sorted({query for arm in arms for query in arm.queries})
    if not queries:
        raise ValueError("no query was both predicted and measured")
    drawn = np.random.default_rng(SEED).integers(0, len(queries), (RESAMPLES, len(queries)))
    chosen = [[queries[index] for index in row] for row in drawn]

    def spread(value: Callable[[Sequence[str]], float]) -> Span:
        found = np.array([value(row) for row in chosen])
        found = found[np.isfinite(found)]
        low, high = np.quantile(found, [alpha / 2, 1 - alpha / 2]) if len(found) else (np.nan, np.nan)
        return Span(value(queries), float(low), float(high))

    def errors(row: Sequence[str], of: Callable[[Foretold], Floats]) -> float:
        found = [
            abs(np.log(of(arm)[arm.queries.index(query)] / arm.measured[arm.queries.index(query)]))
            for arm in arms
            for query in row
            if query in arm.queries
        ]
        return float(np.median(found)) if found else np.nan

    def ours(row: Sequence[str]) -> float:
        return errors(row, lambda arm: arm.predicted)

    def of_one(row: Sequence[str]) -> float:
        return errors(row, lambda arm: np.ones(len(arm.queries)))

    def of_cpu(row: Sequence[str]) -> float:
        return errors(row, lambda arm: np.full(len(arm.queries), arm.cpu_factor))

    return Score(
        error=spread(ours),
        of_one=spread(of_one),
        of_cpu=spread(of_cpu),
        ratio=spread(lambda row: ours(row) / min(of_one(row), of_cpu(row))),
        ranks={arm.arm: spread(lambda row, arm=arm: rank_correlation(arm, row)) for arm in arms},  # type: ignore[misc]
    )


def rank_correlation(arm: Foretold, queries: Sequence[str]) -> float:
    """Spearman's, over queries; NaN of too few."""
    indexes = [arm.queries.index(query) for query in queries if query in arm.queries]
    if len(set(indexes)) < FEWEST_FOR_RANKS:
        return float("nan")
    return float(distributions.spearmanr(arm.predicted[indexes], arm.measured[indexes]).statistic)
