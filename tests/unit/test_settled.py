"""Arms that sit out because they are settled: who they are, and what it does to their intervals (docs/adr/0028)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dbtoll import spec
from dbtoll.analysis.effects import stats, stopping
from dbtoll.analysis.effects.comparisons import Pair
from dbtoll.errors import SpecError
from dbtoll.model.experiment import Precision

PRECISION = Precision(settled=0.10, margin=0.02, rounds_max=20)
AA, NEAR, FAR = (
    Pair(arm, "native", is_aa=arm == "native (A/A)", index=index, references=(0,))
    for index, arm in enumerate(("native (A/A)", "near", "far"), start=1)
)
SPEC = """
[engine]
name = "noop"
[workload]
name = "tpch"
[precision]
margin = "{margin}"
settled = "{settled}"
[[arm]]
name = "far"
stack = "simulated"
"""
SMALL, LARGE = np.array([0.01, 0.02, 0.0, 0.01, 0.02]), np.array([0.51, 0.5, 0.49, 0.5, 0.52])


def settled(*levels: list[tuple[Pair, np.ndarray]], took_part: tuple[str, ...] = ("near", "far")) -> frozenset[str]:
    return stopping.settled_arms(levels, took_part, PRECISION)


def test_an_arm_is_settled_on_the_rounds_of_a_verdict_at_all_levels_beside_one_that_is_not() -> None:
    near, far, alike = (NEAR, SMALL), (FAR, LARGE), (AA, SMALL)
    assert settled([alike, near, far]) == {"far"}
    assert settled([near, (FAR, -LARGE)]) == {"far"}  # a gain, or throughput that is lost
    assert settled([near, (FAR, LARGE[:4])]) == frozenset()
    assert settled([near, far], [near, (FAR, SMALL)]) == frozenset()
    assert settled([near, far], [near, far]) == {"far"}
    assert settled([alike, far]) == frozenset()  # the baseline's copy is nobody to go on for
    assert settled([(NEAR, LARGE), far]) == frozenset()
    assert settled([near, far], took_part=("far",)) == frozenset()  # the other one was given up, or has its rounds
    assert stopping.settled_arms([[near, far]], ("near", "far"), Precision()) == frozenset()


@pytest.mark.parametrize("effect", [PRECISION.margin, 0.12, 0.15, 0.5])
@pytest.mark.parametrize(("deviation", "carried"), [(0.01, 0.0), (0.03, 0.0), (0.03, 0.5)])
def test_the_interval_that_decides_covers_though_arms_leave(effect: float, deviation: float, carried: float) -> None:
    runs, truth = 250, math.log1p(effect)
    covered = left = wrong = 0
    for effects in worlds(truth, deviation, carried, runs):
        rounds = leaves_after(effects)
        found = stats.interval(effects[:rounds], 1 - PRECISION.confidence, PRECISION.rounds_min)
        assert found is not None
        left += rounds < len(effects)
        covered += found.low <= truth <= found.high
        wrong += effect <= PRECISION.margin and found.low > math.log1p(PRECISION.margin)
    assert covered / runs >= 0.95
    assert wrong / runs <= 0.02
    if effect == 0.5:
        assert left == runs
    if effect == PRECISION.margin:
        assert left == 0


def worlds(truth: float, deviation: float, carried: float, runs: int) -> np.ndarray:
    """Effects [run, round]; each start carries a part of the deviation of the one before it over."""
    noise = np.random.default_rng(28).normal(0, deviation, (runs, PRECISION.rounds_max))
    for index in range(1, PRECISION.rounds_max):
        noise[:, index] = carried * noise[:, index - 1] + math.sqrt(1 - carried**2) * noise[:, index]
    return truth + noise


def leaves_after(effects: np.ndarray) -> int:
    """Rounds in which it took part, beside another arm that is never settled."""
    for rounds in range(PRECISION.rounds_to_decide, len(effects)):
        if stopping.settled_arms([[(FAR, effects[:rounds]), (NEAR, SMALL)]], ("near",), PRECISION):
            return rounds
    return len(effects)


@pytest.mark.parametrize(("margin", "value"), [("2%", "10%"), ("1.1%", "5.5%"), ("6%", "30%")])
def test_five_margins_are_far_enough(margin: str, value: str) -> None:
    found = spec.parse(SPEC.format(margin=margin, settled=value), "x.toml").precision
    assert found.settled == pytest.approx(float(value.rstrip("%")) / 100)


@pytest.mark.parametrize("value", ["0%", "9.9%", "100%", "150%"])
def test_what_is_nearer_or_all_of_it_is_refused(value: str) -> None:
    with pytest.raises(SpecError, match="far beyond the margin, at least 10%, and below 100%"):
        spec.parse(SPEC.format(margin="2%", settled=value), "x.toml")
