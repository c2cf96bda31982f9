"""What block devices did in the measurement windows of an arm (docs/method/devices.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.result.schema import DeviceResult, DiskModelFigure, DiskModelResult, Mean
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.devices import DATA_DEVICE, LOG_DEVICE, Devices, Role
from dbtoll.model.json import Json

SECOND_NS = 1_000_000_000

ELAPSED = "elapsed_ns"
LATE, MODEL_REQUESTS = "late_ns", "model_requests"

Sums = Mapping[str, int]
"""Counts of a device in a round, by the names of `schema.DeviceCounts` and those of a model, and the time that they are of."""


def models(facts: Json) -> tuple[DiskModelResult, ...]:
    """The disk models of a run, as its facts tell them."""
    return tuple(
        DiskModelResult(
            **{each.name: told[each.name] for each in fields(DiskModelResult) if each.name not in ("arms", "figures")},
            arms=tuple(told["arms"]),
            figures=tuple(DiskModelFigure(kind, **figure) for kind, figure in told["figures"].items()),
        )
        for told in facts.get("disk_models", [])
    )


@dataclass(frozen=True, slots=True)
class Names:
    """What devices are called. An arm's own get another name by the kernel in each start, and are known by what lies there.

    ``roles``: round, whether it is the host's, kernel's name -> what lies there. ``asked``: what that was asked to lie on.
    """

    roles: Mapping[tuple[int, bool, str], Role]
    asked: Devices

    @classmethod
    def of(cls, visits: Sequence[VisitTotals], asked: Devices) -> Names:
        """By the windows of one arm."""
        return cls(
            {
                (visit.round, used.kernel is None, name): role
                for visit in visits
                for used in visit.devices
                for name, role in used.roles.items()
            },
            asked,
        )

    def named(self, number: int, of_host: bool, device: str) -> tuple[str, Role | None]:
        """How a device of the kernel is shown, and what lies there, if that is known. ``number``: of the round."""
        role = self.roles.get((number, of_host, device))
        if role is None or not of_host:
            return device, role
        key = LOG_DEVICE if role == "log" else DATA_DEVICE
        return self.asked.told[key], role


NOT_ASKED = Devices()
"""Of an arm whose data lie where its environment has them."""

Known = tuple[bool, str, Role | None]
"""A device: whether it is the host's, how it is shown, and what lies there."""


def find(visits: Sequence[VisitTotals], alpha: float, asked: Devices = NOT_ASKED) -> tuple[DeviceResult, ...]:
    """Of the windows of one arm at one combination of levels: those inside first, then the host's, each by name. ``asked``: the
    devices that its data and its log were asked to lie on.

    A round is one draw: what its windows did is added up. Devices of one name in several guests are one: the mean of them.
    """
    names = Names.of(visits, asked)
    elapsed: dict[bool, Counter[int]] = defaultdict(Counter)
    counted: dict[Known, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    unknown: set[Known] = set()
    modelled: set[Known] = set()
    for visit in visits:
        for used in visit.devices:
            of_host = used.kernel is None
            elapsed[of_host][visit.round] += used.elapsed_ns
            for name, counts in used.devices.items():
                key = (of_host, *names.named(visit.round, of_host, name))
                for each in counts.__struct_fields__:
                    counted[key][visit.round][each] += getattr(counts, each) or 0
                if counts.flushes is None:
                    unknown.add(key)
                if (model := used.models.get(name)) is not None:
                    modelled.add(key)
                    counted[key][visit.round][LATE] += model.late_ns
                    counted[key][visit.round][MODEL_REQUESTS] += model.requests
    return tuple(
        _result(
            key,
            [{**its[number], ELAPSED: elapsed_ns} for number, elapsed_ns in elapsed[key[0]].items()],
            alpha,
            tells_flushes=key not in unknown,
            is_model=key in modelled,
        )
        for key, its in sorted(counted.items(), key=lambda item: (*item[0][:2], item[0][2] or ""))
    )


def _result(known: Known, rounds: Sequence[Sums], alpha: float, *, tells_flushes: bool, is_model: bool) -> DeviceResult:
    of_host, name, role = known

    def per_s(*names: str) -> Mean:
        return certain(_mean(rounds, lambda sums: (SECOND_NS * _sum(sums, names), sums[ELAPSED]), alpha))

    def per_transfer(*names: str) -> Mean | None:
        return _mean(rounds, lambda sums: (_sum(sums, names), _sum(sums, TRANSFERS)), alpha)

    def of_time(counter: str) -> Mean:
        return certain(_mean(rounds, lambda sums: (_sum(sums, (counter,)), sums[ELAPSED]), alpha))

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
        holds=role,
        late_ns=_mean(rounds, lambda sums: (_sum(sums, (LATE,)), _sum(sums, (MODEL_REQUESTS,))), alpha)
        if is_model
        else None,
    )


TRANSFERS = ("reads", "writes")


def certain(mean: Mean | None) -> Mean:
    """Where there is one for sure, as no round is without what is divided by."""
    assert mean is not None
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
