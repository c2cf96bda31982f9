"""Kind of resource -> how to remove it, for `dbtoll clean`. Each remover belongs to the module that makes the resource, those of
environments to them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dbtoll import identities, registry
from dbtoll.errors import AgentFailure, DbtollError
from dbtoll.images import dataset
from dbtoll.images.cache import BUILDING, Cache, scratch
from dbtoll.interfaces.environment import RemoteEnvironment
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import (
    arm_device,
    chroot,
    disk_model,
    network_interfaces,
    remote_journal,
    storage,
    sysctl,
    tmpfs,
)
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.layout import TOP
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.json import Json
from dbtoll.runner.checks import commits
from dbtoll.runner.cleanup import journal
from dbtoll.runner.cleanup.journal import FILE, Foreign, Journal, Remover, StillAlive, leftovers

END_DEADLINE_S = 10.0
"""A process that was sent SIGKILL ends within milliseconds, unless it waits for a disk."""


@contextmanager
def removers() -> Iterator[Mapping[str, Remover]]:
    """The removers, acting on the local host while the context lasts. Each takes only what its own kind can have made."""
    with open_local() as host, on_host(host) as by_kind:
        yield by_kind


@contextmanager
def on_host(host: AgentMachine) -> Iterator[Mapping[str, Remover]]:
    """The same, acting on that one."""
    own = str(scratch())
    with ExitStack() as reached:
        own_kinds: dict[str, Remover] = {
            "agent": lambda identity: end_agent(host, identity),
            "cgroup": lambda identity: removal.remove(host, identity),
            network_interfaces.KIND: lambda identity: network_interfaces.remove(host, identity),
            "stage": lambda identity: chroot.remove(host, identity),
            "directory": lambda identity: dataset.remove_copy(host, identities.path(identity, "path", own)),
            tmpfs.KIND: lambda identity: tmpfs.remove(host, _mount_point(identity, own)),
            arm_device.KIND: lambda identity: arm_device.remove(host, identity),
            disk_model.KIND: lambda identity: disk_model.remove(host, identity),
            storage.KIND: lambda identity: storage.remove(host, identity),
            sysctl.KIND: lambda identity: sysctl.restore(host, identity),
            commits.TRACING: lambda identity: commits.end_tracing(host, identity),
            remote_journal.KIND: _OtherHosts(host, reached).remove,
        }
        yield with_environments(host, own_kinds)


def _mount_point(identity: Mapping[str, Any], own: str) -> str:
    """Below ``own``, or in a directory that dbtoll makes on other hosts. Raises DbtollError."""
    path = identities.path(identity, "path", "/")
    on_another_host = re.search(f"/{remote_journal.PLACE_NAMED}/", path) is not None
    return path if on_another_host else identities.path(identity, "path", own)


class _OtherHosts:
    """What other hosts have. Each is reached at most once, also where it cannot be; ``reached`` lets go of them."""

    def __init__(self, host: AgentMachine, reached: ExitStack) -> None:
        self._host, self._stack = host, reached
        self._removers: dict[str, Mapping[str, Remover] | DbtollError] = {}

    def remove(self, identity: Mapping[str, Any]) -> str | None:
        """What `remote_journal.RemoteJournal` has noted, as that host's own journal would have it removed."""
        environment, options, what = (identity.get(name) for name in ("environment", "options", "what"))
        if not (isinstance(environment, str) and isinstance(options, dict) and isinstance(what, dict)):
            raise DbtollError("it does not say what is on which host; nothing was done")
        removers = self._on(environment, options)
        kind = what.get("kind")
        if not isinstance(kind, str) or kind not in removers:
            raise DbtollError(f"this dbtoll does not know how to remove a {kind}")
        return removers[kind]({key: value for key, value in what.items() if key != "kind"})

    def _on(self, environment: str, options: Json) -> Mapping[str, Remover]:
        key = repr((environment, sorted(options.items())))
        if key not in self._removers:
            try:
                self._removers[key] = self._reached(environment, options)
            except DbtollError as error:
                self._removers[key] = error
        found = self._removers[key]
        if isinstance(found, DbtollError):
            raise DbtollError(found.message, found.hint)
        return found

    def _reached(self, environment: str, options: Json) -> Mapping[str, Remover]:
        member = registry.find("environments", environment)()
        if not isinstance(member, RemoteEnvironment):
            raise DbtollError(f"the environment {environment} reaches no other host; nothing was done")
        there = through_agent(member.reach(self._host, options, NullJournal()))
        self._stack.enter_context(there)
        return self._stack.enter_context(on_host(there))


def with_environments(host: Machine, own_kinds: Mapping[str, Remover]) -> dict[str, Remover]:
    """And those of the environments. DbtollError if two remove the same kind: it would not be known whose an entry is."""
    by_kind, whose = dict(own_kinds), dict.fromkeys(own_kinds, "dbtoll itself")
    for environment in registry.members("environments"):
        for kind, remover in environment().removers().items():
            if kind in whose:
                raise DbtollError(
                    f"both {whose[kind]} and the environment {environment.name} remove what a journal calls {kind}",
                    f"let {environment.name} call it otherwise, or remove its package",
                )
            whose[kind] = f"the environment {environment.name}"
            by_kind[kind] = partial(remover, host)
    return by_kind


