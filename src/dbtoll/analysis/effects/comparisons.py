"""Effects of arms against the baseline: per round, then over rounds (DESIGN §5, docs/method/).

The functions on arrays take any leading axes before [round, block, query, arm], so that the simulation of
`selfbench.simulation` runs a thousand experiments through the very same code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Components, Floats, Interval
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.model.experiment import Precision, Verdict

GEOMEAN = "geomean"
GEOMEAN_SAME_PLANS = "geomean_same_plans"
"""Over the queries whose plans are the baseline's: what an overhead is without that of other plans (DESIGN §4)."""
ANOTHER_PLAN = "another plan"
"""Why such a query is left out."""
RATIO_OF_TOTALS = "ratio_of_totals"
QUERY = "query:"
"""Begins the estimands of single queries."""

Location = Callable[[Floats, int], Floats]
"""Location of an array along one axis."""


def mean(values: Floats, axis: int) -> Floats:
    """The papers' location; dbtoll's own is `stats.midmean`."""
    return np.asarray(np.mean(values, axis=axis))


def log_ratios(ns: Floats, arm: int, references: Sequence[int]) -> Floats:
    """[..., block, query]: log of an arm's time over the geometric mean of the references' in the same block.

    Where one of two baseline copies is missing, the other stands alone: both are the same thing, so nothing is biased.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(ns)
        return np.asarray(logs[..., arm] - _mean_of_present(logs[..., list(references)]))


def round_effects(ns: Floats, arm: int, references: Sequence[int]) -> Floats:
    """[..., round, query]: the robust location of the paired log ratios of a round's blocks."""
    return stats.midmean(log_ratios(ns, arm, references), -2)


