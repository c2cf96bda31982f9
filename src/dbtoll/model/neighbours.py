"""What the neighbour of an arm's other tenants does: the levels of the factor ``neighbour`` (docs/method/neighbours.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NEIGHBOUR = "neighbour"
"""The factor. The last unit of an arm is the neighbour; where nobody asks for the factor, it is a unit as all others."""

NONE = "none"
IDLE = "idle"
PAGE_CACHE = "page_cache"
CONNECTIONS = "connections"
VACUUM = "vacuum"

AGGRESSORS: Mapping[str, str] = {
    IDLE: "sleeps and wakes: what is found of it is noise",
    "processor": "computes on every processor of the arm",
    "memory_bandwidth": "copies memory",
    "cache": "changes lines of memory as large as the processor's last cache",
    "fsync": "writes small pages where its log lies, each made durable",
    PAGE_CACHE: "reads files as large as the arm's memory, so that pages of others are evicted",
    CONNECTIONS: "opens and closes sessions of its server",
    VACUUM: "has its server write its own tables anew, one after the other",
}
"""Level -> what the neighbour does, again and again, while the others work; its own terminals rest."""

ACTS_ON: Mapping[str, str] = {"fsync": "log", PAGE_CACHE: "data"}
"""Aggressor -> what of the others' lies where it acts; it has no effect where that is memory."""

WORKING = "load_x1"
"""Its terminals work as those of the others do."""

LOADS: Mapping[str, int] = {WORKING: 1, "load_x2": 2, "load_x4": 4, "load_x8": 8}
"""Level -> how many times the rate of the others arrives at the neighbour, whose terminals work."""

SERVER_KILLED = "server_killed"
MACHINE_KILLED = "machine_killed"
DISK_FULL = "disk_full"

FAULTS: Mapping[str, str] = {
    SERVER_KILLED: "its server is killed",
    MACHINE_KILLED: "its machine is killed",
    DISK_FULL: "the file system of its data is full",
}
"""Level -> what happens to the neighbour, whose terminals work, in the midst of a window; the last one of a round."""

LEVELS = (NONE, *AGGRESSORS, *LOADS, *FAULTS)

COUNTED: Mapping[str, tuple[str, ...]] = {
    IDLE: ("wakes",),
    "processor": ("loops",),
    "memory_bandwidth": ("bytes_copied",),
    "cache": ("lines_touched",),
    "fsync": ("fsyncs", "bytes_written"),
    PAGE_CACHE: ("bytes_read",),
    CONNECTIONS: ("connections", "refused"),
    VACUUM: ("statements",),
    SERVER_KILLED: ("processes_killed",),
    MACHINE_KILLED: ("processes_killed",),
    DISK_FULL: ("bytes_written",),
}
"""Aggressor, or fault -> what is counted of it; without any of the first it did not act."""


def against(level: str) -> str | None:
    """The level that this one is held against: the same neighbour without what it does; None of such a level itself."""
    if level in (NONE, WORKING):
        return None
    return NONE if level in AGGRESSORS else WORKING


def with_references(levels: Sequence[str]) -> tuple[str, ...]:
    """These and those that they are held against, in the order of `LEVELS`."""
    wanted = {*levels, *filter(None, map(against, levels))}
    return tuple(level for level in LEVELS if level in wanted)
