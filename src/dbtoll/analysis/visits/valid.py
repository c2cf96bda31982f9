"""The visits of a run that may enter an interval."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dbtoll.analysis.checks import findings
from dbtoll.analysis.checks.evidence import expected_plans, grouped_by_arm, plan_key
from dbtoll.analysis.effects.comparisons import guarded
from dbtoll.analysis.result.schema import Levels
from dbtoll.analysis.visits.arrays import TimeArray, arrange, collect
from dbtoll.analysis.visits.metrics import (
    METRICS,
    LevelsKey,
    Metric,
    VisitValue,
    failed,
    levels_key,
    main_metric,
    time_per_transaction_ns,
    timed_out,
)
from dbtoll.analysis.visits.units import VisitTotals, totals_of_run
from dbtoll.model.experiment import Verdict
from dbtoll.model.neighbours import NEIGHBOUR, NONE, against
from dbtoll.model.reply import MAIN_METRICS, ended_well
from dbtoll.store.reader import Run
from dbtoll.store.schema import Fingerprint, Start, Visit

CONSISTENT = "consistent"
RIGHT = frozenset({"equal_answers", CONSISTENT})
"""Checks without which no figure of an arm means anything, in whichever round they failed."""

FAILED_BOUND = 0.01
"""Share of an arm's transactions that may fail, be lost, of unknown end or (open loop) unserved for it to count as working: TPC-C
has 1 % of its new orders rolled back by design (clause 2.4.1.4), which are not among them, so as many again would be another
workload; and what arrives in the last moments of a window is unserved in any open loop."""


@dataclass(frozen=True, slots=True)
class Bars:
    """What bars verdicts. ``all_of_them``: why nothing is decided, whatever the interval; ``good_news``: what speaks against saying
    that nothing is lost, or something gained."""

    all_of_them: str | None
    good_news: tuple[str, ...]

    def allow(self, verdict: Verdict) -> Verdict:
        """``verdict``, unless it is barred."""
        return Verdict.CANNOT_TELL if self.all_of_them else guarded(verdict, self.good_news)


class ValidVisits:
    """The visits of a run that count, by levels, with what the checks void taken out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        experiment = run.plan.experiment
        self.arms = tuple(arm.name for arm in experiment.arms if arm.clock == "time")
        self.counting = frozenset(arm.name for arm in experiment.arms if arm.clock == "instructions")
        """Arms whose clock counts instructions."""
        self.copies = experiment.copies
        """A/A copy -> its original."""
        every = totals_of_run(run)
        self.findings = findings.find_all(run, every)
        void_rounds = {(finding.arm, number) for finding in self.findings for number in finding.void_rounds}
        void_rounds |= {(s.arm, s.round) for s in run.records(Start) if s.outcome != "ok"}
        void_visits = frozenset(key for finding in self.findings for key in finding.void_visits)
        valid = [
            visit
            for visit in every
            if (visit.arm, visit.round) not in void_rounds
            # What did not work stays, whatever a check says of how it was timed: a cold statement that fails at once reads nothing.
            and ((visit.round, visit.order) not in void_visits or failed(visit) or timed_out(visit))
            and visit.counts is None  # the times of counting passes mean nothing
        ]
        self.visits = [visit for visit in valid if visit.arm in self.arms]
        self.instructions = [visit for visit in valid if visit.arm in self.counting]
        """Visits of those arms."""
        self.void_rounds = frozenset(void_rounds)
        """Arm and number of each round that does not count for it."""
        self._by_levels: dict[LevelsKey, list[VisitTotals]] = defaultdict(list)
        for visit in self.visits:
            self._by_levels[levels_key(visit.levels)].append(visit)
        self._found: dict[str, Mapping[tuple[LevelsKey, bool], Sequence[VisitValue]]] = {}
        self._times: dict[tuple[LevelsKey, str, bool], TimeArray | None] = {}

    @cached_property
    def counting_passes(self) -> list[Visit]:
        """Their visits of the rounds that count."""
        return [
            visit
            for visit in self.run.records(Visit)
            if visit.counts is not None
            and not visit.first_execution
            and (visit.arm, visit.round) not in self.void_rounds
        ]

    @cached_property
    def main_metric(self) -> str:
        """What headlines, contrasts and the stopping rule are about."""
        return main_metric(self.visits, self.run.plan.experiment)

    @cached_property
    def main_values(self) -> Sequence[float | None]:
        """What each of the ``visits`` was made for."""
        found = {
            (visit.round, visit.order): value
            for name in MAIN_METRICS
            for values in self._values(name).values()
            for visit, _, value in values
        }
        return [found.get((visit.round, visit.order)) for visit in self.visits]

    @cached_property
    def emulated(self) -> frozenset[str]:
        """Arms whose instructions are executed by software: their times are not those of hardware."""
        return frozenset(
            start.arm
            for start in self.run.records(Start)
            if (start.facts.get("environment") or {}).get("emulated") is True
        )

    def other_plans(self, levels: Levels) -> dict[str, frozenset[str]]:
        """Arm -> queries for which its server used another plan than the baseline's at these levels, in any round that counts; or
        for which the units of the baseline itself had several."""
        found = {}
        for arm, baseline in self._comparable:
            changed = [*self._plans_unlike(arm, baseline), *self._plans_unlike(baseline, baseline)]
            if queries := frozenset(f.query for f, _ in changed if f.levels.items() <= levels.items()):
                found[arm] = queries
        return found

    @cached_property
    def changed_plans(self) -> list[tuple[Fingerprint, str]]:
        """Each plan that is not that of the first unit of the arm's baseline for the same statement at the same levels, with the
        fingerprint of that. Plans of unlike engines are not compared."""
        return [found for pair in self._comparable for found in self._plans_unlike(*pair)]

    @cached_property
    def _fingerprints(self) -> Mapping[str, list[Fingerprint]]:
        return grouped_by_arm(self.run.records(Fingerprint))

    @property
    def _comparable(self) -> list[tuple[str, str]]:
        """Arms with the one whose plans they are to have, which of a baseline is itself."""
        experiment = self.run.plan.experiment
        pairs = ((arm, experiment.held_against.get(arm, arm)) for arm in self._fingerprints)
        return [pair for pair in pairs if experiment.same_engine(*pair)]

    def _plans_unlike(self, arm: str, baseline: str) -> list[tuple[Fingerprint, str]]:
        expected = expected_plans(self._fingerprints.get(baseline, ()))
        pairs = ((f, expected.get(plan_key(f), f.fingerprint)) for f in self._fingerprints.get(arm, ()))
        return [(f, known) for f, known in pairs if known != f.fingerprint]

    @cached_property
    def levels(self) -> list[Levels]:
        """The combinations of levels, in the order of the plan: those that were asked for, also where no visit at them counts, and
        those of passes beside (probes). None where nothing at all counts."""
        planned = [levels_key(levels) for levels in self.run.plan.experiment.combinations] if self.visits else []
        return [dict(key) for key in dict.fromkeys([*planned, *self._by_levels])]

    def of(self, levels: Levels) -> list[VisitTotals]:
        """The visits at one combination of levels."""
        return self._by_levels.get(levels_key(levels), [])

    def references(self, arm: str) -> list[str]:
        """What an arm is set against: its baseline with all copies of that; a copy its original alone. Of the arm that is held
        against none: itself with its copies."""
        baseline = self.run.plan.experiment.held_against.get(arm, arm)
        return [baseline] if arm in self.copies else self.with_copies(baseline)

    def with_copies(self, arm: str) -> list[str]:
        """An arm and its A/A copies."""
        return [arm, *(copy for copy, original in self.copies.items() if original == arm)]

    def times(self, levels: Levels, metric: str | Metric, first_execution: bool) -> TimeArray | None:
        """The arrays of one metric, one of `metrics.METRICS` by its name, of steady visits or of first executions."""
        if isinstance(metric, str):
            key = (levels_key(levels), metric, first_execution)
            if key not in self._times:
                found = self._values(metric).get((levels_key(levels), first_execution), ())
                self._times[key] = arrange(found, self.run.plan.queries, self.arms, METRICS[metric])
            return self._times[key]
        chosen = [visit for visit in self.of(levels) if visit.first_execution is first_execution]
        return collect(chosen, self.run.plan.queries, self.arms, metric)

    def _values(self, metric: str) -> Mapping[tuple[LevelsKey, bool], Sequence[VisitValue]]:
        """What one of `metrics.METRICS` finds in all visits, by their levels and whether they are first executions."""
        if metric not in self._found:
            found: dict[tuple[LevelsKey, bool], list[VisitValue]] = defaultdict(list)
            for key, visits in self._by_levels.items():
                for each in METRICS[metric](visits):
                    found[key, each[0].first_execution].append(each)
            self._found[metric] = found
        return self._found[metric]

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

    def failures(self, arm: str, query: str | None = None) -> tuple[str, ...]:
        """What of an arm did not work in the rounds that are complete: starts, statements, transactions; a sentence each.

        ``query``: of statements this one alone.
        """
        statements = [visit for visit in self._troubled[arm] if query in (None, visit.query)]
        return (
            *self.failed_starts.get(arm, ()),
            *_failed_statements(statements),
            *self._failed_windows.get(arm, ()),
        )

    def failing_queries(self, arm: str) -> frozenset[str]:
        """Those of which some visit failed or was ended by the timeout: the others are no sample of what it takes."""
        return frozenset(visit.query for visit in self._troubled[arm])

    @cached_property
    def _troubled(self) -> Mapping[str, list[VisitTotals]]:
        """Arm -> visits for statements that failed or were ended by the timeout."""
        found: dict[str, list[VisitTotals]] = defaultdict(list)
        for visit in (*self.visits, *self.instructions):
            if visit.window is None and (failed(visit) or timed_out(visit)):
                found[visit.arm].append(visit)
        return found

    @cached_property
    def _failed_windows(self) -> Mapping[str, tuple[str, ...]]:
        windows: dict[str, list[VisitTotals]] = defaultdict(list)
        for visit in self.visits:
            # What is lost beside a neighbour that disturbs is what it costs (`effects.interference`).
            if visit.window is not None and against(visit.levels.get(NEIGHBOUR, NONE)) is None:
                windows[visit.arm].append(visit)
        return {arm: tuple(failed_transactions(its)) for arm, its in windows.items()}

    def invalid(self, arm: str, query: str | None = None) -> str | None:
        """Why an arm that ran gets no verdict over all queries: it answered wrongly, or what it did to its data was wrong, which
        bars those of single queries (``query``) too."""
        for finding in self.findings:
            check = finding.check
            if (
                finding.arm == arm
                and check.passed is False
                and check.name in (RIGHT if query is None else {CONSISTENT})
            ):
                return check.finding
        return None

    def bars(self, arm: str, query: str | None = None) -> Bars:
        """What bars verdicts about an arm over all queries, or about one: in the arm itself, or in what it is set against."""
        references = self.references(arm)
        reasons = [self.invalid(arm, query)]
        for each in references:
            reasons += [f"{each}: {why}" for why in (self.invalid(each, query), *self._unsound(each, query)) if why]
        return Bars(
            next((why for why in reasons if why), None),
            (*self.failures(arm, query), *self._without_noise_floor([references[0], arm])),
        )

    def own_bars(self, arm: str) -> Bars:
        """What bars verdicts over all queries about an arm itself and its copies, whatever it is set against."""
        of_it = self.with_copies(arm)
        unsound = [why for copy in of_it[1:] for why in self._unsound(copy, None)]
        return Bars(
            next((why for each in of_it if (why := self.invalid(each))), None),
            (*self.failures(arm), *unsound, *self._without_noise_floor([arm])),
        )

    def bars_within(self, arm: str) -> Bars:
        """What bars verdicts about one level of an arm against another: what fails at the other makes any of them doubtful."""
        own = self.own_bars(arm)
        return Bars(own.all_of_them or next(iter(self._failed_windows.get(arm, ())), None), own.good_news)

    @cached_property
    def _counted(self) -> frozenset[str]:
        return frozenset(visit.arm for visit in self.visits)

    def _without_noise_floor(self, arms: Sequence[str]) -> Iterator[str]:
        """Where two copies were to show what this machine's noise does, and no second one counts, what is small may be noise."""
        for original in dict.fromkeys(arms):
            copies = {copy for copy, of in self.copies.items() if of == original}
            if copies and not copies & self._counted:
                yield f"no second copy of {original} counts, so the noise floor is not known"

    def _unsound(self, reference: str, query: str | None) -> Sequence[str]:
        """A copy that did not start in a round leaves that round to the original, which is the same thing."""
        starts = self.failed_starts.get(reference, ()) if reference in self.copies else ()
        return [why for why in self.failures(reference, query) if why not in starts]


