"""The numerics, against hand calculations, the literature and scipy."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from dbtoll.analysis.effects import stats, stopping
from dbtoll.analysis.effects.stats import Floats, Interval
from dbtoll.model.experiment import Precision, Verdict

P_VALUES = st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=25)
ALPHA = 0.05


def test_interval_is_students_t() -> None:
    values = np.array([0.011, 0.017, -0.004, 0.009, 0.013])
    found = stats.independent_interval(values, ALPHA)
    expected = reference.t.interval(0.95, 4, loc=values.mean(), scale=reference.sem(values))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.p == pytest.approx(reference.ttest_1samp(values, 0).pvalue)
    over_starts = stats.interval(values, ALPHA, rounds_min=5)
    assert over_starts is not None
    assert over_starts.half_width == pytest.approx(over_starts.lengthened * found.half_width)
    assert over_starts.p == pytest.approx(2 * reference.t.sf(values.mean() / over_starts.error, 4))


def by_matrices(values: Floats) -> tuple[float, float]:
    """(standard error, over that of independent rounds) by dense algebra, of the model in docs/method/dependent-starts.md."""
    rounds = len(values)
    number, place = np.meshgrid(np.arange(rounds), np.arange(rounds), indexing="ij")
    cosines = np.sqrt(2 / rounds) * np.cos(np.pi * number * (place + 0.5) / rounds)[1:]
    frequencies = np.pi * np.arange(1, rounds) / rounds
    carried = stats.PERSISTENCE
    spectrum = (1 - carried**2) / np.abs(1 - carried * np.exp(1j * frequencies)) ** 2
    found = []
    for share in stats._SHARES:
        variances = share * spectrum + 1 - share
        scale = float(np.mean((cosines @ values) ** 2 / variances))
        covariance = share * carried ** np.abs(number - place) + (1 - share) * np.eye(rounds)
        likelihood = -0.5 * float(np.log(scale * variances).sum())
        found.append((likelihood, math.sqrt(scale * covariance.mean())))
    most = max(likelihood for likelihood, _ in found)
    error = max(error for likelihood, error in found if likelihood >= most - stats.UNLIKELY)
    return error, error / found[0][1]


@pytest.mark.parametrize("rounds", [2, 3, 5, 8, 21])
def test_the_standard_error_is_the_largest_of_the_dependences_that_are_not_unlikely(rounds: int) -> None:
    values = np.random.default_rng(rounds).normal(0.1, 0.01, (4, rounds)).cumsum(axis=-1)
    found = stats.errors(values)
    for index, row in enumerate(values):
        assert (found.standard[index], found.lengthened[index]) == pytest.approx(by_matrices(row))
    assert (found.lengthened >= 1).all()
    independent = stats.errors(np.random.default_rng(1).normal(0, 1, (500, 40)))
    assert np.median(independent.lengthened) < 1.8
    assert (independent.favour > stats.DEPENDENT).mean() < 0.03
    trending = stats.errors(np.linspace(0, 1, 20) + np.random.default_rng(1).normal(0, 0.05, 20))
    assert trending.favour > stats.DEPENDENT
    assert trending.autocorrelation > 0.8


def test_more_rounds_exclude_more_dependence() -> None:
    usual = [stats.usually_lengthened(rounds) for rounds in (5, 8, 12, 20, 40, 200, 500)]
    assert usual == sorted(usual, reverse=True)
    assert usual[0] < 4.5
    assert usual[-1] < 1.25
    assert stats.usually_lengthened(10**6) == usual[-1]


def test_a_family_has_levels_for_both_kinds_of_claim() -> None:
    margin = (math.log1p(-0.02), math.log1p(0.02))

    def drawn(estimates: list[float]) -> list[tuple[float, bool]]:
        found = [stats.around(each, 0.001, 20, ALPHA) for each in estimates]
        alphas = stats.family_alphas(found, ALPHA, *margin)
        shown = [stats.around(each, 0.001, 20, alpha) for each, alpha in zip(estimates, alphas, strict=True)]
        return [(alpha, margin[0] < e.low and e.high < margin[1]) for alpha, e in zip(alphas, shown, strict=True)]

    # Far from both 0 and the margin, Holm's levels are kept.
    assert [alpha for alpha, _ in drawn([0.3, 0.2])] == [ALPHA / 2, ALPHA]
    # Nothing at all: each has its place in the procedure for the margin, and is inside.
    assert drawn([0.0, 0.0]) == [(ALPHA / 2, True), (ALPHA, True)]
    # All differ from 0, one is just inside the margin at the level that Holm has left over, and not at that of its own family.
    close = margin[1] - 2.2 * 0.001
    (_, inside), *_ = drawn([close, 0.1, 0.1, 0.1])
    assert not inside
    assert stats.family_alphas([], ALPHA, *margin) == []


def test_p_beyond_the_margin_is_that_of_two_one_sided_tests() -> None:
    values = np.array([0.011, 0.017, 0.004, 0.009, 0.013])
    found = stats.independent_interval(values, ALPHA)
    assert found is not None
    low, high = -0.02, 0.02
    below = reference.ttest_1samp(values, high, alternative="less").pvalue
    above = reference.ttest_1samp(values, low, alternative="greater").pvalue
    assert found.p_beyond(low, high) == pytest.approx(2 * max(below, above))
    assert found.p_beyond(0.0, 0.01) == 1


def test_one_round_has_no_interval() -> None:
    assert stats.interval(np.array([0.01]), ALPHA, 5) is None
    assert stats.interval(np.array([]), ALPHA, 5) is None


def test_rounds_without_any_spread() -> None:
    assert stats.interval(np.zeros(5), ALPHA, 5) == Interval(0.0, 0.0, 0.0, 1.0, 0.0, 4)
    found = stats.interval(np.full(5, 0.25), ALPHA, 5)
    assert found is not None
    assert (found.low, found.high, found.p) == pytest.approx((0.25, 0.25, 0.0))


def test_looking_makes_the_interval_longer_but_never_much() -> None:
    assert stats.look_factor(5, 5) == 1.0
    factors = [stats.look_factor(n, 5) for n in range(5, 1000)]
    assert max(factors) == stats.look_factor(10, 5) == pytest.approx(1.15)
    assert factors[-1] < 1.01
    values = np.array([0.011, 0.017, -0.004, 0.009, 0.013, 0.002, 0.008, 0.012, 0.01, 0.003])
    plain, looked = stats.interval(values, ALPHA, 10), stats.interval(values, ALPHA, 5)
    assert plain is not None and looked is not None
    assert looked.half_width == pytest.approx(plain.half_width * math.sqrt(1.15))
    assert looked.p > plain.p


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([3.0], 3.0),
        ([3.0, 5.0], 4.0),
        ([1.0, 100.0, 3.0], 3.0),  # the median
        ([1.0, 100.0, 3.0, 5.0], 4.0),  # the median
        ([1.0, 2.0, 3.0, 7.0, 100.0], 4.0),  # one of each side is cut
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0, 80.0], 4.5),  # two of each side are cut
        ([math.nan, 3.0, math.nan, 5.0], 4.0),
        ([1.0, 3.0, math.inf], 3.0),  # a block that is censored is merely the largest
        ([1.0, math.inf, math.inf], math.inf),
    ],
)
def test_midmean(blocks: list[float], expected: float) -> None:
    assert stats.midmean(np.array(blocks), 0) == pytest.approx(expected)
    several = stats.midmean(np.array([[blocks, blocks]] * 3), -1)
    assert several.shape == (3, 2)
    assert several == pytest.approx(np.full((3, 2), expected))


def test_midmean_of_nothing_is_missing() -> None:
    assert math.isnan(stats.midmean(np.array([math.nan, math.nan]), 0))


def test_holm_as_in_the_literature() -> None:
    """The worked example of Holm's procedure: 0.01, 0.04, 0.03, 0.005 (four hypotheses)."""
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert stats.holm_p(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # Rejected at their own steps, 0.05/4 and 0.05/3; the procedure stops at the third, at 0.05/2.
    assert stats.holm_alphas(p_values, ALPHA) == pytest.approx([0.05 / 3, 0.025, 0.025, 0.0125])


@given(P_VALUES)
def test_a_holm_interval_excludes_zero_exactly_where_holm_rejects(p_values: list[float]) -> None:
    adjusted, alphas = stats.holm_p(p_values), stats.holm_alphas(p_values, ALPHA)
    for p, p_holm, alpha in zip(p_values, adjusted, alphas, strict=True):
        if abs(p_holm - ALPHA) > 1e-12:
            assert (p <= alpha) == (p_holm <= ALPHA)
        assert ALPHA / len(p_values) <= alpha <= ALPHA


@given(st.integers(2, 12), st.integers(2, 30), st.integers(0, 2**32))
@settings(deadline=None)
def test_the_same_with_intervals(queries: int, rounds: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    values = chance.normal(0, 1, (queries, rounds)) + chance.choice([0.0, 0.5, 3.0], (queries, 1))
    plain = [stats.interval(row, ALPHA, 5) for row in values]
    p_values = [found.p for found in plain if found]
    adjusted = stats.holm_p(p_values)
    for row, p_holm, alpha in zip(values, adjusted, stats.holm_alphas(p_values, ALPHA), strict=True):
        holm = stats.interval(row, alpha, 5)
        assert holm is not None
        assert holm.excludes_zero == (p_holm < ALPHA)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.03, 0.05, Verdict.LOSES),
        (0.001, 0.03, Verdict.LOSES),
        (-0.05, -0.03, Verdict.GAINS),
        (-0.008, 0.014, Verdict.NO_DIFFERENCE),
        (0.001, 0.015, Verdict.NO_DIFFERENCE),  # excludes 0, but who set the margin said that it does not matter
        (-0.015, -0.001, Verdict.NO_DIFFERENCE),
        (-0.01, 0.03, Verdict.CANNOT_TELL),
        (-0.03, 0.01, Verdict.CANNOT_TELL),
    ],
)
def test_verdicts(low: float, high: float, verdict: Verdict) -> None:
    shown = Interval((low + high) / 2, low, high, 0.5)
    assert stats.verdict(shown, 8, Precision(margin=0.02)) is verdict
    assert stats.verdict(shown, 4, Precision(margin=0.02)) is Verdict.CANNOT_TELL
    assert stats.verdict(shown, 7, Precision(margin=0.02, rounds_min=8)) is Verdict.CANNOT_TELL
    assert stats.verdict(shown, 4, Precision(margin=0.02, rounds_min=2)) is Verdict.CANNOT_TELL
    assert stats.verdict(None, 8, Precision(margin=0.02)) is Verdict.CANNOT_TELL


