"""What a level of a factor costs beyond what it costs the baseline, and each run on a new connection by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dbtoll.analysis.effects import comparisons
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.analysis.visits.metrics import VALUES
from dbtoll.analysis.visits.units import totals
from dbtoll.model.experiment import Precision
from dbtoll.store.schema import Timing, Visit
from tests.support.changed import visit_of_one_unit

ARMS = ("native", "native (A/A)", "guest")
HELD = {"native (A/A)": "native", "guest": "native"}
COPIES = {"native (A/A)": "native"}
PAIR = next(pair for pair in comparisons.pairs(ARMS, HELD, COPIES) if not pair.is_aa)


def times(effect: float, *, rounds: int = 8, seed: int = 1, missing: tuple[int, ...] = ()) -> TimeArray:
    """[round, block, query, arm] with the guest ``effect`` slower and a little noise; starts differ by the same factor."""
    chance = np.random.default_rng(seed)
    start = chance.normal(0, 0.05, (rounds, 1, 1, 3))
    noise = np.random.default_rng(seed + 100 + round(effect * 100)).normal(0, 0.002, (rounds, 2, 4, 3))
    ns = 1e6 * np.exp(start + noise) * np.array([1.0, 1.0, 1 + effect])
    ns[list(missing)] = np.nan
    return TimeArray(tuple(range(rounds)), ("Q1", "Q2", "Q3", "Q4"), ARMS, ns, np.zeros((4, 3)))


def test_a_contrast_is_the_ratio_of_two_overheads_with_its_interval() -> None:
    effect = comparisons.contrast(times(0.50), times(0.20), PAIR, Precision())
    found = effect.shown
    assert found is not None
    assert effect.rounds == 8
    truth = math.log(1.5 / 1.2)
    assert found.low < truth < found.high
    assert found.high - found.low < 0.01  # what differs from start to start cancels: both belong to the same starts


def test_only_rounds_that_both_levels_have_are_paired() -> None:
    effect = comparisons.contrast(times(0.5, missing=(2,)), times(0.2, missing=(5, 6)), PAIR, Precision())
    assert effect.rounds == 5


def test_equal_overheads_make_no_contrast() -> None:
    found = comparisons.contrast(times(0.3), times(0.3, seed=1), PAIR, Precision()).shown
    assert found is not None
    assert found.low <= 0 <= found.high


def visit(
    levels: dict[str, str], durations_ns: list[int], *, first_execution: bool = False, outcome: str = "ok"
) -> Visit:
    ends = np.cumsum(durations_ns).tolist()
    executions = tuple(
        Timing(end - duration, None, None, end, 1, 1, outcome)  # type: ignore[arg-type]
        for end, duration in zip(ends, durations_ns, strict=True)
    )
    return visit_of_one_unit(
        round=0, arm="guest", levels=levels, block=0, query="Q1", order=1, first_execution=first_execution, asleep_ok=True,
        host_start_ns=None, host_end_ns=None, start_ns=0, end_ns=ends[-1], executions=executions,
    )  # fmt: skip


def value(metric: str, visit: Visit) -> float | None:
    (found,) = VALUES[metric]([totals(visit)])
    return found


def test_each_run_on_a_new_connection_is_a_metric_of_its_own() -> None:
    fresh = visit({"connection": "per_visit"}, [900, 500, 400, 400, 300, 300])
    assert [value(f"run_time_{number}", fresh) for number in (1, 2, 5)] == [900, 500, 300]
    assert value("run_time", fresh) == 400
    assert value("run_time_3", visit({"connection": "per_visit"}, [900, 500])) is None
    assert value("run_time_1", visit({"connection": "persistent"}, [900, 500])) is None
    assert value("run_time_1", visit({"connection": "per_visit"}, [900], first_execution=True)) is None


def test_a_run_that_failed_or_was_cut_is_not_a_time() -> None:
    assert math.isnan(value("run_time_1", visit({"connection": "per_visit"}, [900], outcome="error")) or 0)
    assert value("run_time_1", visit({"connection": "per_visit"}, [900], outcome="timeout")) == math.inf


def test_a_contrast_says_which_query_ran_into_the_timeout() -> None:
    cut = times(0.5)
    ns = cut.ns.copy()
    ns[2, 0, 1, 2] = math.inf
    effect = comparisons.contrast(replace(cut, ns=ns, cut_ns=cut.ns), times(0.2), PAIR, Precision())
    assert effect.shown is None and effect.reason == "Q2: 1 visit of guest ran into the statement timeout"


def test_a_total_is_over_the_blocks_that_both_took_part_in() -> None:
    """A visit of the baseline that is void takes its block out of both totals: without any effect none is seen."""
    sizes = np.array([100.0, 200.0, 400.0, 800.0])  # of the blocks' parameters
    ns = np.repeat(np.repeat(sizes[np.newaxis, :, np.newaxis, np.newaxis], 3, axis=2), 3, axis=3)
    ns[0, 3, 0, 0] = math.nan
    assert comparisons.round_totals(ns, 2, (0, 1))[0] == pytest.approx(0, abs=1e-12)  # the copy stands alone there
    ns[0, 3, 1, :2] = math.nan
    assert comparisons.round_totals(ns, 2, (0, 1))[0] == pytest.approx(0, abs=1e-12)
    assert comparisons.round_totals(ns, 1, (0,))[0] == pytest.approx(0, abs=1e-12)


def test_a_total_is_over_the_blocks_that_the_arm_took_part_in() -> None:
    """Blocks have parameters of their own: a slow arm that sat out the long ones must not seem fast."""
    ns = np.full((1, 3, 1, 2), 100.0)
    ns[0, 1:, 0, 0] = 900.0  # the baseline's blocks with other parameters
    ns[0, 0, 0, 1] = 150.0
    ns[0, 1:, 0, 1] = np.nan
    assert comparisons.round_totals(ns, 1, (0,)) == pytest.approx(math.log(1.5))
