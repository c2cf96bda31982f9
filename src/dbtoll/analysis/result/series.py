"""Every visit in the order of the run, times of each query, and plans that changed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from dbtoll.analysis.result.arm_results import FEWEST_FOR_A_MEDIAN
from dbtoll.analysis.result.schema import PlanChange, QueryTimes, SeriesPoint
from dbtoll.analysis.visits.metrics import levels_key, main_value
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.store.reader import Run
from dbtoll.store.schema import Fingerprint


def series(measured: ValidVisits) -> list[SeriesPoint]:
    """In the order in which the visits were made. Parameters change a query's time, so each set has its own median.

    A set that came up once or twice would be its own median, and its visits show no deviation whatever the machine did:
    those are set against the query's median over all sets.
    """
    begun = {attempt.round: attempt.begin.elapsed_s for attempt in measured.run.counted}
    first_ns: dict[int, int] = {}
    for visit in measured.visits:
        if visit.host_start_ns is not None:
            first_ns[visit.round] = min(visit.host_start_ns, first_ns.get(visit.round, visit.host_start_ns))
    points = []
    cells: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for visit in measured.visits:
        value = None if visit.first_execution else main_value(visit)
        if (
            value is not None and 0 < value < math.inf
        ):  # others have no logarithm: a cost that is lost in noise may be below zero
            key = (visit.arm, levels_key(visit.levels), visit.query, visit.parameter_set)
            cells[key].append(value)
            cells[key[:-1]].append(value)
            points.append((visit, key, value))
    medians = {key: math.log(_median(values)) for key, values in cells.items()}
    return [
        SeriesPoint(
            arm=visit.arm,
            levels=visit.levels,
            elapsed_s=begun[visit.round] + _since(visit.host_start_ns, first_ns.get(visit.round)),
            round=visit.round,
            query=visit.query,
            log_deviation=math.log(value) - medians[key if len(cells[key]) >= FEWEST_FOR_A_MEDIAN else key[:-1]],
        )
        for visit, key, value in sorted(points, key=lambda point: (point[0].round, point[0].order))
    ]


def _since(at_ns: int | None, first_ns: int | None) -> float:
    return 0.0 if at_ns is None or first_ns is None else (at_ns - first_ns) / 1e9


def times(measured: ValidVisits) -> list[QueryTimes]:
    """Over all visits that count, with what failed in them; void visits are not in it."""
    rows = []
    for levels in measured.levels:
        steady: dict[tuple[str, str], list[float]] = defaultdict(list)
        first: dict[tuple[str, str], list[float]] = defaultdict(list)
        outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for visit in measured.of(levels):
            if visit.window is not None:  # `windows` has those
                continue
            key = (visit.arm, visit.query)
            value = main_value(visit)
            if value is not None and not math.isnan(value):
                (first if visit.first_execution else steady)[key].append(value)
            if not visit.first_execution:
                outcomes[key].update(timing.outcome for timing in visit.executions)
        for arm in measured.arms:
            for query in measured.run.plan.queries:
                key = (arm, query)
                if key in steady or key in first or key in outcomes:
                    count = outcomes[key]
                    rows.append(
                        QueryTimes(
                            arm=arm,
                            levels=levels,
                            query=query,
                            median_ns=_finite(_median(steady[key])) if steady[key] else None,
                            executions=sum(count.values()),
                            first_execution_median_ns=_finite(_median(first[key])) if first[key] else None,
                            censored=count["timeout"],
                            failed=count["error"] + count["wrong_answer"],
                        )
                    )
    return rows


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _finite(value: float) -> float | None:
    """None where more than half was censored: the median is longer than the timeout."""
    return value if math.isfinite(value) else None


def plans_changed(run: Run) -> list[PlanChange]:
    """Each change once, also where it happened in many rounds."""
    baseline = run.plan.experiment.baseline
    records = list(run.records(Fingerprint))
    expected = {(f.round, f.parameter_set, f.query): f.fingerprint for f in records if f.arm == baseline}
    changes = (
        PlanChange(f.arm, f.query, known, f.fingerprint)
        for f in records
        if (known := expected.get((f.round, f.parameter_set, f.query))) is not None and known != f.fingerprint
    )
    return list(dict.fromkeys(changes))