def test_components_find_what_was_planted() -> None:
    chance = np.random.default_rng(3)
    between, within = 0.012, 0.03
    blocks = chance.normal(0, between, (4000, 1)) + chance.normal(0, within, (4000, 4))
    blocks[::7, 3] = math.nan  # some rounds have a block less
    found = stats.components(blocks)
    assert found.between_rounds == pytest.approx(between**2, rel=0.1)
    assert found.within_rounds == pytest.approx(within**2, rel=0.05)
    assert stats.components(blocks[:1]) == stats.Components(None, None)
    assert stats.components(blocks[:, :1]).within_rounds is None


def test_the_rule_stops_for_the_right_reason() -> None:
    precision = Precision(budget_s=100, target=0.01, rounds_min=5, rounds_max=8)
    quiet, loud = np.array([0.0, 0.001, -0.001, 0.002, 0.0]), np.array([0.0, 0.1, -0.1, 0.2, 0.0])

    def reason(effects: list[np.ndarray], elapsed_s: float = 10, next_s: float = 10, rounds: int = 5) -> str | None:
        return stopping.decide(effects, elapsed_s, next_s, precision, rounds).reason

    assert reason([quiet]) == "target reached"
    assert reason([quiet, loud]) is None
    assert reason([quiet[:4]], rounds=4) is None  # fewer than rounds_min
    assert reason([quiet[:4]], 95, rounds=4) is None  # the one round that a verdict lacks is measured all the same
    assert reason([quiet[:4]], 101, rounds=4) == "budget ended"  # once
    assert reason([quiet[:3]], 95, rounds=3) == "budget ended"
    assert reason([loud], 90, 10) is None
    assert reason([loud], 91, 10) == "budget ended"
    assert reason([loud], rounds=8) == "rounds_max"
    assert reason([]) is None  # nothing to judge by: the budget decides
    assert stopping.decide([quiet], 10, 10, precision, 5, thinned=[loud]).reason == "target reached"
    assert stopping.decide([quiet], 10, 10, precision, 5, thinned=[loud[:4]]).reason is None


