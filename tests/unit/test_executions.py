"""Packed executions read as what was packed, and the values of many visits are those that each one has by its definition."""

from __future__ import annotations

import math
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbtoll.analysis.visits import metrics
from dbtoll.analysis.visits.metrics import VALUES
from dbtoll.analysis.visits.units import VisitTotals, totals
from dbtoll.store.executions import Executions, outcomes
from dbtoll.store.reader import Sharing
from dbtoll.store.schema import Timing, Visit
from tests.support.changed import visit_of_one_unit

WHOLE = st.integers(0, 2**62)
MAYBE = st.none() | WHOLE
OUTCOME = st.sampled_from(["ok"] * 8 + ["timeout", "error", "wrong_answer"])
TIMINGS = st.lists(st.builds(Timing, WHOLE, MAYBE, MAYBE, WHOLE, MAYBE, MAYBE, OUTCOME), max_size=6)


def made(executions: list[Timing], **values: Any) -> Visit:
    about: dict[str, Any] = {"round": 0, "arm": "native", "levels": {}, "block": 0, "query": "Q1", "order": 1}
    about |= {"first_execution": False, "asleep_ok": None, "host_start_ns": None, "host_end_ns": None}
    return visit_of_one_unit(**{**about, "start_ns": 0, "end_ns": 1, "executions": executions, **values})


@given(TIMINGS)
def test_packed_executions_are_what_was_packed(executions: list[Timing]) -> None:
    packed = Executions(executions)
    assert (list(packed), len(packed)) == (executions, len(executions))
    assert packed == executions
    assert packed == Executions(executions)
    assert packed[:2] == tuple(executions[:2])
    assert [packed[at] for at in range(-len(executions), len(executions))] == executions * 2
    assert dict(packed.outcomes) == dict(outcomes(executions))
    with pytest.raises(IndexError):
        packed[len(executions)]
    if executions:
        assert packed != executions[:-1]


def test_a_packed_visit_equals_the_one_that_was_written() -> None:
    written = made([Timing(1, None, 2, 3, 4, 5, "ok")], levels={"cache": "warm"})
    one, other = (msgspec.json.decode(msgspec.json.encode(written), type=Visit) for _ in range(2))
    sharing = Sharing()
    one, other = sharing.packed(one), sharing.packed(other)
    assert isinstance(one.units[0].executions, Executions)
    assert one == written
    assert one.levels is other.levels
    assert one.arm is other.arm


def by_definition(visit: VisitTotals, time: str) -> float | None:
    """The median of a visit's executions, one visit after the other."""
    if visit.window is not None or visit.batches is not None:
        return None
    values = [
        None
        if (end := getattr(each, time)) is None
        else math.inf
        if each.outcome == "timeout"
        else float(end - each.start_ns)
        for each in visit.executions[: 1 if visit.first_execution else None]
    ]
    known = [each for each in values if each is not None]
    if metrics.failed(visit):
        return math.nan if known or not values else None
    return statistics.median(known) if known and len(known) == len(values) else None


VISITS = st.builds(
    lambda executions, first, problem, batches: totals(
        made(executions, first_execution=first, problem=problem, batches=batches)
    ),
    TIMINGS,
    st.booleans(),
    st.none() | st.just("it did not work"),
    st.none() | st.none() | st.just(()),
)


@pytest.mark.parametrize(("metric", "time"), [("run_time", "end_ns"), ("connect_time", "connected_ns")])
@given(visits=st.lists(VISITS, max_size=8))
def test_values_of_many_visits_are_those_of_each(metric: str, time: str, visits: list[VisitTotals]) -> None:
    expected = [by_definition(visit, time) for visit in visits]
    assert [isinstance(each, float) for each in expected] == [each is not None for each in expected]
    for packed in (visits, [msgspec.structs.replace(each, executions=Executions(each.executions)) for each in visits]):
        assert VALUES[metric](packed) == pytest.approx(expected, nan_ok=True)
    for at_once in (1, 3):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(metrics, "_AT_ONCE", at_once)
            assert VALUES[metric](visits) == pytest.approx(expected, nan_ok=True)
