"""What can be wrong about the limits that each machine of an arm is to have (`model.experiment.Resources`)."""

from __future__ import annotations

from collections.abc import Iterator

from dbtoll import registry, units
from dbtoll.machines.cgroups.group import QUOTA_LEAST_NS, QUOTA_OPTIONS
from dbtoll.model import storage
from dbtoll.model.experiment import WEIGHT_LEAST, Arm, Resources

RATES = ("read_rate", "write_rate", "read_requests", "write_requests")
REQUESTS = ("read_requests", "write_requests")
REQUESTS_MOST = (1 << 32) - 1
"""The kernel keeps them in 32 bits (block/blk-throttle.c)."""
KEYS = (*RATES, "memory_high", "neighbour_weight")
"""Of [resources], beside what an arm has as a whole."""

MEMORY_HIGH_LEAST_BYTES = 64 << 20


def out_of_bounds(asked: Resources) -> Iterator[tuple[str, str, str]]:
    """Of each value that cannot be: its key, why, and what could be."""
    for key in RATES:
        given = getattr(asked, key)
        if given is not None and given < 1:
            yield key, "at that rate nothing is ever read or written", f"leave {key} out: then nothing holds it"
        if given is not None and key in REQUESTS and given > REQUESTS_MOST:
            yield key, "no device gets so many requests in a second", f"leave {key} out: then nothing holds it"
    high, memory = asked.memory_high_bytes, asked.memory_bytes
    if high is not None and not MEMORY_HIGH_LEAST_BYTES <= high <= memory:
        why = f"it lies between {MEMORY_HIGH_LEAST_BYTES >> 20} MiB and the memory, {memory >> 20} MiB"
        yield "memory_high", why, f'memory_high = "{memory >> 21} MiB"'
    weight = asked.neighbour_weight
    if weight is not None and not WEIGHT_LEAST <= weight <= 1 / WEIGHT_LEAST:
        why = f"a weight lies between {WEIGHT_LEAST} and {1 / WEIGHT_LEAST:g}"
        yield "neighbour_weight", why, "neighbour_weight = 0.25"


def not_to_be_held(arm: Arm, *, are_guests: bool) -> Iterator[tuple[str, str, str]]:
    """Of each limit that this arm's machines cannot have: its key, why, and what could be done."""
    resources, step = arm.configuration.resources, arm.stack[-1]
    for of_step in (each.options for each in arm.stack):
        quota, period_ns = of_step.get("cpu_quota"), of_step.get("cpu_period", QUOTA_OPTIONS["cpu_period"].default)
        if quota is not None and quota * period_ns < QUOTA_LEAST_NS:
            of_period, least = units.duration_text(period_ns), units.duration_text(QUOTA_LEAST_NS)
            yield "cpu_quota", f"{arm.name}: {quota:g} of {of_period} is less than {least}", "a longer cpu_period"
    given = [key for key in RATES if getattr(resources, key) is not None]
    given += ["memory_high"] if resources.memory_high_bytes is not None else []
    given += ["neighbour_weight"] if resources.neighbour_weight is not None else []
    if not given:
        return
    environment = registry.find("environments", step.environment)
    if environment.simulated:
        yield given[0], f"{arm.name}: nothing holds a simulated machine", "leave it out"
    if resources.neighbour_weight is not None and arm.layout.machines == 1:
        why = f"{arm.name} is one machine, and what is in it has one weight"
        yield "neighbour_weight", why, "say it under [arm.resources] of arms of several machines"
    of_machine = resources.memory_bytes // arm.memory_parts(are_guests=are_guests)
    if resources.memory_high_bytes is not None and resources.memory_high_bytes > of_machine:
        why = f"{arm.name}: each of its machines has {of_machine >> 20} MiB"
        yield "memory_high", why, f'memory_high = "{of_machine >> 21} MiB"'
    devices = arm.configuration.devices
    for each, what in ((devices.data, "data lie"), (devices.log, "log lies")):
        if resources.has_rates and each is not None and each.kind == "memory":
            why = f"{arm.name}: its {what} in memory, which no rate of a device holds"
            yield given[0], why, "leave it out, or take a disk model or a path as that device"
    kind = storage.chosen(step.options, environment.options)
    if resources.has_rates and kind not in (None, *storage.DIRECT) and not storage.is_device(str(kind)):
        why = f"{arm.name}: with {storage.OPTION}={kind} its data lie on no device that dbtoll could tell"
        yield given[0], why, f"{storage.OPTION}={storage.BIND}"
