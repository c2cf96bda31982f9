"""What stands beside a difference: the time itself, or what is done in a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Comparison, Result, WindowsResult


class Absolutes:
    """The absolute figures of a result, by arm and levels: medians over all executions that count."""

    def __init__(self, result: Result) -> None:
        self._main_metric = result.main_metric
        self._medians: dict[tuple[str, str], dict[str, float | None]] = {}
        for each in result.times:
            self._medians.setdefault((each.arm, str(each.levels)), {})[each.query] = each.median_ns
        self._windows = {(each.arm, str(each.levels)): each for each in result.windows}

    def of(self, c: Comparison) -> str:
        """``616 ms``, ``37 100 tpmC``, of the arm of a comparison; empty where there is no such quantity."""
        return self.text(c.arm, c.levels, c.metric, c.estimand)

    def of_baseline(self, c: Comparison) -> str:
        """The same of what it is compared with."""
        return self.text(c.baseline, c.levels, c.metric, c.estimand)

    def text(self, arm: str, levels: Mapping[str, str], metric: str, estimand: str) -> str:
        """A dash where a query of an aggregate has no time. Costs of unlike events have no sum and no mean."""
        key, query = (arm, str(levels)), names.query_of(estimand)
        if key in self._windows:
            return _of_windows(self._windows[key], metric, query)
        medians = self._medians.get(key, {})
        if metric != self._main_metric or not medians:
            return ""
        if query is not None:
            return numbers.time_of(medians.get(query))
        if metric == "event_time" or estimand not in ("geomean", "ratio_of_totals"):
            return ""
        known = [each for each in medians.values() if each]
        if len(known) < len(medians):
            return numbers.NOTHING
        return numbers.time_of(_geometric_mean(known) if estimand == "geomean" else sum(known))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _of_windows(windows: WindowsResult, metric: str, query: str | None) -> str:
    if numbers.is_throughput(metric) and windows.throughput:
        rate = windows.throughput
        bounds = () if rate.low is None or rate.high is None else (rate.low, rate.high)
        return f"{numbers.figures(rate.estimate, *bounds)[0]}{numbers.THIN}{windows.unit}"
    percentiles = {"response_p50": "p50_ns", "response_p95": "p95_ns", "response_p99": "p99_ns"}
    found = next((each for each in windows.transactions if each.name == query), None)
    if found is None or metric not in percentiles:
        return ""
    return numbers.time_of(getattr(found, percentiles[metric]))
