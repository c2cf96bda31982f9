"""A control group of ours: made, limited, entered."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from dbtoll.errors import AgentFailure, Unavailable
from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.layout import (
    CORE_OF_VERSION_2,
    OTHERS,
    WAS_OFF,
    Hierarchy,
    Layout,
    cpu_list,
    find_layout,
    freezer_of,
    is_first_user_namespace,
    online_cpus,
    path_of_process,
)
from dbtoll.machines.cgroups.removal import exists, move_processes, remove
from dbtoll.machines.freezer import Freezer
from dbtoll.machines.process_tree import ProcessTree
from dbtoll.model.options import Option

WITHOUT_GROUPS = "systemd-run --user --scope -p Delegate=yes ./dbtoll …, or as root: sudo ./dbtoll …"
"""What brings control groups to a user."""


QUOTA_OPTIONS: Mapping[str, Option] = {
    "cpu_quota": Option(
        "number",
        None,
        "CPU time allowed per period, in CPUs (0.5: half of one); none by default",
        least=0.01,
        most=4096,
    ),
    "cpu_period": Option("duration", 100_000_000, "period of the quota", least=1_000_000, most=1_000_000_000),
}
"""Of environments that are held by such groups. A quota of 0 is none to Docker; the largest is of more processors than there are.
The period's bounds are the kernel's, and `QUOTA_LEAST_NS` (kernel/sched/core.c, tg_set_cfs_bandwidth)."""

QUOTA_LEAST_NS = 1_000_000
"""Of CPU time in a period."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may use; None: no limit. ``cpu_quota`` in CPUs (0.5: half of one), per period."""

    cpus: tuple[int, ...]
    memory_bytes: int | None = None
    cpu_quota: float | None = None
    cpu_period_ns: int = 100_000_000


class Group(Protocol):
    """What holds the processes of one arm: a control group in each tree, or, where there are none, a tree of processes."""

    @property
    def directories(self) -> tuple[str, ...]:
        """Of its control groups, for the arm's first process to enter."""
        ...

    @property
    def freezer(self) -> Freezer:
        """Puts it to sleep."""
        ...

    def begun(self, pid: int | None) -> None:
        """Tell it the arm's first process, as the machine around numbers it."""

    def close(self) -> None:
        """Kill what is left in it and remove it; also twice."""


class Cgroup:
    """The control group of one arm: one directory per tree, limits set, removed by ``close`` with all processes in it."""

    def __init__(
        self,
        machine: AgentMachine,
        layout: Layout,
        parts: tuple[str, ...],
        controllers: Collection[str],
        entry: JournalEntry,
    ):
        self._machine = machine
        self._entry = entry
        self._directory = {
            name: tree.mount + layout.path(*parts) for name in controllers if (tree := layout.having(name)) is not None
        }
        self.directories = tuple(sorted(set(self._directory.values())))
        self.freezer: Freezer = freezer_of(machine, layout, layout.path(*parts))

    def file(self, controller: str, name: str) -> str:
        """Path of a control file."""
        return f"{self._directory[controller]}/{name}"

    def begun(self, pid: int | None) -> None:
        """Whoever is in it has entered it by itself."""

    def close(self) -> None:
        """Kill what is left in it and remove it; also twice."""
        remove(self._machine, {"paths": list(self.directories)})
        self._entry.done()


def create_group(machine: AgentMachine, journal: Journal, parts: tuple[str, ...], limits: Limits) -> Group:
    """Make ``dbtoll/PART/…`` with these limits. Raises Unavailable, naming file and reason, if the machine refuses.

    BIAS: where without root no group can be made, nothing limits the memory; the arm's environment says so in its facts.
    """
    layout = find_layout(machine)
    controllers = ["freezer", "cpuacct"]
    online = online_cpus(machine)
    if absent := set(limits.cpus) - set(online):
        raise Unavailable(
            f"{machine.name} has no processor {cpu_list(absent)}", f"choose from {cpu_list(online)}, or ask for fewer"
        )
    if not layout.hierarchies:
        if limits.cpu_quota is not None:
            raise Unavailable(f"{machine.name}: without control groups there is no quota of CPU time", WITHOUT_GROUPS)
        return ProcessTree(machine)
    # A kernel for one processor has no cpusets, and needs none.
    # Without root there are those that were delegated: the program's affinity, and nothing, stand in for these two.
    may_lack = not is_first_user_namespace(machine)
    controllers += ["cpuset"] if layout.having("cpuset") or (set(limits.cpus) != set(online) and not may_lack) else []
    limits_memory = limits.memory_bytes is not None and bool(layout.having("memory") or not may_lack)
    controllers += ["memory"] if limits_memory else []
    # BIAS: who is in a group of this controller shares a processor with others in another way than who is in none. Beside
    # a busy loop on the arm's processor TPC-H's Q1 and Q6 took 1.46 times as long in such a group, native or not. Every
    # container is in one, so every arm is, wherever that controller exists.
    controllers += ["cpu"] if limits.cpu_quota is not None or layout.having("cpu") else []
    # For the same reason those that hold back requests to devices. Version 1 calls them blkio, version 2 io.
    controllers += [name for name in ("blkio", "io") if layout.having(name)]
    lacking = [name for name in controllers if layout.having(name) is None]
    if lacking:
        raise Unavailable(
            f"{machine.name}: no control group controller {', '.join(lacking)}",
            f"boot with cgroup_enable={lacking[0]} and without cgroup_disable={lacking[0]}, or mount the controller",
        )
    paths = sorted({tree.mount + layout.path(*parts) for name in controllers if (tree := layout.having(name))})
    group = Cgroup(machine, layout, parts, controllers, journal.create("cgroup", paths=paths))
    try:
        for tree in {tree.mount: tree for name in controllers if (tree := layout.having(name))}.values():
            of_tree = [name for name in controllers if name in tree.controllers]
            if tree.version == 1:
                _make_version_1(machine, tree, layout, parts, of_tree)
            else:
                _make_version_2(
                    machine, tree, layout, parts, [name for name in of_tree if name not in CORE_OF_VERSION_2]
                )
        _limit(machine, layout, group, limits)
    except BaseException:
        group.close()
        raise
    return group