def round_totals(ns: Floats, arm: int, references: Sequence[int], location: Location = stats.midmean) -> Floats:
    """[..., round]: log of the arm's total over the references'.

    A total is the sum over queries of the location of a round's blocks; the references' time in a block is their geometric mean.
    With one reference and the arithmetic mean for location this is the estimand of Minhas et al. 2008 and Mühlbauer et al. 2015.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        pair = np.stack([ns[..., arm], np.exp(_mean_of_present(np.log(ns[..., list(references)])))], axis=-1)
        # Blocks have parameters of their own: one that one side lacks is left out for both.
        paired = np.where(np.isnan(pair).any(axis=-1, keepdims=True), np.nan, pair)
        totals = np.log(location(paired, -3).sum(axis=-2))
        return np.asarray(totals[..., 0] - totals[..., 1])


def _mean_of_present(values: Floats) -> Floats:
    if values.shape[-1] == 1:
        return np.asarray(values[..., 0])
    missing = np.isnan(values)
    if not missing.any():
        return np.asarray(values.mean(axis=-1))
    count = np.sum(~missing, axis=-1)
    return np.asarray(np.where(missing, 0.0, values).sum(axis=-1) / count)


@dataclass(frozen=True, slots=True)
class Effect:
    """One estimand of one arm. Log scale; `shown` and `decisive` are already widened by ``widened_by``.

    ``decisive``: what the verdict rests on; longer than ``shown`` for starts that may depend on each other, and of queries
    for their number.

    ``rounds``: in how many the effect has a value. ``reason``: why there is no interval, or none with an upper bound.
    ``left_out``: queries that an aggregate had to do without, each with why. ``first_execution``: the same
    effect for first runs after a start, of its own interval. ``by_round``: each round with its effect, none of a bound;
    ``dependence``: see `stats.dependence`.
    """

    arm: str
    baseline: str
    is_aa: bool
    estimand: str
    rounds: int
    shown: Interval | None = None
    decisive: Interval | None = None
    p_holm: float | None = None
    verdict: Verdict = Verdict.CANNOT_TELL
    reason: str | None = None
    left_out: tuple[str, ...] = ()
    first_execution: Interval | None = None
    components: Components = field(default_factory=Components)
    widened_by: float = 0.0
    by_round: tuple[tuple[int, float], ...] = ()
    dependence: float | None = None

    @property
    def query(self) -> str | None:
        """The query that it is about; None of an aggregate."""
        return self.estimand.removeprefix(QUERY) if self.estimand.startswith(QUERY) else None


@dataclass(frozen=True, slots=True)
class Pair:
    """Which arm is set against which; ``references`` are the indexes of the baseline and its copies."""

    arm: str
    baseline: str
    is_aa: bool
    index: int
    references: tuple[int, ...]


def pairs(arms: Sequence[str], held_against: Mapping[str, str], copies: Mapping[str, str]) -> list[Pair]:
    """Each copy against its original, each other arm against the mean of the logs of its baseline and the copies of that.

    ``held_against``: arm -> its baseline, copy -> its original; ``copies``: the latter alone.
    """
    found = []
    for index, arm in enumerate(arms):
        baseline = held_against.get(arm)
        if baseline is None or baseline not in arms:
            continue
        of_it = [arms.index(copy) for copy, original in copies.items() if original == baseline and copy in arms]
        references = (arms.index(baseline), *(() if arm in copies else of_it))
        found.append(Pair(arm, baseline, arm in copies, index, references))
    return found


def geomean_rounds(times: TimeArray, pair: Pair) -> Floats:
    """[round]: the geomean effect in each round that has it, for the stopping rule. Empty where there can be no interval."""
    measured = _Measured(times, pair)
    return np.empty(0) if measured.hindered or measured.bound else measured.aggregate_effects


def contrast(level: TimeArray, against: TimeArray, pair: Pair, precision: Precision) -> Effect:
    """How much larger an arm's geomean effect is at one level of a factor than at another.

    Log scale. Over the queries that have a value at both levels, paired by round: both belong to the same starts. The verdict is
    `contrasts`' to say.
    """
    first, second = _Measured(level, pair), _Measured(_of_queries(against, level.queries), pair)
    queries = np.logical_and(first.kept, second.kept)
    left_out = tuple(dict.fromkeys((*first.left_out, *second.left_out)))
    blank = Effect(pair.arm, pair.baseline, pair.is_aa, GEOMEAN, 0, left_out=left_out)
    if reason := first.hindered or second.hindered:
        return replace(blank, reason=reason)
    first, second = first.only(queries), second.only(queries)
    if bound := first.bound or second.bound:
        return replace(blank, reason=bound)
    values = [
        dict(zip(np.array(each.times.rounds)[each.whole], each.aggregate_effects, strict=True))
        for each in (first, second)
    ]
    common = sorted(set(values[0]) & set(values[1]))
    differences = np.array([values[0][number] - values[1][number] for number in common])
    found = stats.interval(differences, 1 - precision.confidence, precision.rounds_min)
    if found is None:
        return replace(blank, rounds=len(common), reason=_too_few(len(common)))
    return replace(blank, rounds=len(common), shown=found.shown, decisive=found)


def missing(left_out: Sequence[str]) -> tuple[str, ...]:
    """What an aggregate had to do without, other than what its estimand is to do without."""
    return tuple(why for why in left_out if not why.endswith(ANOTHER_PLAN))


def guarded(verdict: Verdict, lacking: Sequence[str]) -> Verdict:
    """Where anything of an arm is missing, nobody can say that it loses nothing, or gains."""
    return Verdict.CANNOT_TELL if lacking and verdict in (Verdict.NO_DIFFERENCE, Verdict.GAINS) else verdict


def compare(
    steady: TimeArray,
    first: TimeArray | None,
    held_against: Mapping[str, str],
    copies: Mapping[str, str],
    precision: Precision,
    *,
    per_query: bool,
    other_plans: Mapping[str, Collection[str]] | None = None,
) -> list[Effect]:
    """All effects of one metric under one combination of levels, A/A first.

    ``held_against``, ``copies``: see `pairs`. ``other_plans``: arm -> queries for which it has other plans
    than its baseline. An arm that has such, or is compared with a copy that has, gets `GEOMEAN_SAME_PLANS` too.
    """
    other_plans = other_plans or {}
    first = _of_queries(first, steady.queries) if first else None
    ordered = sorted(pairs(steady.arms, held_against, copies), key=lambda pair: not pair.is_aa)
    effects: list[Effect] = []
    for pair in ordered:
        beside = [effect for effect in effects if effect.estimand == GEOMEAN and effect.is_aa]
        alarm = 0.0 if pair.is_aa else reach(of_both_sides(beside, pair.arm, pair.baseline))
        changed = _changed(steady, pair, other_plans)
        found = _effects(steady, first, pair, precision, per_query=per_query, changed=changed, alarm=alarm)
        effects += [_judged(effect, alarm, precision) for effect in found]
    return effects


def _of_queries(times: TimeArray, queries: tuple[str, ...]) -> TimeArray:
    """The same of these queries, in their order. A kind of transaction that never ended has no times anywhere."""
    if times.queries == queries:
        return times
    places = [times.queries.index(query) if query in times.queries else None for query in queries]

    def chosen(values: Floats, axis: int, missing: float) -> Floats:
        columns = [
            np.full_like(values.take(0, axis), missing) if at is None else values.take(at, axis) for at in places
        ]
        return np.stack(columns, axis)

    cut_ns = None if times.cut_ns is None else chosen(times.cut_ns, 2, math.nan)
    return replace(
        times, queries=queries, ns=chosen(times.ns, 2, math.nan), failed=chosen(times.failed, 0, 0.0), cut_ns=cut_ns
    )


def _changed(times: TimeArray, pair: Pair, other_plans: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Queries whose plans are not the same in all arms of a comparison."""
    arms = {pair.arm, *(times.arms[index] for index in pair.references)}
    return frozenset(query for arm in arms for query in other_plans.get(arm, ())) & frozenset(times.queries)


