"""Pure numerics. Everything is on the log scale, where an effect of one arm against another is a difference.

Formulas and their sources: docs/method/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, idct
from scipy.special import stdtr, stdtrit

from dbtoll.model.experiment import FEWEST_DRAWS, Precision, Verdict

Floats = NDArray[np.float64]

LOOK_PENALTY = 3.0
"""See `look_factor`; found by simulation (docs/method/stopping.md)."""

PERSISTENCE, UNLIKELY = 0.9, 0.3
"""How starts may depend on each other; how much less likely than the likeliest (natural logarithm) is left aside.

Chosen by simulation before the run that judges them (docs/method/dependent-starts.md; ADR 0018).
"""

DEPENDENT = 2.0
"""By how much (natural logarithm) dependence is likelier than none where it is said; 1 to 2 in 100 independent series are so."""

_SHARES = np.linspace(0, 1, 41) ** 2
"""Of the variance, that are tried: the smaller ones closer, as many rounds tell them apart."""
_MANY = 500
"""Rounds beyond which intervals are lengthened no less: by an eighth."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds that decide and the p-value of "it is 0"; log scale.

    ``error``: its standard error, with ``degrees`` of freedom. ``lengthened``: how many times as long it is as if the starts were
    known to be independent.
    """

    estimate: float
    low: float
    high: float
    p: float
    error: float = 0.0
    degrees: int = 1
    lengthened: float = 1.0

    @property
    def shown(self) -> Interval:
        """The one that people see beside it: Student's t, as if the starts were known to be independent."""
        reach = self.half_width / self.lengthened
        return replace(self, low=self.estimate - reach, high=self.estimate + reach)

    @property
    def half_width(self) -> float:
        """Half of its length."""
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0

    def p_beyond(self, low: float, high: float) -> float:
        """Of "it is ``low`` or less, or ``high`` or more": twice the larger p of two one-sided tests (Schuirmann 1987).

        So it is at most alpha where the interval at level 1 - alpha lies between the two.
        """
        if low >= self.estimate or self.estimate >= high:
            return 1.0
        if not self.error:
            return 0.0
        nearer = min(self.estimate - low, high - self.estimate)
        return t_p_value(nearer / self.error, self.degrees)

    def widened(self, by: float) -> Interval:
        """Longer by ``by`` on both sides; ``p`` stays that of the estimate."""
        return replace(self, low=self.low - by, high=self.high + by)

    @property
    def is_bound(self) -> bool:
        """Whether it has a lower bound alone: what was ended by a timeout took at least so long, and nobody knows how long."""
        return math.isinf(self.high)

    def at_least(self) -> Interval:
        """Of values that are all no more than the true ones: its lower bound holds of these too, and nothing else does."""
        return replace(self, estimate=math.inf, high=math.inf)


