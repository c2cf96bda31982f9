"""The items of a ledger: which events are of one kind, which system calls those are, and which probe costs each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLD = "_cold"

USER_MODE = "user mode: instructions"

CACHES = "user mode: caches"

TRANSLATION = "user mode: address translation"

STARTS = ("fork", "vfork", "clone", "clone3")

READS = ("read", "pread64", "readv", "preadv", "preadv2")

WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")

OPENS = ("open", "openat", "openat2", "creat")

LOOKUPS = ("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "unlink", "unlinkat", "rename")


@dataclass(frozen=True, slots=True)
class ItemKind:
    """An item of the ledger and the probes whose events are like its own: the cost lies between the least and the most of them."""

    name: str
    probes: tuple[str, ...]


FAULTS = ItemKind("page faults", ("fault_anonymous", "fault_file", "fault_shared", "fault_shared_read", "fault_copy"))
"""Those of which nobody tells what they do."""

FAULTS_BY_KIND: Mapping[str, ItemKind] = {
    "anonymous": ItemKind("page faults: new pages", ("fault_anonymous",)),
    "shared": ItemKind("page faults: shared memory written", ("fault_shared",)),
    "shared_read": ItemKind("page faults: shared memory read", ("fault_shared_read",)),
    "file": ItemKind("page faults: files", ("fault_file",)),
    "copy": ItemKind("page faults: copies", ("fault_copy",)),
}
"""By what the collector `faults` calls them."""

READ_CALLS = ItemKind("files: read", ("read_random_buffered",))

WRITE_CALLS = ItemKind("files: written", ("write_sequential_buffered", "write_appended_buffered"))

SEEKS = ItemKind("files: sizes asked for", ("system_call_seek",))

OPEN_CALLS = ItemKind("files: opened", ("open_file",))

SYNCS = ItemKind("files: made durable", ("fsync",))

LOOKUP_CALLS = ItemKind("files: looked up", ("system_call_stat",))

OTHER_CALLS = ItemKind("other system calls", ("system_call",))

PROCESSES = ItemKind("processes started", ("fork",))

ROUND_TRIPS = ItemKind("round trips", ("round_trip_unix",))

SWITCHES = ItemKind("switches", ("switch_pipe",))

DEVICE_READS = ItemKind("device: pages read", ("read_sequential_uncached", "read_random_uncached"))

PAGE_BYTES = 8192
"""What those probes read at a time: an event is a read of so much, whatever the pages of the engine."""

MAPPED_AROUND = ("shared_read", "file")
"""Kinds of which one fault maps several pages, how many being the kernel's choice."""

WITH_PAGES_AROUND = tuple(FAULTS_BY_KIND[name] for name in MAPPED_AROUND)

AROUND = "fault_shared_around"
"""What all those pages cost together where each has its own fault."""

KERNEL = (
    FAULTS,
    *FAULTS_BY_KIND.values(),
    READ_CALLS,
    WRITE_CALLS,
    SEEKS,
    OPEN_CALLS,
    SYNCS,
    LOOKUP_CALLS,
    OTHER_CALLS,
    PROCESSES,
    ROUND_TRIPS,
    SWITCHES,
    DEVICE_READS,
)


BOOKED = {"processes": "page faults and switches", "faults": "kinds of page faults", "calls": "system calls"}
"""What the collectors' counts are booked as."""

NUMBERS = {"minor_faults": "the number of page faults", "voluntary_switches": "the number of switches"}
"""What the kernel's own accounts are booked as; a sandbox's kernel may not keep them."""

KINDS_OF_CALLS: Mapping[ItemKind, tuple[str, ...]] = {
    READ_CALLS: READS,
    WRITE_CALLS: WRITES,
    SEEKS: ("lseek",),
    OPEN_CALLS: OPENS,
    LOOKUP_CALLS: LOOKUPS,
    SYNCS: ("fsync", "fdatasync", "sync_file_range", "msync"),
    PROCESSES: STARTS,
}
"""With the names of each; all other calls are of one kind."""

PRIMES = "primes"

SAMPLES = "samples"
"""The collector that looks at the baseline alone."""
