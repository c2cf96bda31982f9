"""From a run that explains to its ledgers: which counted event costs what a probe found (docs/method/ledgers.md).

Counts come from the counting passes, costs from the probed ones, both of the same rounds; of the timed ones only the page faults,
the difference that is to be explained and, of the baseline, the time that a statement takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean

import numpy as np

from dbtoll.analysis.attribution.counts import STATES, Events, ended_time, states
from dbtoll.analysis.attribution.items import (
    AROUND,
    BOOKED,
    CACHES,
    COLD,
    DEVICE_READS,
    KERNEL,
    NUMBERS,
    PRIMES,
    SAMPLES,
    TRANSLATION,
    USER_MODE,
    WITH_PAGES_AROUND,
)
from dbtoll.analysis.attribution.ledger import (
    CostRange,
    Costs,
    Item,
    Ledger,
    cost_range,
    predicted_ns,
    totals,
    unexplained_fraction,
)
from dbtoll.analysis.attribution.user_mode import PROBES_MIN, QUARTILES, SAMPLES_MIN, predicted_ratios
from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.comparisons import RATIO_OF_TOTALS, Effect, guarded, reach
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import (
    Amount,
    EffectResult,
    Forecast,
    LedgerItem,
    LedgerResult,
    Levels,
    QueryLedger,
    Unbooked,
)
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.analysis.visits.metrics import event_time_ns, levels_key
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.experiment import Precision
from dbtoll.model.json import Json
from dbtoll.model.probes import CACHED, EXECUTOR_PROBES, HUGE_PAGES

LEAST_FACTOR = 1e-3
"""Of a predicted time, over the baseline's: with few rounds the costs of a baseline's events may exceed its time."""


class CostModel:
    """The ledgers of a run. Empty where it counted nothing.

    ``probes``: another run, whose probes tell what events cost in arms that this one has not (`dbtoll predict`). ``baseline``: the
    arm that others are set against; None: the experiment's.
    """

    def __init__(self, measured: ValidVisits, probes: ValidVisits | None = None, baseline: str | None = None) -> None:
        self.measured = measured
        self._counted: dict[tuple[str, object, str], dict[int, Json]] = defaultdict(dict)
        for visit in measured.counting_passes:
            self._counted[visit.arm, levels_key(visit.levels), visit.query][visit.round] = visit.counts or {}
        probed: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for visit in (*(probes.visits if probes else ()), *measured.visits):
            if visit.batches is not None and (cost := event_time_ns(visit)) is not None:
                probed[visit.arm, visit.query][visit.round].append(cost)
        self._costs = {
            key: {number: float(np.median(costs)) for number, costs in rounds.items()} for key, rounds in probed.items()
        }
        self.baseline = baseline or measured.run.plan.experiment.baseline
        self._emulated = frozenset(arm for each in (measured, probes) if each is not None for arm in each.emulated)
        self._spreads: dict[object, list[Json]] = defaultdict(list)
        """Of probes by name, of queries by levels and name: what the collector `samples` told, each time."""
        for visit in (*(probes.visits if probes else ()), *measured.visits):
            if visit.samples is not None and visit.arm == self.baseline:
                self._spreads[visit.query].append(visit.samples)
        for (arm, levels, query), rounds in self._counted.items():
            if arm == self.baseline:
                told = (counts.get(SAMPLES, {}).get("counted") for counts in rounds.values())
                self._spreads[levels, query] += [each for each in told if each]

    @cached_property
    def _faults(self) -> Mapping[tuple[str, object, str], Mapping[int, Sequence[float]]]:
        """Of one execution, in the timed visits themselves."""
        found: dict[tuple[str, object, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for visit in self.measured.visits:
            if visit.minor_faults is not None and visit.executions and not visit.first_execution and _is_kept(visit):
                of_rounds = found[visit.arm, levels_key(visit.levels), visit.query]
                of_rounds[visit.round].append(visit.minor_faults / len(visit.executions))
        return found

    def find_all(self) -> Iterator[LedgerResult]:
        """Of every arm that is held against the baseline, and combination of levels, that was counted."""
        held = self.measured.run.plan.experiment.held_against
        for levels in self.measured.levels:
            found = {
                arm: ledgers
                for arm in self.measured.arms
                # Of cold statements only where it is known what the arm's device costs.
                if levels.get("cache") != "cold" or self.cost_ns(arm, DEVICE_READS.probes[0]) is not None
                if held.get(arm) == self.baseline and (ledgers := self.ledgers(arm, levels))
            }
            overheads = {arm: self._overhead(arm, ledgers) for arm, ledgers in found.items()}
            alarm = reach(list(overheads.values()))
            for arm, ledgers in found.items():
                yield self._result(arm, levels, ledgers, overheads[arm], alarm)

    @property
    def _precision(self) -> Precision:
        return self.measured.run.plan.experiment.precision

    def _overhead(self, arm: str, ledgers: Sequence[Ledger]) -> Effect:
        """What the ledgers shall explain, as an effect like all others: each round's ratio, and not the difference, of which
        rounds on a slow machine are more."""
        overhead_ns = np.sum([each.overhead_ns for each in ledgers], axis=0)
        baseline_ns = np.sum([each.baseline_ns for each in ledgers], axis=0)
        ratios = np.log(np.maximum(1 + overhead_ns / baseline_ns, LEAST_FACTOR))
        decisive = stats.interval(ratios, 1 - self._precision.confidence, self._precision.rounds_min)
        is_aa = arm in self.measured.copies
        return Effect(arm, self.baseline, is_aa, RATIO_OF_TOTALS, len(ledgers[0].overhead_ns), decisive=decisive)

    def _result(
        self, arm: str, levels: Levels, ledgers: Sequence[Ledger], overhead: Effect, alarm: float
    ) -> LedgerResult:
        """``alarm``: by how much A/A widens what the verdict rests on."""
        alpha = 1 - self._precision.confidence
        predicted, _ = self.predicted(arm, levels)
        sums = totals(ledgers, alpha)
        lacking = self._lacking(arm, levels, ledgers)
        bars = self.measured.bars(arm)
        decisive = overhead.decisive.widened(0.0 if overhead.is_aa else alarm) if overhead.decisive else None
        return LedgerResult(
            arm=arm,
            baseline=self.baseline,
            levels=levels,
            rounds=overhead.rounds,
            overhead=_amount("overhead", sums),
            items=tuple(_entries(ledgers, sums)),
            unexplained=_amount("unexplained", sums),
            unexplained_fraction=_effect(unexplained_fraction(ledgers, alpha)),
            cpu_ratio=self.cpu_ratio(arm),
            accounted=self._accounted(arm, levels, [each.query for each in ledgers], alpha),
            assumed=tuple(self._assumed(arm, levels, lacking)),
            queries=tuple(self._of_query(arm, levels, each, predicted.get(each.query), alpha) for each in ledgers),
            verdict=bars.allow(guarded(stats.verdict(decisive, overhead.rounds, self._precision), lacking)),
            unbooked=tuple(self._unbooked(arm, levels, predicted)),
        )

    def _lacking(self, arm: str, levels: Levels, ledgers: Sequence[Ledger]) -> list[str]:
        """Queries without a ledger for which the arm's server has the baseline's plan."""
        times = self._times(levels)
        known = {*(each.query for each in ledgers), *self.measured.other_plans(levels).get(arm, ())}
        return [query for query in times.queries if query not in known] if times else []

    def _of_query(
        self, arm: str, levels: Levels, ledger: Ledger, predicted: Forecast | None, alpha: float
    ) -> QueryLedger:
        cost_ranges = ledger.cost_ranges(alpha)
        return QueryLedger(
            query=ledger.query,
            accounted=self._accounted(arm, levels, [ledger.query], alpha),
            overhead=_amount("overhead", cost_ranges),
            items=tuple(_entries([ledger], cost_ranges)),
            unexplained=_amount("unexplained", cost_ranges),
            predicted=predicted,
            measured=float(np.mean(ledger.overhead_ns) / np.mean(ledger.baseline_ns)),
        )

    def _unbooked(self, arm: str, levels: Levels, predicted: Mapping[str, Forecast]) -> Iterator[Unbooked]:
        """What another plan does in user mode is not what the baseline's does; what it takes is known all the same."""
        if (times := self._times(levels)) is None:
            return
        for query in times.queries:
            if query in self.measured.other_plans(levels).get(arm, ()) and (
                timed := _by_round(times, query, arm, self.measured.references(arm))
            ):
                arm_ns, native_ns = np.mean(list(timed.values()), axis=0)
                yield Unbooked(query, predicted.get(query), float(arm_ns / native_ns - 1))

    def cost_ns(self, arm: str, probe: str) -> float | None:
        """What one event of a probe costs, the median over rounds."""
        known = self._costs.get((arm, probe))
        return float(np.median(list(known.values()))) if known else None

    def cpu_ratio(self, arm: str) -> float | None:
        """How many times as long the search of primes takes in an arm."""
        own, native = (self.cost_ns(side, PRIMES) for side in (arm, self.baseline))
        return own / native if own is not None and native is not None else None

    def _accounted(self, arm: str, levels: Levels, queries: Sequence[str], alpha: float) -> tuple[Amount, ...]:
        """Where the extra time went, by the state of the server's processes; the states of an execution add up to its time."""
        key = levels_key(levels)
        sides = [[self._counted.get((side, key, query), {}) for query in queries] for side in (arm, self.baseline)]
        rounds = sorted(set.intersection(*(set(each) for side in sides for each in side)))
        sums = []
        for side in sides:
            of_rounds = [[found for each in side if (found := states(each[number])) is not None] for number in rounds]
            if not rounds or min(map(len, of_rounds)) < len(queries):
                return ()
            sums.append({name: np.array([sum(each[name] for each in found) for found in of_rounds]) for name in STATES})
        differences = {name: cost_range(sums[0][name] - sums[1][name], alpha) for name in STATES}
        return tuple(_amount(name, differences) for name in STATES)

    def _assumed(self, arm: str, levels: Levels, lacking: Sequence[str]) -> Iterator[str]:
        """For what could not be counted or probed in an arm, and which queries its ledger has not; ``lacking``: see `_lacking`."""
        reasons: dict[str, str] = {}
        unknown: set[str] = set()
        for (counted_arm, key, _), rounds in self._counted.items():
            if key != levels_key(levels) or counted_arm not in (arm, self.baseline):
                continue
            for counts in rounds.values():
                missing = {name: told["missing"] for name, told in counts.items() if "missing" in told}
                reasons |= {name: why for name, why in missing.items() if (name == SAMPLES) == (counted_arm != arm)}
                account = counts.get("processes", {}).get("counted", {}) if counted_arm == arm else {}
                unknown |= {name for name, value in account.items() if value is None}
        if SAMPLES in reasons and arm in self._emulated:
            yield f"user mode as in the middle of all probes, for where it goes was not told ({reasons[SAMPLES]})"
        for name, what in NUMBERS.items():
            if name in unknown:
                yield f"{what} as in the baseline, for its kernel counts none"
        for name, what in BOOKED.items():
            if name in reasons:
                why = reasons[name].rpartition(": ")[2]
                yield f"{what} as in the baseline, for they could not be counted here ({why})"
        if changed := sorted(self.measured.other_plans(levels).get(arm, ())):
            yield f"{', '.join(changed)} left out, for its server has another plan there"
        failing = self._failing(arm)
        for queries, why in (
            ([query for query in lacking if query in failing], "some visits failed or ran into the timeout"),
            (
                [query for query in lacking if query not in failing],
                "no round has time and counts of both arms",
            ),
        ):
            if queries:
                yield f"{', '.join(queries)} left out, for {why}"
        memory = [name for name in EXECUTOR_PROBES if self.cost_ns(self.baseline, name + HUGE_PAGES) is not None]
        if memory and not any(self.cost_ns(arm, name + HUGE_PAGES) is not None for name in memory):
            yield f"address translation as a part of {CACHES}, for the arm has no huge pages"

    def ledgers(self, arm: str, levels: Levels) -> list[Ledger]:
        """One of each query that was timed, counted and probed in both arms by the same plan, all of the same rounds."""
        times = self._times(levels)
        if times is None or arm not in times.arms or self.baseline not in times.arms:
            return []
        if not self.measured.run.plan.experiment.same_engine(arm, self.baseline):
            return []  # their plans are not the same, whatever they are
        # What another plan does in user mode is not what the baseline's does; and of what fails, the rest is no sample.
        other = self._failing(arm) | self.measured.other_plans(levels).get(arm, frozenset())
        same = [query for query in times.queries if query not in other]
        counted, own = ({query: self.counts(side, levels, query) for query in same} for side in (arm, self.baseline))
        both = [query for query in same if counted[query] and own[query]]
        timed = {query: _by_round(times, query, arm, self.measured.references(arm)) for query in both}
        rounds_of = {query: set(timed[query]) & set(counted[query]) & set(own[query]) for query in timed}
        whole = [query for query, rounds in rounds_of.items() if rounds]
        rounds = sorted(set.intersection(*(rounds_of[query] for query in whole))) if whole else []
        found = []
        for query in whole if rounds else ():
            arm_ns, native_ns = np.array([timed[query][number] for number in rounds]).T
            faults, own_faults = (self._faults_of(side, levels, query) for side in (arm, self.baseline))
            events_of = [self._events(own[query][number], faults=own_faults.get(number)) for number in rounds]
            arm_events = [
                self._events(counted[query][number], own[query][number], faults.get(number, own_faults.get(number)))
                for number in rounds
            ]
            items = self._items(arm, rounds, native_ns, arm_events, events_of, self.spread((levels_key(levels), query)))
            found.append(Ledger(query, arm_ns - native_ns, items, native_ns, tuple(rounds)))
        return found

    def _events(self, counts: Json, otherwise: Json | None = None, faults: float | None = None) -> Events:
        calls = self.measured.run.engine_of(self.baseline).round_trip_calls
        return Events.counted(counts, otherwise, faults, round_trip_calls=calls)

    def _failing(self, arm: str) -> frozenset[str]:
        """Queries of which some visit did not work, in the arm or in what it is set against."""
        arms = (arm, *(self.measured.with_copies(arm) if arm == self.baseline else self.measured.references(arm)))
        return frozenset[str]().union(*(self.measured.failing_queries(each) for each in arms))

    def predicted(self, arm: str, levels: Levels) -> tuple[dict[str, Forecast], list[str]]:
        """Query -> overhead, a fraction, as if nothing had been timed or counted in ``arm``; with the doubt about its costs.

        And the items whose cost is known in the baseline and not in the arm: they are predicted to cost the same, so there are no
        bounds then. Nothing is predicted where it is not known how fast the arm computes.
        """
        times = self._times(levels)
        if times is None or self.baseline not in times.arms or not self._computes(arm):
            return {}, []
        found: dict[str, Forecast] = {}
        unknown: dict[str, None] = {}
        failing = self._failing(self.baseline)
        for query in times.queries:
            if query in failing:
                continue
            timed = _by_round(times, query, self.baseline, self.measured.with_copies(self.baseline))
            own = self.counts(self.baseline, levels, query)
            if rounds := sorted(set(timed) & set(own)):
                native_ns = np.array([timed[number][1] for number in rounds])
                faults = self._faults_of(self.baseline, levels, query)
                events_of = [self._events(own[number], faults=faults.get(number)) for number in rounds]
                spread = self.spread((levels_key(levels), query))
                items = self._items(arm, rounds, native_ns, events_of, events_of, spread, predicted=True)
                factors = 1 + sum((item.explained_ns for item in items), np.zeros(len(rounds))) / native_ns
                doubt = sum(item.doubt_ns for item in items) / float(np.mean(native_ns))
                alpha = 1 - self._precision.confidence
                found[query] = predicted_overhead(factors, doubt, alpha)
                unknown |= dict.fromkeys(self._unprobed(arm, events_of))
        if unknown:
            found = {query: replace(each, low=None, high=None) for query, each in found.items()}
        return found, list(unknown)

    def _computes(self, arm: str) -> bool:
        """Whether it was probed in the arm and in the baseline how long an executor's work takes in user mode."""
        return any(self.cost_ns(arm, name) and self.cost_ns(self.baseline, name) for name in EXECUTOR_PROBES)

    def _unprobed(self, arm: str, events: Sequence[Events]) -> Iterator[str]:
        """Items that happen, and whose cost is known in the baseline and not in the arm."""
        for kind in KERNEL:
            happens = any(any(each.of(kind.name)[:2]) for each in events)
            own, native = (
                any(self.cost_ns(side, name + form) is not None for name in kind.probes for form in ("", COLD))
                for side in (arm, self.baseline)
            )
            if happens and native and not own:
                yield kind.name

    def _times(self, levels: Levels) -> TimeArray | None:
        """Of an execution or, of transactions, of one of those that ended: the inverse of their throughput."""
        return self.measured.times(levels, "run_time", False) or self.measured.times(levels, ended_time, False)

    def counts(self, arm: str, levels: Levels, query: str) -> Mapping[int, Json]:
        """By round, what each collector told (docs/SCHEMA.md, ``visit.counts``)."""
        return self._counted.get((arm, levels_key(levels), query), {})

    def _faults_of(self, arm: str, levels: Levels, query: str) -> dict[int, float]:
        """Round -> page faults of a timed execution, on a connection that is kept: how much memory a process gives back, and needs
        anew, hangs on what it did before."""
        found = self._faults.get((arm, levels_key(levels), query), {})
        return {number: fmean(faults) for number, faults in found.items()}

    # --- items -------------------------------------------------------------------------------------------------------

    def _items(
        self,
        arm: str,
        rounds: Sequence[int],
        native_ns: Floats,
        arm_events: Sequence[Events],
        base_events: Sequence[Events],
        spread: float | None,
        *,
        predicted: bool = False,
    ) -> tuple[Item, ...]:
        """``native_ns``: measured, of the baseline; in the arm what comes by the clock comes in the time that the items themselves
        predict. ``spread``: see `spread`. ``predicted``: the events are the baseline's, so what it maps in one fault may be many
        faults in the arm: as many as it maps where they come in a row, for then the pages are used in order."""
        items: list[Item] = []
        rates: list[Floats] = []
        kernel_ns = np.zeros(len(rounds))
        for kind in KERNEL:
            (count, rate, alone), (baseline_count, baseline_rate, baseline_alone) = (
                np.array([each.of(kind.name) for each in side]).T for side in (arm_events, base_events)
            )
            baseline_count = baseline_count + baseline_rate * native_ns
            if predicted and kind in WITH_PAGES_AROUND:
                cost = self._cost(arm, (*kind.probes, AROUND), rounds, 1 - alone)
            else:
                cost = self._cost(arm, kind.probes, rounds, alone)
            baseline_cost = self._cost(self.baseline, kind.probes, rounds, baseline_alone)
            if cost is None or baseline_cost is None or not (count.any() or rate.any() or baseline_count.any()):
                continue
            items.append(Item(kind.name, count, baseline_count, cost, baseline_cost))
            rates.append(rate)
            kernel_ns += baseline_count * baseline_cost.ns
        user_mode = self._user_mode(arm, rounds, np.maximum(native_ns - kernel_ns, 0.0), spread)
        nothing = np.zeros(len(rounds))
        arm_ns = predicted_ns(
            native_ns,
            sum((item.explained_ns for item in (*items, *user_mode)), nothing),
            sum((rate * item.cost.ns for rate, item in zip(rates, items, strict=True)), nothing),
        )
        timed = [replace(item, count=item.count + rate * arm_ns) for rate, item in zip(rates, items, strict=True)]
        return (*timed, *user_mode)

    def _probed(self, arm: str, name: str, rounds: Sequence[int]) -> Floats | None:
        """What an event costs, per round; a round without the probe gets its mean over the others: costs differ little from start
        to start. None where the arm has no such event."""
        known = self._costs.get((arm, name))
        if not known:
            return None
        mean = fmean(known.values())
        return np.array([known.get(number, mean) for number in rounds])

    def _cost(self, arm: str, probes: Sequence[str], rounds: Sequence[int], dear: Floats) -> Costs | None:
        """Between the least and the most of the probes, in a loop and out of the caches; None where the arm has none of them.
        ``dear``: which share of the events cost the most, per round."""
        found = [self._probed(arm, name + form, rounds) for name in probes for form in ("", COLD)]
        known = np.array([each for each in found if each is not None])
        return Costs(known.min(axis=0), known.max(axis=0), dear) if len(known) else None

    # --- user mode ---------------------------------------------------------------------------------------------------

    def spread(self, what: object) -> float | None:
        """Over how many instructions the time of a probe (its name), or of a query (key of its levels, and name), is spread in the
        baseline: the geometric mean over all samples. None where there are too few."""
        told = [each for each in self._spreads.get(what, ()) if each["samples"]]
        samples = [each["samples"] for each in told]
        if sum(samples) < SAMPLES_MIN:
            return None
        return float(np.exp(np.average(np.log([each["instructions"] for each in told]), weights=samples)))

    def _user_mode(self, arm: str, rounds: Sequence[int], user_ns: Floats, spread: float | None) -> list[Item]:
        """The native user time, times what the probes take longer; in parts."""
        parts = self._slowdown(arm, rounds, spread)
        if parts is None:
            return []
        executing, caches, translation = parts
        one, none = Costs.known(1.0, len(rounds)), Costs.known(0.0, len(rounds))
        return [
            Item(USER_MODE, user_ns, user_ns, executing, one),
            *(
                Item(part, user_ns, user_ns, cost, none)
                for part, cost in ((CACHES, caches), (TRANSLATION, translation))
                if cost.hot_ns.any() or cost.cold_ns.any()
            ),
        ]

    def _slowdown(self, arm: str, rounds: Sequence[int], spread: float | None) -> tuple[Costs, Costs, Costs] | None:
        """How many times as long as in the baseline the probes take, between the quartiles over them: with all they need in the
        caches; how much that grows where caches are missed, and again where translations are. None where the two arms have none in
        common. Together they are the quartiles of the probes as they are; or, where instructions are emulated and it is known over
        how many of them the time of all probes and of the query is spread, of what the line through them says of such a query."""
        cached, huge, whole, spreads = [], [], [], []
        for name in EXECUTOR_PROBES:
            if (as_it_is := self._ratio(arm, name, rounds)) is None:
                continue
            # What has no such form, or an arm without huge pages, shows no difference.
            forms = [self._ratio(arm, name + form, rounds) for form in (HUGE_PAGES, CACHED)]
            whole.append(as_it_is)
            spreads.append(self.spread(name))
            huge.append(as_it_is if forms[0] is None else forms[0])
            cached.append(huge[-1] if forms[1] is None else forms[1])
        if not whole:
            return None
        executing, missing, translating = (np.quantile(each, QUARTILES, axis=0) for each in (cached, huge, whole))
        known = [each for each in spreads if each is not None]
        if arm in self._emulated and spread is not None and len(known) == len(whole) >= PROBES_MIN:
            predicted = predicted_ratios(np.array(known), np.array(whole), spread)
            scale = predicted.mean(axis=0) / translating.mean(axis=0)
            executing, missing, translating = executing * scale, missing * scale, predicted
        return Costs(*executing), Costs(*(missing - executing)), Costs(*(translating - missing))

    def _ratio(self, arm: str, probe: str, rounds: Sequence[int]) -> Floats | None:
        """Of what one event costs in an arm and in the baseline, per round; None where one of them was not probed for it."""
        own, other = self._probed(arm, probe, rounds), self._probed(self.baseline, probe, rounds)
        return None if own is None or other is None else own / other


