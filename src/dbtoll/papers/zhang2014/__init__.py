"""Many tenants on solid-state disks: its tables and claims; nothing of it is measured here yet.

The two halves of its Table 4 carry the same column heads; part (b) is the case with the log on the RAID of solid-state disks, as
its caption says.
"""

from __future__ import annotations

from dbtoll.analysis.reproduction import paper
from dbtoll.analysis.reproduction.claims import Checks, Claim, ClaimFinding, percent, supported
from dbtoll.analysis.reproduction.published import tables_beside

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
