"""What analysis and report know of environments, engines and workloads, whose code they do not import: a run's facts hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EnvironmentDescription:
    """``title``: what it is called at the head of a sentence.

    ``asked_facts``: option -> the fact of a start, ``processors`` or ``cpu_quota``, that it asks to be another than the
    baseline's. What was asked for is no reason to void.
    """

    title: str
    asked_facts: Mapping[str, str] = field(default_factory=dict)


ROUND_TRIP_CALLS = ("recvfrom", "sendto")
"""Of a server that reads and writes its sockets by recv(2) and send(2) (PostgreSQL: src/backend/libpq/be-secure.c)."""


RUNNING = "running"
"""What a session waits for that works and waits for nothing, as far as its server knows."""
ON_DISK, ASLEEP = "disk", "asleep"
"""What the kernel then may know: its thread waits for a block device, or for something else."""


class Wait(StrEnum):
    """What a session of a server can wait for (Zhang et al. 2014, Figures 7 and 10)."""

    DATA_FILES = "data_files"
    """A read or a write of data, or of any file that is not the log's."""
    LOG_FILES = "log_files"
    """A write of the log, or until it is on the device."""
    LOG_INSERT_LOCK = "log_insert_lock"
    """Its turn to put something into the log's buffer."""
    LOG_WRITE_LOCK = "log_write_lock"
    """Its turn to write the log, or that somebody has written it for this one too."""
    OTHER_LOCKS = "other_locks"
    CLIENT = "client"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """``title``: what it calls itself.

    ``round_trip_calls``: system calls of which the server makes one each for a round trip.
    ``location_settings``: settings that say where a server lies, not what it does -> why they may differ between arms.
    ``auto_tuned_settings``: settings that it makes from what it finds in its machine -> how. A difference is one of the
    machines: it is named and does not void.
    ``waits``: beginning of a name as `StatisticsEngine.wait_events` gives it -> what is waited for; the longest that fits holds,
    and what none fits is another wait. Also of `ON_DISK` and `ASLEEP`, where a server does not tell of all. Empty of an engine that
    does not say what its sessions wait for.
    """

    title: str
    round_trip_calls: tuple[str, ...] = ROUND_TRIP_CALLS
    location_settings: Mapping[str, str] = field(default_factory=dict)
    auto_tuned_settings: Mapping[str, str] = field(default_factory=dict)
    waits: Mapping[str, Wait] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ThroughputUnit:
    """``name`` of one counted transaction in so many ``seconds``."""

    name: str = "transactions/s"
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkloadDescription:
    """``title``: what it is called. ``size``: of the data, said after the title; empty where nothing is to be said.

    ``disclaimer``: a sentence that must stand beside every figure of it; empty if none.
    """

    title: str
    size: str = ""
    disclaimer: str = ""
    throughput_unit: ThroughputUnit = ThroughputUnit()


@dataclass(frozen=True, slots=True)
class Descriptions:
    """Those of one experiment; engines and environments by name."""

    engines: Mapping[str, EngineDescription]
    workload: WorkloadDescription
    environments: Mapping[str, EnvironmentDescription]
