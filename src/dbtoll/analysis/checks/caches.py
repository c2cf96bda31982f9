"""Were the caches as warm or as cold as the phase asks?"""

from __future__ import annotations

from dbtoll.analysis.checks.evidence import Evidence, Finding, label, of_statements, void_visits
from dbtoll.model.machine import Check

WARM_READ_BYTES = 128 << 10
"""One read-ahead window: what another process's opening of a file may read from the same device."""


def warm_stays_warm(evidence: Evidence) -> Finding | None:
    """A label: a warm statement that read the disk was not quite warm."""
    if not evidence.asks_statements:
        return None
    warm = [v for v in of_statements(evidence) if v.levels.get("cache", "warm") == "warm" and not v.first_execution]
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
    """A cold visit that read nothing was not cold: void."""
    cold = [v for v in evidence.visits if v.levels.get("cache") == "cold" and not v.first_execution]
    if not cold:
        return None
    known = [v for v in cold if v.disk_read_bytes is not None]
    if not known:
        return Finding(evidence.arm, Check("cold_reads_disk", None, "disk reads were not counted"))
    dry = [v for v in known if v.disk_read_bytes == 0]
    finding = f"{len(known) - len(dry)} of {len(known)} cold visits read the disk"
    return void_visits(evidence.arm, "cold_reads_disk", dry, finding)