def midmean(values: Floats, axis: int) -> Floats:
    """The robust location of this project over the blocks of a round: their mean without the outer quarters.

    Of three or more at least one is cut on each side, so it is the median of three or four; NaN without any value.
    Chosen by simulation (docs/method/rounds-and-intervals.md).
    """
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.sum(~np.isnan(ordered), axis=axis, keepdims=True)
    cut = np.where(count > 2, np.maximum(count // 4, 1), 0)
    rank = np.arange(ordered.shape[axis]).reshape([-1 if i == axis % ordered.ndim else 1 for i in range(ordered.ndim)])
    chosen = (rank >= cut) & (rank < count - cut)
    with np.errstate(invalid="ignore"):  # no value, or infinities of both signs: NaN
        return np.asarray(np.where(chosen, ordered, 0.0).sum(axis=axis) / chosen.sum(axis=axis))


def medians(values: Floats, cells: NDArray[np.intp], count: int) -> Floats:
    """[cell]: the median of the values in it. ``cells``: of each value its cell, below ``count``. NaN for a cell that has no value,
    or one that is NaN."""
    ordered = values[np.lexsort((values, cells))]  # NaN last of each cell
    counts = np.bincount(cells, minlength=count)
    some = counts > 0
    first, counts = (np.cumsum(counts) - counts)[some], counts[some]
    found = np.full(count, np.nan)
    found[some] = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2
    found[some] += np.where(np.isnan(ordered[first + counts - 1]), np.nan, 0.0)
    return found


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t."""
    return float(stdtrit(degrees, probability))


def t_p_value(t: float, degrees: int) -> float:
    """Two-sided p of a t statistic."""
    return float(2 * stdtr(degrees, -abs(t)))


def look_factor(rounds: int, rounds_min: int) -> float:
    """By how much the variance is multiplied because the run could have stopped after each round since the minimum.

    A rule that stops when the spread looks small stops where it looks smaller than it is. 1 at ``rounds_min`` (there
    was no choice yet), at most 1.15 for a minimum of five, and towards 1 again as rounds grow.
    """
    return 1.0 + LOOK_PENALTY * max(rounds - rounds_min, 0) / rounds**2


@dataclass(frozen=True, slots=True)
class Errors:
    """Of means over rounds; arrays with the leading axes of the values.

    ``standard``: the standard error. ``lengthened``: over that of independent rounds. ``autocorrelation``: the likeliest one of
    neighbouring rounds, ``favour``: by how much (natural logarithm) it is likelier than none.
    """

    standard: Floats
    lengthened: Floats
    autocorrelation: Floats
    favour: Floats


@lru_cache(maxsize=512)
def _dependence(rounds: int) -> tuple[Floats, Floats]:
    """Variances of ([share, frequency] cosine transforms, [share] the mean) of a series with variance 1, by share.

    A ``share`` of the variance is of an AR(1) with coefficient PERSISTENCE: its spectrum, and the exact variance of its mean
    (Bayley and Hammersley 1946).
    """
    carried = PERSISTENCE
    frequencies = np.pi * np.arange(1, rounds) / rounds
    spectrum = (1 - carried**2) / (1 - 2 * carried * np.cos(frequencies) + carried**2)
    of_mean = (1 + carried) / (1 - carried) / rounds
    of_mean -= 2 * carried * (1 - carried**rounds) / (rounds * (1 - carried)) ** 2
    shares = _SHARES[:, np.newaxis]
    return shares * spectrum + 1 - shares, _SHARES * of_mean + (1 - _SHARES) / rounds


def errors(values: Floats) -> Errors:
    """Standard errors that hold also where rounds depend on each other. ``values``: [..., round], at least two rounds.

    For each share of the variance that may carry over from a start to the next, the cosine transforms of the rounds say how likely
    it is (Whittle 1953; that few low frequencies carry what a series tells of its persistence: Müller 2014) and what the standard
    error would be. The largest of those that are not UNLIKELY is taken (docs/method/dependent-starts.md).
    """
    rounds = values.shape[-1]
    variances, of_mean = _dependence(rounds)
    powers = dct(values, norm="ortho", axis=-1)[..., 1:] ** 2
    scales = powers @ (1 / variances).T / (rounds - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = -np.log(variances).sum(axis=-1) / 2 - (rounds - 1) / 2 * np.log(scales)
        likely = likelihood >= likelihood.max(axis=-1, keepdims=True) - UNLIKELY
        standards = np.where(likely, np.sqrt(scales * of_mean), 0.0)
        standard = standards.max(axis=-1)
        independent = np.sqrt(scales[..., 0] * of_mean[0])
        lengthened = np.where(independent > 0, standard / independent, 1.0)
        favour = np.where(independent > 0, likelihood.max(axis=-1) - likelihood[..., 0], 0.0)
    return Errors(standard, lengthened, PERSISTENCE * _SHARES[likelihood.argmax(axis=-1)], favour)


def dependence(values: Floats) -> float | None:
    """The likeliest autocorrelation of neighbouring rounds where some is likelier than none by DEPENDENT; else None."""
    if len(values) < FEWEST_DRAWS:
        return None
    found = errors(values)
    return float(found.autocorrelation) if found.favour > DEPENDENT else None


def far_out(values: Floats) -> NDArray[np.bool_]:
    """[round]: which lie beyond the quartiles by more than three times their distance (Tukey 1977, "far out")."""
    if len(values) < FEWEST_DRAWS:
        return np.zeros(len(values), dtype=bool)
    low, high = np.quantile(values, (0.25, 0.75))
    return np.asarray((values < low - 3 * (high - low)) | (values > high + 3 * (high - low)))


@lru_cache(maxsize=4096)
def usually_lengthened(rounds: int) -> float:
    """How many times as long intervals are if the rounds are independent and look so: all frequencies alike."""
    flat = np.ones(min(rounds, _MANY))
    flat[0] = 0.0  # no mean
    return float(errors(idct(flat, norm="ortho")).lengthened)


def equivalence_power(error: float, degrees: int, margin: float, alpha: float) -> float:
    """Chance that two one-sided tests at ``alpha`` show that what is 0 lies within ±``margin`` (Phillips 1990).

    ``error``: the standard error of the estimate, taken for the true one.
    """
    if not error:
        return 1.0
    return max(0.0, 2 * float(stdtr(degrees, margin / error - t_quantile(1 - alpha, degrees))) - 1)


def interval(values: Floats, alpha: float, rounds_min: int) -> Interval | None:
    """Student's t over rounds at level 1 - ``alpha``, with `errors`. ``values``: one effect per round; None for fewer than two."""
    rounds = len(values)
    if rounds < 2:
        return None
    found = errors(values)
    error = float(found.standard) * math.sqrt(look_factor(rounds, rounds_min))
    return around(float(np.mean(values)), error, rounds, alpha, float(found.lengthened))


def independent_interval(values: Floats, alpha: float) -> Interval | None:
    """Student's t for what is known to be independent, or bounds a cost and no verdict; None for fewer than two values."""
    rounds = len(values)
    if rounds < 2:
        return None
    return around(float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(rounds), rounds, alpha)


def around(estimate: float, error: float, rounds: int, alpha: float, lengthened: float = 1.0) -> Interval:
    """Student's t from a mean and its standard error."""
    reach = t_quantile(1 - alpha / 2, rounds - 1) * error
    p = t_p_value(estimate / error, rounds - 1) if error else float(estimate == 0)
    return Interval(estimate, estimate - reach, estimate + reach, p, error, rounds - 1, lengthened)


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


def too_few(rounds: int, precision: Precision) -> str | None:
    """Why nothing is decided by so many rounds; None where they are enough."""
    least = precision.rounds_to_decide
    if rounds >= least:
        return None
    return f"no verdict rests on fewer than {least} independent starts, there {'is' if rounds == 1 else 'are'} {rounds}"


def family_alphas(found: Sequence[Interval], alpha: float, low: float, high: float) -> list[float]:
    """At which level the interval beside each of many queries is drawn, so that neither kind of claim is often wrong about any.

    Two step-down procedures: Holm's for "it is 0", and the same for "it lies at or beyond the margin" (``low``, ``high``, less
    than 0 and more, on the log scale). What the second rejects gets its level, and lies inside the margin; all else gets
    Holm's, unless that puts it inside the margin. So the chance that any query is wrongly said to lose or gain is at most
    ``alpha``, and so is that of any whose true effect is the margin or more being called no difference
    (docs/method/verdicts.md).
    """
    of_zero = holm_alphas([each.p for each in found], alpha)
    p_values = [each.p_beyond(low, high) for each in found]
    of_margin = holm_alphas(p_values, alpha)
    return [
        margin_level if p <= max(zero_level, margin_level) else zero_level
        for p, zero_level, margin_level in zip(p_values, of_zero, of_margin, strict=True)
    ]


def verdict(decisive: Interval | None, rounds: int, precision: Precision) -> Verdict:
    """What the interval that decides allows to say.

    Two one-sided tests (Schuirmann 1987) by inclusion of the interval in the margin, which comes first: who set the
    margin said that less does not matter, also where it can be told from 0. An interval without an upper bound (inf) can
    only tell that something is lost.
    """
    if decisive is None or too_few(rounds, precision):
        return Verdict.CANNOT_TELL
    if decisive.low > math.log1p(-precision.margin) and decisive.high < math.log1p(precision.margin):
        return Verdict.NO_DIFFERENCE
    if decisive.low > 0:
        return Verdict.LOSES
    if decisive.high < 0:
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
