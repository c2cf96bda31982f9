"""How far successive writes of a device lie apart, by what a collector saw in counting passes (docs/method/devices.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from dbtoll.analysis.result.schema import Distance, Levels, WritesResult
from dbtoll.analysis.transactions.devices import NOT_ASKED, Names, certain, mean_of
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.devices import Devices
from dbtoll.model.json import Json

BLOCK_BYTES = 512
"""A sector of the kernel's, in which it counts whatever the device's are."""

NEAR_BLOCKS = 16
"""8 KiB, a page of PostgreSQL's log: its last one is written again with the next commit, which begins so far back."""

COUNT, BYTES, SEQUENTIAL = "count", "bytes", "sequential"


def find(
    measured: ValidVisits, steady: Sequence[VisitTotals], alpha: float, asked: Devices = NOT_ASKED
) -> tuple[WritesResult, ...]:
    """``steady``: the windows of an arm at one combination of levels; ``asked``: as `devices.find`. Nothing of a run that does not
    explain, and of one from before `VisitTotals.devices` were kept, whose distances are from the request before, whatever that
    was."""
    if not any(visit.devices for visit in steady):
        return ()
    arm, levels = steady[0].arm, steady[0].levels
    names = Names.of(steady, asked)
    own_kernel = any(used.kernel is not None for visit in steady for used in visit.devices)
    rounds: dict[tuple[str, str, str], dict[int, Counter[str | int]]] = defaultdict(lambda: defaultdict(Counter))
    for number, told in _told(measured, arm, levels):
        for name, seen in _seen(told, own_kernel=own_kernel):
            for device, requests in seen.items():
                if isinstance(requests, dict) and (writes := requests.get("writes")):
                    shown, role = names.named(number, name != "inside", device)
                    its = rounds[name, shown, role or ""][number]
                    its.update({each: int(writes[each]) for each in (COUNT, BYTES, SEQUENTIAL)})
                    its.update({int(most): int(many) for most, many in writes.get("by_distance", {}).items()})
    found = (
        _result(where, device, role or None, list(its.values()), alpha)
        for (where, device, role), its in sorted(rounds.items(), key=lambda each: (each[0][0] != "inside", each[0]))
    )
    return tuple(each for each in found if each is not None)


def _seen(told: Json, *, own_kernel: bool) -> Iterator[tuple[str, Json]]:
    """Where requests were seen, and by device what. Without a kernel of the arm's own both machines have the host's devices, and
    a container does not show them."""
    if own_kernel:
        yield from ((where, told[where]) for where in ("inside", "around") if where in told)
    elif shown := [told[where] for where in ("inside", "around") if where in told and "missing" not in told[where]]:
        yield "host", shown[0]


def _told(measured: ValidVisits, arm: str, levels: Levels) -> Iterator[tuple[int, Json]]:
    """Round, and what was seen in it."""
    for visit in measured.counting_passes:
        if (visit.arm, visit.levels) == (arm, levels):
            yield visit.round, (visit.counts or {}).get("blocks", {}).get("counted", {})


def _result(
    where: str, device: str, role: str | None, rounds: Sequence[Counter[str | int]], alpha: float
) -> WritesResult | None:
    """None where no write came after another."""
    whole: Counter[str | int] = Counter()
    for each in rounds:
        whole.update(each)
    after_another = [each for each in rounds if _all(each)]
    if not after_another:
        return None
    sequential, near = (
        certain(mean_of([_within(each, blocks) / _all(each) for each in after_another], alpha, most=1.0))
        for blocks in (0, NEAR_BLOCKS)
    )
    reached, distances = whole[SEQUENTIAL], [Distance(0, whole[SEQUENTIAL] / _all(whole))]
    for most in sorted(key for key in whole if isinstance(key, int)):
        reached += whole[most]
        distances.append(Distance(most // BLOCK_BYTES, reached / _all(whole)))
    mean_bytes = whole[BYTES] / whole[COUNT]
    return WritesResult(where, device, whole[COUNT], mean_bytes, sequential, near, tuple(distances), role)


def _within(writes: Counter[str | int], blocks: int) -> int:
    """Those that began no farther than that from the end of the one before."""
    far = blocks * BLOCK_BYTES
    return writes[SEQUENTIAL] + sum(many for most, many in writes.items() if isinstance(most, int) and most <= far)


def _all(writes: Counter[str | int]) -> int:
    """Those that came after another one."""
    return writes[SEQUENTIAL] + sum(many for most, many in writes.items() if isinstance(most, int))
