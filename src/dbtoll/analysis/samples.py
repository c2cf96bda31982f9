"""From records to arrays: the times of one combination of levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dbtoll.analysis.stats import Floats
from dbtoll.store.schema import Timing, Visit

Time = Callable[[Timing], "int | None"]

Metric = Callable[[Visit], "float | None"]
"""A visit's value in ns; inf if censored, NaN if it failed, None if it has no such metric."""

REUSES = 5
"""Executions on a connection that is made for one visit (level ``per_visit``) that are looked at one by one."""


def run_time_ns(timing: Timing) -> int | None:
    """From before the first byte is sent to the last byte read; with a connection per statement, connecting too."""
    return timing.end_ns - timing.start_ns


def connect_time_ns(timing: Timing) -> int | None:
    """Only where a statement has a connection of its own."""
    return None if timing.connected_ns is None else timing.connected_ns - timing.start_ns


def by_median(time: Time) -> Metric:
    """The median of a visit's executions.

    A censored execution took longer than every one that ended, so it takes part in the median as infinite.
    """

    def value(visit: Visit) -> float | None:
        if not visit.executions:
            return math.nan if visit.problem else None
        # What the second execution after a start finds is warm already.
        values = [_of(timing, time) for timing in visit.executions[: 1 if visit.first_touch else None]]
        known = [each for each in values if each is not None]
        if len(known) < len(values):
            return None
        known.sort()
        middle = len(known) // 2
        return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2

    return value


def by_number(number: int) -> Metric:
    """Run time of execution ``number`` (from 1) on a connection that was made for the visit (minhas2008, Figure 2)."""

    def value(visit: Visit) -> float | None:
        is_new = visit.levels.get("connection") == "per_visit" and not visit.first_touch
        if not is_new or len(visit.executions) < number:
            return None
        return _of(visit.executions[number - 1], run_time_ns)

    return value


def _of(timing: Timing, time: Time) -> float | None:
    if timing.outcome in {"error", "wrong_answer"}:
        return math.nan
    value = time(timing)
    return None if value is None else math.inf if timing.outcome == "timeout" else float(value)


METRICS: dict[str, Metric] = {
    "run_time": by_median(run_time_ns),
    "connect_time": by_median(connect_time_ns),
    **{f"run_time_{number}": by_number(number) for number in range(1, REUSES + 1)},
}


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one metric under one combination of levels.

    ``ns``: [round, block, query, arm], the median of a visit's executions; NaN where there is no such visit (or it is
    void or failed), inf where it is censored: more than half of its executions ran into the statement timeout.
    ``failed``: [query, arm], visits with an execution that failed or answered wrongly.
    """

    rounds: tuple[int, ...]
    queries: tuple[str, ...]
    arms: tuple[str, ...]
    ns: Floats
    failed: Floats

    def arm(self, name: str) -> int:
        """The index of an arm."""
        return self.arms.index(name)


def collect(visits: Iterable[Visit], queries: Sequence[str], arms: Sequence[str], metric: Metric) -> Times | None:
    """Arrays from visits of one combination of levels, all steady or all first touches; None without any value."""
    query_index = {name: index for index, name in enumerate(queries)}
    arm_index = {name: index for index, name in enumerate(arms)}
    cells: list[tuple[int, int, int, int, float]] = []
    for visit in visits:
        value = metric(visit)
        if value is not None:
            cells.append((visit.round, visit.block, query_index[visit.query], arm_index[visit.arm], value))
    if not cells:
        return None
    rounds = sorted({cell[0] for cell in cells})
    blocks = sorted({cell[1] for cell in cells})
    round_index = {number: index for index, number in enumerate(rounds)}
    block_index = {number: index for index, number in enumerate(blocks)}
    ns = np.full((len(rounds), len(blocks), len(queries), len(arms)), np.nan)
    failed = np.zeros((len(queries), len(arms)))
    for round_, block, query, arm, value in cells:
        ns[round_index[round_], block_index[block], query, arm] = value
        failed[query, arm] += math.isnan(value)
    return Times(tuple(rounds), tuple(queries), tuple(arms), ns, failed)


def levels_key(levels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Levels in a form that can be a key."""
    return tuple(levels.items())
