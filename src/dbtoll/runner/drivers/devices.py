"""What block devices did around a measurement window, by the kernels' own counters (/proc/diskstats).

Two levels, because a guest's requests are not its host's: each kernel that is the arm's own, whose counters are read with those of
its servers anyway, and the host. Of devices that are an arm's own it is told what lies on them, and of a disk model what the model
says. Cost: two reads of the host's counters, one before the ramp-up and one after the end, and of each model's statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dbtoll.interfaces.machine import Machine, RemoteMachine
from dbtoll.machines.disk_model import DiskStatistics
from dbtoll.model.devices import Role
from dbtoll.model.json import Json
from dbtoll.runner.arms import RunningArm, boots
from dbtoll.runner.drivers.protocol import ServerCounters
from dbtoll.store import schema

R = TypeVar("R")


def around(running: RunningArm, work: Callable[[], R]) -> tuple[ServerCounters, tuple[schema.Devices, ...], R]:
    """What ``work`` brought, the counters of the arm's servers around it, and what devices did meanwhile.

    BIAS: the ramp-up is in it, and so is whatever else the machine's processes ask for, and on the host everybody (all other arms
    sleep).
    """
    host, devices = _host_of(running.machine), running.devices
    before, models_before = host.counters(), devices.statistics()
    counters, result = ServerCounters.around(running, work)
    models = {name: after.since(models_before[name]) for name, after in devices.statistics().items()}
    used = [_used(None, before, host.counters(), devices.roles(), models)]
    if any(boots(step) for step in running.arm.stack):
        for number, pair in enumerate(counters.by_kernel):
            used.append(_used(number, *pair, devices.inside[number] if devices.inside else {}))
    return counters, tuple(each for each in used if each is not None), result


def _host_of(machine: Machine) -> Machine:
    """What the outermost environment of an arm stands on."""
    while not isinstance(machine, RemoteMachine) and (parent := getattr(machine, "parent", None)) is not None:
        machine = parent
    return machine


def _used(
    kernel: int | None,
    before: Json,
    after: Json,
    roles: Mapping[str, Role],
    models: Mapping[str, DiskStatistics] | None = None,
) -> schema.Devices | None:
    """None where that kernel shows no devices. ``roles``: what of the arm lies on which of them; ``models``: of which the disk
    model tells too."""
    old, new = ((told.get("machine") or {}).get("disk") for told in (before, after))
    elapsed_ns = after["at_ns"] - before["at_ns"]
    if old is None or new is None or elapsed_ns <= 0:
        return None
    known = {name: _risen(old[name], counts) for name, counts in new.items() if name in old}
    return schema.Devices(
        kernel=kernel,
        elapsed_ns=elapsed_ns,
        devices={
            name: counts
            for name, counts in known.items()
            if counts is not None and (_did_something(counts) or name in roles)
        },
        roles=dict(roles),
        models={name: _modelled(statistics) for name, statistics in (models or {}).items()},
    )


def _modelled(statistics: DiskStatistics) -> schema.ModelCounts:
    return schema.ModelCounts(
        requests=statistics.reads.count + statistics.writes.count,
        busy_ns=statistics.busy_ns,
        waited_ns=statistics.reads.waited_ns + statistics.writes.waited_ns,
        late_ns=statistics.late.sum_ns,
        cpu_ns=statistics.cpu_ns,
    )


def _risen(before: Mapping[str, Any], after: Mapping[str, Any]) -> schema.DeviceCounts | None:
    """None where a counter began anew: the kernel's times do every 49 days, and another device may have taken the name."""
    risen: dict[str, Any] = {
        name: None if None in (before[name], value) else value - before[name] for name, value in after.items()
    }
    return None if any(value is not None and value < 0 for value in risen.values()) else schema.DeviceCounts(**risen)


def _did_something(counts: schema.DeviceCounts) -> bool:
    return bool(counts.reads or counts.writes or counts.flushes)
