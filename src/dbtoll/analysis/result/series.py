"""The visits in the order of the run, times of each query, and plans that changed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np
from numpy.typing import NDArray

from dbtoll.analysis.effects import stats
from dbtoll.analysis.result import bins
from dbtoll.analysis.result.arm_results import FEWEST_FOR_A_MEDIAN
from dbtoll.analysis.result.schema import PlanChange, QueryTimes, SeriesBin
from dbtoll.analysis.visits.metrics import levels_key
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.store.executions import outcomes

Cell = tuple[tuple[tuple[str, str], ...], str, str]
"""Levels, arm and query."""


BINS_MAX = 200
"""Of an arm, at all its levels together."""
DIGITS = 6
"""After the point, of a logarithm: a millionth."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A steady visit that took ``ns``, ``elapsed_s`` since the run began: log of that over its cell's median."""

    visit: VisitTotals
    ns: float
    elapsed_s: float
    log: float


def deviations(measured: ValidVisits) -> Iterator[Deviation]:
    """In the order in which the visits were made. Parameters change a query's time, so each set has its own median.

    A set that came up once or twice would be its own median, and its visits show no deviation whatever the machine did:
    those are set against the query's median over all sets.
    """
    begun = {attempt.round: attempt.begin.elapsed_s for attempt in measured.run.counted}
    first_ns: dict[int, int] = {}
    for visit in measured.visits:
        if visit.host_start_ns is not None:
            first_ns[visit.round] = min(visit.host_start_ns, first_ns.get(visit.round, visit.host_start_ns))
    # Others have no logarithm: a cost that is lost in noise may be below zero.
    points = [
        (visit, value)
        for visit, value in zip(measured.visits, measured.main_values, strict=True)
        if not visit.first_execution and value is not None and 0 < value < math.inf
    ]
    points.sort(key=lambda point: (point[0].round, point[0].order))
    values = np.array([value for _, value in points])
    sets = _numbered([(v.arm, levels_key(v.levels), v.query, v.parameter_set) for v, _ in points])
    queries = _numbered([(v.arm, levels_key(v.levels), v.query) for v, _ in points])
    of_set, of_query = (stats.medians(values, cells, len(cells))[cells] for cells in (sets, queries))
    usual = np.where(np.bincount(sets)[sets] >= FEWEST_FOR_A_MEDIAN, of_set, of_query)
    for (visit, value), log in zip(points, (np.log(values) - np.log(usual)).tolist(), strict=True):
        elapsed_s = begun[visit.round] + _since(visit.host_start_ns, first_ns.get(visit.round))
        yield Deviation(visit, value, elapsed_s, log)


def _numbered(keys: Sequence[Hashable]) -> NDArray[np.intp]:
    """Each key as a whole number: the first one 0, the next that is another one 1."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)


def series(measured: ValidVisits) -> list[SeriesBin]:
    """By arm and levels, within each in the order of the run. Each round is cut into as many bins, or, where rounds are more than
    bins, each bin holds as many of them."""
    together: dict[tuple[str, object], dict[int, list[Deviation]]] = defaultdict(lambda: defaultdict(list))
    for each in deviations(measured):
        together[each.visit.arm, levels_key(each.visit.levels)][each.visit.round].append(each)
    levels_of = Counter(arm for arm, _ in together)
    found: list[SeriesBin] = []
    for (arm, _), own in together.items():
        rounds, bins_max = list(own.values()), max(1, BINS_MAX // levels_of[arm])
        for part in bins.parts(len(rounds), bins_max):
            made = [each for its in rounds[part] for each in its]
            found += [_bin(made[few]) for few in bins.parts(len(made), max(1, bins_max // len(rounds)))]
    return found


def _bin(made: Sequence[Deviation]) -> SeriesBin:
    first, last = made[0], made[-1]
    logs = [each.log for each in made]
    # numpy's take 70 us for a handful, these 4; from a thousand values on it is the other way round.
    quartiles = quantiles(logs, n=4, method="inclusive") if len(logs) > 1 else 3 * logs
    low, q1, middle, q3, high = (round(value, DIGITS) for value in (min(logs), *quartiles, max(logs)))
    return SeriesBin(
        arm=first.visit.arm,
        levels=first.visit.levels,
        from_s=round(first.elapsed_s, 3),
        to_s=round(last.elapsed_s, 3),
        round=first.visit.round,
        visits=len(made),
        min=low,
        q1=q1,
        median=middle,
        q3=q3,
        max=high,
    )


def _since(at_ns: int | None, first_ns: int | None) -> float:
    return 0.0 if at_ns is None or first_ns is None else (at_ns - first_ns) / 1e9


def times(measured: ValidVisits) -> list[QueryTimes]:
    """Over all visits that count, with what failed in them; void visits are not in it."""
    steady: dict[Cell, list[float]] = defaultdict(list)
    first: dict[Cell, list[float]] = defaultdict(list)
    ended: dict[Cell, Counter[str]] = defaultdict(Counter)
    for visit, value in zip(measured.visits, measured.main_values, strict=True):
        if visit.window is not None:  # `windows` has those
            continue
        key = (levels_key(visit.levels), visit.arm, visit.query)
        if value is not None and not math.isnan(value):
            (first if visit.first_execution else steady)[key].append(value)
        if not visit.first_execution:
            count = ended[key]
            for outcome, many in outcomes(visit.executions).items():  # one, as a rule: not worth a call
                count[outcome] += many
    rows = []
    for levels in measured.levels:
        for arm in measured.arms:
            for query in measured.run.plan.queries:
                key = (levels_key(levels), arm, query)
                if key in steady or key in first or key in ended:
                    count = ended[key]
                    rows.append(
                        QueryTimes(
                            arm=arm,
                            levels=levels,
                            query=query,
                            median_ns=_finite(median(steady[key])) if steady[key] else None,
                            executions=count.total(),
                            first_execution_median_ns=_finite(median(first[key])) if first[key] else None,
                            censored=count["timeout"],
                            failed=count["error"] + count["wrong_answer"],
                        )
                    )
    return rows


def _finite(value: float) -> float | None:
    """None where more than half was censored: the median is longer than the timeout."""
    return value if math.isfinite(value) else None


def plans_changed(measured: ValidVisits) -> list[PlanChange]:
    """Each change once, also where it happened in many rounds; in the order of the arms, and of their queries."""
    changes = (PlanChange(f.arm, f.query, known, f.fingerprint, f.levels) for f, known in measured.changed_plans)
    once = {str(change): change for change in changes}.values()
    plan = measured.run.plan
    arms = [arm.name for arm in plan.experiment.arms]
    queries = [*plan.queries, *plan.experiment.explain]
    return sorted(once, key=lambda change: (arms.index(change.arm), queries.index(change.query)))
