"""The machine itself: what `native` and `cold` mean on it, control groups, tracing, pressure, disk, networks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from dbtoll import namespaces
from dbtoll.doctor.deadline import Probed
from dbtoll.errors import AgentFailure, ProgramFailed
from dbtoll.images.cache import default_root
from dbtoll.interfaces.machine import InspectableMachine
from dbtoll.machines import network_interfaces
from dbtoll.machines.cgroups.group import WITHOUT_GROUPS
from dbtoll.machines.cgroups.layout import find_layout
from dbtoll.machines.mounts import mount_of
from dbtoll.model.json import Json
from dbtoll.model.machine import MissingRequirement

TRACING = "/sys/kernel/tracing"

_TRACE = """
set -e
mount -t tracefs none "$1"
mkdir "$1/instances/$2"
trap 'rmdir "$1/instances/$2"' EXIT
cd "$1/instances/$2"
echo 1 > events/sched/sched_switch/enable
sleep 0.05
echo 0 > events/sched/sched_switch/enable
grep -q sched_switch: trace
cd /
"""
"""In a mount namespace of its own, so that the mount is seen nowhere else; the instance is ours alone and is removed."""


def meaning(described: Json) -> Json:
    """What `native` and `cold` mean here, a sentence each. ``described``: `facts.host`."""
    if described["is_guest"]:
        return {
            "native": "this host is itself a guest: native means native to this guest, what its own host costs is in every arm",
            "cold": "cold to this host only: its disk's host may still hold the data in memory",
        }
    return {
        "native": "this host is no guest: native means on the machine itself",
        "cold": "from the device: the caches of host and guests are empty, the device's own cache may not be",
    }


def control_groups(machine: InspectableMachine) -> Probed:
    """Their layout, and which controllers an arm needs and cannot have."""
    layout = find_layout(machine)
    if not layout.hierarchies:
        why = "none is delegated to this user: arms get no limit of memory, and sleep by SIGSTOP"
        return Probed("lacks", (MissingRequirement("control groups", why, WITHOUT_GROUPS),), told={"layout": "none"})
    lacking = [name for name in ("freezer", "cpuacct", "cpuset", "memory", "cpu") if layout.having(name) is None]
    trees = {tree.mount: f"v{tree.version}: {', '.join(sorted(tree.controllers))}" for tree in layout.hierarchies}
    version = layout.versions()
    told = {"layout": version, "trees": trees, "own": layout.base}
    words = {"v1": "version 1", "v2": "version 2", "hybrid": "version 1 and 2 side by side"}
    missing_requirements = tuple(
        MissingRequirement(f"the controller {name}", "arms sleep, and get processors and memory, by control groups",
             f"boot with cgroup_enable={name}, without cgroup_disable={name}")
        for name in lacking
    )  # fmt: skip
    return Probed("lacks" if missing_requirements else "ready", missing_requirements, words[version], told)


def privileges(machine: InspectableMachine) -> Probed:
    """Whether this user can be root where arms are opened, if only in a user namespace; and its other users."""
    if lack := namespaces.lacking():
        return Probed("lacks", (MissingRequirement(*lack),))
    if namespaces.is_root():
        return Probed("ready", note="root")
    return Probed(
        "ready", note="no root, so a user namespace with subordinate ids, in which everything is done as by root"
    )


def tracing(machine: InspectableMachine) -> Probed:
    """Whether the kernel's tracepoints can be read: one is switched on for a moment, in an instance of its own."""
    why = "to count system calls and block requests in the kernel"
    mark = f"dbtoll-doctor-{machine.hello()['pid']}"
    try:
        machine.run(["unshare", "--mount", "sh", "-c", _TRACE, "sh", TRACING, mark])
    except (ProgramFailed, AgentFailure) as error:
        if namespaces.is_root():
            lack = MissingRequirement("tracepoints", f"{why}; {error.message}", "use a kernel with CONFIG_FTRACE")
        else:
            lack = MissingRequirement("tracepoints", f"{why}; only root may read them", "sudo ./dbtoll …")
        return Probed("lacks", (lack,))
    return Probed("ready", note="tracepoints can be read")


def pressure(machine: InspectableMachine) -> Probed:
    """Whether the kernel tells how long tasks waited (PSI), and what it tells now."""
    try:
        lines = machine.get("/proc/pressure/cpu").decode()
    except AgentFailure as failure:
        hint = "boot with psi=1 (a kernel with CONFIG_PSI)"
        return Probed("lacks", (MissingRequirement("pressure stall information", failure.message, hint),))
    share = float(lines.partition("avg60=")[2].split()[0]) / 100
    load = machine.get("/proc/loadavg").decode().split()
    told = {"cpu_some_avg60": share, "load_1": float(load[0])}
    return Probed(
        "ready", note=f"tasks waited for a processor {share:.1%} of the last minute, load {load[0]}", told=told
    )


def disk(machine: InspectableMachine) -> Probed:
    """Where data lies: the block device under the cache, its I/O scheduler and whether it has a volatile write cache."""
    root = _existing(machine, str(default_root()))
    mount = mount_of(machine, root)
    queue = f"/sys/dev/block/{mount.device}"
    told: Json = {
        "number": mount.device,
        "at": mount.at,
        "kind": mount.file_system,
        "source": mount.source,
        "path": root,
    }
    for name in ("scheduler", "write_cache", "rotational"):
        told[name] = _first(machine, [f"{queue}/queue/{name}", f"{queue}/../queue/{name}"])
    free, block = machine.run(["stat", "--file-system", "--format=%a %S", root]).output.split()
    told["free_bytes"] = int(free) * int(block)
    room = f"; {told['free_bytes'] / (1 << 30):.1f} GiB free"
    if told["scheduler"] is None:
        note = f"{mount.source} ({mount.file_system}): no block device of its own, so its reads cannot be told apart"
        return Probed("ready", note=note + room, told=told)
    chosen = re.search(r"\[(\S+)\]", told["scheduler"])
    told["scheduler_now"] = chosen[1] if chosen else told["scheduler"]
    note = f"{mount.source} ({mount.file_system} at {mount.at}), scheduler {told['scheduler_now']}"
    if told["write_cache"] == "write back":
        note += ", a write cache that a commit has to flush (write back)"
    elif told["write_cache"]:
        note += ", no write cache that would have to be flushed (write through): a commit ends when the device says so"
    return Probed("ready", note=note + room, told=told)


def networks(machine: InspectableMachine) -> Probed:
    """What makes and removes network interfaces."""
    missing_requirements = tuple(network_interfaces.missing_requirements(machine))
    return Probed(
        "lacks" if missing_requirements else "ready",
        missing_requirements,
        note="" if missing_requirements else "interfaces can be made and removed",
    )


PROBES: Mapping[str, Callable[[InspectableMachine], Probed]] = {
    "privileges": privileges,
    "control_groups": control_groups,
    "tracing": tracing,
    "pressure": pressure,
    "disk": disk,
    "networks": networks,
}


def _existing(machine: InspectableMachine, path: str) -> str:
    """The path, or the nearest directory above it that is there."""
    while machine.run(["test", "-d", path], check=False).exit_code != 0:
        path = posixpath.dirname(path)
    return machine.run(["readlink", "-f", path]).output.decode().rstrip("\n")


def _first(machine: InspectableMachine, paths: list[str]) -> str | None:
    for path in paths:
        try:
            return machine.get(path).decode().strip()
        except AgentFailure:
            continue
    return None
