"""What every collector must keep to; a new one is found by its file."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from dbtoll import interfaces, registry
from dbtoll.interfaces import Machine

OpenArm = Callable[..., Machine]

PRIME = 7919
"""A number of events that nothing makes by chance."""

KNOWN: dict[str, tuple[str, Callable[[Any], int], int]] = {
    "calls": ("system_call", lambda told: told["getppid"]["count"], 0),
    "processes": ("fault_anonymous", lambda told: told["minor_faults"], 600),
}
"""Collector -> a probe, what is told of its events, and how many more there may be: a program has faults of its own."""

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
    probe, count, more = KNOWN[name]
    machine = open_arm()
    asked = json.dumps({"probe": probe, "events": PRIME, "batches": 1})
    # The shell lives on, so that what its child did can be told of it.
    process = machine.spawn(["sh", "-c", f"sleep 2; /dbtoll/agent probe '{asked}'; sleep 60"])
    collector = registry.find("collectors", name)()
    assert collector.lacks(machine, process.pid) is None
    with collector.around(machine, process.pid) as told:
        deadline = time.monotonic() + 60
        while b"batches" not in process.output() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)  # until the shell has waited for it
    assert PRIME <= count(told()) <= PRIME + more
    assert process.running()


@collectors
def test_who_is_not_there_cannot_be_counted(name: str, open_arm: OpenArm) -> None:
    machine = open_arm()
    assert registry.find("collectors", name)().lacks(machine, 4_000_000)
