"""What else used the machine: stolen time, other load, pressure, background work, the driver itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dbtoll.analysis.checks.evidence import (
    Evidence,
    Finding,
    in_windows,
    label,
    of_statements,
    phases,
    rise_of,
    worst_share,
)
from dbtoll.model.machine import Check
from dbtoll.store.schema import Counters

STEAL_BOUND = 0.01

FOREIGN_BOUND = 0.10
"""Share of the machine's CPU time that went to no arm: the kernel and the driver are in it, so a few per cent are
normal."""

DRIVER_BOUND = 0.10
"""Share of the visits' time in which the driver itself had a processor of the arm."""

DRIVER_TIME_NS = 500_000_000
"""The kernel tells a process's CPU time in steps of 10 ms: less time than this is not judged."""

PRESSURE_BOUNDS = {"cpu": 0.25, "memory": 0.01, "io": 0.05}
"""Share of a phase in which some process of the host waited for that resource (Documentation/accounting/psi.rst). An arm's
own processes wait for each other where they share a processor: that is in ``cpu``, so its bound is wide. Seen on a host of
two processors with nothing else on it: cpu 6 to 13 % (native, Docker) and 19 % (QEMU, emulated), memory and io 0; with
somebody's builds beside the run cpu 40 to 98 %."""


def steal(evidence: Evidence) -> Finding:
    """A label: time that a hypervisor below this machine took away."""

    def share(begin: Counters, end: Counters) -> float | None:
        if begin.machine is None or end.machine is None:
            return None
        total, stolen = _cpu_total(begin.machine, end.machine), rise_of(begin.machine, end.machine, "steal_ns")
        return stolen / total if total and stolen is not None else None

    finding = "at most {:.1%} of CPU time was stolen"
    return worst_share(evidence, "steal", share, STEAL_BOUND, finding, "steal was not counted")


def background_work(evidence: Evidence) -> Finding:
    """A label: what the server did by itself (checkpoints, vacuums) while it was measured.

    Warm phases only: in a cold one the server is restarted before each statement, outside measured time, and each stop
    is a checkpoint. Temporary files are the statements' own work.
    """
    done: dict[str, float] = defaultdict(float)
    rounds = set()
    known = False
    for begin, end in phases(evidence.counters):
        if begin.background is None or end.background is None or begin.levels.get("cache") == "cold":
            continue
        known = True
        for key in end.background:
            if in_windows(evidence) and not key.endswith("_count"):
                continue  # transactions make pages dirty, and who writes them is a part of the work
            if (rise := rise_of(begin.background, end.background, key)) and not key.startswith("temporary_"):
                done[key] += rise
                rounds.add(begin.round)
    if not known:
        return Finding(evidence.arm, Check("background_work", None, "background work was not counted", voids=False))
    finding = ", ".join(f"{key}: {count:g}" for key, count in done.items()) or "none in measured time"
    return label(evidence.arm, "background_work", rounds, finding)


def other_host_load(evidence: Evidence) -> Finding:
    """A label: CPU time of the machine that went to no arm. The kernel and the driver are in it."""

    def share(begin: Counters, end: Counters) -> float | None:
        total = _cpu_total(begin.machine or {}, end.machine or {})
        if not total or begin.unattributed_cpu_ns is None or end.unattributed_cpu_ns is None:
            return None
        return (end.unattributed_cpu_ns - begin.unattributed_cpu_ns) / total

    finding = "at most {:.1%} of the machine's CPU time went to no arm"
    unknown = "CPU time outside the arms was not counted"
    return worst_share(evidence, "other_host_load", share, FOREIGN_BOUND, finding, unknown)


def driver_cpu_share(evidence: Evidence) -> Finding | None:
    """A label: how much of the arm's time the driver took, which runs beside the server on the same processors.

    The driver of transactions works all the time: what that can have done is bounded for every arm (`windows`).

    BIAS: what the driver does between its time stamps and visits (comparing answers, counters) is in its CPU time and not
    in any figure, so the share is an upper bound of what it can have added to them.
    """

    if not evidence.asks_statements:
        return None

    def share(begin: Counters, end: Counters) -> float | None:
        visited_ns = sum(
            visit.end_ns - visit.start_ns
            for visit in of_statements(evidence)
            if visit.round == begin.round and visit.levels == begin.levels and not visit.first_execution
        )
        if begin.driver_cpu_ns is None or end.driver_cpu_ns is None or visited_ns < DRIVER_TIME_NS:
            return None
        return (end.driver_cpu_ns - begin.driver_cpu_ns) / visited_ns

    finding = "the driver had at most {:.1%} of the visits' time"
    unknown = "the driver's CPU time was not counted, or the visits were too short to judge it"
    return worst_share(evidence, "driver_cpu_share", share, DRIVER_BOUND, finding, unknown)


def pressure(evidence: Evidence) -> Finding:
    """A label: how long processes of the host waited for a processor, for memory or for a disk in the phases.

    Waiting for a disk is what a cold phase is about, so it is judged in warm ones only.
    """
    worst: dict[str, float] = {}
    failed = set()
    for begin, end in phases(evidence.counters):
        if begin.host_at_ns is None or end.host_at_ns is None or end.host_at_ns <= begin.host_at_ns:
            continue
        for resource, bound in PRESSURE_BOUNDS.items():
            before, after = ((each.machine or {}).get("pressure") or {} for each in (begin, end))
            waited = rise_of(before, after, f"{resource}_some_ns")
            if waited is None or (resource == "io" and begin.levels.get("cache") == "cold"):
                continue
            share = waited / (end.host_at_ns - begin.host_at_ns)
            worst[resource] = max(worst.get(resource, 0.0), share)
            if share > bound:
                failed.add(begin.round)
    if not worst:
        why = "the host's kernel tells no pressure (PSI), or it was not recorded"
        return Finding(evidence.arm, Check("pressure", None, why, voids=False))
    told = ", ".join(f"{resource} {share:.1%}" for resource, share in worst.items())
    return label(evidence.arm, "pressure", failed, f"some process of the host waited at most: {told} of a phase")


_CPU_TIMES = ("user_ns", "nice_ns", "system_ns", "idle_ns", "iowait_ns", "irq_ns", "softirq_ns", "steal_ns")


def _cpu_total(begin: Mapping[str, object], end: Mapping[str, object]) -> float:
    return sum(rise_of(begin, end, name) or 0.0 for name in _CPU_TIMES)
