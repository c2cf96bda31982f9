"""What a level of a factor costs an arm beyond what it costs the baseline: is a new connection dearer in a guest?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.comparisons import GEOMEAN, Effect, contrast, guarded, of_both_sides, pairs, reach
from dbtoll.analysis.result.schema import Bounds, Comparison, Contrast, Levels
from dbtoll.analysis.visits.arrays import nothing
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model import neighbours
from dbtoll.model.neighbours import NEIGHBOUR


def find_all(measured: ValidVisits, comparisons: Sequence[Comparison]) -> Iterator[Contrast]:
    """For each factor with several levels, each of them against the first, for every arm; of a neighbour against the level that it
    names.

    ``comparisons``: of the same run; what stands in the way of their verdicts stands in the way of these too.
    """
    experiment = measured.run.plan.experiment
    metric = measured.main_metric
    of_main = [c for c in comparisons if c.metric == metric and c.estimand == GEOMEAN]
    for factor, levels_of_factor in experiment.factors.items():
        for levels in measured.levels:
            level = levels.get(factor)
            against = neighbours.against(level or neighbours.NONE) if factor == NEIGHBOUR else levels_of_factor[0]
            if level is None or level == against or against is None:
                continue
            empty = nothing(measured.run.plan.queries, measured.arms)
            high, low = (
                measured.times(chosen, metric, False) or empty for chosen in (levels, {**levels, factor: against})
            )
            beside = [c for c in of_main if c.levels in (levels, {**levels, factor: against})]
            others = {name: value for name, value in levels.items() if name != factor}
            found = [
                contrast(high, low, pair, experiment.precision)
                for pair in pairs(high.arms, experiment.held_against, experiment.copies)
            ]
            for effect in found:
                between = reach(of_both_sides(found, effect.arm, effect.baseline))
                own = [c for c in beside if c.arm == effect.arm]
                asked = _Asked(factor, level, against, others)
                yield _contrast(measured, effect, asked, own, 0.0 if effect.is_aa else between)


@dataclass(frozen=True, slots=True)
class _Asked:
    factor: str
    level: str
    against: str
    others: Levels


def _contrast(
    measured: ValidVisits, effect: Effect, asked: _Asked, beside: Sequence[Comparison], between: float
) -> Contrast:
    """``beside``: the arm's comparisons at the two levels; ``between``: how far A/A's own contrast reaches from 0, log scale.

    BIAS: what two copies show at a level may be in an arm at that level alone, so the two levels' alarms add up.
    """
    precision = measured.run.plan.experiment.precision
    widened_by = max(between, sum(math.log1p(c.widened_by) for c in beside))
    bars = measured.bars(effect.arm)
    shown, decisive = (each.widened(widened_by) if each else None for each in (effect.shown, effect.decisive))
    verdict = bars.allow(guarded(stats.verdict(decisive, effect.rounds, precision), effect.left_out))
    why = (
        effect.reason
        or bars.all_of_them
        or stats.too_few(effect.rounds, precision)
        or "; ".join([*bars.good_news, *effect.left_out])
    )
    told, found = Bounds.of(shown), Bounds.of(None if bars.all_of_them else decisive)
    return Contrast(
        arm=effect.arm,
        baseline=effect.baseline,
        is_aa=effect.is_aa,
        factor=asked.factor,
        level=asked.level,
        against=asked.against,
        levels=asked.others,
        estimate=told.estimate,
        low=told.low,
        high=told.high,
        p=effect.shown.p if effect.shown else None,
        verdict=verdict,
        rounds=effect.rounds,
        reason=why or None,
        left_out=effect.left_out,
        widened_by=math.expm1(widened_by) if decisive else 0.0,
        low_decisive=found.low,
        high_decisive=found.high,
    )
