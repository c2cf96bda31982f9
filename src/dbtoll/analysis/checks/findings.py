"""Honesty checks that the history itself can answer (DESIGN §4); the runner's own are recorded there and joined here.

Each check looks at one arm; None where it does not apply. What it voids does not enter an interval: single visits, or
an arm's whole start in a round; what it does not void, it labels. A check without the data it needs passes as None and
says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from dbtoll.analysis.checks import differences
from dbtoll.analysis.checks.caches import cold_reads_disk, warm_stays_warm
from dbtoll.analysis.checks.clocks import asleep, brackets, clock_rate, started_together
from dbtoll.analysis.checks.evidence import Evidence, Finding, expected_plans, grouped_by_arm
from dbtoll.analysis.checks.neighbours import neighbour_acted
from dbtoll.analysis.checks.noise import background_work, driver_cpu_share, other_host_load, pressure, steal
from dbtoll.analysis.checks.probe_costs import plausible_costs
from dbtoll.analysis.checks.servers import equal_answers, same_plans, same_resources, same_server
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.experiment import Arm
from dbtoll.model.json import Json
from dbtoll.model.machine import Check
from dbtoll.store.reader import Run
from dbtoll.store.schema import CheckRecord, Counters, Fingerprint, Start


def find_all(run: Run, visits: Sequence[VisitTotals]) -> list[Finding]:
    """Every check of every arm that has a start, in the experiment's order. ``visits``: of the rounds that count."""
    experiment = run.plan.experiment
    by_arm = grouped_by_arm(visits)
    fingerprints, counters = grouped_by_arm(run.records(Fingerprint)), grouped_by_arm(run.records(Counters))
    recorded_checks = grouped_by_arm(
        [*(record for record in run.outside if isinstance(record, CheckRecord)), *run.records(CheckRecord)]
    )
    facts = {arm: _facts(starts) for arm, starts in grouped_by_arm(run.records(Start)).items()}
    probes = run.facts.get("probes", {})
    in_windows = bool(run.plan.transactions) or any(visit.window is not None for visit in visits)
    asks_statements = not in_windows and not probes.keys() >= set(run.plan.queries)
    findings = []
    for arm in experiment.arms:
        own = facts.get(arm.name, {})
        baseline = experiment.held_against.get(arm.name, arm.name)
        evidence = Evidence(
            arm.name,
            tuple(by_arm.get(arm.name, ())),
            tuple(fingerprints.get(arm.name, ())),
            tuple(counters.get(arm.name, ())),
            tuple(recorded_checks.get(arm.name, ())),
            expected_plans(fingerprints.get(baseline, ())) if experiment.same_engine(arm.name, baseline) else None,
            own,
            _expected(facts.get(baseline, {}), own, alone=arm.name == baseline),
            _asked(arm, run.descriptions.environments) | differences.asked_of_resources(experiment, arm.name, baseline),
            differences.asked_of_server(run, arm.name, baseline),
            probes,
            asks_statements,
            _shares_kernel(own, run.host),
            run.engine_of(arm.name),
        )
        findings += recorded(evidence)
        if evidence.visits:
            applicable = CHECKS if arm.clock == "time" else [check for check in CHECKS if check not in OF_CLOCKS]
            findings += [finding for check in applicable if (finding := check(evidence)) is not None]
    return findings


def _facts(starts: Iterable[Start]) -> dict[int, tuple[Json, ...]]:
    return {start.round: start.servers for start in starts if start.outcome == "ok" and start.facts}


def _shares_kernel(starts: Mapping[int, Sequence[Json]], host: Json) -> bool:
    boot = host.get("kernel_boot")
    every = [facts for servers in starts.values() for facts in servers]
    return boot is not None and bool(every) and all(facts.get("kernel_boot") == boot for facts in every)


def _expected(baseline: Mapping[int, Sequence[Json]], own: Collection[int], *, alone: bool) -> dict[int, Json]:
    """For each start of an arm the baseline's of the same round, or its first; the baseline is held to its own first."""
    if not baseline:
        return {}
    first = baseline[min(baseline)]
    return {number: (first if alone else baseline.get(number, first))[0] for number in own}


def _asked(arm: Arm, described: Mapping[str, EnvironmentDescription]) -> frozenset[str]:
    return frozenset(
        fact
        for step in arm.stack
        for option, fact in described[step.environment].asked_facts.items()
        if option in step.options
    )


def recorded(evidence: Evidence) -> list[Finding]:
    """The runner's own checks, each over all rounds: passed if it always did."""
    by_check: dict[str, list[CheckRecord]] = defaultdict(list)
    for record in evidence.checks:
        by_check[record.check].append(record)
    findings = []
    for name, records in by_check.items():
        failed = [record for record in records if record.passed is False]
        unknown = [record for record in records if record.passed is None]
        shown = (failed or unknown or records)[0]
        rounds = tuple(sorted({record.round for record in failed}))
        void = frozenset(record.round for record in failed if record.voids)
        check = Check(name, shown.passed, shown.finding, shown.voids)
        findings.append(Finding(evidence.arm, check, rounds, void))
    return findings


CHECKS = (
    same_server, same_resources, equal_answers, same_plans, warm_stays_warm, cold_reads_disk, asleep, brackets,
    started_together, neighbour_acted, clock_rate, driver_cpu_share, steal, pressure, other_host_load,
    background_work, plausible_costs,
)  # fmt: skip


OF_CLOCKS = (brackets, clock_rate)
"""Without a meaning for an arm whose clock counts instructions."""
