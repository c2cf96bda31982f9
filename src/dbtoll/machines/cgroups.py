"""Control groups of a machine in every layout: version 1, version 2, and both at once (hybrid).

An arm gets the group ``dbtoll/RUN/ARM`` in each hierarchy that it needs. Groups lie directly below the visible root,
where container engines put theirs, so that a native arm and a container compete alike; only inside an arm of dbtoll
(nesting) do they lie below that arm's group, so that its limits and its sleep hold for them too.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dbtoll import identities
from dbtoll.errors import AgentFailure, DbtollError, Unavailable
from dbtoll.interfaces import Entry, Journal
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.freezer import Freezer
from dbtoll.model import Json

TOP = "dbtoll"
"""The group that holds every group of dbtoll."""

OTHERS = "dbtoll.others"
"""Version 2 forbids processes in a group with limited children: those of the group around TOP wait here meanwhile."""

WAS_OFF = "was-off."
"""Prefix of an empty group in TOP that remembers, for a later ``clean`` too, which controllers were off around it."""

CORE_OF_VERSION_2 = frozenset({"freezer", "cpuacct"})
"""Version 2 offers these in every group without a controller."""

REMOVAL_DEADLINE_S = 20.0


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
    """All trees of a machine. ``base``: the group around TOP, the same in all of them ("" or an arm around us)."""

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
        """``v1``, ``v2`` or ``hybrid``: which kind governs an arm."""
        of_limits = {found.version for name in ("cpuset", "memory", "freezer") if (found := self.having(name))}
        trees = {hierarchy.version for hierarchy in self.hierarchies}
        return "v2" if of_limits == {2} else "v1" if trees == {1} else "hybrid"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may use; None: no limit. ``cpu_quota`` in CPUs (0.5: half of one), per period."""

    cpus: tuple[int, ...]
    memory_bytes: int | None = None
    cpu_quota: float | None = None
    cpu_period_ns: int = 100_000_000


def find_layout(machine: AgentMachine) -> Layout:
    """The trees that the machine's agent can see. Raises Unavailable when there is none."""
    mounts = machine.get("/proc/self/mountinfo", max_bytes=16 << 20).decode()
    groups = machine.get("/proc/self/cgroup").decode()

    def offered(mount: str) -> frozenset[str]:
        return frozenset(machine.get(f"{mount}/cgroup.controllers").decode().split())

    layout = parse_layout(mounts, groups, offered)
    if not layout.hierarchies:
        raise Unavailable(f"{machine.name}: no control groups are mounted", "mount -t cgroup2 none /sys/fs/cgroup")
    return layout


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
        root, mount = _unescape(fields[3]), _unescape(fields[4])
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
    return Layout(hierarchies, max((_arm_around(hierarchy.own) for hierarchy in hierarchies), key=len, default=""))


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


def _arm_around(own: str) -> str:
    match = re.match(rf"(?:.*/)?{TOP}/[^/]+/[^/]+", own)
    return match.group() if match else ""


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits.group(1), 8)), field)


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


class Cgroup:
    """The group of one arm: one directory per tree, limits set, removed by ``close`` with all processes in it."""

    def __init__(
        self, machine: AgentMachine, layout: Layout, parts: tuple[str, ...], controllers: Collection[str], entry: Entry
    ):
        self._machine = machine
        self._entry = entry
        self._directory = {
            name: tree.mount + layout.path(*parts) for name in controllers if (tree := layout.having(name)) is not None
        }
        self.directories = tuple(sorted(set(self._directory.values())))
        self.freezer = freezer_of(machine, layout, layout.path(*parts))

    def file(self, controller: str, name: str) -> str:
        """Path of a control file."""
        return f"{self._directory[controller]}/{name}"

    def close(self) -> None:
        """Kill what is left in it and remove it; also twice."""
        remove(self._machine, {"paths": list(self.directories)})
        self._entry.done()


def freezer_of(machine: AgentMachine, layout: Layout, path: str) -> Freezer:
    """The freezer of the group at ``path`` (from the tree's root, the same in all trees)."""
    freezing, counting = layout.having("freezer"), layout.having("cpuacct")
    if freezing is None or counting is None:
        raise Unavailable(
            f"{machine.name}: control groups can neither freeze nor count CPU time here",
            "mount the freezer and cpuacct controllers, or a version 2 tree",
        )
    return Freezer(machine, freezing.mount + path, freezing.version, counting.mount + path, counting.version)


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


