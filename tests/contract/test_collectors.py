"""What every collector must keep to; a new one is found by its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from dbtoll import interfaces, registry
from dbtoll.interfaces import Machine
from dbtoll.selfbench.collectors import KNOWN, PRIME, beginning, known_number, let

OpenArm = Callable[..., Machine]

collectors = pytest.mark.parametrize("name", registry.names("collectors"))


@collectors
def test_it_has_the_shape_of_a_collector(name: str) -> None:
    collector = registry.find("collectors", name)()
    assert collector.name == name
    for method, wanted in inspect.getmembers(interfaces.Collector, inspect.isfunction):
        if not method.startswith("_"):
            assert list(inspect.signature(getattr(type(collector), method)).parameters) == list(
                inspect.signature(wanted).parameters
            ), method


@collectors
def test_a_known_number_of_events_is_counted(name: str, open_arm: OpenArm) -> None:
    collector = registry.find("collectors", name)()
    told = known_number(open_arm(), collector)
    assert not KNOWN[name].missed(told), told


@collectors
def test_who_is_not_there_cannot_be_counted(name: str, open_arm: OpenArm) -> None:
    machine = open_arm()
    assert registry.find("collectors", name)().lacks(machine, 4_000_000)


def test_tracepoints_and_ptrace_agree_on_system_calls(open_arm: OpenArm) -> None:
    machine = open_arm()
    subject = beginning(machine, {"probe": "system_call", "events": PRIME, "batches": 1})
    with registry.find("collectors", "events")().around(machine, subject.pid) as seen:
        let(machine, subject)
    told = seen()
    if told["calls"] is None:
        pytest.skip(f"no tracepoints of system calls here: {told['missing']['calls']}")
    other = beginning(machine, {"probe": "system_call", "events": PRIME, "batches": 1})
    with registry.find("collectors", "calls")().around(machine, other.pid) as traced:
        let(machine, other)
    assert told["calls"]["getppid"] == traced()["getppid"]["count"] == PRIME
    # The shell goes on while one counter after the other is read.
    named = sum(count for name, count in told["calls"].items() if name != "all")
    assert abs(told["calls"]["all"] - named) < 200