def predicted_overhead(factors: Floats, doubt: float, alpha: float) -> Forecast:
    """Of predicted times over the baseline's, per round: the mean of their logarithms, as of all ratios, so that no bound says
    that an execution takes less than no time; its t interval at level 1 - ``alpha``, longer on both sides by ``doubt``, which is
    of the factor. One round has none: how far the next would lie from it is not known."""
    factors = np.maximum(factors, LEAST_FACTOR)
    logs = np.log(factors)
    found = stats.independent_interval(logs, alpha)
    if found is None:
        return Forecast(float(np.expm1(logs.mean())), None, None)
    shown = EffectResult.from_logs(found.widened(doubt / float(np.mean(factors))))
    return Forecast(shown.estimate, shown.low, shown.high)


def _amount(name: str, cost_ranges: Mapping[str, CostRange]) -> Amount:
    found = cost_ranges[name]
    return Amount(name, found.estimate, found.low, found.high)


def _entries(ledgers: Sequence[Ledger], cost_ranges: Mapping[str, CostRange]) -> Iterator[LedgerItem]:
    """Each item over all those ledgers; a cost is the mean over their events."""
    for name in dict.fromkeys(item.name for each in ledgers for item in each.items):
        items = [item for each in ledgers for item in each.items if item.name == name]
        count, cost_ns = _events([(item.count, item.cost) for item in items])
        baseline_count, baseline_cost_ns = _events([(item.baseline_count, item.baseline_cost) for item in items])
        yield LedgerItem(_amount(name, cost_ranges), count, cost_ns, baseline_count, baseline_cost_ns)


