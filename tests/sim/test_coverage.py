"""Do the intervals cover and does A/A stay quiet, stopping rule in force? `dbtoll selfbench simulation`, but shorter.

With 250 experiments in each of 16 cells the standard error of one cell's coverage is 1.4 points and that of their mean
0.34: a cell may lie four of its errors below 95 %, and the mean of all within one point and a bit of the nominal rate.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dbtoll.analysis import stats
from dbtoll.selfbench import simulation
from dbtoll.selfbench.simulation import EFFECTS, WORLDS, Cell

EXPERIMENTS = 250
CELL_ERROR = math.sqrt(0.05 * 0.95 / EXPERIMENTS)


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, float], Cell]:
    return simulation.run(EXPERIMENTS, seed=20)


def test_intervals_cover_at_their_nominal_rate(cells: dict[tuple[str, float], Cell]) -> None:
    assert set(cells) == {(world, effect) for world in WORLDS for effect in EFFECTS}
    for name in ("coverage", "coverage_of_totals", "coverage_of_queries"):
        coverage = {key: getattr(cell, name) for key, cell in cells.items()}
        assert all(value > 0.95 - 4 * CELL_ERROR for value in coverage.values()), coverage
        assert 0.94 < np.mean(list(coverage.values())) < 0.97, coverage


def test_two_copies_of_the_same_stay_quiet(cells: dict[tuple[str, float], Cell]) -> None:
    alarms = [cell.aa_alarms for cell in cells.values()]
    assert 0.03 < np.mean(alarms) < 0.06
    assert max(alarms) < 0.05 + 4 * CELL_ERROR


def test_verdicts_are_seldom_wrong(cells: dict[tuple[str, float], Cell]) -> None:
    for (world, effect), cell in cells.items():
        assert cell.wrong_verdicts < 0.05 + 4 * CELL_ERROR, (world, effect)
        if effect >= 0.07:
            assert cell.wrong_verdicts == 0


def test_the_rule_was_in_force(cells: dict[tuple[str, float], Cell]) -> None:
    """Most experiments were ended by the target: without it each would go on to 20 rounds."""
    assert all(simulation.PRECISION.rounds_min < cell.rounds < 18 for cell in cells.values())


def test_without_its_two_guards_the_rule_would_cover_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guards are for: looking at the arm's own spread alone, with the plain interval."""
    monkeypatch.setattr(stats, "LOOK_PENALTY", 0.0)
    monkeypatch.setattr(simulation.stopping, "deciding", lambda arms, copies: list(arms))
    chance = np.random.default_rng(4)
    naive = simulation._cell(1500, 0.07, WORLDS["none"], chance)
    assert naive.coverage < 0.94


def test_the_worlds_are_disturbed() -> None:
    """Each disturbance is large beside the effects that are asked for, and hits neighbouring visits alike."""
    spread = {}
    for name, world in WORLDS.items():
        logs = np.log(simulation.simulate(20, 0.0, world, np.random.default_rng(1)))
        spread[name] = float((logs - logs.mean(axis=(1, 2), keepdims=True)).std())
    assert spread["none"] < 0.045
    assert spread["drift"] > 1.4 * spread["none"]
    assert spread["steps"] > 2 * spread["none"]
    assert spread["outliers"] > 1.3 * spread["none"]
