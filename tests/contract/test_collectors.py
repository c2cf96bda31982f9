"""What every collector must keep to; a new one is found by its file."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dbtoll import registry
from dbtoll.interfaces.collector import Collector
from dbtoll.interfaces.machine import Machine
from dbtoll.model.machine import DATA, Artifact, Provision
from dbtoll.selfbench.costs.collectors import KNOWN, PRIME, known_number, release, start_held

OpenArm = Callable[..., Machine]

collectors = pytest.mark.parametrize("name", registry.names("collectors"))


def able(name: str, machine: Machine) -> Collector:
    """The collector; a kernel that does not show what it counts of a process of ours skips the test, and says why."""
    collector: Collector = registry.find("collectors", name)()
    ours = machine.spawn(["sleep", "60"])
    if why := collector.missing_requirements(machine, ours.pid):
        pytest.skip(why)
    ours.signal(signal.SIGKILL)
    return collector


@collectors
def test_it_has_the_shape_of_a_collector(name: str) -> None:
    collector = registry.find("collectors", name)()
    assert collector.name == name
    for method, wanted in inspect.getmembers(Collector, inspect.isfunction):
        if not method.startswith("_"):
            assert list(inspect.signature(getattr(type(collector), method)).parameters) == list(
                inspect.signature(wanted).parameters
            ), method


@pytest.mark.parametrize(
    "name",
    # Everybody's requests to the device are counted.
    [pytest.param(name, marks=[pytest.mark.alone] * (name == "blocks")) for name in registry.names("collectors")],
)
def test_a_known_number_of_events_is_counted(name: str, open_arm: OpenArm, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    if name == "blocks" and not Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
        pytest.skip("temporary files are not on a block device here")
    data = tmp_path / "data"
    data.mkdir()
    machine = open_arm(Provision(Artifact("test", str(data)), DATA, writable=True))
    counted = known_number(machine, able(name, machine))
    assert not KNOWN[name].missed(counted), counted


@collectors
def test_who_is_not_there_cannot_be_counted(name: str, open_arm: OpenArm) -> None:
    machine = open_arm()
    assert registry.find("collectors", name)().missing_requirements(machine, 4_000_000)


def test_what_is_to_be_counted_waits_before_it_is_looked_at(open_arm: OpenArm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that starts calls getppid, as the probe does: where it started slowly the number was one too high."""
    machine = open_arm()
    spawn = machine.spawn
    monkeypatch.setattr(machine, "spawn", lambda argv: spawn(["sh", "-c", 'sleep 0.5; exec "$@"', "sh", *argv]))
    subject = start_held(machine, {"probe": "system_call", "events": PRIME, "batches": 1})
    monkeypatch.undo()
    with able("calls", machine).around(machine, subject.pid) as seen:
        release(machine, subject)
    assert seen()["getppid"]["count"] == PRIME


def test_tracepoints_and_ptrace_agree_on_system_calls(open_arm: OpenArm) -> None:
    machine = open_arm()
    told = []
    for counting in (able("tracepoints", machine), able("calls", machine)):
        subject = start_held(machine, {"probe": "system_call", "events": PRIME, "batches": 1})
        with counting.around(machine, subject.pid) as seen:
            release(machine, subject)
        told.append(seen())
    counted, traced = told[0]["calls"], told[1]
    assert counted["getppid"] == traced["getppid"]["count"] == PRIME
    # The shell goes on while one counter after the other is read.
    named = sum(count for name, count in counted.items() if name != "all")
    assert abs(counted["all"] - named) < 200


@pytest.mark.parametrize(
    ("probe", "kind"),
    [
        ("fault_anonymous", "anonymous"),
        ("fault_shared", "shared"),
        ("fault_shared_read", "shared_read"),
        ("fault_file", "file"),
        ("fault_copy", "copy"),
    ],
)
def test_page_faults_are_told_apart(probe: str, kind: str, open_arm: OpenArm) -> None:
    machine = open_arm()
    collector = able("faults", machine)
    subject = start_held(machine, {"probe": probe, "events": PRIME, "batches": 1})
    with collector.around(machine, subject.pid) as seen:
        release(machine, subject)
    told = seen()
    alone = told.pop("alone")
    others = sum(count for name, count in told.items() if name != kind)
    prepared = 4096 + 600  # the shared pages have to be there before
    assert PRIME <= told[kind] <= PRIME + prepared
    in_order = kind in ("anonymous", "copy")  # the others go over their pages here and there (agent/src/probe/pages.rs)
    assert alone[kind] < PRIME / 10 if in_order else alone[kind] > PRIME / 2
    # Preparing one kind may need others: a page that is copied was a new one before.
    assert others <= 2 * PRIME + 600
