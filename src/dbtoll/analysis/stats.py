"""Pure numerics. Everything is on the log scale, where an effect of one arm against another is a difference.

Formulas and their sources: docs/METHOD.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from dbtoll.model import Precision, Verdict

Floats = NDArray[np.float64]

FEWEST_DRAWS = 5
"""Independent draws that a level of the hierarchy needs before a verdict may rest on it (DESIGN §5)."""

LOOK_PENALTY = 3.0
"""See `look_factor`; found by simulation (METHOD, "Optional stopping")."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence bounds and the p-value of "it is 0"; log scale."""

    estimate: float
    low: float
    high: float
    p: float

    @property
    def half_width(self) -> float:
        """Half of its length."""
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0

    def widened(self, by: float) -> Interval:
        """Longer by ``by`` on both sides; ``p`` stays that of the estimate."""
        return Interval(self.estimate, self.low - by, self.high + by, self.p)

    @property
    def is_bound(self) -> bool:
        """Whether it has a lower bound alone: what was ended by a timeout took at least so long, and nobody knows how long."""
        return math.isinf(self.high)

    def at_least(self) -> Interval:
        """Of values that are all no more than the true ones: its lower bound holds of these too, and nothing else does."""
        return Interval(math.inf, self.low, math.inf, self.p)


def midmean(values: Floats, axis: int) -> Floats:
    """The robust location of this project over the blocks of a round: their mean without the outer quarters.

    Of three or more at least one is cut on each side, so it is the median of three or four; NaN without any value.
    Chosen by simulation (METHOD, "Location").
    """
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.sum(~np.isnan(ordered), axis=axis, keepdims=True)
    cut = np.where(count > 2, np.maximum(count // 4, 1), 0)
    rank = np.arange(ordered.shape[axis]).reshape([-1 if i == axis % ordered.ndim else 1 for i in range(ordered.ndim)])
    chosen = (rank >= cut) & (rank < count - cut)
    with np.errstate(invalid="ignore"):  # no value, or infinities of both signs: NaN
        return np.asarray(np.where(chosen, ordered, 0.0).sum(axis=axis) / chosen.sum(axis=axis))


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t."""
    return float(distributions.t.ppf(probability, degrees))


def t_p_value(t: float, degrees: int) -> float:
    """Two-sided p of a t statistic."""
    return float(2 * distributions.t.sf(abs(t), degrees))


def look_factor(rounds: int, rounds_min: int) -> float:
    """By how much the variance is multiplied because the run could have stopped after each round since the minimum.

    A rule that stops when the spread looks small stops where it looks smaller than it is. 1 at ``rounds_min`` (there
    was no choice yet), at most 1.15 for a minimum of five, and towards 1 again as rounds grow.
    """
    return 1.0 + LOOK_PENALTY * max(rounds - rounds_min, 0) / rounds**2


def interval(values: Floats, alpha: float, rounds_min: int) -> Interval | None:
    """Student's t over rounds at level 1 - ``alpha``. ``values``: one effect per round; None for fewer than two."""
    rounds = len(values)
    if rounds < 2:
        return None
    estimate = float(np.mean(values))
    error = math.sqrt(float(np.var(values, ddof=1)) / rounds * look_factor(rounds, rounds_min))
    reach = t_quantile(1 - alpha / 2, rounds - 1) * error
    p = t_p_value(estimate / error, rounds - 1) if error else float(estimate == 0)
    return Interval(estimate, estimate - reach, estimate + reach, p)


def holm_p(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm 1979)."""
    count = len(p_values)
    adjusted = [0.0] * count
    highest = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def holm_alphas(p_values: Sequence[float], alpha: float) -> list[float]:
    """The level at which Holm's procedure tests each hypothesis: the level of the interval drawn beside it.

    Sorted by p, number k (from 0) of m is tested at alpha / (m - k) until the first that is not rejected; that one and
    all after it keep the level at which the procedure stopped. So an interval excludes 0 exactly where Holm rejects.
    """
    count = len(p_values)
    alphas = [alpha] * count
    stopped_at: int | None = None
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        level = alpha / (count - (rank if stopped_at is None else stopped_at))
        if stopped_at is None and p_values[index] > level:
            stopped_at = rank
        alphas[index] = level
    return alphas


def rounds_to_decide(precision: Precision) -> int:
    """From how many rounds on anything is decided: a verdict, a limit, a contrast, a claim (METHOD, "Over rounds")."""
    return max(FEWEST_DRAWS, precision.rounds_min)


def too_few(rounds: int, precision: Precision) -> str | None:
    """Why nothing is decided by so many rounds; None where they are enough."""
    least = rounds_to_decide(precision)
    if rounds >= least:
        return None
    return f"no verdict rests on fewer than {least} independent starts, there {'is' if rounds == 1 else 'are'} {rounds}"


def verdict(shown: Interval | None, rounds: int, precision: Precision) -> Verdict:
    """What the interval that is shown allows to say.

    Two one-sided tests (Schuirmann 1987) by inclusion of the interval in the margin, which comes first: who set the
    margin said that less does not matter, also where it can be told from 0. An interval without an upper bound (inf) can
    only tell that something is lost.
    """
    if shown is None or too_few(rounds, precision):
        return Verdict.CANNOT_TELL
    if shown.low > math.log1p(-precision.margin) and shown.high < math.log1p(precision.margin):
        return Verdict.NO_DIFFERENCE
    if shown.low > 0:
        return Verdict.LOSES
    if shown.high < 0:
        return Verdict.GAINS
    return Verdict.CANNOT_TELL


@dataclass(frozen=True, slots=True)
class Components:
    """Variance components on the log scale, None where there are too few draws to tell."""

    between_rounds: float | None = None
    within_rounds: float | None = None


def components(block_effects: Floats) -> Components:
    """By the method of moments from ``block_effects`` [round, block]; NaN for a block that a round does not have.

    ``within_rounds``: variance of a block's effect inside its round; ``between_rounds``: variance of the starts, after
    what the blocks alone would explain has been taken off (never below 0).
    """
    present = np.isfinite(block_effects)
    counts = present.sum(axis=1)
    usable = block_effects[counts > 0]
    counts = counts[counts > 0]
    if len(counts) < 2:
        return Components()
    means = np.array([row[np.isfinite(row)].mean() for row in usable])
    spread = float(np.var(means, ddof=1))
    freedom = int((counts - 1).sum())
    if freedom < 1:
        return Components(spread, None)
    squares = sum(float(((row[np.isfinite(row)] - mean) ** 2).sum()) for row, mean in zip(usable, means, strict=True))
    within = squares / freedom
    return Components(max(0.0, spread - within * float(np.mean(1 / counts))), within)


def half_width_fraction(interval_: Interval) -> float:
    """Half width as a fraction of the ratio: 0.01 is ±1 %."""
    return math.expm1(interval_.half_width)


def precise_enough(interval_: Interval | None, precision: Precision) -> bool:
    """Whether the target is met."""
    return interval_ is not None and interval_.half_width <= math.log1p(precision.target)
