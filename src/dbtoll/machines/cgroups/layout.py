"""Where a machine's control groups are, in whichever hierarchies."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dbtoll import namespaces
from dbtoll.errors import AgentFailure, Unavailable
from dbtoll.interfaces.machine import InspectableMachine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.freezer import GroupFreezer
from dbtoll.machines.mounts import unescape

CORE_OF_VERSION_2 = frozenset({"freezer", "cpuacct"})
"""Version 2 offers these in every group without a controller."""

TOP = "dbtoll"
"""The group that holds every group of dbtoll."""

OTHERS = namespaces.OTHERS
"""Version 2 forbids processes in a group with limited children: those of the group around TOP wait here meanwhile."""

WAS_OFF = "was-off."
"""Prefix of an empty group in TOP that remembers, for a later ``clean`` too, which controllers were off around it."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree. ``root``: the group seen as ``mount``; ``own``: the agent's group below that, "" for itself."""

    version: int
    mount: str
    root: str
    controllers: frozenset[str]
    own: str


@dataclass(frozen=True, slots=True)
class Layout:
    """All trees of a machine in which groups may be made; without root there may be none. ``base``: the group around TOP, the same
    in all of them: "", an arm around us, or what is delegated to us."""

    hierarchies: tuple[Hierarchy, ...]
    base: str

    def having(self, controller: str) -> Hierarchy | None:
        """The tree that governs ``controller``: a version 1 tree that claims it, else version 2 if it offers it."""
        for hierarchy in self.hierarchies:
            if controller in hierarchy.controllers:
                return hierarchy
        return None

    def path(self, *parts: str) -> str:
        """A group's path from the root, the same in every tree: what ``cgroup_parent`` of Docker wants."""
        return "/".join(("", *filter(None, (self.base.strip("/"), TOP, *parts))))

    def versions(self) -> str:
        """``v1``, ``v2`` or ``hybrid``: which kind governs an arm; ``none``."""
        if not self.hierarchies:
            return "none"
        of_limits = {found.version for name in ("cpuset", "memory", "freezer") if (found := self.having(name))}
        trees = {hierarchy.version for hierarchy in self.hierarchies}
        return "v2" if of_limits == {2} else "v1" if trees == {1} else "hybrid"


def find_layout(machine: InspectableMachine) -> Layout:
    """The trees that the machine's agent can see. Raises Unavailable when there is none.

    In a user namespace those in which it may make groups: where none was delegated to its user, none.
    """
    mounts = machine.get("/proc/self/mountinfo", max_bytes=16 << 20).decode()
    groups = machine.get("/proc/self/cgroup").decode()

    def offered(mount: str) -> frozenset[str]:
        return frozenset(machine.get(f"{mount}/cgroup.controllers").decode().split())

    layout = parse_layout(mounts, groups, offered)
    if not layout.hierarchies:
        raise Unavailable(f"{machine.name}: no control groups are mounted", "mount -t cgroup2 none /sys/fs/cgroup")
    if is_first_user_namespace(machine):
        return layout
    ours = [tree for tree in layout.hierarchies if _may_write(machine, tree.mount + layout.base)]
    return Layout(tuple(ours), layout.base if ours else "")


def is_first_user_namespace(machine: InspectableMachine) -> bool:
    """Whether the agent's user 0 is the machine's root."""
    try:
        return namespaces.is_whole(machine.get("/proc/self/uid_map").decode())
    except AgentFailure:  # a kernel without user namespaces
        return True


def without_root(machine: InspectableMachine) -> dict[str, Any]:
    """What is not as it would be with root: {} with it, else ``control_groups`` (`Layout.versions`), whether memory is limited
    (``memory_limit``), and what keeps an arm to its processors (``processors``: ``cpuset`` or ``affinity``)."""
    if is_first_user_namespace(machine):
        return {}
    layout = find_layout(machine)
    return {
        "control_groups": layout.versions(),
        "memory_limit": layout.having("memory") is not None,
        "processors": "cpuset" if layout.having("cpuset") else "affinity",
    }


def _may_write(machine: InspectableMachine, group: str) -> bool:
    return machine.run(["test", "-w", f"{group}/cgroup.procs", "-a", "-w", group], check=False).exit_code == 0


