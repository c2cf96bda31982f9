"""How many blocks a round gets, from what a pilot saw."""

from __future__ import annotations

from typing import Any

import pytest

from dbtoll.runner.pilot import BLOCKS_MAX, Pilot, slow_arms, visits_s
from dbtoll.store.schema import Visit
from tests.support.make_run import COPY, DOCKER, NATIVE, experiment


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
    assert Pilot(fixed_s, block_s, slow_s).blocks(budget_s, rounds_min=5) == blocks


def visit(query: str, seconds: int, **more: Any) -> Visit:
    told = {"round": -1, "levels": {}, "block": 0, "order": 1, "first_execution": False, "asleep_ok": True}
    span = {"host_start_ns": None, "host_end_ns": None, "start_ns": 0, "end_ns": seconds * 10**9}
    return Visit(**{"arm": "uml", "query": query, **told, **span, **more})


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
