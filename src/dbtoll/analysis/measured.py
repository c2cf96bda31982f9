"""The visits of a run that may enter an interval."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from dbtoll.analysis import checks
from dbtoll.analysis.samples import (
    METRICS,
    Metric,
    Times,
    collect,
    failed,
    levels_key,
    time_per_transaction_ns,
    timed_out,
)
from dbtoll.analysis.shape import Levels
from dbtoll.model import ended_well
from dbtoll.store.reader import Run
from dbtoll.store.schema import Fingerprint, Start, Visit

RIGHT = frozenset({"equal_answers", "consistent"})
"""Gates without which no figure of an arm means anything, in whichever round they failed."""


FAILED_BOUND = 0.01
"""Share of an arm's transactions that may fail, be lost or of unknown end for it to count as working: TPC-C has 1 % of its new
orders rolled back by design (clause 2.4.1.4), which are not among them, so as many again would be another workload."""


class Measured:
    """The visits of a run that count, by levels, with what the gates void taken out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        experiment = run.plan.experiment
        self.arms = tuple(arm.name for arm in experiment.arms if arm.clock == "time")
        self.counter = next((arm.name for arm in experiment.arms if arm.clock == "instructions"), None)
        self.copies = tuple(arm.name for arm in experiment.arms if arm.copy_of == experiment.baseline)
        every = list(run.records(Visit))
        self.findings = checks.find_all(run, every)
        void_rounds = {(finding.arm, number) for finding in self.findings for number in finding.void_rounds}
        void_rounds |= {(s.arm, s.round) for s in run.records(Start) if s.outcome != "ok"}
        void_visits = frozenset(key for finding in self.findings for key in finding.void_visits)
        valid = [
            visit
            for visit in every
            if (visit.arm, visit.round) not in void_rounds
            # What did not work stays, whatever a gate says of how it was timed: a cold statement that fails at once reads nothing.
            and ((visit.round, visit.order) not in void_visits or failed(visit) or timed_out(visit))
            and visit.counts is None  # the times of counting passes mean nothing
        ]
        self.visits = [visit for visit in valid if visit.arm in self.arms]
        self.instructions = [visit for visit in valid if visit.arm == self.counter]
        """Visits of the arm whose clock counts them."""
        self._by_levels: dict[tuple[tuple[str, str], ...], list[Visit]] = defaultdict(list)
        for visit in self.visits:
            self._by_levels[levels_key(visit.levels)].append(visit)

    @cached_property
    def emulated(self) -> frozenset[str]:
        """Arms whose instructions are executed by software: their times are not those of hardware."""
        return frozenset(
            start.arm
            for start in self.run.records(Start)
            if (start.facts.get("environment") or {}).get("emulated") is True
        )

    @cached_property
    def other_plans(self) -> dict[str, frozenset[str]]:
        """Arm -> queries for which its server used another plan than the baseline's, in any round that counts."""
        records = list(self.run.records(Fingerprint))
        baseline = self.run.plan.experiment.baseline
        known = {(f.round, f.parameter_set, f.query): f.fingerprint for f in records if f.arm == baseline}
        changed: dict[str, set[str]] = defaultdict(set)
        for f in records:
            if known.get((f.round, f.parameter_set, f.query), f.fingerprint) != f.fingerprint:
                changed[f.arm].add(f.query)
        return {arm: frozenset(queries) for arm, queries in changed.items()}

    @property
    def levels(self) -> list[Levels]:
        """The combinations of levels that were measured, in the order of the plan."""
        return [dict(key) for key in self._by_levels]

    def of(self, levels: Levels) -> list[Visit]:
        """The visits at one combination of levels."""
        return self._by_levels[levels_key(levels)]

    def times(self, levels: Levels, metric: str | Metric, first_touch: bool) -> Times | None:
        """The arrays of one metric, one of `samples.METRICS` by its name, of steady visits or of first touches."""
        chosen = (visit for visit in self.of(levels) if visit.first_touch is first_touch)
        return collect(chosen, self.run.plan.queries, self.arms, METRICS[metric] if isinstance(metric, str) else metric)

    @cached_property
    def failed_starts(self) -> dict[str, tuple[str, ...]]:
        """Arm -> a sentence on the rounds in which it did not start or did not get through; none where it always did."""
        starts: dict[str, list[Start]] = defaultdict(list)
        for start in self.run.records(Start):
            starts[start.arm].append(start)
        found: dict[str, tuple[str, ...]] = {}
        for arm, its in starts.items():
            if bad := {start.round: start.reason for start in its if start.outcome != "ok"}:
                found[arm] = (f"{len(bad)} of {len({start.round for start in its})} starts failed: {bad[max(bad)]}",)
        return found

    @cached_property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """Arm -> what of it did not work in the rounds that are complete: starts, statements, transactions; a sentence each.

        An arm with any of these has no verdict of "no difference" and none of "gains" (METHOD, "What does not work").
        """
        visits: dict[str, list[Visit]] = defaultdict(list)
        for visit in self.visits:
            visits[visit.arm].append(visit)
        return {
            arm: (
                *self.failed_starts.get(arm, ()),
                *_failed_statements(visits[arm]),
                *_failed_transactions(visits[arm]),
            )
            for arm in self.arms
        }

    def invalid(self, arm: str) -> str | None:
        """Why an arm that ran gets no verdict over all queries: it answered wrongly, or what it did to its data was wrong."""
        for finding in self.findings:
            if finding.arm == arm and finding.gate.name in RIGHT and finding.gate.passed is False:
                return f"{arm}: {finding.gate.finding}"
        return None


def _failed_statements(visits: Sequence[Visit]) -> Iterator[str]:
    for what, happened in (("failed", failed), ("ran into the statement timeout", timed_out)):
        chosen = [visit for visit in visits if visit.window is None and happened(visit)]
        if chosen:
            queries = ", ".join(dict.fromkeys(visit.query for visit in chosen))
            many = "s" if len(chosen) > 1 else ""
            problem = next((visit.problem for visit in chosen if visit.problem), None)
            yield f"{queries} {what} ({len(chosen)} visit{many}{f'; the first: {problem}' if problem else ''})"


def _failed_transactions(visits: Sequence[Visit]) -> Iterator[str]:
    windows = [(visit, visit.window) for visit in visits if visit.window is not None]
    idle = [visit for visit, _ in windows if math.isnan(time_per_transaction_ns(visit) or math.nan)]
    if idle:
        why = idle[0].problem or "nothing was committed"
        yield f"{len(idle)} of {len(windows)} windows failed: {why}"
    kinds = [kind for _, window in windows for kind in window["transactions"].values()]
    lost = sum(sum(kind["failed"].values()) + kind["lost"] + kind["unknown"] for kind in kinds)
    ended = lost + sum(ended_well(window) for _, window in windows)
    if lost > FAILED_BOUND * ended:
        yield f"{lost} of {ended} transactions failed"
