"""When to stop: after whole rounds, at the target or at the end of the budget (DESIGN §5; docs/method/stopping.md). Pure."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.comparisons import GEOMEAN, Pair, geomean_rounds, pairs
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import EffectResult, Result, fractions, varied_factors
from dbtoll.analysis.uncollected import uncollected
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.experiment import THREADS, Precision, Verdict
from dbtoll.plan import thinned_arms
from dbtoll.store.reader import Run
from dbtoll.text import noun

TARGET_REACHED = "target reached"
NO_INTERVAL = "no arm has an interval"
"""The copies of the baseline meet the target, and no arm can be compared with them."""
BUDGET_ENDED = "budget ended"
ROUNDS_MAX = "rounds_max"

_MOST_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Decision:
    """``reason`` is None while it goes on. ``rounds_needed``: in all, for the target; None if it cannot be told yet."""

    reason: str | None
    rounds_needed: int | None

    @property
    def stop(self) -> bool:
        """Whether no further round is begun."""
        return self.reason is not None


def decide(
    effects: Sequence[Floats],
    elapsed_s: float,
    next_round_s: float,
    precision: Precision,
    rounds: int,
    thinned: Sequence[Floats] = (),
) -> Decision:
    """Whether to begin another round.

    ``effects``: for each comparison that has to meet the target (`deciding`), its effects per round so far, log scale;
    ``thinned``: of arms that need the rounds of slow ones and no target, and can have more (docs/adr/0026); ``rounds``: complete
    rounds so far; ``next_round_s``: how long the next is predicted to take. The one round that a verdict lacks is begun also where
    the budget ends within it: without it all rounds before it were for nothing.
    """
    alpha = 1 - precision.confidence
    intervals = [stats.interval(values, alpha, precision.rounds_min) for values in effects]
    needed = [rounds_needed(values, precision) for values in effects]
    known = [count for count in needed if count is not None]
    all_needed = max(known) if known and len(known) == len(needed) else None
    met = bool(effects) and all(stats.precise_enough(found, precision) for found in intervals)
    enough = all(len(values) >= precision.rounds_to_decide for values in effects)
    if met and enough and all(len(values) >= precision.rounds_of_slow for values in thinned):
        return Decision(TARGET_REACHED, all_needed)
    return Decision(_over(elapsed_s, next_round_s, precision, rounds), all_needed)


def _over(elapsed_s: float, next_round_s: float, precision: Precision, rounds: int) -> str | None:
    """Why no further round is begun, whatever the effects are; None to go on."""
    if rounds >= precision.rounds_max:
        return ROUNDS_MAX
    lacks_one = rounds == precision.rounds_to_decide - 1 and elapsed_s <= precision.budget_s
    return BUDGET_ENDED if elapsed_s + next_round_s > precision.budget_s and not lacks_one else None


def must_look(elapsed_s: float, next_round_s: float, precision: Precision, rounds: int) -> bool:
    """Whether to look at the effects after so many complete rounds: where `is_due` says so, and at the end. Arguments as of
    `decide`."""
    return is_due(rounds) or _over(elapsed_s, next_round_s, precision, rounds) is not None


def is_due(rounds: int) -> bool:
    """Whether a look falls on so many rounds: one follows another after a tenth more rounds, rounded down, at least one.

    So up to 20 after every round, then after 22, 24 … 50, 55 … A look reads all rounds so far; spaced like this, all looks of a run
    together read at most twelve times as many rounds as there are (docs/adr/0021-looks-are-spaced-geometrically.md).
    """
    looked = 0
    while looked < rounds:
        looked += max(1, looked // 10)
    return looked == rounds


def deciding(arms: Sequence[Floats], copies: Sequence[Floats]) -> list[Floats]:
    """What has to meet the target: every arm, and the A/A copies brought to the spread that an arm like them has.

    A rule that looks at an arm's spread alone stops where that spread happens to look small, and its interval then
    covers too little. A/A's spread tells of the same noise and is nearly independent of the arm's, so both seldom look
    small at once; with `stats.look_factor` this keeps the coverage (docs/method/stopping.md). ``arms``, ``copies``:
    effects per round; a copy's are against the original alone, an arm's against the mean of all baseline copies.
    """
    with_values = [values for values in arms if len(values)]
    references = 1 + len(copies)
    shrink = math.sqrt((1 + 1 / references) / 2) if with_values else 1.0
    return with_values + [values * shrink for values in copies if len(values)]


def rounds_needed(values: Floats, precision: Precision) -> int | None:
    """Rounds in all until the half-width meets the target, if the spread stays as it is now; None for one round."""
    if len(values) < 2:
        return None
    variance = float(np.var(values, ddof=1))
    target = math.log1p(precision.target)
    return _first(precision.rounds_to_decide, lambda rounds: _half_width(rounds, variance, precision) <= target)


def rounds_to_verdict(values: Floats, precision: Precision) -> int | None:
    """Rounds in all until the interval lies on one side of 0 or within the margin, if mean and spread stay as they are now; None
    where there are fewer than two, or no number of them would do."""
    if len(values) < 2:
        return None
    mean, variance = float(np.mean(values)), float(np.var(values, ddof=1))
    room = max(abs(mean), min(math.log1p(precision.margin) - mean, mean - math.log1p(-precision.margin)))
    return _first(
        max(precision.rounds_to_decide, len(values) + 1), lambda n: _half_width(n, variance, precision) < room
    )


def _first(least: int, enough: Callable[[int], bool]) -> int | None:
    candidates = range(least, _MOST_ROUNDS)
    index = bisect.bisect_left(candidates, True, key=enough)
    return candidates[index] if index < len(candidates) else None


def _half_width(rounds: int, variance: float, precision: Precision) -> float:
    factor = stats.look_factor(rounds, precision.rounds_min)
    quantile = stats.t_quantile(1 - (1 - precision.confidence) / 2, rounds - 1)
    return quantile * math.sqrt(variance * factor / rounds) * stats.usually_lengthened(rounds)


@dataclass(frozen=True, slots=True)
class Undecided:
    """An arm without a verdict (with its levels, if they vary). ``rounds``: that it lacks, if mean and spread stay as they are;
    None where that cannot be told. ``more_s``: how long they would take."""

    arm: str
    rounds: int | None
    more_s: float | None


def undecided(result: Result, run: Run) -> list[Undecided]:
    """What the headlines of ``result`` could not tell, and what it would take: rounds as long as the last one that counts."""
    ended = [attempt.end.elapsed_s - attempt.begin.elapsed_s for attempt in run.counted if attempt.end]
    headlines = [
        told
        for told in result.comparisons
        if not told.is_aa and told.estimand == GEOMEAN and told.metric == result.main_metric
    ]
    varied = varied_factors(told.levels for told in headlines)
    precision = run.plan.experiment.precision
    thinned = thinned_arms(run.plan.experiment, run.plan.slow)
    decided = precision.rounds_of_slow >= precision.rounds_to_decide
    without = thinned - (_may_go_on(thinned, run, precision) if decided else set())  # no further round would have them
    found = []
    for told in headlines:
        if told.verdict != Verdict.CANNOT_TELL or told.arm in without:
            continue
        values = np.log1p([each.effect for each in told.by_round])
        needed = rounds_to_verdict(values, precision)
        lacks = None if needed is None else needed - len(values)
        where = _where(told.levels, varied)
        found.append(
            Undecided(
                told.arm + (f" ({where})" if where else ""), lacks, lacks * ended[-1] if lacks and ended else None
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """What is known after a round. ``intervals``: an arm's name (with its levels, if they vary) -> geomean so far of ``metric``.
    ``settled``: arms that sit out what follows. ``rounds``: an arm -> those in which it has an effect at every combination of
    levels that can have one: in none of them a query lacks its visits."""

    decision: Decision
    metric: str
    intervals: dict[str, EffectResult]
    settled: frozenset[str] = frozenset()
    rounds: Mapping[str, int] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """Why to stop; None to go on."""
        return self.decision.reason


def look(run: Run, precision: Precision, *, elapsed_s: float, next_round_s: float) -> Look:
    """The rule applied to the rounds of ``run`` that are complete, as the analysis will see them: without what the checks void.

    It reads all of them, so it is for when `must_look` says so.

    Every arm's geomean has to meet the target at every combination of levels (`deciding`). An arm without any value
    does not hold the others up; where none has any, the copies of the baseline decide when to stop, and that is the
    reason. ``precision``: the run's own, or the one it was resumed with.
    """
    with uncollected():
        return _looked(run, precision, elapsed_s, next_round_s)


def _looked(run: Run, precision: Precision, elapsed_s: float, next_round_s: float) -> Look:
    experiment = run.plan.experiment
    measured = ValidVisits(run)
    metric = measured.main_metric
    varied = varied_factors(measured.levels)
    found: list[tuple[str, Floats]] = []
    must: list[Floats] = []
    slow: list[Floats] = []
    thinned = thinned_arms(experiment, run.plan.slow)
    may_go_on = _may_go_on(thinned, run, precision)
    rounds: dict[str, int] = {}
    judged = False
    by_levels: list[list[tuple[Pair, Floats]]] = []
    for levels in measured.levels:
        times = measured.times(levels, metric, False)
        where = _where(levels, varied)
        if times is None:
            continue
        compared = [
            (pair, geomean_rounds(times, pair))
            for pair in pairs(times.arms, experiment.held_against, experiment.copies)
        ]
        found += [(pair.arm + (f" ({where})" if where else ""), values) for pair, values in compared]
        by_levels.append(compared)
    settled = settled_arms(by_levels, run.counted[-1].healthy if run.counted else (), precision)
    settled |= {copy for copy, original in experiment.copies.items() if original in settled}
    for compared in by_levels:
        slow += [values for pair, values in compared if pair.arm in may_go_on and len(values)]
        for pair, values in compared:
            if not len(values):  # a query failed or was cut off: no further round would help
                continue
            rounds[pair.arm] = min(len(values), rounds.get(pair.arm, len(values)))
        for baseline in experiment.baselines:
            against = [
                (pair, values) for pair, values in compared if pair.baseline == baseline and pair.arm not in settled
            ]
            of_arms = [values for pair, values in against if not pair.is_aa and pair.arm not in thinned]
            must += deciding(of_arms, [values for pair, values in against if pair.is_aa])
            judged = judged or any(len(values) for values in of_arms)
    intervals = {
        name: effect
        for name, values in found
        if (interval := stats.interval(values, 1 - precision.confidence, precision.rounds_min))
        and (effect := fractions(interval.shown))
    }
    decision = decide(must, elapsed_s, next_round_s, precision, len(run.counted), slow)
    to_judge = set(measured.arms) - {experiment.baseline, *experiment.copies, *thinned, *settled}
    if decision.reason == TARGET_REACHED and to_judge and not judged:
        decision = replace(decision, reason=NO_INTERVAL)
    return Look(decision, metric, intervals, settled, rounds)


def _may_go_on(thinned: Collection[str], run: Run, precision: Precision) -> frozenset[str]:
    """Those of them that get more rounds as long as they lack some."""
    took_part = Counter(arm for attempt in run.counted for arm in attempt.healthy)
    return frozenset(arm for arm in thinned if took_part[arm] < precision.rounds_of_slow_most)


def settled_arms(
    by_levels: Sequence[Sequence[tuple[Pair, Floats]]], took_part: Collection[str], precision: Precision
) -> frozenset[str]:
    """Arms whose decisive interval lies beyond `Precision.settled` at every combination of levels, on the rounds that a verdict
    needs; none where nobody else is left to measure (docs/adr/0028), and none against which one that is not settled is held.

    ``by_levels``: for each combination the compared arms with their effects per round, log scale; ``took_part``: in the last round.
    """
    if precision.settled is None:
        return frozenset()
    arms = {pair.arm for compared in by_levels for pair, _ in compared if not pair.is_aa}
    open_arms = {pair.arm for compared in by_levels for pair, values in compared if not _is_far(values, precision)}
    needed = {pair.baseline for compared in by_levels for pair, _ in compared if pair.arm in arms & open_arms}
    return frozenset(arms - open_arms - needed) if arms & open_arms & set(took_part) else frozenset()


def _is_far(values: Floats, precision: Precision) -> bool:
    found = stats.interval(values, 1 - precision.confidence, precision.rounds_min)
    if found is None or precision.settled is None or len(values) < precision.rounds_to_decide:
        return False
    return found.low > math.log1p(precision.settled) or found.high < math.log1p(-precision.settled)


def _where(levels: Mapping[str, str], varied: Sequence[str]) -> str:
    """``cold, 4 threads``"""
    named = ((name, level) for name, level in levels.items() if name in varied)
    return ", ".join(f"{level} {noun(int(level), 'thread')}" if name == THREADS else level for name, level in named)