def _events(sides: Sequence[tuple[Floats, Costs]]) -> tuple[float, float]:
    """How many in all, and what one costs on average."""
    counts = np.array([float(np.mean(count)) for count, _ in sides])
    costs = np.array([float(np.mean(cost.ns)) for _, cost in sides])
    return float(counts.sum()), float(np.average(costs, weights=counts if counts.any() else None))


def _effect(found: CostRange) -> EffectResult | None:
    return None if found.low is None or found.high is None else EffectResult(found.estimate, found.low, found.high)


def _is_kept(visit: VisitTotals) -> bool:
    """Whether its server process is older than the visit: else the lead-in's processes have page faults too."""
    return visit.levels.get("connection") == "persistent" and visit.levels.get("cache") != "cold"


def _by_round(times: TimeArray, query: str, arm: str, references: Sequence[str]) -> dict[int, tuple[float, float]]:
    """Round -> times of the arm and of the references, ns: means over the blocks in which all of them have one."""
    chosen = [times.arm(name) for name in (arm, *references) if name in times.arms]
    found = {}
    for number, blocks in zip(times.rounds, times.ns[:, :, times.queries.index(query), chosen], strict=True):
        whole = blocks[np.isfinite(blocks).all(axis=-1)]
        if len(whole):
            found[number] = (float(whole[:, 0].mean()), float(whole[:, 1:].mean()))
    return found
