"""Putting an arm to sleep: the freezer of a control group, and the CPU time of all that is in it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from dbtoll.errors import AgentFailure, DbtollError
from dbtoll.machines.agent.machine import AgentMachine

FREEZE_DEADLINE_S = 10.0
STILL_S = 0.002
"""Between two looks at a group's CPU time that must be the same."""


class Freezer(Protocol):
    """What puts all processes of an arm to sleep, through the machine *around* it."""

    def freeze(self) -> None:
        """Returns when every process of the arm sleeps. Raises DbtollError after a deadline, thawed again."""

    def thaw(self) -> None:
        """Returns when every process of the arm may run. One that is gone needs nothing."""

    def cpu_ns(self) -> int:
        """CPU time of the arm's processes, ns, counted by the scheduler: it stands still while they sleep."""
        ...

    def processes(self) -> set[int]:
        """Of the arm, as the machine around it numbers them."""
        ...


@dataclass(frozen=True, slots=True)
class GroupFreezer:
    """One control group's freezer, written through the machine *around* the arm (the arm itself cannot answer asleep)."""

    machine: AgentMachine
    directory: str
    version: int
    counting_directory: str
    counting_version: int

    def freeze(self) -> None:
        """Returns when every process of the group sleeps. Raises DbtollError after a deadline, thawed again."""
        try:
            self._set(asleep=True)
            self._wait_until_still()
        except BaseException:
            self._write(asleep=False)
            raise

    def thaw(self) -> None:
        """Returns when every process of the group may run. A group that has gone holds none."""
        try:
            self._set(asleep=False)
        except AgentFailure as failure:
            if failure.code != "not_found":
                raise

    def asleep(self) -> bool:
        """Whether the kernel says that all of it sleeps."""
        if self.version == 1:
            return self.machine.get(f"{self.directory}/freezer.state").strip() == b"FROZEN"
        return b"frozen 1" in self.machine.get(f"{self.directory}/cgroup.events")

    def cpu_ns(self) -> int:
        """CPU time of all processes that ever were in the group, ended ones included; ns, counted by the scheduler."""
        if self.counting_version == 1:
            return int(self.machine.get(f"{self.counting_directory}/cpuacct.usage"))
        fields = self.machine.get(f"{self.counting_directory}/cpu.stat").decode().split()
        return int(fields[fields.index("usage_usec") + 1]) * 1000

    def processes(self) -> set[int]:
        """Of the group and all groups below it."""
        return _members(self.machine, self.directory)

    def _set(self, *, asleep: bool) -> None:
        deadline = time.monotonic() + FREEZE_DEADLINE_S
        self._write(asleep=asleep)
        while self.asleep() != asleep:
            if time.monotonic() > deadline:
                raise DbtollError(
                    f"{self.machine.name}: the group {self.directory} did not {'freeze' if asleep else 'thaw'}"
                    f" within {FREEZE_DEADLINE_S:g} s",
                    "look for a process in uninterruptible sleep (state D), such as one waiting for a dead disk",
                )
            # Version 1 sets FROZEN in passing when asked; a process that was forking is only caught by asking again.
            self._write(asleep=asleep)

    def _wait_until_still(self) -> None:
        """A kernel calls a process frozen before that gives up its processor (version 2: kernel/signal.c, do_freezer_trap). Where
        there are many processors the last ones are still on their way when the group is called frozen."""
        deadline = time.monotonic() + FREEZE_DEADLINE_S
        before_ns, now_ns = None, self.cpu_ns()
        while now_ns != before_ns:
            if time.monotonic() > deadline:
                raise DbtollError(
                    f"{self.machine.name}: the group {self.directory} is frozen and still uses CPU time"
                    f" after {FREEZE_DEADLINE_S:g} s",
                    "it is the kernel's doing: report it with the kernel's version",
                )
            time.sleep(STILL_S)
            before_ns, now_ns = now_ns, self.cpu_ns()

    def _write(self, *, asleep: bool) -> None:
        if self.version == 1:
            self.machine.put(f"{self.directory}/freezer.state", b"FROZEN" if asleep else b"THAWED", in_place=True)
        else:
            self.machine.put(f"{self.directory}/cgroup.freeze", b"1" if asleep else b"0", in_place=True)


def _members(machine: AgentMachine, group: str) -> set[int]:
    pids = {int(pid) for pid in machine.get(f"{group}/cgroup.procs", max_bytes=16 << 20).split()}
    for entry in machine.entries(group):
        if entry["kind"] == "directory":
            pids |= _members(machine, f"{group}/{entry['name']}")
    return pids
