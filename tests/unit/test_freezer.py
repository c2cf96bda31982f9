"""When an arm is taken to be asleep."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import cast

import pytest

from dbtoll.errors import DbtollError
from dbtoll.machines import freezer
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.freezer import GroupFreezer


class Kernel:
    """Calls a group frozen as soon as it is asked to freeze it, while its processes still run through ``late_looks`` looks."""

    name = "kernel"

    def __init__(self, late_looks: int) -> None:
        self.frozen = False
        self.used_us = 1000
        self.late_looks = late_looks

    def put(self, path: str, content: bytes, *, in_place: bool) -> None:
        assert (PurePosixPath(path).name, in_place) == ("cgroup.freeze", True)
        self.frozen = content == b"1"

    def get(self, path: str) -> bytes:
        if PurePosixPath(path).name == "cgroup.events":
            return b"populated 1\nfrozen %d\n" % self.frozen
        assert PurePosixPath(path).name == "cpu.stat"
        if self.late_looks:
            self.late_looks -= 1
            self.used_us += 40
        return b"usage_usec %d\nuser_usec 0\n" % self.used_us


def group(kernel: Kernel) -> GroupFreezer:
    return GroupFreezer(cast("AgentMachine", kernel), "/group", 2, "/group", 2)


@pytest.mark.parametrize("late_looks", [0, 1, 5])
def test_a_group_sleeps_once_its_cpu_time_stands_still_and_not_once_the_kernel_calls_it_frozen(late_looks: int) -> None:
    kernel = Kernel(late_looks)
    frozen = group(kernel)
    frozen.freeze()
    at_first = frozen.cpu_ns()
    assert kernel.late_looks == 0
    assert frozen.asleep()
    assert frozen.cpu_ns() == at_first


def test_a_group_that_goes_on_working_is_said_and_thawed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "FREEZE_DEADLINE_S", 0.05)
    kernel = Kernel(late_looks=1_000_000)
    with pytest.raises(DbtollError, match="still uses CPU time"):
        group(kernel).freeze()
    assert not kernel.frozen