def of_both_sides(copies: Sequence[Effect], arm: str, baseline: str) -> list[Effect]:
    """The A/A effects that tell of the noise in a comparison: of the copies of either arm."""
    return [effect for effect in copies if effect.is_aa and effect.baseline in (arm, baseline)]


def reach(effects: Sequence[Effect]) -> float:
    """How far A/A reaches from 0, where its interval excludes 0; else 0. ``effects``: of one estimand; those of A/A count.

    BIAS: then two copies of one thing differ by more than chance, so any other difference may be of that kind too. The
    far bound, not the length: a precise A/A that lies far from 0 is the worse news.
    """
    reaches = [
        max(abs(effect.decisive.low), abs(effect.decisive.high))
        for effect in effects
        if effect.is_aa and effect.decisive and effect.decisive.excludes_zero and not effect.decisive.is_bound
    ]
    return max(reaches, default=0.0)


def _judged(effect: Effect, alarm: float, precision: Precision) -> Effect:
    shown = effect.shown.widened(alarm) if effect.shown else None
    decisive = effect.decisive.widened(alarm) if effect.decisive else None
    said = guarded(stats.verdict(decisive, effect.rounds, precision), missing(effect.left_out))
    return replace(effect, shown=shown, decisive=decisive, verdict=said, widened_by=alarm if shown else 0.0)


def _effects(
    steady: TimeArray,
    first: TimeArray | None,
    pair: Pair,
    precision: Precision,
    *,
    per_query: bool,
    changed: frozenset[str],
    alarm: float,
) -> list[Effect]:
    alpha = 1 - precision.confidence
    rounds_min = precision.rounds_min
    measured = _Measured(steady, pair)
    first_executions = _Measured(first, pair, measured.kept) if first else None
    left_out = measured.left_out
    if first_executions:
        left_out += tuple(
            f"first execution of {why}" for why in first_executions.left_out if why not in measured.left_out
        )
    blank = Effect(pair.arm, pair.baseline, pair.is_aa, GEOMEAN, 0)

    def effect(
        estimand: str, rounds: Floats, values: Floats, blocks: Floats, first_values: Floats | None, bound: str | None
    ) -> Effect:
        found = stats.interval(values, alpha, rounds_min)
        # "At least" is a claim, with no second line beside it that says more carefully how far it goes.
        bounded = found.at_least() if found and bound else None
        first_effect = None if first_values is None else stats.interval(first_values, alpha, rounds_min)
        return replace(
            blank,
            estimand=estimand,
            rounds=len(values),
            shown=bounded or (found.shown if found else None),
            decisive=bounded or found,
            reason=bound if found else _too_few(len(values)),
            first_execution=first_effect.shown if first_effect else None,
            components=stats.components(blocks),
            by_round=() if bound else tuple(zip(rounds.tolist(), values.tolist(), strict=True)),
            dependence=None if bound else stats.dependence(values),
        )

    result: list[Effect] = []
    hindered = measured.hindered or (first_executions.hindered if first_executions else None)
    if hindered is None:
        bound, whole = measured.bound, measured.numbers[measured.whole]
        told = _with_figures(first_executions)
        first_geomean = told.aggregate_effects if told else None
        result.append(effect(GEOMEAN, whole, measured.aggregate_effects, measured.block_effects, first_geomean, bound))
        if per_query:
            first_total = told.aggregate_totals if told else None
            result.append(
                effect(RATIO_OF_TOTALS, whole, measured.aggregate_totals, measured.block_totals, first_total, bound)
            )
        result = [replace(found, left_out=left_out) for found in result]
    else:
        nothing = replace(blank, reason=hindered, left_out=() if measured.absent else left_out)
        result += [nothing, *([replace(nothing, estimand=RATIO_OF_TOTALS)] if per_query else [])]
    if per_query and changed:
        result.append(_same_plans(measured, first_executions, effect, blank, changed))
    if per_query:
        result += _query_effects(measured, first_executions, effect, blank, precision, alarm)
    return result