def _failed_statements(visits: Sequence[VisitTotals]) -> Iterator[str]:
    for what, happened in (("failed", failed), ("ran into the statement timeout", timed_out)):
        chosen = [visit for visit in visits if happened(visit)]
        if chosen:
            queries = ", ".join(dict.fromkeys(visit.query for visit in chosen))
            many = "s" if len(chosen) > 1 else ""
            problem = next((visit.problem for visit in chosen if visit.problem), None)
            yield f"{queries} {what} ({len(chosen)} visit{many}{f'; the first: {problem}' if problem else ''})"


def failed_transactions(visits: Sequence[VisitTotals]) -> Iterator[str]:
    """What of these windows did not work; a sentence each."""
    windows = [(visit, visit.window) for visit in visits if visit.window is not None]
    idle = [visit for visit, _ in windows if math.isnan(time_per_transaction_ns(visit) or math.nan)]
    if idle:
        why = idle[0].problem or "nothing was committed"
        yield f"{len(idle)} of {len(windows)} windows failed: {why}"
    kinds = [kind for _, window in windows for kind in window["transactions"].values()]
    lost = sum(sum(kind["failed"].values()) + kind["lost"] + kind["unknown"] for kind in kinds)
    backlog_at_end = sum(window["backlog_at_end"] for _, window in windows)
    wanted = lost + backlog_at_end + sum(ended_well(window) for _, window in windows)
    if lost > FAILED_BOUND * wanted:
        yield f"{lost} of {wanted} transactions failed"
    if backlog_at_end > FAILED_BOUND * wanted:
        # They are among the response times with what they had waited by then: what is known is only how long it took at least.
        yield f"{backlog_at_end} of {wanted} arrivals were not served when their window ended: the rate is more than it can do"
