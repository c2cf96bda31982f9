"""`selfbench precision`: what is called a half-width covers, and the papers' protocol is the papers'."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as reference

from dbtoll.analysis.effects import comparisons, stats
from dbtoll.selfbench.statistics import precision, simulation
from dbtoll.selfbench.statistics.precision import BY_MEAN, BY_MIDMEAN, DBTOLL

SEED, EXPERIMENTS = 7, 600


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, dict[str, float]]]:
    found = {}
    for name, world in precision.WORLDS.items():
        seen = precision.simulated(simulation.WORLDS[world], EXPERIMENTS, SEED, rounds=5, blocks=2)
        found[name] = precision.told(seen)
    return found


def test_what_dbtoll_prints_covers_and_what_one_server_life_tells_does_not(
    table: dict[str, dict[str, dict[str, float]]],
) -> None:
    for name, each in table.items():
        assert each[DBTOLL]["coverage"] > 0.95, name
        assert each[DBTOLL]["printed"] > each[DBTOLL]["half_width"], name
    for name in ("drifting", "stepping"):
        assert table[name][BY_MEAN]["coverage"] < 0.6
        assert table[name][BY_MIDMEAN]["coverage"] < 0.6


def test_interleaving_is_worth_most_where_the_machine_moves(table: dict[str, dict[str, dict[str, float]]]) -> None:
    ratios = {name: each[BY_MIDMEAN]["half_width_ratio"] for name, each in table.items()}
    assert ratios["drifting"] < 0.5
    assert ratios["stepping"] < 0.5
    assert 0.4 < ratios["quiet"] < 1.1
    assert table["spiky"][BY_MEAN]["half_width_ratio"] < ratios["spiky"]
    assert table["quiet"][BY_MEAN]["printed_ratio"] > 1


def test_the_half_width_is_that_which_covers() -> None:
    chance = np.random.default_rng(SEED)
    estimates = chance.normal(0, [0.01, 0.02], (4000, 2))
    seen = {
        DBTOLL: [stats.around(each, 0.01, 5, 0.05) for each in estimates[:, 0]],
        BY_MEAN: [stats.around(each, 0.004, 5, 0.05) for each in estimates[:, 1]],
    }
    told = precision.told(seen)
    within = np.abs(estimates[:, 1]) <= math.log1p(told[BY_MEAN]["half_width"])
    assert within.mean() == pytest.approx(0.95, abs=0.01)
    assert told[BY_MEAN]["half_width_ratio"] == pytest.approx(0.5, abs=0.02)
    low, high = told[BY_MEAN]["half_width_ratio_interval"]
    assert low < 0.5 < high
    assert told[BY_MEAN]["coverage"] == pytest.approx(np.mean([each.low <= 0 <= each.high for each in seen[BY_MEAN]]))
    assert told[BY_MEAN]["printed"] == pytest.approx(math.expm1(0.004 * reference.t.ppf(0.975, 4)))


def test_one_life_is_estimated_as_the_papers_do() -> None:
    chance = np.random.default_rng(SEED)
    logs = chance.normal([[0.0, 0.1], [1.0, 1.3]], 0.05, (40, 2, 2))
    found = precision.of_one_life(logs, comparisons.mean)
    times = np.exp(logs).mean(axis=0)
    assert found.estimate == pytest.approx(np.log(times[:, 1] / times[:, 0]).mean())
    assert found.error == pytest.approx(0.05 * math.sqrt(4 / 40) / 2, rel=0.2)
    spiky = logs.copy()
    spiky[3, 0, 0] += 3
    assert precision.of_one_life(spiky, stats.midmean).estimate == pytest.approx(found.estimate, abs=0.02)
    assert precision.of_one_life(spiky, comparisons.mean).estimate < found.estimate - 0.05


def test_copies_of_the_papers_run_one_after_the_other() -> None:
    """A machine whose level steps up half-way makes all of the second copy slower, and nothing else."""
    step = simulation.World("independent", "", disturbance=lambda times, chance: np.where(times > 2.5, 1.0, 0.0))
    ns = simulation.simulate_in_turn(200, step, np.random.default_rng(SEED), runs=10, rounds=5)
    assert ns.shape == (200, 10, 4, 2)
    difference = np.log(ns).mean(axis=(1, 2))
    later = difference[:, 1] - difference[:, 0]
    assert np.abs(later) == pytest.approx(np.ones(200), abs=0.15)
    assert 0.3 < (later > 0).mean() < 0.7