def _same_plans(
    measured: _Measured,
    first_executions: _Measured | None,
    effect: Callable[[str, Floats, Floats, Floats, Floats | None, str | None], Effect],
    blank: Effect,
    changed: frozenset[str],
) -> Effect:
    """The geomean over the queries whose plans are the same."""
    same = np.array([query not in changed for query in measured.times.queries])
    few, few_first = measured.only(same), first_executions.only(same) if first_executions else None
    left_out = tuple(f"{query}: {ANOTHER_PLAN}" for query in measured.times.queries if query in changed)
    left_out += few.left_out
    blank = replace(blank, estimand=GEOMEAN_SAME_PLANS, left_out=left_out)
    if hindered := few.hindered or (few_first.hindered if few_first else None):
        return replace(blank, reason=hindered if few.kept.any() else "no query has a value and the same plan")
    told = _with_figures(few_first)
    first_values = told.aggregate_effects if told else None
    found = effect(
        GEOMEAN_SAME_PLANS, few.numbers[few.whole], few.aggregate_effects, few.block_effects, first_values, few.bound
    )
    return replace(found, left_out=left_out)


def _with_figures(first_executions: _Measured | None) -> _Measured | None:
    """First executions, where their aggregates have a figure."""
    return (
        first_executions
        if first_executions and first_executions.bound is None and first_executions.hindered is None
        else None
    )


def _query_effects(
    measured: _Measured,
    first_executions: _Measured | None,
    effect: Callable[[str, Floats, Floats, Floats, Floats | None, str | None], Effect],
    blank: Effect,
    precision: Precision,
    alarm: float,
) -> list[Effect]:
    """Per query, adjusted for all that have an interval; ``alarm``: by how much they will be widened."""
    found: list[Effect] = []
    for index, query in enumerate(measured.times.queries):
        reason = measured.reasons[index] or (first_executions.failing[index] if first_executions else None)
        if reason:
            found.append(replace(blank, estimand=QUERY + query, reason=reason))
        else:
            values, bound = measured.query_effects(index), measured.bounds[index]
            first_values = (
                first_executions.query_effects(index)
                if first_executions and not first_executions.bounds[index]
                else None
            )
            rounds = measured.numbers[measured.finite[:, index]]
            found.append(effect(QUERY + query, rounds, values, measured.ratios[:, :, index], first_values, bound))
    shown = [item.shown for item in found if item.shown]
    low, high = math.log1p(-precision.margin) + alarm, math.log1p(precision.margin) - alarm
    alphas = stats.family_alphas(shown, 1 - precision.confidence, low, high)
    adjusted = iter(zip(stats.holm_p([each.p for each in shown]), alphas, strict=True))
    result = []
    for index, item in enumerate(found):
        if item.shown:
            p_holm, alpha = next(adjusted)
            decisive = stats.interval(measured.query_effects(index), alpha, precision.rounds_min)
            assert decisive is not None
            decisive = decisive.at_least() if item.shown.is_bound else decisive
            result.append(replace(item, p_holm=p_holm, decisive=decisive))
        else:
            result.append(item)
    return result


