"""A root directory with an arm's own mounts: what ``native`` has instead of a container.

The mounts live in a private mount namespace and vanish with the arm's last process; nothing of them is seen outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from dbtoll import identities
from dbtoll.errors import Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.cgroups.layout import is_first_user_namespace
from dbtoll.machines.control_group import ControlGroupMachine
from dbtoll.machines.storage import BOUND, Placement, source_of
from dbtoll.model.json import AGENT, Json
from dbtoll.model.machine import DATA, MachineSpec

RUN = "/dbtoll/run"

FRESH_DIRECTORIES = {"/tmp": 0o1777, "/run": 0o755, RUN: 0o1777}
"""Memory file systems that every arm on an image gets, container or not, with their modes."""

STAGES = "/run/dbtoll"
"""Where roots made from the machine's own directories are put together."""

CAP_SYS_RESOURCE = 24
"""Bit of this capability (linux/capability.h)."""


def confine(
    machine: AgentMachine,
    machine_spec: MachineSpec,
    cgroups: tuple[str, ...],
    journal: Journal,
    on_close: ExitStack,
    *,
    on_host: bool,
    placement: Placement = BOUND,
) -> LaunchLimits:
    """What the agent puts around an arm: its image, or the machine's own directories, as root; fresh mounts over it.

    ``placement``: what has to be filled once the arm is up (`Placement.fill`).
    """
    if machine_spec.image is not None and not on_host:
        root = machine.provide(machine_spec.image)
        mounts = [_bind(root, root), *_system_mounts(root, machine_spec, sys_writable=False), *_fresh_mounts(root)]
    else:
        root, directories = _stage(machine, machine_spec, journal, on_close)
        mounts = [_rbind(f"/{name}", f"{root}/{name}", writable=True) for name in directories]
        mounts += [*_system_mounts(root, machine_spec, sys_writable=True), _tmpfs(root + RUN, FRESH_DIRECTORIES[RUN])]
    mounts.append(_bind(agent_path(machine), root + AGENT))
    for provision in machine_spec.provisions:
        target = root + provision.at
        is_made = provision.at.startswith(f"{RUN}/")  # in a memory file system of the arm's own
        if not is_made and not _is_there(machine, target):
            raise Unavailable(
                f"{machine_spec.name}: the image has no {provision.at} to mount {provision.artifact.path} on",
                f"make that {provision.artifact.kind} in the image, or ask for it at {DATA}",
            )
        source = machine.provide(provision.artifact)
        if placement.is_copied(provision):
            mounts += [
                _tmpfs(target, 0o700, placement.memory_bytes),
                {**_bind(source, root + source_of(provision)), "make": True},
            ]
        elif placement.device is not None and provision.writable:
            mounts.append({"kind": "ext4", "source": placement.device, "target": target, "writable": True})
        else:
            mounts.append({**_bind(source, target, writable=provision.writable), "make": is_made})
    return LaunchLimits(
        cgroups=cgroups,
        mounts=tuple(mounts),
        root=root,
        rlimits={"nofile": open_files(machine, machine_spec.resources.open_files)},
        cpus=machine_spec.cpuset,  # the agent around may have been kept off these processors, and its children inherit that
    )


def agent_path(machine: AgentMachine) -> str:
    """The agent that runs on the machine, as a path there: the same one serves in all its arms.

    Where the machine shows its parent's files, the parent's path: a daemon outside knows it too.
    """
    while isinstance(machine, ControlGroupMachine) and machine.shows_parent:
        machine = machine.parent
    pid = machine.hello()["pid"]
    path = machine.run(["readlink", f"/proc/{pid}/exe"]).output.decode().strip()
    if path.endswith(" (deleted)"):
        raise Unavailable(
            f"{machine.name}: its agent's file {path.removesuffix(' (deleted)')} is gone", "start dbtoll again"
        )
    return path


def open_files(machine: AgentMachine, wanted: int) -> int:
    """``wanted``, or the machine's hard limit where that is lower and cannot be raised: equal for all its arms."""
    limits = machine.get("/proc/self/limits").decode()
    hard = next(line.split()[4] for line in limits.splitlines() if line.startswith("Max open files"))
    capabilities = next(
        int(line.split()[1], 16)
        for line in machine.get("/proc/self/status").decode().splitlines()
        if line.startswith("CapEff:")
    )
    # The kernel asks for it in the first user namespace (setrlimit(2)).
    may_raise = capabilities >> CAP_SYS_RESOURCE & 1 and is_first_user_namespace(machine)
    if hard == "unlimited" or may_raise:
        return wanted
    return min(wanted, int(hard))


def _stage(
    machine: AgentMachine, machine_spec: MachineSpec, journal: Journal, on_close: ExitStack
) -> tuple[str, list[str]]:
    """An empty root with a mount point for each directory of the machine's /, links copied; the directories' names."""
    stage = f"{machine.place(STAGES)}/{machine_spec.name}"
    entry = journal.create("stage", path=stage)

    def clear() -> None:
        remove(machine, {"path": stage})
        entry.done()

    on_close.callback(clear)
    machine.mkdir(stage)
    top = machine.entries("/")
    directories = [found["name"] for found in top if found["kind"] == "directory" and found["name"] != "dbtoll"]
    links = [f"/{found['name']}" for found in top if found["kind"] == "link"]
    for name in [*directories, DATA.strip("/"), RUN.strip("/")]:
        machine.mkdir(f"{stage}/{name}")
    machine.put(stage + AGENT, b"")
    if links:
        machine.run(["cp", "--no-dereference", "--", *links, stage])
    return stage, directories


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Remove a stage: ``identity["path"]``. Never crosses a mount point. No error if it is gone."""
    path = identities.path(identity, "path", machine.place(STAGES))
    if _is_there(machine, path):
        machine.remove(path, recursive=True)


def _system_mounts(root: str, machine_spec: MachineSpec, *, sys_writable: bool) -> list[Json]:
    return [
        {"kind": "proc", "target": f"{root}/proc", "writable": True},
        _rbind("/sys", f"{root}/sys", writable=sys_writable),
        _rbind("/dev", f"{root}/dev", writable=True),
        _tmpfs(f"{root}/dev/shm", 0o1777, machine_spec.resources.shm_bytes),
    ]


def _fresh_mounts(root: str) -> list[Json]:
    return [_tmpfs(root + at, mode) for at, mode in FRESH_DIRECTORIES.items()]


def _bind(source: str, target: str, *, writable: bool = False) -> Json:
    return {"kind": "bind", "source": source, "target": target, "writable": writable}


def _rbind(source: str, target: str, *, writable: bool) -> Json:
    return {"kind": "rbind", "source": source, "target": target, "writable": writable}


def _tmpfs(target: str, mode: int, size_bytes: int | None = None) -> Json:
    size = {} if size_bytes is None else {"size_bytes": size_bytes}
    return {"kind": "tmpfs", "target": target, "writable": True, "mode": mode, **size}


def _is_there(machine: AgentMachine, path: str) -> bool:
    return machine.run(["test", "-e", path], check=False).exit_code == 0
