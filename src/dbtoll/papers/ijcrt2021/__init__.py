"""Disk schedulers in Xen's domains under a database: its tables and claims; nothing of it is measured here yet."""

from __future__ import annotations

import numpy as np

from dbtoll.analysis.reproduction import paper
from dbtoll.analysis.reproduction.claims import Checks, Claim, ClaimFinding, Figure, Support, percent, supported
from dbtoll.analysis.reproduction.published import column, tables_beside

CHECKS = Checks()
table = tables_beside(__file__)

_NO_REPEATS = "no repeats and no spread are given: none of this has an interval"


@CHECKS.of("I01")
def _dom0_reads_more(claim: Claim) -> ClaimFinding:
    rows = table("table1_disk_activity_by_scheduler_pair")
    ratios = column(rows, "dom0_kb_read_s") / column(rows, "dom1_kb_read_s")
    figures = (Figure("least dom0 / domU", float(ratios.min()), "x"), Figure("most", float(ratios.max()), "x"))
    dbtoll = (Figure("geomean of dom0 / domU", float(np.exp(np.log(ratios).mean())), "x"),)
    return ClaimFinding(supported(bool(np.all(ratios > 1))), figures, dbtoll, _NO_REPEATS)


def _pairs_iowait() -> dict[str, float]:
    rows = table("table2_cpu_by_scheduler_pair")
    return {f"{row['dom0_scheduler']}/{row['dom1_scheduler']}": float(row["iowait_pct"]) for row in rows}


@CHECKS.of("I02")
def _deadline_waits_least(claim: Claim) -> ClaimFinding:
    pairs = _pairs_iowait()
    least, second = sorted(pairs, key=lambda name: pairs[name])[:2]
    figures = (percent(f"least, {least}", pairs[least]), percent(f"next, {second}", pairs[second]))
    dbtoll = (percent(f"{second} against {least}", (pairs[second] / pairs[least] - 1) * 100),)
    return ClaimFinding(supported(least == claim.published_value), figures, dbtoll, _NO_REPEATS)


@CHECKS.of("I03")
def _default_is_not_best(claim: Claim) -> ClaimFinding:
    pairs = _pairs_iowait()
    least = min(pairs.values())
    figures = (percent("cfq/cfq", pairs["cfq/cfq"]), percent("least", least))
    dbtoll = (percent("cfq/cfq against the least", (pairs["cfq/cfq"] / least - 1) * 100),)
    return ClaimFinding(supported(pairs["cfq/cfq"] > least), figures, dbtoll, _NO_REPEATS)


@CHECKS.of("I04")
def _dom0_matters_most(claim: Claim) -> ClaimFinding:
    activity = table("table1_disk_activity_by_scheduler_pair")
    cpu = table("table2_cpu_by_scheduler_pair")
    figures: list[Figure] = []
    dbtoll: list[Figure] = []
    for rows, name in ((activity, "dom0_tps"), (activity, "dom0_kb_read_s"), (cpu, "iowait_pct")):
        for domain, side in (("dom0", "dom0"), ("dom1", "domU")):
            schedulers = dict.fromkeys(row[f"{domain}_scheduler"] for row in rows)
            values = [column((r for r in rows if r[f"{domain}_scheduler"] == s), name) for s in schedulers]
            means = [float(of_one.mean()) for of_one in values]
            logs = [float(np.log(of_one).mean()) for of_one in values]
            figures.append(Figure(f"{name}, range of means by {side}'s", max(means) - min(means), "as in the table"))
            dbtoll.append(percent(f"{name}, range of geomeans by {side}'s", np.expm1(max(logs) - min(logs)) * 100))
    wins, on_logs = (
        sum(dom0.value > domu.value for dom0, domu in zip(found[::2], found[1::2], strict=True))
        for found in (figures, dbtoll)
    )
    support = {0: Support.NOT_SUPPORTED, 3: Support.SUPPORTED}.get(wins, Support.IN_PART)
    note = (
        f"by the range of means dom0's scheduler moves {wins} of the three more than the guest's, by that of geomeans "
        f"{on_logs}: the tables do not show that it matters most; {_NO_REPEATS}"
    )
    return ClaimFinding(support, tuple(figures), tuple(dbtoll), note)


class Paper(paper.Paper):
    """See analysis.reproduction.paper.Paper."""

    name = "ijcrt2021"
    checks = CHECKS
