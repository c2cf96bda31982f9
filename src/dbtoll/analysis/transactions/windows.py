"""What the measurement windows of a transaction workload say beside the comparisons: absolute figures, counts, series."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.result import bins
from dbtoll.analysis.result.schema import (
    DriverResult,
    Levels,
    Quantile,
    Rate,
    TransactionResult,
    UnitResult,
    UnitsResult,
    WindowsResult,
)
from dbtoll.analysis.transactions import devices, sessions, steadiness, writes
from dbtoll.analysis.visits import units
from dbtoll.analysis.visits.metrics import quantile, response_buckets, time_per_transaction_ns
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.json import Json
from dbtoll.model.reply import ended_well
from dbtoll.store.schema import Start

SECOND_NS = 1_000_000_000

BUSY_THREADS = 0.9
"""Share of their time in which the driver's threads had a processor, from which on they held the server up."""
NEAR_NULL_RATE = 0.8
"""Share of what the driver does beside a server that costs nothing, from which on it held the server up."""

_FRACTIONS = (
    0.001,
    0.01,
    *(step / 20 for step in range(1, 19)),
    *(1 - 10**-n * m for n in (2, 3, 4, 5) for m in (5, 2, 1)),
)
_FEWEST_BEYOND = 10
"""Transactions that must lie beyond a quantile for it to be more than the luck of a few."""


def find_all(measured: ValidVisits) -> Iterator[WindowsResult]:
    """For each arm and combination of levels that has steady windows."""
    groups = [
        (levels, arm, visits)
        for levels in measured.levels
        for arm in measured.arms
        if (visits := [v for v in measured.of(levels) if v.arm == arm and v.window is not None])
        and any(not visit.first_execution for visit in visits)
    ]
    costs = {(str(levels), arm): _Cost.of(_counted(visits)) for levels, arm, visits in groups}
    for levels, arm, visits in groups:
        baseline = costs.get((str(levels), measured.references(arm)[0]))
        units = max(len(visit.units) for visit in visits)  # not a neighbour, whose driver is not counted either
        driver = _driver(measured, arm, levels, units, costs[str(levels), arm], baseline)
        yield _summary(measured, levels, visits, driver, tests=2 * len(groups))


def merged(kinds: Sequence[Mapping[str, Json]]) -> list[tuple[int, int]]:
    """The response times of one kind of transaction in several windows: upper end of a bucket in ns, and count, in order."""
    return units.merged(kind["response_ns"]["buckets"] for kind in kinds)


def _counted(visits: Sequence[VisitTotals]) -> list[Json]:
    return [visit.window for visit in visits if visit.window is not None and not visit.first_execution]


def _by_round(visits: Sequence[VisitTotals]) -> list[list[Json]]:
    rounds: dict[int, list[VisitTotals]] = {}
    for visit in visits:
        rounds.setdefault(visit.round, []).append(visit)
    return [_counted(its) for its in rounds.values()]


def _summary(
    measured: ValidVisits, levels: Levels, visits: Sequence[VisitTotals], driver: DriverResult, tests: int
) -> WindowsResult:
    experiment = measured.run.plan.experiment
    asked = experiment.arm(visits[0].arm).configuration.devices
    windows = _counted(visits)
    steady = [visit for visit in visits if not visit.first_execution]
    first, alpha = windows[0], 1 - experiment.precision.confidence
    unit = measured.run.descriptions.workload.throughput_unit
    per_s = _rate(measured, steady)
    ended = [window for window in windows if ended_well(window)]
    return WindowsResult(
        arm=visits[0].arm,
        levels=levels,
        windows=len(windows),
        length_ns=first["length_ns"],
        interval_ns=first["interval_ns"],
        per_s=per_s,
        throughput=_times(per_s, unit.seconds),
        unit=unit.name,
        rate=experiment.arm(visits[0].arm).configuration.workload.options.get("rate") or None,
        backlog_at_end=sum(window["backlog_at_end"] for window in windows),
        round_trips_per_transaction=_median([window["round_trips"] / ended_well(window) for window in ended]),
        connections_lost=sum(window["connections_lost"] for window in windows),
        reconnects=sum(window["reconnects"] for window in windows),
        driver=driver,
        steadiness=steadiness.judge(_by_round(visits), alpha / tests, experiment.precision),
        series=_series(windows),
        first_series=_series([visit.window for visit in visits if visit.window is not None and visit.first_execution]),
        transactions=tuple(_transaction(name, windows) for name in first["transactions"]),
        units=_units(measured, steady, unit.seconds, alpha),
        devices=devices.find(steady, alpha, asked),
        sessions=sessions.find(measured, visits[0].arm, levels),
        writes=writes.find(measured, steady, alpha, asked),
    )


