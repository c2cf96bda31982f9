"""Environments where no control group can be made, as for a user to whom none is delegated: arms are trees of processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dbtoll import registry
from dbtoll.contracts import EnvironmentContract
from dbtoll.contracts.environment import Open
from dbtoll.errors import Unavailable
from dbtoll.interfaces.environment import Environment
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import layout
from dbtoll.machines.process_tree import ProcessTree


@pytest.fixture(autouse=True)
def nothing_is_delegated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "is_first_user_namespace", lambda machine: False)
    monkeypatch.setattr(layout, "_may_write", lambda machine, group: False)


@pytest.mark.timeout(180)
class TestWithoutGroups(EnvironmentContract):
    @pytest.fixture(params=["native", "bubblewrap", "podman", "uml", "qemu"])
    def environment(self, request: pytest.FixtureRequest) -> Environment:
        made: Environment = registry.find("environments", request.param)()
        return made

    def test_resources_are_the_ones_of_the_place(self, open_one: Open, environment: Environment) -> None:
        """But for the memory, which nothing limits."""
        assert open_one().facts()["cpus_allowed"]

    def test_its_requests_to_a_device_can_be_held_back(
        self, open_one: Open, environment: Environment, local: AgentMachine, tmp_path: Path
    ) -> None:
        """They cannot, which is said, with what helps."""
        with pytest.raises(Unavailable, match="no control group controller blkio or io") as refused:
            super().test_its_requests_to_a_device_can_be_held_back(open_one, environment, local, tmp_path)
        assert "Delegate=yes" in str(refused.value.hint)


def test_a_tree_sleeps_as_a_whole_and_wakes_as_a_whole(local: AgentMachine) -> None:
    script = "for _ in 1 2 3; do (while :; do sh -c :; done) & done; wait"
    busy = local.spawn(["sh", "-c", script], stop_signal=9)
    tree = ProcessTree(local)
    tree.begun(busy.pid)
    deadline = time.monotonic() + 30
    while len(tree.processes()) < 4:
        assert time.monotonic() < deadline, "the shell did not start its children"
    for _ in range(20):
        tree.freeze()
        asleep, used = tree.processes(), tree.cpu_ns()
        assert len(asleep) >= 4
        states = {local.get(f"/proc/{pid}/stat").rpartition(b") ")[2][:1] for pid in asleep}
        assert states <= {b"T", b"Z"}
        assert (tree.processes(), tree.cpu_ns()) == (asleep, used)
        tree.thaw()
    busy.signal(9)
    busy.wait(10)
    tree.thaw()  # of a tree that is gone
