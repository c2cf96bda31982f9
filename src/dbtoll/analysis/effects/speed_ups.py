"""How many times as fast an arm answers with more threads: within the arm, from the same starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dbtoll.analysis.effects.comparisons import GEOMEAN, RATIO_OF_TOTALS, Effect, compare
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import Bounds, Levels, SpeedUp
from dbtoll.analysis.visits.arrays import TimeArray, nothing
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.experiment import THREADS


def find_all(measured: ValidVisits) -> Iterator[SpeedUp]:
    """For every arm each number of threads against the lowest, of all queries together and of each.

    A number of threads is set against the lowest as an arm is against the baseline: paired by round and block, which have the same
    parameters (`plan.Plan`), so all that holds of comparisons holds here: what failed has no figure, and what ran into its timeout
    has a bound.
    """
    experiment = measured.run.plan.experiment
    numbers = experiment.factors.get(THREADS, ())
    if len(numbers) < 2:
        return
    against = dict.fromkeys(numbers[1:], numbers[0])
    for levels in measured.levels:
        if levels.get(THREADS) != numbers[0]:
            continue
        others = {factor: level for factor, level in levels.items() if factor != THREADS}
        times = {n: measured.times({**levels, THREADS: n}, measured.main_metric, False) for n in numbers}
        for arm in measured.arms:
            array = _by_threads(times, arm, measured.run.plan.queries)
            for effect in compare(array, None, against, {}, experiment.precision, per_query=True):
                if effect.estimand != RATIO_OF_TOTALS:
                    yield _speed_up(measured, effect, arm, others)


def _by_threads(times: Mapping[str, TimeArray | None], arm: str, queries: tuple[str, ...]) -> TimeArray:
    """[round, block, query, number of threads] of one arm."""
    known = {n: found for n, found in times.items() if found is not None}
    rounds = tuple(sorted({number for found in known.values() for number in found.rounds}))
    blocks = max((found.ns.shape[1] for found in known.values()), default=0)
    whole = nothing(queries, tuple(times))
    ns = np.full((len(rounds), blocks, len(queries), len(times)), np.nan)
    cut_ns, failed, is_cut = ns.copy(), whole.failed, False
    for place, n in enumerate(times):
        if (found := known.get(n)) is None:
            continue
        at = [rounds.index(number) for number in found.rounds]
        here = slice(found.ns.shape[1])

        def of_arm(values: Floats, index: int = found.arm(arm)) -> Floats:
            return values[..., index]

        ns[at, here, :, place] = of_arm(found.ns)
        cut_ns[at, here, :, place] = of_arm(found.ns if found.cut_ns is None else found.cut_ns)
        failed[:, place] = of_arm(found.failed)
        is_cut = is_cut or found.cut_ns is not None
    return TimeArray(rounds, queries, tuple(times), ns, failed, cut_ns if is_cut else None)


def _speed_up(measured: ValidVisits, effect: Effect, arm: str, others: Levels) -> SpeedUp:
    """The other way round than an overhead: above 1 is less time."""
    wrong = measured.invalid(arm, effect.query)
    told = Bounds.of(None if wrong else effect.shown)

    def times_as_fast(overhead: float | None) -> float | None:
        return None if overhead is None else 1 / (1 + overhead)

    return SpeedUp(
        arm=arm,
        levels=others,
        threads=int(effect.arm),
        against=int(effect.baseline),
        estimand=effect.estimand,
        estimate=times_as_fast(told.estimate),
        low=times_as_fast(told.high),
        high=times_as_fast(told.low),
        rounds=effect.rounds,
        reason=wrong or effect.reason,
        left_out=effect.left_out if effect.estimand == GEOMEAN else (),
    )