def parse_layout(mountinfo: str, groups: str, offered: Callable[[str], frozenset[str]]) -> Layout:
    """From the texts of /proc/self/mountinfo and /proc/self/cgroup; ``offered`` reads a version 2 tree's controllers.

    Formats: proc(5) and cgroups(7).
    """
    # "cpu,cpuacct", or "" for version 2 -> path
    own_paths = {names: path for _, names, path in (line.split(":", 2) for line in groups.splitlines())}

    found: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        dash = fields.index("-", 6)
        kind, tree_options = fields[dash + 1], fields[dash + 3].split(",")
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = unescape(fields[3]), unescape(fields[4])
        names = "" if kind == "cgroup2" else _claimed(own_paths, tree_options)
        if names is None or names in found or names not in own_paths:
            continue
        own = _below(own_paths[names], root)
        if own is None:  # mounted from a group that does not hold us: another view of the same tree may
            continue
        if kind == "cgroup2":
            found[names] = Hierarchy(2, mount, root, offered(mount) | CORE_OF_VERSION_2, own)
        else:
            found[names] = Hierarchy(1, mount, root, frozenset(names.split(",")), own)
    # Version 1 first: a controller that a version 1 tree claims is not in version 2, and a version 1 freezer is to be
    # preferred to version 2's, because container engines on a hybrid host use it.
    hierarchies = tuple(sorted(found.values(), key=lambda hierarchy: (hierarchy.version, hierarchy.mount)))
    return Layout(hierarchies, max((_group_around(hierarchy.own) for hierarchy in hierarchies), key=len, default=""))


def _claimed(own_paths: Mapping[str, str], tree_options: Collection[str]) -> str | None:
    """Which line of /proc/self/cgroup belongs to a version 1 mount with these options."""
    return next((names for names in own_paths if names and set(names.split(",")) <= set(tree_options)), None)


def _below(path: str, root: str) -> str | None:
    if root == "/" or root.startswith("/.."):  # the latter: mounted outside our cgroup namespace
        return path.rstrip("/")
    if path == root or path.startswith(root + "/"):
        return path[len(root) :].rstrip("/")
    # In a cgroup namespace paths are relative to its root while an old mount may show where that lies outside.
    return "" if path == "/" else None


def _group_around(own: str) -> str:
    """The arm that we are in, or the group whose processes wait in OTHERS."""
    match = re.match(rf"(?:.*/)?{TOP}/[^/]+/[^/]+", own)
    return match.group() if match else own[: -len(f"/{OTHERS}")] if own.endswith(f"/{OTHERS}") else ""


def cpu_list(cpus: Iterable[int]) -> str:
    """``0,2,3``: the kernel's list format, which Docker takes too."""
    return ",".join(str(cpu) for cpu in sorted(cpus))


def online_cpus(machine: AgentMachine) -> tuple[int, ...]:
    """All processors that run, from the lines ``cpuN`` in proc(5) ``stat``."""
    stat = machine.get("/proc/stat", max_bytes=16 << 20).decode()
    return tuple(int(number) for number in re.findall(r"^cpu(\d+) ", stat, re.MULTILINE))


CPUS_MAX = 1 << 16
"""More than any kernel can have (CONFIG_NR_CPUS is at most 8192 on x86-64)."""


def own_cpus(machine: AgentMachine) -> tuple[int, ...]:
    """The processors that the machine's agent may use, from the list format (``0-2,5``) in proc(5) ``status``."""
    status = machine.get("/proc/self/status").decode()
    listed = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    cpus: list[int] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if int(last or first) > CPUS_MAX:
            raise ValueError(f"there is no processor {last or first}")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def freezer_of(machine: AgentMachine, layout: Layout, path: str) -> GroupFreezer:
    """The freezer of the group at ``path`` (from the tree's root, the same in all trees)."""
    freezing, counting = layout.having("freezer"), layout.having("cpuacct")
    if freezing is None or counting is None:
        raise Unavailable(
            f"{machine.name}: control groups can neither freeze nor count CPU time here",
            "mount the freezer and cpuacct controllers, or a version 2 tree",
        )
    return GroupFreezer(machine, freezing.mount + path, freezing.version, counting.mount + path, counting.version)


def path_of_process(machine: AgentMachine, layout: Layout, pid: int, controller: str) -> str:
    """The group of a process, from the visible root of the tree that governs ``controller``."""
    groups = machine.get(f"/proc/{pid}/cgroup").decode()
    tree = layout.having(controller)
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        if tree and (names == "" if tree.version == 2 else controller in names.split(",")):
            below = _below(path, tree.root)
            if below is not None:
                return below
    raise Unavailable(f"{machine.name}: the group of process {pid} cannot be seen for the controller {controller}")
