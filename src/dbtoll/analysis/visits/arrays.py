"""Visits as arrays: one value for each round, block, query and arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.visits.metrics import Metric, VisitValue, as_cut
from dbtoll.analysis.visits.units import VisitTotals


@dataclass(frozen=True, slots=True)
class TimeArray:
    """Times of one metric under one combination of levels.

    ``ns``: [round, block, query, arm], the median of a visit's executions; NaN where there is no such visit (or it is
    void or failed), inf where it is censored: at least half of its executions ran into the statement timeout.
    ``failed``: [query, arm], visits with an execution that failed or answered wrongly.
    ``cut_ns``: like ``ns``, with what a censored visit took at least; None where none is.
    """

    rounds: tuple[int, ...]
    queries: tuple[str, ...]
    arms: tuple[str, ...]
    ns: Floats
    failed: Floats
    cut_ns: Floats | None = None

    def arm(self, name: str) -> int:
        """The index of an arm."""
        return self.arms.index(name)


def collect(
    visits: Sequence[VisitTotals], queries: Sequence[str], arms: Sequence[str], metric: Metric
) -> TimeArray | None:
    """Arrays from visits of one combination of levels, all steady or all first executions; None without any value."""
    return arrange(list(metric(visits)), queries, arms, metric)


def arrange(
    found: Sequence[VisitValue], queries: Sequence[str], arms: Sequence[str], metric: Metric
) -> TimeArray | None:
    """The same of the values that ``metric`` found in such visits."""
    arm_index = {name: index for index, name in enumerate(arms)}
    if not found:
        return None
    if not {query for _, query, _ in found} <= set(queries):
        queries = list(dict.fromkeys(query for _, query, _ in found))  # transactions, in the workload's order
    query_index = {name: index for index, name in enumerate(queries)}
    rounds = sorted({visit.round for visit, _, _ in found})
    blocks = sorted({visit.block for visit, _, _ in found})
    round_index = {number: index for index, number in enumerate(rounds)}
    block_index = {number: index for index, number in enumerate(blocks)}
    ns = np.full((len(rounds), len(blocks), len(queries), len(arms)), np.nan)
    did_fail = np.zeros((len(queries), len(arms)))
    cut: dict[tuple[int, int, int, int], float] = {}
    for visit, query, value in found:
        cell = (round_index[visit.round], block_index[visit.block], query_index[query], arm_index[visit.arm])
        ns[cell] = value
        did_fail[cell[2:]] += math.isnan(value)
        if math.isinf(value):
            cut[cell] = next(least for _, name, least in metric([as_cut(visit)]) if name == query)
    cut_ns = None
    if cut:
        cut_ns = ns.copy()
        for cell, value in cut.items():
            cut_ns[cell] = value
    return TimeArray(tuple(rounds), tuple(queries), tuple(arms), ns, did_fail, cut_ns)


def nothing(queries: Sequence[str], arms: Sequence[str]) -> TimeArray:
    """The arrays of no visit."""
    shape = (len(queries), len(arms))
    return TimeArray((), tuple(queries), tuple(arms), np.empty((0, 0, *shape)), np.zeros(shape))
