"""How many blocks a round gets, from what a pilot saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dbtoll.model.experiment import Precision
from dbtoll.plan import thinned_arms
from dbtoll.runner.budget import RoundLength
from dbtoll.runner.pilot import COUNTS_UP_TO_BLOCKS, ArmCost, Pilot, slow_arms, visits_s
from dbtoll.runner.run import budget_lines
from dbtoll.store.schema import Visit
from tests.support.changed import visit_of_one_unit
from tests.support.make_run import COPY, DOCKER, NATIVE, experiment


@pytest.mark.parametrize(
    ("fixed_s", "block_s", "slow_s", "budget_s", "blocks"),
    [
        (10, 2, 0, 300, 10),  # ten rounds of thirty seconds
        (10, 20, 0, 600, 2),  # (60 - 10) / 20
        (200, 48, 40, 1800, 2),  # starts are expensive: sqrt(240 / 48) = 2.2, and five rounds of 336 s fit
        (200, 48, 40, 1300, 1),  # they do not
        (200, 48, 40, 100, 1),  # nothing fits
        (10, 0.1, 0, 300, 10),
        (10, 0.0, 0, 300, 10),
    ],
)
def test_blocks(fixed_s: float, block_s: float, slow_s: float, budget_s: float, blocks: int) -> None:
    arms = {"a": ArmCost(fixed_s / 2, block_s), "b": ArmCost(fixed_s / 4, slow_s, slow_s)}
    assert Pilot(fixed_s / 4, arms).blocks(Precision(budget_s=budget_s)) == blocks


def test_a_round_has_no_more_blocks_than_it_may_have() -> None:
    piloted = Pilot(0, {"a": ArmCost(10, 0.1)})
    assert piloted.blocks(Precision(budget_s=300)) == 10
    assert piloted.blocks(Precision(budget_s=300, blocks_max=3)) == 3


def test_a_thinned_arm_takes_its_time_of_five_rounds_alone() -> None:
    piloted = Pilot(2, {"quick": ArmCost(4, 4), "emulated": ArmCost(30, 20, 20)}, thinned=frozenset({"emulated"}))
    assert piloted.round_s(1) == 60
    assert piloted.round_s(3) == 2 + 4 + 12 + 50
    assert piloted.round_s(3, piloted.thinned) == 18
    assert piloted.rounds(1, Precision(budget_s=300)) == 5
    assert piloted.rounds(1, Precision(budget_s=299)) == 4
    assert piloted.rounds(1, Precision(budget_s=350)) == 10
    assert piloted.rounds(1, Precision(budget_s=350)) > Pilot(2, piloted.arms).rounds(1, Precision(budget_s=350)) == 5
    # What is left of 500 s after five times the thinned arm's 50 s makes ten rounds of 25 s: (25 - 6) / 4 blocks.
    assert piloted.blocks(Precision(budget_s=500)) == 4
    # Three rounds of it leave more: 500 - 150 s makes ten of 35.
    assert piloted.blocks(Precision(budget_s=500, rounds_slow=3)) == 7
    assert piloted.rounds(1, Precision(budget_s=300, rounds_slow=3)) == 3 + 12


def test_arms_are_thinned_where_another_one_is_compared_and_they_are_slow_throughout() -> None:
    asked = experiment(cold=True)
    warm, cold = asked.combinations
    assert thinned_arms(asked, {DOCKER: (warm, cold)}) == frozenset()  # nothing else would be left
    two = replace(asked, arms=(*asked.arms, replace(asked.arms[-1], name="guest")))
    assert thinned_arms(two, {DOCKER: (warm, cold)}) == {DOCKER}
    assert thinned_arms(two, {DOCKER: (cold,)}) == frozenset()
    assert thinned_arms(two, {DOCKER: (warm, cold), "guest": (cold, warm)}) == frozenset()


def test_a_round_that_is_expected_to_take_long_is_one_that_did() -> None:
    length = RoundLength(40.0)
    assert length.next_s() == length.next_s({"b"}) == 40.0
    length.see(30.0, {"a": 8.0, "b": 20.0})
    assert length.next_s() == 30.0
    assert length.next_s({"b"}) == 10.0
    length.see(12.0, {"a": 9.0, "b": 1.0})
    assert length.next_s() == 2 + 9.0 + 16.0


def visit(query: str, seconds: int, **more: Any) -> Visit:
    told = {"round": -1, "levels": {}, "block": 0, "order": 1, "first_execution": False, "asleep_ok": True}
    span = {"host_start_ns": None, "host_end_ns": None, "start_ns": 0, "end_ns": seconds * 10**9}
    return visit_of_one_unit(**{"arm": "uml", "query": query, **told, **span, **more})


def test_only_what_is_timed_tells_how_slow_an_arm_is() -> None:
    records = [
        visit("Q1", 2),
        visit("Q6", 1),
        visit("Q1", 10, counts={"processes": {}}),
        visit("Q1", 20, first_execution=True),
        visit("fork", 40, batches=()),
    ]
    assert visits_s(records, timed={"Q1", "Q6"}) == {"uml": 3}


def test_a_copy_that_stood_still_in_the_pilot_is_measured_as_often_as_its_original() -> None:
    assert slow_arms(experiment(), {NATIVE: 2.0, COPY: 90.0, DOCKER: 2.1}) == []
    assert slow_arms(experiment(), {NATIVE: 2.0, COPY: 2.0, DOCKER: 90.0}) == [DOCKER]


def test_a_budget_for_the_rounds_of_a_verdict_has_a_thinned_arm_in_its_own_alone() -> None:
    piloted = Pilot(2, {"quick": ArmCost(4, 4), "emulated": ArmCost(30, 20, 20)}, thinned=frozenset({"emulated"}))
    assert piloted.rounds_s(1, 5, Precision()) == 5 * 60
    assert piloted.rounds_s(1, 5, Precision(rounds_slow=3)) == 3 * 60 + 2 * 10


def test_what_is_told_of_a_rounds_time_sums_up_to_it() -> None:
    arms = {"quick": ArmCost(4, 4), "emulated": ArmCost(30, 20, 20)}
    piloted = Pilot(0, arms, {"emulated": ({},)}, frozenset({"emulated"}))
    asked = experiment()
    asked = replace(asked, precision=Precision(budget_s=5 * 66 + 3 * 16, rounds_slow=5))
    assert list(budget_lines(asked, piloted, 3)) == [
        "budget 378 s: about 8 rounds of 3 blocks, 66 s each: emulated 50 s in one block (20 s timed), quick 16 s (12 s timed)",
        "after 5 rounds without emulated, many times slower than the baseline: 16 s each",
    ]
    (line,) = budget_lines(asked, replace(piloted, thinned=frozenset()), 1)
    assert (
        line == "budget 378 s: about 6 rounds of 1 block, 58 s each: emulated 50 s (20 s timed), quick 8 s (4 s timed)"
    )


@pytest.mark.parametrize("of_starts", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rounds", [5, 10])
def test_where_the_pilot_counts_it_does_no_harm(rounds: int, of_starts: float) -> None:
    """docs/adr/0027. Coverage of 20 000 runs has a standard error of 0.15 %."""
    for blocks in range(1, COUNTS_UP_TO_BLOCKS + 1):
        coverage, longer = with_the_pilot(rounds, blocks, of_starts)
        assert abs(coverage - 0.95) < 0.007 and longer < 1
    if of_starts < 1:
        assert with_the_pilot(rounds, Precision().blocks_max, of_starts)[1] > 1.15


def with_the_pilot(rounds: int, blocks: int, of_starts: float) -> tuple[float, float]:
    """Coverage of Student's interval, and how many times as long it is as without the first round, which has one block; the others
    have ``blocks``, of noise 1 each."""
    deviation = np.sqrt(of_starts**2 + 1 / np.array([1] + [blocks] * (rounds - 1)))
    runs = np.random.default_rng(27).normal(0, deviation, (20_000, rounds))

    def half_widths(values: np.ndarray) -> np.ndarray:
        count = values.shape[1]
        return np.asarray(stats.t.ppf(0.975, count - 1) * values.std(axis=1, ddof=1) / np.sqrt(count))

    found = half_widths(runs)
    return float(np.mean(np.abs(runs.mean(axis=1)) < found)), float(found.mean() / half_widths(runs[:, 1:]).mean())
