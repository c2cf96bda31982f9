"""Many tenants on solid-state disks: its tables and claims, and all of it measured again.

The two halves of its Table 4 carry the same column heads; part (b) is the case with the log on the RAID of solid-state disks, as
its caption says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dbtoll.analysis.reproduction import paper
from dbtoll.analysis.reproduction.claims import Checks, Claim, ClaimFinding, percent, supported
from dbtoll.analysis.reproduction.parts import Part
from dbtoll.analysis.reproduction.published import tables_beside
from dbtoll.analysis.reproduction.tables import PublishedTable
from dbtoll.analysis.sweeps.builder import Swept
from dbtoll.papers.zhang2014 import reproduced
from dbtoll.papers.zhang2014.parts import SWEEPS, Parts, Sweep
from dbtoll.papers.zhang2014.verdicts import RULES
from dbtoll.store.reader import Run

CHECKS = Checks()
table = tables_beside(__file__)


@CHECKS.of("Z15")
def _data_disk_saturates(claim: Claim) -> ClaimFinding:
    rows = [r for r in table("table8_disk_statistics_by_warehouses") if r["metric"] == "util_pct"]
    figures, holds = [], True
    for design in dict.fromkeys(row["design"] for row in rows):
        roles = {row["disk_role"]: row for row in rows if row["design"] == design}
        for warehouses in (120, 240):
            data, log = (float(roles[role][f"warehouses_{warehouses}"]) for role in ("data", "log"))
            earlier = float(roles["log"]["warehouses_60"])
            figures += [
                percent(f"{design}, {warehouses} warehouses, data disk", data),
                percent(f"{design}, {warehouses} warehouses, log disk", log),
            ]
            holds = holds and data >= 95 and log < data and log < earlier
    return ClaimFinding(
        supported(holds), tuple(figures), note="utilisation is not an overhead: dbtoll's figure is the same"
    )


class Paper(paper.Paper):
    """See analysis.reproduction.paper.Paper."""

    name = "zhang2014"
    checks = CHECKS
    rules = RULES

    def parts(self, runs: Mapping[str, Sequence[Run]], samples: Path | None = None) -> Parts:
        found = {role: [Part(run) for run in its] for role, its in runs.items()}
        probes = found.pop("probes", None)
        sweeps = {role.replace(" ", "_"): Sweep(Swept(its)) for role, its in found.items()}
        return Parts(**{role: sweeps.get(role) for role in SWEEPS}, probes=probes[0] if probes else None)

    def tables(self, parts: Parts) -> Iterable[PublishedTable]:
        return reproduced.find_all(parts)
