"""Whether throughput kept its level within the measurement windows of an arm (docs/method/transactions.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import EffectResult, Steadiness
from dbtoll.model.experiment import Precision
from dbtoll.model.json import Json

FEWEST_INTERVALS = 20
"""Of a window: fewer hold no beginning apart from the rest."""
BEGINNING = 0.1
"""Share of a window that is its beginning: what a ramp-up that was too short leaves over is in it."""

STEADY_BOUND = 0.10
"""A trend within a window that is worth knowing of: two arms whose trends differ by that are compared half of it wrong."""


def whole_intervals(window: Json) -> list[int]:
    """Transactions in each interval of a window; the last one, if the window's end cuts it, is left out."""
    return list(window["series"][: window["length_ns"] // window["interval_ns"]])


def judge(rounds: Sequence[Sequence[Json]], alpha: float, precision: Precision) -> Steadiness:
    """By the windows of one arm in each round; ``alpha``: level of each of the two tests. Less than the margin does not matter.

    The rounds are the unit: what is alike within a window (a checkpoint, a stall of the machine), or in all windows of one start,
    makes no interval shorter.
    """
    by_round = [
        [np.array(counts, dtype=float) for each in its if any(counts := whole_intervals(each))] for its in rounds
    ]
    by_round = [its for its in by_round if its]
    windows = sum(map(len, by_round))
    if few := stats.too_few(len(by_round), precision):
        return Steadiness(None, windows, None, None, few)
    if min(len(counts) for its in by_round for counts in its) < FEWEST_INTERVALS:
        return Steadiness(None, windows, None, None, f"a window has fewer than {FEWEST_INTERVALS} intervals")
    trend, beginning = (
        _mean(np.array([np.mean([of(counts) for counts in its]) for its in by_round]), alpha) for of in (_rise, _lead)
    )
    margin = precision.margin
    moves = [each for each in (trend, beginning) if (each.low > 0 or each.high < 0) and abs(each.estimate) > margin]
    if moves:
        return Steadiness(False, windows, trend, beginning, _advice(trend, beginning, moves))
    if max(-trend.low, trend.high) <= STEADY_BOUND:
        return Steadiness(True, windows, trend, beginning, None)
    return Steadiness(
        None, windows, trend, beginning, "no trend beyond chance, but more rounds would be needed to exclude one"
    )


def _advice(trend: EffectResult, beginning: EffectResult, moves: Sequence[EffectResult]) -> str:
    still_rising = beginning.estimate < 0 if beginning in moves else trend.estimate > 0
    if still_rising:
        return "a longer ramp_up would help"
    return "it begins above its level: a longer ramp_up and a longer window would help"


def _rise(counts: Floats) -> float:
    """Along the least-squares line through a window, from its start to its end, of its mean."""
    time = np.arange(len(counts)) - (len(counts) - 1) / 2
    slope = float(time @ counts / (time @ time))
    return slope * len(counts) / float(counts.mean())


def _lead(counts: Floats) -> float:
    """How much more is done in the beginning than in the rest, of the window's mean."""
    begun = round(BEGINNING * len(counts))
    return float((counts[:begun].mean() - counts[begun:].mean()) / counts.mean())


def _mean(values: Floats, alpha: float) -> EffectResult:
    found = stats.independent_interval(values, alpha)
    if found is None:
        raise ValueError("fewer than two rounds")
    return EffectResult(found.estimate, found.low, found.high)
