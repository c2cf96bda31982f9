"""What the paper's own tables say about its claims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbtoll.analysis.effects.stats import midmean
from dbtoll.analysis.reproduction.claims import (
    Checks,
    Claim,
    ClaimFinding,
    Figure,
    Support,
    geomean_percent,
    is_stated,
    percent,
    supported,
)
from dbtoll.analysis.reproduction.published import column, percent_geomean, percent_of_totals
from dbtoll.papers.minhas2008.published import run_times, table

CHECKS = Checks()


def _overheads(name: str, queries: Sequence[str] | None = None) -> tuple[Figure, Figure]:
    times = run_times(name, queries)
    return (
        percent("geomean", percent_geomean(times, "xen", "base")),
        percent("ratio_of_totals", percent_of_totals(times, "xen", "base", midmean)),
    )


@CHECKS.of("M01")
def _every_warm_query_is_slower(claim: Claim) -> ClaimFinding:
    printed = column(table("table1_warm_overhead"), "rel_slowdown_pct")
    figures = (percent("least", printed.min()), percent("most", printed.max()))
    note = "as printed: the run times beside it are rounded to 10 ms"
    least, most = claim.published_value.split("..")
    holds = is_stated(printed.min(), least, 0.01) and is_stated(printed.max(), most, 0.01)
    return ClaimFinding(supported(holds and printed.min() > 0), figures, _overheads("table1_warm_overhead"), note)


@CHECKS.of("M02")
def _system_time_slows_down_most(claim: Claim) -> ClaimFinding:
    rows = table("table2_system_calls")
    ratios = column(rows, "xen_system_ms") / column(rows, "base_system_ms")
    most = int(np.argmax(ratios))
    figures = (
        percent("Q1", (ratios[0] - 1) * 100),
        percent(f"most, {rows[most]['query']}", (ratios[most] - 1) * 100),
    )
    note = (
        "154 is Q1's, but Table 2 has a larger one (Q19); user times are not in the tables, so \"larger than of user "
        'time" cannot be computed'
    )
    q1_is_it = is_stated(figures[0].value, claim.published_value, 1)
    support = Support.IN_PART if q1_is_it else Support.NOT_SUPPORTED
    return ClaimFinding(support, figures, (percent("geomean", geomean_percent(ratios)),), note)


@CHECKS.of("M03")
def _system_calls_are_slower(claim: Claim) -> ClaimFinding:
    rows = table("table2_system_calls")
    printed = column(rows, "rel_syscall_slowdown_pct")
    faster = [row["query"] for row, value in zip(rows, printed, strict=True) if value < 0]
    ratios = column(rows, "xen_syscall_ms") / column(rows, "base_syscall_ms")
    figures = (percent("most", printed.max()), percent("Q13", printed[[r["query"] for r in rows].index("Q13")]))
    holds = faster == ["Q13"] and is_stated(printed.max(), claim.published_value, 0.5)
    return ClaimFinding(supported(holds), figures, (percent("geomean", geomean_percent(ratios)),))


@CHECKS.of("M04")
def _system_calls_are_a_minor_part(claim: Claim) -> ClaimFinding:
    rows = table("table2_system_calls")
    base = column(rows, "base_syscall_ms") / column(rows, "base_system_ms")
    xen = column(rows, "xen_syscall_ms") / column(rows, "xen_system_ms")
    figures = (Figure("most, base", float(base.max()), "share"), Figure("most, Xen", float(xen.max()), "share"))
    totals = [
        Figure(f"ratio of totals, {side}",
               float(column(rows, f"{side}_syscall_ms").sum() / column(rows, f"{side}_system_ms").sum()), "share")
        for side in ("base", "xen")
    ]  # fmt: skip
    return ClaimFinding(supported(max(base.max(), xen.max()) < 0.1), figures, tuple(totals))


@CHECKS.of("M05")
def _page_faults_go_with_slowdown(claim: Claim) -> ClaimFinding:
    rows = table("table3_page_faults")
    faults, slowdown = column(rows, "page_faults_per_s"), column(rows, "rel_slowdown_pct")
    r = float(np.corrcoef(faults, slowdown)[0, 1])
    on_logs = float(np.corrcoef(faults, np.log1p(slowdown / 100))[0, 1])
    figures = (Figure("Pearson r", r, "r"),)
    dbtoll = (Figure("Pearson r with the log ratio", on_logs, "r"),)
    return ClaimFinding(supported(is_stated(r, claim.published_value, 0.001)), figures, dbtoll)


@CHECKS.of("M07")
def _one_connection_costs_less(claim: Claim) -> ClaimFinding:
    rows = table("table4_single_connection")
    queries = [row["query"] for row in rows]
    own = [row for row in table("table1_warm_overhead") if row["query"] in queries]
    one_mean, own_mean = (float(column(r, "rel_slowdown_pct").mean()) for r in (rows, own))
    figures = (percent("one connection", one_mean), percent("a connection per query", own_mean))
    note = "the mean of the ten queries of Table 4; the text says 22"
    holds = one_mean < own_mean and is_stated(one_mean, claim.published_value, 0.1)
    return ClaimFinding(supported(holds), figures, _overheads("table4_single_connection"), note)


@CHECKS.of("M09")
def _cold_slowdown(claim: Claim) -> ClaimFinding:
    printed = column(table("table5_cold_overhead"), "rel_slowdown_pct")
    note = "most of the total is in a few queries that run faster in Xen: the ratio of totals is on the other side of 0"
    dbtoll = _overheads("table5_cold_overhead")
    holds = is_stated(printed.mean(), claim.published_value, 0.05)
    return ClaimFinding(supported(holds), (percent("mean", printed.mean()),), dbtoll, note)


def _cold(claim: Claim, faster: bool) -> ClaimFinding:
    rows = table("table5_cold_overhead")
    chosen = [row for row in rows if (float(row["rel_slowdown_pct"]) < 0) is faster]
    figures = (percent("mean", column(chosen, "rel_slowdown_pct").mean()), Figure("queries", len(chosen), "count"))
    holds = is_stated(figures[0].value, claim.published_value, 0.05)
    return ClaimFinding(supported(holds), figures, _overheads("table5_cold_overhead", [row["query"] for row in chosen]))


@CHECKS.of("M10")
def _cold_slower_queries(claim: Claim) -> ClaimFinding:
    return _cold(claim, faster=False)


@CHECKS.of("M11")
def _cold_faster_queries(claim: Claim) -> ClaimFinding:
    return _cold(claim, faster=True)


@CHECKS.of("M12")
def _cold_runs_wait(claim: Claim) -> ClaimFinding:
    times, disk = table("table5_cold_overhead"), table("table6_disk_activity")
    waits = {side: column(disk, f"{side}_iowait_s") for side in ("base", "xen")}
    runs = {side: column(times, f"{side}_runtime_s") for side in ("base", "xen")}
    figures = tuple(percent(side, (waits[side] / runs[side]).mean() * 100) for side in waits)
    totals = tuple(percent(f"ratio of totals, {s}", waits[s].sum() / runs[s].sum() * 100) for s in waits)
    stated = claim.published_value.split(";")
    holds = all(is_stated(figure.value, value, 0.5) for figure, value in zip(figures, stated, strict=True))
    return ClaimFinding(supported(holds), figures, totals, "the mean of 22 shares; by time the shares are larger")


@CHECKS.of("M13")
def _prefetching_explains_the_faster_queries(claim: Claim) -> ClaimFinding:
    times, disk = table("table5_cold_overhead"), table("table6_disk_activity")
    faster = column(times, "rel_slowdown_pct") < 0
    ratio = column(disk, "dom0_read_mb") / column(disk, "domu_read_mb")
    apart = np.abs(column(disk, "base_read_mb") - column(disk, "domu_read_mb")).max()
    much = ratio >= 1.4
    figures = (
        Figure("base and DomU apart at most", float(apart), "MB"),
        Figure("dom0 reads at least 1.4 times as much: faster", int((much & faster).sum()), f"of {faster.sum()}"),
        Figure("the same: slower", int((much & ~faster).sum()), f"of {(~faster).sum()}"),
    )
    dbtoll = (
        percent("geomean of dom0 / DomU, faster queries", geomean_percent(ratio[faster])),
        percent("geomean of dom0 / DomU, slower queries", geomean_percent(ratio[~faster])),
    )
    holds = bool(much[faster].all() and not much[~faster].any())
    note = (
        "base and DomU do read the same; but dom0 reads little more than DomU for three of the six faster queries (Q1, "
        "Q12, Q22) and 1.5 to 1.9 times as much for four slower ones (Q8, Q14, Q17, Q20): it does not tell them apart"
    )
    return ClaimFinding(supported(holds), figures, dbtoll, note)
