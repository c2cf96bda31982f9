"""What the measurement windows of a transaction workload say beside the comparisons: absolute figures, counts, series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from dbtoll.analysis.measured import Measured
from dbtoll.analysis.samples import quantile
from dbtoll.analysis.shape import Levels, TransactionResult, WindowsResult
from dbtoll.model import Json

MINUTE_NS = 60_000_000_000


def find_all(measured: Measured) -> Iterator[WindowsResult]:
    """For each arm and combination of levels that has steady windows."""
    for levels in measured.levels:
        for arm in measured.arms:
            windows = [
                visit.window
                for visit in measured.of(levels)
                if visit.arm == arm and not visit.first_touch and visit.window is not None
            ]
            if windows:
                yield _summary(arm, levels, windows)


def committed(window: Json) -> int:
    """Transactions that count for throughput."""
    counted = window["counted"]
    return sum(kind["committed"] for name, kind in window["transactions"].items() if counted in (None, name))


def done(window: Json) -> int:
    """All that ended well in the window: committed, rolled back or missed as they were drawn to be."""
    return sum(kind["committed"] + kind["rolled_back"] + kind["missed"] for kind in window["transactions"].values())


def _summary(arm: str, levels: Levels, windows: Sequence[Json]) -> WindowsResult:
    first = windows[0]
    per_ns = median(committed(window) / window["length_ns"] for window in windows)
    ended = [window for window in windows if done(window)]
    return WindowsResult(
        arm=arm,
        levels=levels,
        windows=len(windows),
        length_ns=first["length_ns"],
        interval_ns=first["interval_ns"],
        per_s=per_ns * 1e9,
        tpmc=per_ns * MINUTE_NS if first["counted"] == "new_order" else None,
        round_trips_per_transaction=_median(window["round_trips"] / done(window) for window in ended),
        driver_us_per_transaction=_median(window["driver_cpu_ns"] / done(window) / 1e3 for window in ended),
        driver_share=_median(window["driver_cpu_ns"] / window["length_ns"] for window in windows),
        unserved=sum(window["unserved"] for window in windows),
        connections_lost=sum(window["connections_lost"] for window in windows),
        reconnects=sum(window["reconnects"] for window in windows),
        series=tuple(
            fmean(counts) * 1e9 / first["interval_ns"]
            for counts in zip(*(window["series"] for window in windows), strict=False)
        ),
        transactions=tuple(_transaction(name, windows) for name in first["transactions"]),
    )


def _transaction(name: str, windows: Sequence[Json]) -> TransactionResult:
    kinds = [window["transactions"][name] for window in windows]
    merged: Counter[int] = Counter()
    failed: Counter[str] = Counter()
    retried: Counter[str] = Counter()
    for kind in kinds:
        merged.update(dict(kind["response_ns"]["buckets"]))
        failed.update(kind["failed"])
        retried.update(kind["retried"])
    buckets = sorted(merged.items())
    return TransactionResult(
        name=name,
        committed=sum(kind["committed"] for kind in kinds),
        rolled_back=sum(kind["rolled_back"] for kind in kinds),
        missed=sum(kind["missed"] for kind in kinds),
        failed=dict(failed),
        retried=dict(retried),
        lost=sum(kind["lost"] for kind in kinds),
        unknown=sum(kind["unknown"] for kind in kinds),
        p50_ns=quantile(buckets, 0.5),
        p95_ns=quantile(buckets, 0.95),
        p99_ns=quantile(buckets, 0.99),
        most_ns=buckets[-1][0] if buckets else None,
    )


def _median(values: Iterator[float]) -> float | None:
    known = list(values)
    return median(known) if known else None
