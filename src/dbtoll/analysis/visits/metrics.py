"""From records to arrays: the times of one combination of levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from dbtoll.model.experiment import Experiment
from dbtoll.model.reply import MAIN_METRICS, TIME_PER_TRANSACTION, ended_well
from dbtoll.store.schema import Timing, Visit

Time = Callable[[Timing], "int | None"]


Value = Callable[[Visit], "float | None"]
"""A visit's value in ns; inf if censored, NaN if it failed, None if it has no such metric."""


Metric = Callable[[Visit], "Iterable[tuple[str, float]]"]
"""The values that a visit has, each with its query or transaction; as `Value`, none where it has no such metric."""

QUANTILES = {"response_p50": 0.5, "response_p95": 0.95, "response_p99": 0.99}

REUSES = 5
"""Executions on a connection that is made for one visit (level ``per_visit``) that are looked at one by one."""


def run_time_ns(timing: Timing) -> int | None:
    """From before the first byte is sent to the last byte read; with a connection per statement, connecting too."""
    return timing.end_ns - timing.start_ns


def connect_time_ns(timing: Timing) -> int | None:
    """Only where a statement has a connection of its own."""
    return None if timing.connected_ns is None else timing.connected_ns - timing.start_ns


def failed(visit: Visit) -> bool:
    """Whether something in it did not work: an execution that failed or answered wrongly, connections that were refused.

    The agent ends a visit at the first execution that is not ``ok`` (agent/src/driver/serial.rs): that one is its last, however
    many have worked before it.
    """
    if any(timing.outcome in {"error", "wrong_answer"} for timing in visit.executions):
        return True
    # A probe that an arm does not have has a problem and no batches: it did not fail.
    return bool(visit.problem) and visit.batches is None and not visit.executions


def timed_out(visit: Visit) -> bool:
    """Whether an execution of it was ended by the statement timeout."""
    return any(timing.outcome == "timeout" for timing in visit.executions)


def as_cut(visit: Visit) -> Visit:
    """The same with executions that ran into the timeout as if they had ended there: they took at least so long."""
    ended = [
        msgspec.structs.replace(timing, outcome="ok") if timing.outcome == "timeout" else timing
        for timing in visit.executions
    ]
    return msgspec.structs.replace(visit, executions=tuple(ended))


def by_median(time: Time) -> Value:
    """The median of a visit's executions.

    A censored execution took longer than every one that ended, so it takes part in the median as infinite.
    """

    def value(visit: Visit) -> float | None:
        if visit.window is not None or visit.batches is not None:
            return None
        # What the second execution after a start finds is warm already.
        values = [_of(timing, time) for timing in visit.executions[: 1 if visit.first_execution else None]]
        known = sorted(each for each in values if each is not None)
        if failed(visit):
            return math.nan if known or not values else None
        if not known or len(known) < len(values):
            return None
        middle = len(known) // 2
        return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2

    return value


def by_number(number: int) -> Value:
    """Run time of execution ``number`` (from 1) on a connection that was made for the visit (minhas2008, Figure 2)."""

    def value(visit: Visit) -> float | None:
        is_new = visit.levels.get("connection") == "per_visit" and not visit.first_execution
        if not is_new:
            return None
        if failed(visit):
            return math.nan
        return _of(visit.executions[number - 1], run_time_ns) if len(visit.executions) >= number else None

    return value


def _of(timing: Timing, time: Time) -> float | None:
    value = time(timing)
    return None if value is None else math.inf if timing.outcome == "timeout" else float(value)


def time_per_transaction_ns(visit: Visit) -> float | None:
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


def time_per_ended_ns(visit: Visit) -> float | None:
    """The same of all transactions that ended well, of whatever kind."""
    window = visit.window
    if window is None:
        return None
    ended = 0 if failed(visit) else ended_well(window)
    return window["length_ns"] / ended if ended else math.nan


def event_time_ns(visit: Visit) -> float | None:
    """Of one event of a probe: the median of the visit's batches, which an interruption of some of them does not move. A cold one's
    may be below zero."""
    costs = [batch.elapsed_ns / batch.events for batch in visit.batches or () if batch.events]
    return float(np.median(costs)) if costs else None


def response_quantile(fraction: float) -> Metric:
    """Of each kind of transaction, from the scheduled start."""

    def values(visit: Visit) -> Iterator[tuple[str, float]]:
        for name, kind in (visit.window or {"transactions": {}})["transactions"].items():
            if failed(visit):
                yield name, math.nan
            elif (found := quantile(kind["response_ns"]["buckets"], fraction)) is not None:
                yield name, float(found)

    return values


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
    def values(visit: Visit) -> Iterator[tuple[str, float]]:
        if (found := value(visit)) is not None:
            yield visit.query, found

    return values


VALUES: dict[str, Value] = {
    "run_time": by_median(run_time_ns),
    "connect_time": by_median(connect_time_ns),
    **{f"run_time_{number}": by_number(number) for number in range(1, REUSES + 1)},
    TIME_PER_TRANSACTION: time_per_transaction_ns,
    "event_time": event_time_ns,
}

METRICS: dict[str, Metric] = {
    **{name: _of_query(value) for name, value in VALUES.items()},
    **{name: response_quantile(fraction) for name, fraction in QUANTILES.items()},
}


def main_metric(visits: Iterable[Visit], experiment: Experiment) -> str:
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
    return "response_p50" if experiment.workload.options.get("rate") else TIME_PER_TRANSACTION


def main_value(visit: Visit) -> float | None:
    """What the visit was made for."""
    values = (VALUES[name](visit) for name in MAIN_METRICS)
    return next((value for value in values if value is not None), None)


def levels_key(levels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Levels in a form that can be a key."""
    return tuple(levels.items())