def freezer_of_process(machine: AgentMachine, layout: Layout, pid: int) -> Freezer:
    """Of the container whose first process that is."""
    if layout.hierarchies:
        return freezer_of(machine, layout, path_of_process(machine, layout, pid, "freezer"))
    tree = ProcessTree(machine)
    tree.begun(pid)
    return tree


def _levels(tree: Hierarchy, layout: Layout, parts: tuple[str, ...]) -> list[str]:
    """Directories from the one around TOP down to the group's parent."""
    around = tree.mount + layout.base
    return [around, *(tree.mount + layout.path(*parts[:depth]) for depth in range(len(parts)))]


def _make_version_1(
    machine: AgentMachine, tree: Hierarchy, layout: Layout, parts: tuple[str, ...], names: list[str]
) -> None:
    levels = _levels(tree, layout, parts)
    leaf = tree.mount + layout.path(*parts)
    _refusable(machine, f"make the group {leaf}", lambda: machine.mkdir(leaf))
    if "cpuset" in names:  # a new cpuset is empty, and no process may enter an empty one
        for parent, child in zip(levels, [*levels[1:], leaf], strict=True):
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not machine.get(f"{child}/{file}").strip():
                    write_setting(machine, f"{child}/{file}", machine.get(f"{parent}/{file}").decode().strip())


def _make_version_2(
    machine: AgentMachine, tree: Hierarchy, layout: Layout, parts: tuple[str, ...], names: list[str]
) -> None:
    levels = _levels(tree, layout, parts)
    leaf = tree.mount + layout.path(*parts)
    _refusable(machine, f"make the group {leaf}", lambda: machine.mkdir(leaf))
    for level in levels:
        switched_on = machine.get(f"{level}/cgroup.subtree_control").decode().split()
        wanted = [name for name in names if name not in switched_on]
        if not wanted:
            continue
        if level == levels[0]:
            machine.mkdir(f"{levels[1]}/{WAS_OFF}{'.'.join(wanted)}")
        command = " ".join(f"+{name}" for name in wanted)
        try:
            machine.put(f"{level}/cgroup.subtree_control", command.encode(), in_place=True)
        except AgentFailure as failure:
            if failure.detail.get("errno") != errno.EBUSY:
                raise Unavailable(
                    f"{machine.name}: cannot switch on {command} in {level}: {failure.message}"
                ) from failure
            # Never so in the real root: this is the root of a container, or an arm of dbtoll. See OTHERS.
            move_processes(machine, level, f"{level}/{OTHERS}")
            write_setting(machine, f"{level}/cgroup.subtree_control", command)


def _limit(machine: AgentMachine, layout: Layout, group: Cgroup, limits: Limits) -> None:
    def version(controller: str) -> int:
        tree = layout.having(controller)
        assert tree is not None
        return tree.version

    if layout.having("cpuset"):
        write_setting(machine, group.file("cpuset", "cpuset.cpus"), cpu_list(limits.cpus))
    if limits.memory_bytes is not None and layout.having("memory"):
        if version("memory") == 1:
            write_setting(machine, group.file("memory", "memory.limit_in_bytes"), str(limits.memory_bytes))
            swap_file, swap_value = group.file("memory", "memory.memsw.limit_in_bytes"), limits.memory_bytes
        else:
            write_setting(machine, group.file("memory", "memory.max"), str(limits.memory_bytes))
            swap_file, swap_value = group.file("memory", "memory.swap.max"), 0
        # Memory and swap together get the same limit: no swap. BIAS: where the kernel does not count swap, an arm could
        # swap instead of failing; Docker cannot prevent that either, and the pages swapped are among the counters.
        if exists(machine, swap_file):
            write_setting(machine, swap_file, str(swap_value))
    if limits.cpu_quota is not None:
        period_us = limits.cpu_period_ns // 1000
        quota_us = round(limits.cpu_quota * period_us)
        if version("cpu") == 1:
            write_setting(machine, group.file("cpu", "cpu.cfs_period_us"), str(period_us))
            write_setting(machine, group.file("cpu", "cpu.cfs_quota_us"), str(quota_us))
        else:
            write_setting(machine, group.file("cpu", "cpu.max"), f"{quota_us} {period_us}")


def write_setting(machine: AgentMachine, path: str, value: str) -> None:
    """Into a control file. Raises Unavailable, naming file and reason, if the machine refuses."""
    _refusable(machine, f"set {path} to {value!r}", lambda: machine.put(path, value.encode(), in_place=True))


def _refusable(machine: AgentMachine, what: str, step: Callable[[], None]) -> None:
    try:
        step()
    except AgentFailure as failure:
        if failure.detail.get("errno") in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "run as root, in a machine whose control groups can be written"
        else:
            hint = "ask for processors and memory that this machine has"
        raise Unavailable(f"{machine.name}: cannot {what}: {failure.message}", hint) from failure