def _units(measured: ValidVisits, visits: Sequence[VisitTotals], seconds: float, alpha: float) -> UnitsResult | None:
    """``seconds``: of the unit of throughput. None of an arm of one unit."""
    if len(visits[0].units) == 1:
        return None
    rates = [[_per_s(each) * seconds for each in units.of_each_unit(visit)] for visit in visits]
    spreads = [units.spread_of(each) for each in rates]
    one_clock = {
        start.round: units.share_a_clock(start.servers)
        for start in measured.run.records(Start)
        if start.arm == visits[0].arm and start.outcome == "ok"
    }
    starts = [
        spread
        for visit in visits
        if (spread := units.start_spread_ns(visit, one_clock=one_clock.get(visit.round, False))) is not None
    ]
    rounds: dict[int, list[int]] = {}
    for number, visit in enumerate(visits):
        rounds.setdefault(visit.round, []).append(number)
    of_rounds = [[fmean(each) for each in zip(*(rates[n] for n in its), strict=True)] for its in rounds.values()]
    fair = devices.mean_of([fmean(spreads[n].fairness for n in its) for its in rounds.values()], alpha, most=1.0)
    return UnitsResult(
        throughput=tuple(fmean(each) for each in zip(*rates, strict=True)),
        least=fmean(each.least for each in spreads),
        most=fmean(each.most for each in spreads),
        fairness=fmean(each.fairness for each in spreads),
        start_spread_ns=max(starts, default=None),
        fairness_low=fair.low if fair else None,
        fairness_high=fair.high if fair else None,
        each=tuple(
            _unit([visit.units[unit].window or {} for visit in visits], by_round)
            for unit, by_round in enumerate(zip(*of_rounds, strict=True))
        ),
    )


def _unit(windows: Sequence[Json], by_round: Sequence[float]) -> UnitResult:
    buckets = units.merged(response_buckets(window) for window in windows)
    p50_ns, p99_ns = (quantile(buckets, fraction) if buckets else None for fraction in (0.50, 0.99))
    parts = [by_round[part] for part in bins.parts(len(by_round), bins.ROUNDS_MAX)]
    return UnitResult(tuple(map(fmean, parts)), p50_ns, p99_ns)


def _per_s(visit: VisitTotals) -> float:
    time_ns = time_per_transaction_ns(visit)
    return 0.0 if time_ns is None or math.isnan(time_ns) else SECOND_NS / time_ns


def _rate(measured: ValidVisits, visits: Sequence[VisitTotals]) -> Rate | None:
    """By the estimand of the overhead: in each round the midmean over its windows of the log time per transaction."""
    precision = measured.run.plan.experiment.precision
    by_round: dict[int, list[float]] = {}
    for visit in visits:
        by_round.setdefault(visit.round, []).append(time_per_transaction_ns(visit) or math.nan)
    logs = np.array([stats.midmean(np.log(np.array(times)), 0) for times in by_round.values()])
    if any(math.isnan(time) for times in by_round.values() for time in times):
        return None  # a window in which nothing was committed has no time per transaction
    found = stats.interval(logs, 1 - precision.confidence, precision.rounds_min)
    bounds = (found.shown.high, found.shown.low) if found else (None, None)
    low, high = (None if bound is None else SECOND_NS * math.exp(-bound) for bound in bounds)
    return Rate(SECOND_NS * math.exp(-float(logs.mean())), low, high)


def _times(rate: Rate | None, factor: float) -> Rate | None:
    if rate is None:
        return None
    low, high = (None if bound is None else bound * factor for bound in (rate.low, rate.high))
    return Rate(rate.estimate * factor, low, high)


