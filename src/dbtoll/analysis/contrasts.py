"""What a level of a factor costs an arm beyond what it costs the baseline: is a new connection dearer in a guest?"""

from __future__ import annotations

from collections.abc import Iterator

from dbtoll.analysis import stats
from dbtoll.analysis.compare import Pair, contrast, pairs
from dbtoll.analysis.measured import Measured
from dbtoll.analysis.samples import Times, main_metric
from dbtoll.analysis.shape import Contrast, Levels, fractions


def find_all(measured: Measured) -> Iterator[Contrast]:
    """For each factor with several levels, each of them against the first, for every arm."""
    experiment = measured.run.plan.experiment
    metric = main_metric(measured.visits, experiment)
    for factor, levels_of_factor in experiment.factors.items():
        against = levels_of_factor[0]
        for levels in measured.levels:
            level = levels.get(factor)
            if level is None or level == against:
                continue
            high = measured.times(levels, metric, False)
            low = measured.times({**levels, factor: against}, metric, False)
            if high is None or low is None:
                continue
            others = {name: value for name, value in levels.items() if name != factor}
            for pair in pairs(high.arms, experiment.baseline, measured.copies):
                yield _contrast(measured, pair, high, low, factor, level, against, others)


def _contrast(
    measured: Measured, pair: Pair, high: Times, low: Times, factor: str, level: str, against: str, others: Levels
) -> Contrast:
    precision = measured.run.plan.experiment.precision
    found, rounds = contrast(high, low, pair, precision)
    shown = fractions(found)
    return Contrast(
        arm=pair.arm,
        baseline=pair.baseline,
        is_aa=pair.is_aa,
        factor=factor,
        level=level,
        against=against,
        levels=others,
        estimate=shown.estimate if shown else None,
        low=shown.low if shown else None,
        high=shown.high if shown else None,
        p=found.p if found else None,
        verdict=stats.verdict(found, rounds, precision.margin),
        rounds=rounds,
    )
