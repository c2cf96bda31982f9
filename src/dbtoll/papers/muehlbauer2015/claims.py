"""What the paper's own tables say about its claims."""

from __future__ import annotations

import numpy as np

from dbtoll.analysis.effects.stats import midmean
from dbtoll.analysis.reproduction.claims import (
    Checks,
    Claim,
    ClaimFinding,
    Figure,
    Support,
    is_stated,
    percent,
    supported,
)
from dbtoll.analysis.reproduction.published import percent_geomean, percent_of_totals
from dbtoll.papers.muehlbauer2015.published import run_times, table

CHECKS = Checks()

_BARE = "bare"


def _total(system: str, environment: str, threads: int = 4) -> float:
    times = run_times(system, threads, (_BARE, environment))
    return percent_of_totals(times, environment, _BARE)


def _ours(system: str, environment: str, threads: int = 4, label: str = "") -> tuple[Figure, ...]:
    times = run_times(system, threads, (_BARE, environment), "median_s")
    return (
        percent(f"{label}geomean", percent_geomean(times, environment, _BARE)),
        percent(f"{label}ratio_of_totals", percent_of_totals(times, environment, _BARE, midmean)),
    )


def _stated_total(claim: Claim, system: str, environment: str) -> ClaimFinding:
    found = _total(system, environment)
    note = "one server life per environment: there is no interval"
    if system == "MonetDB" and environment == "kvm":
        times = run_times(system, 4, (_BARE, environment))
        lost_s = np.diff(times.ns[0, 0], axis=-1)[:, 0]
        share = lost_s[times.queries.index("Q9")] / lost_s.sum()
        note += f"; Q9 alone, which most likely changed its plan, is {share:.0%} of the loss"
    # Stated in whole per cents: what rounds to it supports it.
    holds = is_stated(found, claim.published_value, 0.5)
    return ClaimFinding(
        supported(holds), (percent("ratio of totals of means", found),), _ours(system, environment), note
    )


@CHECKS.of("H01")
def _hyper_kvm(claim: Claim) -> ClaimFinding:
    return _stated_total(claim, "HyPer", "kvm")


@CHECKS.of("H02")
def _hyper_virtualbox(claim: Claim) -> ClaimFinding:
    return _stated_total(claim, "HyPer", "virtualbox")


@CHECKS.of("H03")
def _monetdb_kvm(claim: Claim) -> ClaimFinding:
    return _stated_total(claim, "MonetDB", "kvm")


@CHECKS.of("H04")
def _monetdb_virtualbox(claim: Claim) -> ClaimFinding:
    return _stated_total(claim, "MonetDB", "virtualbox")


@CHECKS.of("H05")
def _docker_costs_nothing(claim: Claim) -> ClaimFinding:
    figures = tuple(percent(system, _total(system, "docker")) for system in ("HyPer", "MonetDB"))
    dbtoll = (*_ours("HyPer", "docker", label="HyPer "), *_ours("MonetDB", "docker", label="MonetDB "))
    note = "HyPer's sign flips with the number of threads (+2.5, -1.6, +2.3): the spread between starts is not known"
    return ClaimFinding(supported(all(abs(figure.value) <= 3 for figure in figures)), figures, dbtoll, note)


@CHECKS.of("H06")
def _one_thread_is_closer(claim: Claim) -> ClaimFinding:
    figures, dbtoll, holds = [], [], True
    for environment in ("kvm", "virtualbox"):
        gaps = {n: _total("MonetDB", environment, n) - _total("HyPer", environment, n) for n in (1, 4)}
        figures += [Figure(f"{environment}, {n} thread(s), gap", gap, "points") for n, gap in gaps.items()]
        holds = holds and abs(gaps[1]) < abs(gaps[4])
        for n in (1, 4):
            ours = _ours("MonetDB", environment, n)[0].value - _ours("HyPer", environment, n)[0].value
            dbtoll.append(Figure(f"{environment}, {n} thread(s), gap of geomeans", ours, "points"))
    return ClaimFinding(supported(holds), tuple(figures), tuple(dbtoll))


@CHECKS.of("H09")
def _shared_memory_heals_virtualbox(claim: Claim) -> ClaimFinding:
    shm, kvm, before = (_total("MonetDB", name) for name in ("virtualbox-shm", "kvm", "virtualbox"))
    figures = (percent("VirtualBox, /dev/shm", shm), percent("KVM", kvm), percent("VirtualBox, disk", before))
    dbtoll = (*_ours("MonetDB", "virtualbox-shm", label="/dev/shm "), *_ours("MonetDB", "kvm", label="KVM "))
    return ClaimFinding(supported(abs(shm - kvm) <= 5 and shm < before), figures, dbtoll)


@CHECKS.of("H10")
def _transactions_drop(claim: Claim) -> ClaimFinding:
    rows = table("oltp_throughput")
    rates = {(row["benchmark"], row["environment"]): float(row["transactions_per_s"]) for row in rows}
    virtual = [key for key in rates if key[1] in {"kvm", "virtualbox"}]
    drops = {key: (1 - rates[key] / rates[key[0], _BARE]) * 100 for key in virtual}
    overheads = {key: (rates[key[0], _BARE] / rates[key] - 1) * 100 for key in virtual}
    most = max(drops, key=lambda key: drops[key])
    figures = tuple(percent(f"{b}, {e}, drop", drop) for (b, e), drop in drops.items())
    dbtoll = tuple(percent(f"{b}, {e}, overhead", overhead) for (b, e), overhead in overheads.items())
    note = "a drop in throughput; as an overhead (baseline / value - 1) the same numbers are larger"
    return ClaimFinding(supported(is_stated(drops[most], claim.published_value, 1)), figures, dbtoll, note)


@CHECKS.of("H11")
def _google_compute_engine(claim: Claim) -> ClaimFinding:
    rows = table("table2_gce")
    figures = tuple(
        Figure(f"{row['system']} {row['benchmark']}, {row['threads']} thread(s)", float(row["value"]), row["unit"])
        for row in rows
    )
    agree, dbtoll = True, []
    for row in rows:
        if row["benchmark"] == "tpch_sf10":
            times = run_times(row["system"], int(row["threads"]), ("gce",))
            total = float(times.ns.sum()) / 1e9
            agree = agree and abs(total - float(row["value"])) <= 0.01
            medians = run_times(row["system"], int(row["threads"]), ("gce",), "median_s")
            name = f"{row['system']}, {row['threads']} thread(s), sum of medians"
            dbtoll.append(Figure(name, float(medians.ns.sum()) / 1e9, "s"))
    note = "TPC-H totals agree with the authors' samples" if agree else "some totals differ from the authors' samples"
    return ClaimFinding(Support.SUPPORTED if agree else Support.IN_PART, figures, tuple(dbtoll), note)