def _series(windows: Sequence[Json]) -> tuple[float, ...]:
    """Whole intervals only."""
    return tuple(
        fmean(counts) * SECOND_NS / windows[0]["interval_ns"]
        for counts in zip(*(steadiness.whole_intervals(window) for window in windows), strict=False)
    )


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a transaction took, of all that ended well; medians over windows."""

    driver_us: float | None
    driver_share: float
    per_s: float

    @classmethod
    def of(cls, windows: Sequence[Json]) -> _Cost:
        return cls(
            driver_us=_median(
                [window["driver_cpu_ns"] / ended_well(window) / 1e3 for window in windows if ended_well(window)]
            ),
            driver_share=median(window["driver_cpu_ns"] / window["length_ns"] for window in windows),
            per_s=median(ended_well(window) * SECOND_NS / window["length_ns"] for window in windows),
        )


def _driver(
    measured: ValidVisits, arm: str, levels: Levels, units: int, own: _Cost, baseline: _Cost | None
) -> DriverResult:
    asked = measured.run.plan.experiment.arm(arm)
    of_one = asked.configuration.workload.options.get("threads", 1)
    threads = of_one * units
    cpus = asked.configuration.resources.cpus
    calibrated = measured.run.facts_of(arm).get("driver") or {}
    null_us, null_per_s = (
        (calibrated.get(name) or {}).get(levels.get("interaction"))
        for name in ("null_us_per_transaction", "null_per_s")
    )
    share_of_threads = own.driver_share / threads
    # The null server was asked by the driver of one unit; several do more where they have processors for it.
    most_per_s = null_per_s and null_per_s * min(threads, cpus) / min(of_one, cpus)
    share_of_null_rate = own.per_s / most_per_s if most_per_s else None
    return DriverResult(
        us_per_transaction=own.driver_us,
        share=own.driver_share,
        share_of_threads=share_of_threads,
        null_us_per_transaction=null_us,
        share_of_null_rate=share_of_null_rate,
        bound=None if baseline is None else _bound(own, baseline, min(threads, cpus)),
        bottleneck=_bottleneck(share_of_threads, share_of_null_rate),
    )


def _bound(own: _Cost, baseline: _Cost, lanes: int) -> float | None:
    """What the driver takes more (or less) here, of the baseline's time for a transaction.

    BIAS: the driver runs on the arm's processors. A microsecond more of it cannot delay a transaction by more than that, and
    what ``lanes`` (threads of the driver, or processors if fewer) do at the same time delays the throughput by that part.
    """
    if own.driver_us is None or baseline.driver_us is None or not baseline.per_s:
        return None
    return abs(own.driver_us - baseline.driver_us) * 1e-6 * baseline.per_s / lanes


def _bottleneck(share_of_threads: float, share_of_null_rate: float | None) -> str | None:
    if share_of_threads >= BUSY_THREADS:
        return f"its threads were busy for {share_of_threads:.0%} of the windows"
    if share_of_null_rate is not None and share_of_null_rate >= NEAR_NULL_RATE:
        return f"it did {share_of_null_rate:.0%} of what it can do beside a server that costs nothing"
    return None


def _transaction(name: str, windows: Sequence[Json]) -> TransactionResult:
    kinds = [window["transactions"][name] for window in windows]
    failed: Counter[str] = Counter()
    retried: Counter[str] = Counter()
    for kind in kinds:
        failed.update(kind["failed"])
        retried.update(kind["retried"])
    buckets = merged(kinds)
    total = sum(count for _, count in buckets)
    return TransactionResult(
        name=name,
        committed=sum(kind["committed"] for kind in kinds),
        rolled_back=sum(kind["rolled_back"] for kind in kinds),
        not_found=sum(kind["not_found"] for kind in kinds),
        failed=dict(failed),
        retried=dict(retried),
        lost=sum(kind["lost"] for kind in kinds),
        unknown=sum(kind["unknown"] for kind in kinds),
        p50_ns=quantile(buckets, 0.5),
        p95_ns=quantile(buckets, 0.95),
        p99_ns=quantile(buckets, 0.99),
        max_ns=buckets[-1][0] if buckets else None,
        quantiles=tuple(
            Quantile(round(fraction, 6), value)
            for fraction in _FRACTIONS
            if min(fraction, 1 - fraction) * total >= _FEWEST_BEYOND
            if (value := quantile(buckets, fraction)) is not None
        ),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
