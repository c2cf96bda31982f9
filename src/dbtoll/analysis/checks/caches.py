"""Were the caches as warm or as cold as the phase asks?"""

from __future__ import annotations

from collections import Counter

from dbtoll.analysis.checks.evidence import Evidence, Finding, label, void_visits
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.machine import Check

WARM_READ_BYTES = 128 << 10
"""One read-ahead window: what another process's opening of a file may read from the same device."""

COLD_READ_SHARE = 0.5
"""Of the most bytes that an arm read for a statement. In the four cold runs of docs/results/runs, on which this was chosen, the
least share of 3138 visits is 0.88."""


def warm_stays_warm(evidence: Evidence) -> Finding | None:
    """A label: a warm statement that read the disk was not quite warm."""
    if not evidence.asks_statements:
        return None
    warm = [v for v in evidence.of_statements if v.levels.get("cache", "warm") == "warm" and not v.first_execution]
    if not warm:
        return None
    known = [v for v in warm if v.disk_read_bytes is not None]
    if not known:
        return Finding(evidence.arm, Check("warm_stays_warm", None, "disk reads were not counted", voids=False))
    reading = [v for v in known if (v.disk_read_bytes or 0) > WARM_READ_BYTES]
    finding = f"{len(reading) or 'none'} of {len(known)} warm visits read the disk"
    if reading:
        finding += f", most by {max(reading, key=lambda v: v.disk_read_bytes or 0).query}"
    return label(evidence.arm, "warm_stays_warm", {v.round for v in reading}, finding)


def cold_reads_disk(evidence: Evidence) -> Finding | None:
    """Void: a cold visit that read nothing, or less than half of what another one of its arm read for the same statement."""
    cold = [v for v in evidence.visits if v.levels.get("cache") == "cold" and not v.first_execution]
    if not cold:
        return None
    counted = [(visit, visit.disk_read_bytes) for visit in cold if visit.disk_read_bytes is not None]
    if not counted:
        return Finding(evidence.arm, Check("cold_reads_disk", None, "disk reads were not counted"))
    most = Counter[object]()
    for visit, read_bytes in counted:
        most[_same_data(visit)] = max(most[_same_data(visit)], read_bytes)
    partly_warm = [
        visit
        for visit, read_bytes in counted
        if read_bytes == 0 or read_bytes < COLD_READ_SHARE * most[_same_data(visit)] - WARM_READ_BYTES
    ]
    finding = f"{len(counted) - len(partly_warm)} of {len(counted)} cold visits read the disk"
    return void_visits(evidence.arm, "cold_reads_disk", partly_warm, finding)


def _same_data(visit: VisitTotals) -> object:
    """What visits have in common that need the same of the data."""
    return visit.query, visit.parameter_set, tuple(visit.levels.items())
