"""Micro-probes of the agent: what one event of the kernel, of memory or of the processor costs in an arm. See
docs/method/probes.md.

They need no server. Each is a query of this workload; those that an event in the midst of other work is paid by have a second form,
``NAME_cold``, in which each event begins with the core's caches full of other things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dbtoll.errors import UsageError
from dbtoll.interfaces import workload as interface
from dbtoll.interfaces.engine import QUIET
from dbtoll.interfaces.machine import Machine, Server
from dbtoll.model.description import WorkloadDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement

COLD = "_cold"
TIMES = "_x"


@dataclass(frozen=True, slots=True)
class Probe:
    """One of the agent's (agent/src/probe): ``event``: what is counted; a cost outside of ``min_ns`` … ``max_ns`` is not
    believed, on whatever machine, emulated ones included."""

    event: str
    min_ns: float
    max_ns: float
    in_context: bool = False
    uncached: bool = False
    """Reads what the arm's folder holds, after all caches have been dropped, and each page once."""


SECOND_NS = 1e9

PROBES: Mapping[str, Probe] = {
    "system_call": Probe("getppid", 10, 1e6, in_context=True),
    "system_call_read": Probe("read of a byte from /dev/zero", 10, 1e6, in_context=True),
    "system_call_write": Probe("write of a byte to /dev/null", 10, 1e6, in_context=True),
    "system_call_stat": Probe("stat of a directory", 50, 2e6, in_context=True),
    "system_call_seek": Probe("end of a file asked for", 10, 1e7, in_context=True),
    "open_file": Probe("file opened and closed", 100, 2e7, in_context=True),
    "signal": Probe("signal to oneself, handled", 100, 5e6, in_context=True),
    "clock_read": Probe("reading of the clock", 1, 1e6),
    "timer_set": Probe("setting of a timer", 20, 2e6),
    "timer_wakeup": Probe("wake-up by a timer, how late", 100, 1e8),
    "fault_anonymous": Probe("page fault, a new page", 50, 2e6, in_context=True),
    "fault_file": Probe("page fault, a page of a file in memory", 50, 2e7, in_context=True),
    "fault_shared": Probe("page fault, a shared page that is there, written", 50, 2e6, in_context=True),
    "fault_shared_read": Probe("page fault, shared pages that are there, read", 50, 2e7, in_context=True),
    "fault_shared_around": Probe("page faults, sixteen neighbouring shared pages that are there, read", 50, 5e7),
    "fault_copy": Probe("page fault, a page to be copied", 50, 2e6, in_context=True),
    "unmap_page": Probe("page unmapped", 2, 1e6),
    "tlb_shootdown": Probe("change of a page that another processor has to be told of", 50, 1e7),
    "fork": Probe("process started and ended", 5e3, 1e9),
    "exec": Probe("program started and ended", 2e4, 5e9),
    "switch_pipe": Probe("switch to another process, by a pipe", 200, 1e7, in_context=True),
    "switch_futex": Probe("switch to another thread, by a futex", 200, 1e7, in_context=True),
    "round_trip_unix": Probe("round trip over a Unix socket", 500, 1e8, in_context=True),
    "round_trip_tcp": Probe("round trip over TCP on loopback", 1e3, 1e8, in_context=True),
    "fsync": Probe("page written and made durable", 1e3, 1e9),
    "read_sequential_direct": Probe("page read from the device, in order", 500, 1e9),
    "read_random_direct": Probe("page read from the device, at random", 500, 1e9),
    "write_sequential_direct": Probe("page written to the device, in order", 500, 1e9),
    "write_random_direct": Probe("page written to the device, at random", 500, 1e9),
    "read_sequential_buffered": Probe("page read from the page cache, in order", 100, 1e7),
    "read_random_buffered": Probe("page read from the page cache, at random", 100, 1e7, in_context=True),
    "write_sequential_buffered": Probe("page written to the page cache, in order", 100, 1e8, in_context=True),
    "write_random_buffered": Probe("page written to the page cache, at random", 100, 1e8),
    "write_appended_buffered": Probe("page written at the end of a file, emptied later", 100, 1e8, in_context=True),
    "read_sequential_uncached": Probe("page of a table read from the device, in order", 500, 1e9, uncached=True),
    "read_random_uncached": Probe("page of a table read from the device, at random", 500, 1e9, uncached=True),
    "primes": Probe("search of the primes below 10 000", 1e4, 1e9),
    "arithmetic": Probe("thousand steps of integer arithmetic", 100, 1e7),
    "floating_point": Probe("thousand steps of floating-point arithmetic", 100, 1e8),
    "branches": Probe("thousand branches that cannot be predicted", 100, 1e8),
    "indirect_calls": Probe("thousand calls through a pointer", 100, 1e8),
    "rows": Probe("thousand rows filtered, grouped and summed", 1e3, 1e9),
    "descents": Probe("thousand descents to the leaf of an index", 1e3, 1e9),
    "descents_cached": Probe("thousand descents to a few leaves of an index", 1e3, 1e9),
    "descents_2m_pages": Probe("thousand descents to the leaf of an index, huge pages", 1e3, 1e9),
    "joins": Probe("thousand look-ups in a hash table of 16 MiB, each with its row", 1e3, 1e9),
    "joins_cached": Probe("thousand look-ups of a few rows in a hash table", 1e3, 1e9),
    "joins_2m_pages": Probe("thousand look-ups in a hash table of 16 MiB, huge pages", 1e3, 1e9),
    "sorts": Probe("thousand rows sorted by a text", 1e3, 1e9),
    "decimals": Probe("thousand prices discounted, taxed and summed up as decimal numbers", 1e3, 1e9),
    "code": Probe("thousand calls of as many functions", 1e3, 1e9),
    "lookups_60k": Probe("thousand look-ups in 60 KB", 100, 1e8),
    "lookups_200k": Probe("thousand look-ups in 200 KB", 100, 1e8),
    "lookups_4m": Probe("thousand look-ups in 4 MB", 100, 1e8),
    "lookups_40m": Probe("thousand look-ups in 40 MB", 100, 1e8),
    "chase_4k_pages": Probe("access to memory, small pages", 1, 1e5),
    "chase_2m_pages": Probe("access to memory, huge pages", 1, 1e5),
    "memory_read": Probe("cache line read in order", 0.1, 1e4),
    "memory_copy": Probe("cache line copied in order", 0.1, 1e4),
}