# --- everything that is to be found ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Cleaned:
    """What a clean did, or would do, as sentences. ``alive``: runs that are going on. ``left``: what others have to clean, and why.
    ``runs``: folders of the runs whose things were removed and that are still there.
    """

    removed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    alive: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


def clean_all(runs_dir: Path, *, dry_run: bool = False) -> Cleaned:
    """Remove what runs, selfbenches and trials of this user left on this machine when they were killed.

    ``runs_dir``: where run folders of an earlier dbtoll are looked for, whose journals are not obeyed but named. ``dry_run``:
    ``removed`` is what would be, and nothing is.
    """
    cleaned = Cleaned()
    cache = Cache()
    names: list[str] = []
    try:
        names = journal.names()
    except (DbtollError, OSError) as error:
        cleaned.failed.append(error.message if isinstance(error, DbtollError) else str(error))
    for name in names:
        clean_one(journal.journals(), cleaned, name, dry_run=dry_run)
    for file in sorted(runs_dir.glob(f"*/{FILE}")):
        if file.parent.is_symlink():  # the newest run's second name
            continue
        if count := journal.of_earlier_version(file.parent):
            cleaned.left.append(
                f"{file} is of an earlier dbtoll, whose journals are not obeyed: {count} entries are open in it; clean with "
                "that version, or look at them, and remove the file"
            )
    halves = set(cache.root.glob(f"*/*{BUILDING}"))
    if not dry_run:
        cache.sweep(everything=True)
    cleaned.removed += [f"half of a build {path}" for path in sorted(halves) if dry_run or not path.exists()]
    return cleaned


def clean_one(folder: Path, cleaned: Cleaned, name: str = FILE, *, dry_run: bool = False) -> bool:
    """Remove what one journal names, and then the journal. Whether nothing of it is left and nobody works on it."""
    left = True
    failed: list[str] = []
    try:
        left = bool(leftovers(folder, name))
        with Journal(folder, name) as held:
            # Only now it is certain that nobody works on it, and so that these are leftovers.
            if dry_run:
                removed = [journal.described(line) for line in held.leftovers()]
            elif held.forget():
                return True
            else:
                with removers() as by_kind:
                    removed, failed = held.sweep(by_kind)
                held.forget()
            if removed and held.run_folder is not None and held.run_folder.is_dir():
                cleaned.runs.append(str(held.run_folder))
    except StillAlive:
        cleaned.alive.append(str(folder / name))
        return False
    except Foreign as error:
        cleaned.left.append(f"{error.message}; {error.hint}")
        return False
    except DbtollError as error:
        if left:  # else it is one that may not be written to, and need not
            cleaned.failed.append(error.message)
        return False
    cleaned.removed += removed
    cleaned.failed += failed
    return not failed


# --- the run's agent on the host ---------------------------------------------------------------------------------------


def identity_of_agent(host: Machine) -> Json:
    """What tells this process from every other: its number alone may be another's by the time of a `clean`."""
    pid = host.hello()["pid"]
    return {"pid": pid, "started": _started(host, pid), "boot": sysctl.boot_id(host)}


def end_agent(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Kill the agent of a killed run, should it not have ended by itself yet, and wait for the programs it started.

    They die with it (launch.rs), but a copy that is being made must not go on while it is being removed. Those in a control
    group of dbtoll are that group's to end: they may be frozen.
    """
    pid, started = identities.number(identity, "pid"), identities.number(identity, "started")
    if (
        identity.get("boot") != sysctl.boot_id(machine)
        or _started(machine, pid) != started
        or not _is_agent(machine, pid)
    ):
        return
    programs = [each for each in _children(machine, pid) if f"/{TOP}/" not in _groups(machine, each)]
    machine.run(["sh", "-c", 'kill -KILL "$1"', "kill", str(pid)], check=False)
    deadline = time.monotonic() + END_DEADLINE_S
    while running := [each for each in (pid, *programs) if _started(machine, each) is not None]:
        if time.monotonic() > deadline:
            raise DbtollError(f"processes {running} do not end", "look what they wait for: /proc/PID/stack")
        time.sleep(0.01)


def _is_agent(machine: AgentMachine, pid: int) -> bool:
    try:
        return machine.get(f"/proc/{pid}/cmdline").split(b"\0")[1:2] == [b"serve"]
    except AgentFailure:
        return False


def _children(machine: AgentMachine, parent: int) -> list[int]:
    numbers = [int(entry["name"]) for entry in machine.entries("/proc") if entry["name"].isdigit()]
    return [pid for pid in numbers if (stat := _stat(machine, pid)) and int(stat[1]) == parent]


def _groups(machine: AgentMachine, pid: int) -> str:
    try:
        return machine.get(f"/proc/{pid}/cgroup").decode()
    except AgentFailure:
        return ""


def _started(machine: Machine, pid: int) -> int | None:
    """When it started, in clock ticks since boot; None if there is no such process, or it has ended (zombie)."""
    stat = _stat(machine, pid)
    return None if stat is None or stat[0] == "Z" else int(stat[19])


def _stat(machine: Machine, pid: int) -> list[str] | None:
    """The fields of proc(5) ``stat`` from the third on (state, parent …); the second may hold anything."""
    try:
        return machine.get(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
    except AgentFailure:
        return None
