"""From records to arrays: the times of one combination of levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.visits.units import VisitTotals, merged, of_each_unit, over_units
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json
from dbtoll.model.reply import TIME_PER_TRANSACTION, TIME_PER_TRANSACTION_LEAST, ended_well
from dbtoll.store.executions import OUTCOMES, UNKNOWN, WIDTH, outcomes, packed
from dbtoll.store.schema import Timing

Time = Callable[[NDArray[np.int64]], Floats]
"""From the numbers of executions [execution, WIDTH] to their times, ns; NaN where an execution has no such time."""


Value = Callable[[Sequence[VisitTotals]], "list[float | None]"]
"""Each visit's value in ns; inf if censored, NaN if it failed, None if it has no such metric."""


VisitValue = tuple[VisitTotals, str, float]
"""A visit, its query or one of its transactions, and the value of that; as of `Value`, but never None."""

Metric = Callable[[Sequence[VisitTotals]], "Iterable[VisitValue]"]
"""The values that visits have."""

QUANTILES = {"response_p50": 0.5, "response_p95": 0.95, "response_p99": 0.99}

REUSES = 5
"""Executions on a connection that is made for one visit (level ``per_visit``) that are looked at one by one."""


_START, _CONNECTED, _END, _OUTCOME = (
    Timing.__struct_fields__.index(name) for name in ("start_ns", "connected_ns", "end_ns", "outcome")
)
_TIMEOUT = OUTCOMES.index("timeout")
_FAILED = (OUTCOMES.index("error"), OUTCOMES.index("wrong_answer"))
_AT_ONCE = 20_000
"""Visits whose executions are columns at the same time: some ten MB."""


def run_time_ns(numbers: NDArray[np.int64]) -> Floats:
    """From before the first byte is sent to the last byte read; with a connection per statement, connecting too."""
    return np.asarray(numbers[:, _END] - numbers[:, _START], dtype=float)


def connect_time_ns(numbers: NDArray[np.int64]) -> Floats:
    """Only where a statement has a connection of its own."""
    connected = numbers[:, _CONNECTED]
    return np.asarray(np.where(connected == UNKNOWN, np.nan, connected - numbers[:, _START]))


def failed(visit: VisitTotals) -> bool:
    """Whether something in it did not work: an execution that failed or answered wrongly, connections that were refused.

    The agent ends a visit at the first execution that is not ``ok`` (agent/src/driver/serial.rs): that one is its last, however
    many have worked before it.
    """
    ended = outcomes(visit.executions)
    if "error" in ended or "wrong_answer" in ended:
        return True
    # A probe that an arm does not have has a problem and no batches: it did not fail.
    return bool(visit.problem) and visit.batches is None and not visit.executions


def timed_out(visit: VisitTotals) -> bool:
    """Whether an execution of it was ended by the statement timeout."""
    return "timeout" in outcomes(visit.executions)


def as_cut(visit: VisitTotals) -> VisitTotals:
    """The same with executions that ran into the timeout as if they had ended there: they took at least so long."""
    units = tuple(msgspec.structs.replace(unit, executions=_as_cut(unit.executions)) for unit in visit.units)
    return msgspec.structs.replace(visit, units=units, executions=_as_cut(visit.executions))


def _as_cut(executions: Sequence[Timing]) -> Sequence[Timing]:
    return tuple(
        msgspec.structs.replace(timing, outcome="ok") if timing.outcome == "timeout" else timing
        for timing in executions
    )


def by_median(time: Time) -> Value:
    """The median of a visit's executions; of a first execution the first one alone: what the second finds is warm already.

    A censored execution took longer than every one that ended, so it takes part in the median as infinite.
    """

    def values(visits: Sequence[VisitTotals]) -> list[float | None]:
        found: list[float | None] = []
        for begin in range(0, len(visits), _AT_ONCE):
            found += _medians(visits[begin : begin + _AT_ONCE], time)
        return found

    return over_units(values)


def _medians(visits: Sequence[VisitTotals], time: Time) -> list[float | None]:
    executions = [packed(visit.executions) for visit in visits]
    counts = np.array([len(each) for each in executions])
    numbers = np.frombuffer(b"".join(each.data for each in executions), dtype=np.int64).reshape(-1, WIDTH)
    alone = np.array([visit.first_execution for visit in visits], dtype=bool)
    of_visit = np.repeat(np.arange(len(visits)), counts)
    in_visit = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    bad = np.bincount(of_visit, np.isin(numbers[:, _OUTCOME], _FAILED), len(visits)) > 0
    taken = (in_visit == 0) | ~alone[of_visit]
    numbers, of_visit = numbers[taken], of_visit[taken]
    times = time(numbers)
    known = ~np.isnan(times)
    times = np.where(known & (numbers[:, _OUTCOME] == _TIMEOUT), np.inf, times)
    asked, told = (np.bincount(of_visit, each, len(visits)).astype(int) for each in (None, known))
    complete = (told == asked) & (asked > 0)
    middles = np.where(bad, np.nan, stats.medians(times, of_visit, len(visits)))
    valued = complete | (bad & (told > 0))
    values = [
        middle if is_valued else None for middle, is_valued in zip(middles.tolist(), valued.tolist(), strict=True)
    ]
    for index, (visit, count) in enumerate(zip(visits, asked.tolist(), strict=True)):
        if visit.window is not None or visit.batches is not None:
            values[index] = None
        elif not count and failed(visit):
            values[index] = math.nan
    return values


