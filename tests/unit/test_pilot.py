"""How many blocks a round gets, from what a pilot saw."""

from __future__ import annotations

import pytest

from dbtoll.runner.preparation import BLOCKS_MAX, Pilot


@pytest.mark.parametrize(
    ("fixed_s", "block_s", "slow_s", "budget_s", "blocks"),
    [
        (10, 2, 0, 300, 10),  # ten rounds of thirty seconds
        (10, 20, 0, 600, 2),  # (60 - 10) / 20
        (200, 48, 40, 1800, 2),  # starts are dear: sqrt(240 / 48) = 2.2, and five rounds of 336 s fit
        (200, 48, 40, 1300, 1),  # they do not
        (200, 48, 40, 100, 1),  # nothing fits
        (10, 0.1, 0, 300, BLOCKS_MAX),
        (10, 0.0, 0, 300, BLOCKS_MAX),
    ],
)
def test_blocks(fixed_s: float, block_s: float, slow_s: float, budget_s: float, blocks: int) -> None:
    assert Pilot(fixed_s, block_s, slow_s, ()).blocks(budget_s, rounds_min=5) == blocks