class _Measured:
    """What one pair's visits give, query by query and round by round; of the queries in ``asked``, or all.

    - A query that failed anywhere in the arm or the baseline, or was censored in the baseline, has no figure; then neither have the
      aggregates (``hindered``): what does not work cannot be left out of a mean.
    - One that was censored in the arm takes part with what it took at least: so the effect is one from below (``bounds``).
    - One that cost nothing or less in some visit has no ratio (``_lost_in_noise``), and is left out.
    - One that has a value in no more than half of the rounds, its visits being void, is left out of the aggregates in *all*
      rounds; a round that lacks one of the queries kept is left out of the aggregates. So every round's aggregate is over the same
      queries.
    """

    def __init__(self, times: TimeArray, pair: Pair, asked: Floats | None = None) -> None:
        self.times = times
        self.ns = times.ns if times.cut_ns is None else times.cut_ns
        self.ratios = log_ratios(self.ns, pair.index, pair.references)
        self.effects = stats.midmean(self.ratios, -2)
        self.numbers = np.array(times.rounds)
        self.finite = np.isfinite(self.effects)
        self.here = (~np.isnan(times.ns[..., pair.index])).any(axis=(1, 2))
        self._pair = pair
        every = range(len(times.queries))
        self.asked = np.ones(len(times.queries), dtype=bool) if asked is None else asked
        self.failing = [self._failing(index) for index in every]
        self.bounds = [self._censored(index, pair.index) for index in every]
        failed = self._told(self.failing)
        nowhere = not self.here.any() and not failed
        self.absent = f"no visit of {times.arms[pair.index]} counts" if nowhere else None
        self.reasons = [
            self.absent or self.failing[index] or self._lost_in_noise(index) or self._missing(index) for index in every
        ]
        self.kept = np.logical_and([reason is None for reason in self.reasons], self.asked)
        self.left_out = tuple(self._told(self.reasons))
        self.whole = self.finite[:, self.kept].all(axis=1) & self.here if self.kept.any() else self.here & False
        bounded = np.logical_and(self.kept, [bound is not None for bound in self.bounds])
        self.bound = "; ".join(self._told(self.bounds)) if bounded.any() else None
        """Why the aggregates have no upper bound."""
        self.hindered = self.absent or "; ".join(failed) or None
        """Why the aggregates have no figure at all."""
        if self.hindered is None and not self.kept.any():
            self.hindered = "no query has a value: " + "; ".join(self.left_out)

    def _told(self, reasons: Sequence[str | None]) -> list[str]:
        """``Q9: 2 visits of docker failed …``, of the queries asked for that have a reason."""
        told = zip(self.times.queries, reasons, self.asked, strict=True)
        return [f"{query}: {why}" for query, why, asked in told if why is not None and asked]

    def _failing(self, query: int) -> str | None:
        for arm in (self._pair.index, *self._pair.references):
            if failed := int(self.times.failed[query, arm]):
                return f"{failed} visit{'s' if failed > 1 else ''} of {self.times.arms[arm]} failed or answered wrongly"
        return next((why for arm in self._pair.references if (why := self._censored(query, arm))), None)

    def _censored(self, query: int, arm: int) -> str | None:
        censored = int(np.isposinf(self.times.ns[:, :, query, arm]).sum())
        many = "s" if censored > 1 else ""
        return f"{censored} visit{many} of {self.times.arms[arm]} ran into the statement timeout" if censored else None

    def _lost_in_noise(self, query: int) -> str | None:
        """A cost that is a difference may come out below zero, and has no ratio then.

        Without those visits alone the rest would be too high.
        """
        for arm in (self._pair.index, *self._pair.references):
            if lost := int((self.ns[:, :, query, arm] <= 0).sum()):
                many = "s" if lost > 1 else ""
                return f"{lost} visit{many} of {self.times.arms[arm]} found a cost below zero: noise is more than it"
        return None

    def _missing(self, query: int) -> str | None:
        rounds, present = int(self.here.sum()), int(self.finite[:, query].sum())
        return f"it has a value in {present} of {rounds} rounds" if 2 * present <= rounds else None

    def only(self, queries: Floats) -> _Measured:
        """The same for those of its queries for which ``queries`` is true."""
        return _Measured(self.times, self._pair, np.logical_and(self.asked, queries))

    @property
    def aggregate_effects(self) -> Floats:
        """[round]: mean over the queries kept."""
        return np.asarray(self.effects[self.whole][:, self.kept].mean(axis=1)) if self.kept.any() else np.empty(0)

    @property
    def aggregate_totals(self) -> Floats:
        return round_totals(self.ns[self.whole][:, :, self.kept], self._pair.index, self._pair.references)

    @property
    def block_effects(self) -> Floats:
        return np.asarray(self.ratios[self.whole][:, :, self.kept].mean(axis=2))

    @property
    def block_totals(self) -> Floats:
        ns = self.ns[self.whole][:, :, self.kept]
        return round_totals(ns[:, :, np.newaxis], self._pair.index, self._pair.references)

    def query_effects(self, query: int) -> Floats:
        """[round]: the rounds in which the query has a value."""
        return np.asarray(self.effects[self.finite[:, query], query])


def _too_few(rounds: int) -> str:
    return "no complete round" if rounds == 0 else "an interval needs two complete rounds, there is one"