def test_looks_follow_each_other_after_a_tenth_more_rounds() -> None:
    looks = [rounds for rounds in range(1, 2000) if stopping.is_due(rounds)]
    assert looks[:27] == [*range(1, 21), 22, 24, 26, 28, 30, 33, 36]
    assert all(later <= 1.1 * earlier for earlier, later in pairwise(looks[19:]))
    for rounds in looks:  # what all looks so far have read, over the rounds
        assert sum(looks[: looks.index(rounds) + 1]) <= 12 * rounds


def test_at_its_end_a_run_looks_whatever_ended_it() -> None:
    precision = Precision(budget_s=100, target=0.01, rounds_min=5, rounds_max=29)
    assert not stopping.is_due(23)
    assert not stopping.must_look(90, 10, precision, 23)
    assert stopping.must_look(90, 10, precision, 24)
    assert stopping.must_look(91, 10, precision, 23)
    assert stopping.must_look(10, 10, precision, 29)


def test_the_target_is_met_when_it_was_said_to_be() -> None:
    precision = Precision(target=0.01, rounds_min=5)
    values = np.array([0.0, 0.02, -0.02, 0.01, 0.03, -0.01])
    needed = stopping.rounds_needed(values, precision)
    assert needed is not None

    def half_width(rounds: int) -> float:
        error = math.sqrt(np.var(values, ddof=1) / rounds * stats.look_factor(rounds, 5))
        return float(reference.t.ppf(0.975, rounds - 1) * error * stats.usually_lengthened(rounds))

    assert half_width(needed) <= math.log1p(0.01) < half_width(needed - 1)
    assert stopping.rounds_needed(values[:1], precision) is None
    assert stopping.rounds_needed(np.zeros(3), precision) == 5
    assert stopping.rounds_needed(values * 1e6, precision) is None


def test_medians_of_cells_are_those_of_each() -> None:
    values = np.array([5.0, 1.0, math.inf, 3.0, 2.0, math.nan, 7.0, math.inf])
    cells = np.array([0, 0, 0, 3, 3, 4, 4, 5])
    found = stats.medians(values, cells, 6)
    assert found[[0, 3, 5]].tolist() == [5.0, 2.5, math.inf]
    assert np.isnan(found[[1, 2, 4]]).all()  # nothing, nothing, something that is not known
    assert stats.medians(np.array([]), np.array([], dtype=np.intp), 0).tolist() == []