def create(machine: AgentMachine, journal: Journal, parts: tuple[str, ...], limits: Limits) -> Cgroup:
    """Make ``dbtoll/PART/…`` with these limits. Raises Unavailable, naming file and reason, if the machine refuses."""
    layout = find_layout(machine)
    controllers = ["freezer", "cpuacct"]
    online = online_cpus(machine)
    if absent := set(limits.cpus) - set(online):
        raise Unavailable(
            f"{machine.name} has no processor {cpu_list(absent)}", f"choose from {cpu_list(online)}, or ask for fewer"
        )
    # A kernel for one processor has no cpusets, and needs none.
    controllers += ["cpuset"] if layout.having("cpuset") or set(limits.cpus) != set(online) else []
    controllers += ["memory"] if limits.memory_bytes is not None else []
    # BIAS: who is in a group of this controller shares a processor with others in another way than who is in none. Beside
    # a busy loop on the arm's processor TPC-H's Q1 and Q6 took 1.46 times as long in such a group, native or not. Every
    # container is in one, so every arm is, wherever that controller exists.
    controllers += ["cpu"] if limits.cpu_quota is not None or layout.having("cpu") else []
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
                    _write(machine, f"{child}/{file}", machine.get(f"{parent}/{file}").decode().strip())


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
            _move_processes(machine, level, f"{level}/{OTHERS}")
            _write(machine, f"{level}/cgroup.subtree_control", command)


def _limit(machine: AgentMachine, layout: Layout, group: Cgroup, limits: Limits) -> None:
    def version(controller: str) -> int:
        tree = layout.having(controller)
        assert tree is not None
        return tree.version

    if layout.having("cpuset"):
        _write(machine, group.file("cpuset", "cpuset.cpus"), cpu_list(limits.cpus))
    if limits.memory_bytes is not None:
        if version("memory") == 1:
            _write(machine, group.file("memory", "memory.limit_in_bytes"), str(limits.memory_bytes))
            swap_file, swap_value = group.file("memory", "memory.memsw.limit_in_bytes"), limits.memory_bytes
        else:
            _write(machine, group.file("memory", "memory.max"), str(limits.memory_bytes))
            swap_file, swap_value = group.file("memory", "memory.swap.max"), 0
        # Memory and swap together get the same limit: no swap. BIAS: where the kernel does not count swap, an arm could
        # swap instead of failing; Docker cannot prevent that either, and the pages swapped are among the counters.
        if _exists(machine, swap_file):
            _write(machine, swap_file, str(swap_value))
    if limits.cpu_quota is not None:
        period_us = limits.cpu_period_ns // 1000
        quota_us = round(limits.cpu_quota * period_us)
        if version("cpu") == 1:
            _write(machine, group.file("cpu", "cpu.cfs_period_us"), str(period_us))
            _write(machine, group.file("cpu", "cpu.cfs_quota_us"), str(quota_us))
        else:
            _write(machine, group.file("cpu", "cpu.max"), f"{quota_us} {period_us}")


# --- removal -----------------------------------------------------------------------------------------------------


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
    return [_unescape(each[4]) for each in fields if each[each.index("-", 6) + 1] in ("cgroup", "cgroup2")]


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
                if _exists(machine, f"{group}/{file}"):
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
    if _exists(machine, f"{around}/{OTHERS}"):
        with contextlib.suppress(AgentFailure):
            _move_processes(machine, f"{around}/{OTHERS}", around)
        _removed_if_empty(machine, f"{around}/{OTHERS}")
    return True


def _removed_if_empty(machine: AgentMachine, group: str) -> bool:
    try:
        machine.remove(group)
    except AgentFailure as failure:
        return failure.code == "not_found"
    return True


def _move_processes(machine: AgentMachine, source: str, target: str) -> None:
    machine.mkdir(target)
    while pids := machine.get(f"{source}/cgroup.procs", max_bytes=16 << 20).split():
        for pid in pids:
            try:
                machine.put(f"{target}/cgroup.procs", pid, in_place=True)
            except AgentFailure as failure:
                if failure.detail.get("errno") != errno.ESRCH:  # it has ended meanwhile
                    raise


# --- small steps -------------------------------------------------------------------------------------------------


def _exists(machine: AgentMachine, path: str) -> bool:
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


def _write(machine: AgentMachine, path: str, value: str) -> None:
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