def by_number(number: int) -> Value:
    """Run time of execution ``number`` (from 1) on a connection that was made for the visit (Minhas et al. 2008, Figure 2)."""

    def value(visit: VisitTotals) -> float | None:
        is_new = visit.levels.get("connection") == "per_visit" and not visit.first_execution
        if not is_new:
            return None
        if failed(visit):
            return math.nan
        if len(visit.executions) < number:
            return None
        timing = visit.executions[number - 1]
        return math.inf if timing.outcome == "timeout" else float(timing.end_ns - timing.start_ns)

    return over_units(_of_each(value))


def _of_each(value: Callable[[VisitTotals], float | None]) -> Value:
    return lambda visits: [value(visit) for visit in visits]


def time_per_transaction_ns(visit: VisitTotals) -> float | None:
    """The inverse of throughput, of the transactions that count for it: a cost, as all metrics are (docs/GLOSSARY.md)."""
    window = visit.window
    if window is None:
        return None
    if failed(visit):
        return math.nan
    counted = window["throughput_transaction"]
    kinds = window["transactions"]
    committed = sum(kind["committed"] for name, kind in kinds.items() if counted in (None, name))
    return window["length_ns"] / committed if committed else math.nan


def time_per_transaction_least_ns(visit: VisitTotals) -> float | None:
    """The same of the unit that did least; None of an arm of one unit, which has no other."""
    if visit.window is None or len(visit.units) == 1:
        return None
    times = [time_per_transaction_ns(each) for each in of_each_unit(visit)]
    known = [time for time in times if time is not None]
    return math.nan if any(map(math.isnan, known)) else max(known)


def time_per_ended_ns(visit: VisitTotals) -> float | None:
    """The same of all transactions that ended well, of whatever kind."""
    window = visit.window
    if window is None:
        return None
    ended = 0 if failed(visit) else ended_well(window)
    return window["length_ns"] / ended if ended else math.nan


def event_time_ns(visit: VisitTotals) -> float | None:
    """Of one event of a probe: the median of the visit's batches, which an interruption of some of them does not move. A cold one's
    may be below zero."""
    costs = [batch.elapsed_ns / batch.events for batch in visit.batches or () if batch.events]
    return float(np.median(costs)) if costs else None


def response_quantile(fraction: float) -> Metric:
    """Of each kind of transaction, from the scheduled start."""

    def values(visits: Sequence[VisitTotals]) -> Iterator[VisitValue]:
        for visit in visits:
            for name, kind in (visit.window["transactions"] if visit.window is not None else {}).items():
                if failed(visit):
                    yield visit, name, math.nan
                elif (found := quantile(kind["response_ns"]["buckets"], fraction)) is not None:
                    yield visit, name, float(found)

    return values


def response_quantile_together(fraction: float, transaction: str = "") -> Metric:
    """Of all transactions of a window together, or of one kind alone, from the scheduled start."""

    def values(visits: Sequence[VisitTotals]) -> Iterator[VisitValue]:
        for visit in visits:
            windows = [] if visit.window is None else [visit.window]
            if windows and failed(visit):
                yield visit, visit.query, math.nan
            elif (found := quantile(buckets_together(windows, transaction), fraction)) is not None:
                yield visit, visit.query, float(found)

    return values


def buckets_together(windows: Sequence[Json], transaction: str = "") -> list[tuple[int, int]]:
    """Response times of all transactions of these windows together, or of one kind alone."""
    kinds = [kind for window in windows for name, kind in window["transactions"].items() if transaction in ("", name)]
    return merged(kind["response_ns"]["buckets"] for kind in kinds)


def response_buckets(window: Json) -> list[tuple[int, int]]:
    """Response times of the transactions that are the throughput, in a window of one unit or of several."""
    counted = window["throughput_transaction"]
    kinds = [kind for name, kind in window["transactions"].items() if counted in (None, name)]
    return merged(kind["response_ns"]["buckets"] for kind in kinds)


def quantile(buckets: Sequence[Sequence[int]], fraction: float) -> int | None:
    """The value that ``fraction`` of what was counted does not exceed; None of nothing. ``buckets``: value and count."""
    rank = math.ceil(fraction * sum(count for _, count in buckets))
    seen = 0
    for value, count in buckets:
        seen += count
        if seen >= rank:
            return value
    return None


def _of_query(value: Value) -> Metric:
    def values(visits: Sequence[VisitTotals]) -> Iterator[VisitValue]:
        for visit, found in zip(visits, value(visits), strict=True):
            if found is not None:
                yield visit, visit.query, found

    return values


VALUES: dict[str, Value] = {
    "run_time": by_median(run_time_ns),
    "connect_time": by_median(connect_time_ns),
    **{f"run_time_{number}": by_number(number) for number in range(1, REUSES + 1)},
    TIME_PER_TRANSACTION: _of_each(time_per_transaction_ns),
    TIME_PER_TRANSACTION_LEAST: _of_each(time_per_transaction_least_ns),
    "event_time": _of_each(event_time_ns),
}

METRICS: dict[str, Metric] = {
    **{name: _of_query(value) for name, value in VALUES.items()},
    **{name: response_quantile(fraction) for name, fraction in QUANTILES.items()},
}


def main_metric(visits: Iterable[VisitTotals], experiment: Experiment) -> str:
    """What headlines, contrasts and the stopping rule are about: the run time of statements, the throughput of transactions.

    Where these arrive by a schedule (an open loop), throughput is the schedule's: there it is the median response time.
    """
    visits = list(visits)
    if any(visit.batches is not None for visit in visits) and not any(
        visit.executions or visit.window for visit in visits
    ):
        return "event_time"
    if all(visit.window is None for visit in visits):
        return "run_time"
    return "response_p50" if experiment.configuration.workload.options.get("rate") else TIME_PER_TRANSACTION


LevelsKey = tuple[tuple[str, str], ...]


def levels_key(levels: dict[str, str]) -> LevelsKey:
    """Levels in a form that can be a key."""
    return tuple(levels.items())
