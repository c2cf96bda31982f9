"""From what collectors counted to events of the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from dbtoll.analysis.booking import events, fault_kinds


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


def test_what_an_arm_cannot_count_is_as_often_there_as_in_the_baseline() -> None:
    calls = {
        "executions": 1,
        "round_trips": 1,
        "counted": {
            name: {"count": count}
            for name, count in {"recvfrom": 2, "sendto": 1, "lseek": 5, "openat": 3, "close": 4, "getpid": 1}.items()
        },
    }
    native = {"processes": told(1, minor_faults=10, voluntary_switches=3, involuntary_switches=1), "calls": calls}
    sandbox = {
        "processes": told(2, minor_faults=None, voluntary_switches=None, involuntary_switches=None),
        "calls": {"missing": "ptrace: Operation not permitted"},
    }
    assert events(sandbox, native) == events(native)
    found = events(native)
    assert found["files: sizes asked for"] == 5
    assert found["files: opened"] == 3
    # One recvfrom more than the round trip's, one close more than the opened files', getpid.
    assert found["other system calls"] == 3
    assert found["switches"] == 3
