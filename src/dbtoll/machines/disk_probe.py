"""What a disk model takes for requests of some kinds, asked past the kernel's cache; to be held against what was published."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dbtoll.interfaces.machine import Machine
from dbtoll.machines.disk_model import DiskModel
from dbtoll.model.json import Json

PAGE_BYTES = 8192
RUN_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Kind:
    """Of requests. ``rate``: told in MB/s, else in ms for each."""

    name: str
    writes: bool
    random: bool
    request_bytes: int
    in_flight: int
    rate: bool = False


RANDOM_READ = Kind("random_read_ms", False, True, PAGE_BYTES, 1)
RANDOM_WRITE = Kind("random_write_ms", True, True, PAGE_BYTES, 1)
LOG_WRITE = Kind("log_write_ms", True, False, PAGE_BYTES, 1)

KINDS = (
    RANDOM_READ,
    Kind("random_read_8_ms", False, True, PAGE_BYTES, 8),
    RANDOM_WRITE,
    LOG_WRITE,
    Kind("sequential_read_mb_per_s", False, False, RUN_BYTES, 1, rate=True),
    Kind("sequential_write_mb_per_s", True, False, RUN_BYTES, 8, rate=True),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """``measured``: by who asks, ms between two answers or MB/s. ``modelled``: of it, what the disk did by its model. ``late_us``,
    ``cpu_us``: of the instrument, for each request. ``least_ns``: the fastest answer."""

    measured: float
    modelled: float
    late_us: float
    cpu_us: float
    least_ns: int


def exercised(machine: Machine, disk: DiskModel, kind: Kind, duration_ns: int) -> Json:
    """What the agent's ``disk-exercise`` tells of requests of that kind (docs/PROTOCOL.md), made for so long on that machine."""
    request = {
        "path": disk.device,
        "writes": kind.writes,
        "random": kind.random,
        "bytes": kind.request_bytes,
        "in_flight": kind.in_flight,
        "duration_ns": duration_ns,
        "seed": 1,
    }
    program = f"/proc/{machine.hello()['pid']}/exe"
    completed = machine.run([program, "disk-exercise", json.dumps(request)], timeout_s=60 + duration_ns / 1e9)
    told: Json = json.loads(completed.output)
    return told


def seen_at_pace(machine: Machine, disk: DiskModel, kind: Kind, duration_ns: int) -> Seen:
    """Of a disk that keeps its pace."""
    before = disk.statistics()
    told = exercised(machine, disk, kind, duration_ns)
    between = disk.statistics().since(before)
    return of(kind, told, between.busy_ns, between.late.sum_ns, between.cpu_ns)


def of(kind: Kind, told: Json, busy_ns: int, late_ns: int, cpu_ns: int) -> Seen:
    """Of one kind of request: what `exercised` told and what the model's statistics say of the same time."""
    requests, elapsed_ns = told["requests"], told["elapsed_ns"]
    took_ns = [elapsed_ns / requests, busy_ns / requests]
    measured, modelled = (kind.request_bytes / each * 1e3 if kind.rate else each / 1e6 for each in took_ns)
    return Seen(measured, modelled, late_ns / requests / 1e3, cpu_ns / requests / 1e3, told["least_ns"])