UNCACHED = tuple(name for name, probe in PROBES.items() if probe.uncached)
UNCACHED_PAGES = 64
"""For each batch that others have; they are read in one. A kernel reads ahead, up to 8 MiB on some devices: most pages are there
already, and a few wait for all, so that only the sum says what they cost.

BIAS: what is read ahead grows from read to read; in a table much larger than these pages it is more at a time."""

FORMS = (
    *(name for name in PROBES if name not in UNCACHED),
    *(f"{name}{COLD}" for name, probe in PROBES.items() if probe.in_context),
)
"""All that can be asked for of any arm."""


class Workload(interface.Workload):
    """See interfaces.Workload and interfaces.ProbeWorkload."""

    name = "probes"
    primary = "probes"
    refused_options: ClassVar[Mapping[str, Any]] = {"probes": ["no_such"]}
    description = WorkloadDescription("micro-probes")
    requires = frozenset({QUIET})
    factors: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    options: ClassVar[Mapping[str, Option]] = {
        "probes": Option("list", "all", "which, e.g. system_call+fault_anonymous_cold, or all"),
        "instances": Option("list", ["1"], "how many of each at once, e.g. 1+4+16"),
        "batches": Option("integer", 10, "batches in a visit"),
        "batch": Option("duration", 5_000_000, "about how long a batch takes"),
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {name: options.get(name, option.default) for name, option in self.options.items()}
        probes = FORMS if chosen["probes"] == "all" else tuple(chosen["probes"])
        if unknown := [name for name in probes if name not in (*FORMS, *UNCACHED)]:
            raise UsageError(f"no probe {unknown[0]!r}", f"choose from {', '.join(FORMS)}")
        self._instances = [_count(text) for text in chosen["instances"]]
        self._batches, self._batch_ns = chosen["batches"], chosen["batch"]
        if not 1 <= self._batches <= 1000 or not 1000 <= self._batch_ns <= 60 * SECOND_NS:
            raise UsageError("1 to 1000 batches of 1 us to 60 s", 'batches = 10, batch = "5ms"')
        self.queries = tuple(
            name if many == 1 else f"{name}{TIMES}{many}" for name in probes for many in self._instances
        )

    def key(self) -> str:
        """Nothing is loaded."""
        return "probes"

    def estimate_bytes(self) -> int:
        """Nothing is loaded."""
        return 1 << 20

    def load(self, machine: Machine, sql: Dialect, server: Server, progress: Callable[[str], None]) -> Json:
        """Nothing."""
        return {"rows": {}}

    def statements(self, sql: Dialect, seed: int) -> dict[str, Statement]:
        """None."""
        return {}

    # --- interfaces.ProbeWorkload ------------------------------------------------------------------------------------------

    def request(self, query: str, folder: str) -> Json:
        """See interfaces.ProbeWorkload."""
        name, _, many = query.partition(TIMES)
        cold = name.endswith(COLD)
        # A cold batch goes over 256 MiB of memory, which an emulator takes a second for.
        batches = {"batches": max(1, self._batches // 3) if cold else self._batches}
        if self.uncached(query):
            batches = {"batches": 1, "events": UNCACHED_PAGES * self._batches}
        return {
            "probe": name.removesuffix(COLD),
            "cold": cold,
            "instances": int(many or 1),
            **batches,
            "batch_ns": self._batch_ns,
            "folder": folder,
        }

    def uncached(self, query: str) -> bool:
        """See interfaces.ProbeWorkload."""
        return query in UNCACHED

    def about(self, query: str) -> Json:
        """See interfaces.ProbeWorkload. A cold cost is a difference, which noise may take below zero.

        Without those visits the rest would be too dear, so it is believed as far below zero as above.
        """
        name, _, many = query.partition(TIMES)
        probe = PROBES[name.removesuffix(COLD)]
        max_ns = probe.max_ns * int(many or 1)
        conditions = ["with cold caches"] * name.endswith(COLD) + [f"{many} at once"] * bool(many)
        return {
            "event": ", ".join([probe.event, *conditions]),
            "min_ns": -max_ns if name.endswith(COLD) else probe.min_ns,
            "max_ns": max_ns,
        }


def _count(text: object) -> int:
    count = int(str(text)) if str(text).isdecimal() else 0
    if not 1 <= count <= 256:
        raise UsageError(f"instances: {text!r} is not a number from 1 to 256", 'instances = ["1", "4"]')
    return count
