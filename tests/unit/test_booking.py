"""From what collectors counted to events of the ledger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dbtoll.analysis.attribution.cost_model import predicted_overhead
from dbtoll.analysis.attribution.counts import Events, fault_kinds
from dbtoll.analysis.attribution.ledger import Costs
from dbtoll.analysis.attribution.user_mode import predicted_ratios
from dbtoll.analysis.result.schema import Forecast

MS = 1_000_000


def told(executions: int, **counted: int | None) -> dict[str, Any]:
    return {"executions": executions, "round_trips": executions, "elapsed_ns": 1, "counted": counted}


KINDS = {"faults": told(2, anonymous=200, copy=100, shared=20, shared_read=300, file=100)}


def test_kinds_of_faults_are_shares_of_the_kernels_own_count() -> None:
    found = fault_kinds(360.0, KINDS, {})
    assert found["page faults: new pages"] == 100
    assert found["page faults: copies"] == 50
    assert sum(found.values()) == pytest.approx(360)


def test_a_kernel_that_maps_fewer_pages_at_once_has_more_faults_on_what_is_there_already() -> None:
    own = fault_kinds(360.0, KINDS, {})
    other = fault_kinds(960.0, {"faults": {"missing": "no tracepoints"}}, KINDS)
    for name in ("page faults: new pages", "page faults: copies", "page faults: shared memory written"):
        assert other[name] == own[name]
    assert sum(other.values()) == pytest.approx(960)
    assert other["page faults: shared memory read"] == pytest.approx(3 * other["page faults: files"])


def test_faults_that_nobody_told_apart_are_one_item() -> None:
    assert fault_kinds(12.0, {}, {}) == {"page faults": 12.0}
    assert fault_kinds(0.3, {"faults": told(3, anonymous=0, copy=0)}, {}) == {"page faults": 0.3}


def test_what_a_timed_execution_had_is_believed_before_what_another_one_had() -> None:
    counted = {"processes": told(1, minor_faults=800, voluntary_switches=None, involuntary_switches=None)}
    assert Events.counted(counted, faults=3.0).counts["page faults"] == 3
    assert Events.counted(counted).counts["page faults"] == 800


def test_what_an_arm_cannot_count_is_as_often_there_as_in_the_baseline() -> None:
    calls = {
        "executions": 1,
        "round_trips": 1,
        "elapsed_ns": 2 * MS,
        "counted": {
            name: {"count": count, "alone": alone}
            for name, count, alone in (
                ("recvfrom", 2, 0),
                ("sendto", 1, 1),
                ("lseek", 5, 2),
                ("openat", 3, 0),
                ("close", 4, 0),
                ("getpid", 1, 1),
            )
        },
    }
    native = {"processes": told(1, minor_faults=10, voluntary_switches=3, involuntary_switches=1), "calls": calls}
    sandbox = {
        "processes": told(2, minor_faults=None, voluntary_switches=None, involuntary_switches=None),
        "calls": {"missing": "ptrace: Operation not permitted"},
    }
    assert Events.counted(sandbox, native) == Events.counted(native)
    found = Events.counted(native).counts
    assert found["files: sizes asked for"] == 5
    assert found["files: opened"] == 3
    # One recvfrom more than the round trip's, one close more than the opened files', getpid.
    assert found["other system calls"] == 3
    assert found["switches"] == 3


def test_a_call_costs_what_it_costs_in_a_row_or_alone() -> None:
    calls = {"lseek": {"count": 8, "alone": 2}, "pread64": {"count": 2, "alone": 2}, "read": {"count": 2, "alone": 0}}
    native = {"calls": {"executions": 2, "round_trips": 0, "elapsed_ns": 2 * MS, "counted": calls}}
    found = Events.counted(native)
    assert found.counts["files: read"] == 2
    assert found.alone == {"files: sizes asked for": 0.25, "files: read": 0.5}
    costs = Costs(np.array([10.0]), np.array([50.0]), found.alone["files: sizes asked for"])
    assert costs.ns == pytest.approx([20.0])
    # Where looking on delays so much that all of them seem to come alone, the baseline is believed.
    delayed = {name: {"count": call["count"], "alone": call["count"]} for name, call in calls.items()}
    guest = {"calls": {**native["calls"], "counted": delayed}}
    assert Events.counted(guest, native).alone == found.alone


def test_what_comes_by_the_clock_comes_as_often_in_the_same_time() -> None:
    calls = {"pwrite64": {"count": 30, "background": 20}, "lseek": {"count": 10, "background": 0}}
    # Ten executions in a pass that was slowed down to 4 ms for each: of the 20 calls there are 5 in every 10 ms.
    counted = {"calls": {"executions": 10, "round_trips": 0, "elapsed_ns": 40 * MS, "counted": calls}}
    found = Events.counted(counted)
    assert found.counts["files: written"] == pytest.approx(1)
    assert found.per_ns["files: written"] * 10 * MS == pytest.approx(5)
    assert found.of("files: sizes asked for") == (1, 0, 0.5)
    assert found.of("files: opened") == (0, 0, 0.5)


def test_a_page_fault_costs_what_it_costs_in_a_row_or_alone() -> None:
    faults = {"executions": 1, "round_trips": 1, "counted": {"file": 8, "copy": 0, "alone": {"file": 2, "copy": 0}}}
    native = {"faults": faults}
    assert Events.counted(native).alone == {"page faults: files": 0.25}
    assert Events.counted({"faults": {"missing": "no tracepoints"}}, native).alone == {"page faults: files": 0.25}


def test_nothing_is_known_of_rows_in_a_history_without_them() -> None:
    calls = {"executions": 1, "round_trips": 0, "elapsed_ns": MS, "counted": {"lseek": {"count": 8}}}
    assert Events.counted({"calls": calls}).alone == {}


def test_a_query_is_slowed_down_like_probes_whose_time_is_spread_as_its_own() -> None:
    spreads = np.array([1.0, 3.0, 9.0, 27.0])
    ratios = np.array([[2.0, 4.0], [4.0, 8.0], [8.0, 16.0], [16.0, 32.0]])  # of two rounds, on a straight line each
    middle = np.sqrt([4.0 * 8.0, 8.0 * 16.0])
    for spread, line in ((3.0, [4.0, 8.0]), (27.0, [16.0, 32.0])):
        low, high = predicted_ratios(spreads, ratios, spread)
        assert np.sqrt(low * high) == pytest.approx(np.sqrt(middle * line))
        assert np.all(low < high)
    assert predicted_ratios(spreads, ratios, 1000.0) == pytest.approx(np.array([[16.0, 32.0], [16.0, 32.0]]))


def test_where_spread_tells_nothing_a_query_is_slowed_down_as_probes_are() -> None:
    spreads = np.array([1.0, 10.0, 1.0, 10.0])
    ratios = np.array([[2.0], [2.0], [8.0], [8.0]])
    low, high = predicted_ratios(spreads, ratios, 5.0)
    assert (low[0], high[0]) == pytest.approx((2.0, 8.0))
    same = predicted_ratios(np.full(4, 3.0), ratios, 5.0)
    assert same[:, 0] == pytest.approx([2.0, 8.0])


def test_no_bound_of_a_prediction_says_less_than_no_time() -> None:
    """Two rounds that differ by a half: a t interval of the factors themselves would begin far below nothing."""
    factors = np.array([8.0, 4.0])
    found = predicted_overhead(factors, 0.0, 0.05)
    assert found.estimate == pytest.approx(np.sqrt(32) - 1)
    assert found.low is not None and found.high is not None
    assert -1 < found.low < found.estimate < found.high
    assert factors.mean() - 12.7 * factors.std() < 0
    doubtful = predicted_overhead(factors, 3.0, 0.05)
    assert doubtful.high is not None
    assert (1 + doubtful.high) / (1 + found.high) == pytest.approx(np.exp(3 / 6))
    assert doubtful.estimate == found.estimate


def test_a_prediction_of_one_round_has_no_bounds() -> None:
    assert predicted_overhead(np.array([2.0]), 0.2, 0.05) == Forecast(pytest.approx(1.0), None, None)
