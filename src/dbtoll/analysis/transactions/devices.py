"""What block devices did in the measurement windows of an arm (docs/method/devices.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.result.schema import DeviceResult, Mean
from dbtoll.analysis.visits.units import VisitTotals

SECOND_NS = 1_000_000_000

ELAPSED = "elapsed_ns"

Sums = Mapping[str, int]
"""Counts of a device in a round, by the names of `schema.DeviceCounts`, and the time that they are of."""


def find(visits: Sequence[VisitTotals], alpha: float) -> tuple[DeviceResult, ...]:
    """Of the windows of one arm at one combination of levels: those inside first, then the host's, each by name.

    A round is one draw: what its windows did is added up. Devices of one name in several guests are one: the mean of them.
    """
    elapsed: dict[bool, Counter[int]] = defaultdict(Counter)
    counted: dict[tuple[bool, str], dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    unknown: set[tuple[bool, str]] = set()
    for visit in visits:
        for used in visit.devices:
            of_host = used.kernel is None
            elapsed[of_host][visit.round] += used.elapsed_ns
            for name, counts in used.devices.items():
                for each in counts.__struct_fields__:
                    counted[of_host, name][visit.round][each] += getattr(counts, each) or 0
                if counts.flushes is None:
                    unknown.add((of_host, name))
    return tuple(
        _result(
            name,
            [{**its[number], ELAPSED: elapsed_ns} for number, elapsed_ns in elapsed[of_host].items()],
            alpha,
            of_host=of_host,
            tells_flushes=(of_host, name) not in unknown,
        )
        for (of_host, name), its in sorted(counted.items())
    )


def _result(name: str, rounds: Sequence[Sums], alpha: float, *, of_host: bool, tells_flushes: bool) -> DeviceResult:
    def per_s(*names: str) -> Mean:
        return _certain(_mean(rounds, lambda sums: (SECOND_NS * _sum(sums, names), sums[ELAPSED]), alpha))

    def per_transfer(*names: str) -> Mean | None:
        return _mean(rounds, lambda sums: (_sum(sums, names), _sum(sums, TRANSFERS)), alpha)

    def of_time(counter: str) -> Mean:
        return _certain(_mean(rounds, lambda sums: (_sum(sums, (counter,)), sums[ELAPSED]), alpha))

    return DeviceResult(
        where="host" if of_host else "inside",
        device=name,
        transfers_per_s=per_s(*TRANSFERS),
        read_bytes_per_s=per_s("read_bytes"),
        written_bytes_per_s=per_s("written_bytes"),
        flushes_per_s=per_s("flushes") if tells_flushes else None,
        service_ns=per_transfer("io_ns"),
        wait_ns=per_transfer("read_ns", "write_ns"),
        utilisation=of_time("io_ns"),
        queue_length=of_time("queue_ns"),
    )


TRANSFERS = ("reads", "writes")


def _certain(mean: Mean | None) -> Mean:
    assert mean is not None  # no round is without time
    return mean


def _sum(sums: Sums, names: Sequence[str]) -> int:
    return sum(sums.get(name, 0) for name in names)


def _mean(rounds: Sequence[Sums], ratio: Callable[[Sums], tuple[int, int]], alpha: float) -> Mean | None:
    """Of a ratio in each round; of those alone in which there is something to divide by."""
    pairs = [ratio(sums) for sums in rounds]
    return mean_of([above / below for above, below in pairs if below], alpha)


def mean_of(values: Sequence[float], alpha: float, most: float | None = None) -> Mean | None:
    """Of what is never below 0, nor beyond ``most``: an interval that reaches farther is cut there."""
    if not values:
        return None
    found = stats.independent_interval(np.array(values, dtype=float), alpha)
    if found is None:
        return Mean(values[0], None, None)
    return Mean(found.estimate, max(0.0, found.low), found.high if most is None else min(most, found.high))
