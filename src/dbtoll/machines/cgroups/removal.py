"""Control groups removed, with all processes in them."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import time
from collections.abc import Iterable, Mapping
from typing import Any

from dbtoll import identities
from dbtoll.errors import AgentFailure, DbtollError
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.layout import OTHERS, TOP, WAS_OFF
from dbtoll.machines.mounts import unescape
from dbtoll.model.json import Json

REMOVAL_DEADLINE_S = 20.0

UNSEEN = b"0"
"""What the kernel shows for a process in a namespace around ours (pid_namespaces(7))."""


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Kill every process in the groups ``identity["paths"]`` and remove them, and what lies around them if it is empty.

    Groups that are gone already are no error. Raises DbtollError when a process cannot be ended, or a path is not that of
    a group of dbtoll: what is in the machine's own groups is nobody's to kill.
    """
    paths = identities.paths(identity, "paths", *_trees(machine))
    if foreign := [path for path in paths if TOP not in posixpath.dirname(path).split("/")]:
        raise DbtollError(f"{machine.name}: {', '.join(foreign)}: not a control group of dbtoll; nothing was done")
    groups = [group for path in paths for group in _tree(machine, path)]
    deadline = time.monotonic() + REMOVAL_DEADLINE_S
    while pids := _kill(machine, groups):
        if time.monotonic() > deadline:
            raise DbtollError(f"{machine.name}: processes {pids} in {groups[0]} do not end")
        time.sleep(0.005)
    for group in groups:
        _remove_directory(machine, group, deadline)
    for path in paths:
        _remove_around(machine, path)


def _trees(machine: AgentMachine) -> list[str]:
    """Where control groups are mounted, whoever can see them: elsewhere a ``cgroup.procs`` says what its writer wanted."""
    lines = machine.get("/proc/self/mountinfo", max_bytes=16 << 20).decode(errors="replace").splitlines()
    fields = [line.split(" ") for line in lines]
    return [unescape(each[4]) for each in fields if each[each.index("-", 6) + 1] in ("cgroup", "cgroup2")]


def _tree(machine: AgentMachine, path: str) -> list[str]:
    """A group and all groups in it, the innermost first. It need not be there."""
    return [*(group for name in _groups_in(machine, path) for group in _tree(machine, f"{path}/{name}")), path]


def _kill(machine: AgentMachine, groups: Iterable[str]) -> list[int]:
    """SIGKILL to all processes in the groups, then thaw these: the frozen do not die. Which processes there were."""
    pids = set()
    for group in groups:
        try:
            pids |= {int(pid) for pid in machine.get(f"{group}/cgroup.procs", max_bytes=16 << 20).split()}
        except AgentFailure as failure:
            if failure.code != "not_found":
                raise
    if pids:
        machine.run(["sh", "-c", 'kill -KILL "$@"', "kill", *map(str, sorted(pids))], check=False)
        for group in groups:
            for file, value in (("freezer.state", b"THAWED"), ("cgroup.freeze", b"0")):
                if exists(machine, f"{group}/{file}"):
                    machine.put(f"{group}/{file}", value, in_place=True)
    return sorted(pids)


def _remove_directory(machine: AgentMachine, group: str, deadline: float) -> None:
    while not _removed_if_empty(machine, group):  # processes leave their group a moment after they have ended
        if time.monotonic() > deadline:
            raise DbtollError(
                f"{machine.name}: the group {group} cannot be removed", "look what is in its cgroup.procs"
            )
        time.sleep(0.005)


def _remove_around(machine: AgentMachine, path: str) -> None:
    """The groups around ``path`` up to the outermost TOP, as far as they are empty.

    Not only up to the nearest: a container engine inside an arm makes the whole path, also in trees that the arm is not
    in.
    """
    group = posixpath.dirname(path)
    while TOP in group.split("/"):
        removed = _remove_top(machine, group) if posixpath.basename(group) == TOP else _removed_if_empty(machine, group)
        if not removed:
            return
        group = posixpath.dirname(group)


def _remove_top(machine: AgentMachine, top: str) -> bool:
    """Remove TOP if nothing but reminders is in it, and undo what was done around it for its sake."""
    inner = _groups_in(machine, top)
    if not all(name.startswith(WAS_OFF) for name in inner):
        return False
    for name in inner:
        _removed_if_empty(machine, f"{top}/{name}")
    if not _removed_if_empty(machine, top):
        return False
    around = posixpath.dirname(top)
    for name in inner:
        command = " ".join(f"-{controller}" for controller in name.removeprefix(WAS_OFF).split("."))
        with contextlib.suppress(AgentFailure):  # somebody else uses them by now
            machine.put(f"{around}/cgroup.subtree_control", command.encode(), in_place=True)
    # A process that is seen as 0 is in a process namespace around ours: then it is not we who have put them there (namespaces.py).
    if exists(machine, f"{around}/{OTHERS}") and UNSEEN not in _pids(machine, f"{around}/{OTHERS}"):
        with contextlib.suppress(AgentFailure):
            move_processes(machine, f"{around}/{OTHERS}", around)
        _removed_if_empty(machine, f"{around}/{OTHERS}")
    return True


def _removed_if_empty(machine: AgentMachine, group: str) -> bool:
    try:
        machine.remove(group)
    except AgentFailure as failure:
        return failure.code == "not_found"
    return True


def move_processes(machine: AgentMachine, source: str, target: str) -> None:
    """All processes of one group into another, also those that start meanwhile."""
    machine.mkdir(target)
    while pids := [pid for pid in _pids(machine, source) if pid != UNSEEN]:
        for pid in pids:
            try:
                machine.put(f"{target}/cgroup.procs", pid, in_place=True)
            except AgentFailure as failure:
                if failure.detail.get("errno") != errno.ESRCH:  # it has ended meanwhile
                    raise


def _pids(machine: AgentMachine, group: str) -> list[bytes]:
    return machine.get(f"{group}/cgroup.procs", max_bytes=16 << 20).split()


def exists(machine: AgentMachine, path: str) -> bool:
    """Whether there is anything at that path."""
    directory, _, name = path.rpartition("/")
    return any(entry["name"] == name for entry in _entries(machine, directory))


def _groups_in(machine: AgentMachine, group: str) -> list[str]:
    return [entry["name"] for entry in _entries(machine, group) if entry["kind"] == "directory"]


def _entries(machine: AgentMachine, directory: str) -> list[Json]:
    """[] for what is not there."""
    try:
        return machine.entries(directory)
    except AgentFailure as failure:
        if failure.code == "not_found":
            return []
        raise
