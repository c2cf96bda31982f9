"""A ``podman system service`` of dbtoll's own: podman has no daemon, so each arm has a service of its own.

All of them share one storage, which is dbtoll's alone (images stay in it for the next run), and podman's own locks make that
safe. Containers are processes of their own, not the service's: they end with their control group, and the storage forgets them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from dbtoll import identities
from dbtoll.environments.docker.api import answers
from dbtoll.errors import DbtollError, ProgramFailed, Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.machines import chroot
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.group import Limits, create_group
from dbtoll.machines.cgroups.layout import find_layout, is_first_user_namespace
from dbtoll.machines.chroot import STAGES
from dbtoll.machines.programs import exists, find_program
from dbtoll.model.json import Json
from dbtoll.model.machine import MachineSpec

DATA_ROOT = "/var/lib/dbtoll/podman"
"""Its storage by default. FHS: state of a program that root runs."""

KIND = "podman"
"""Kind of journal entry: ``data_root``, ``service`` and ``container`` by their names, the service's groups ``paths``, and whether
its ``notes`` of images and its state of ``networks`` are removed: there were none before it."""

RUNROOT = "/run"
DATA_ROOT_MAX_BYTES = 50 - len(RUNROOT)
"""Podman takes no longer path for its run root (libpod, options.go)."""

LIBRARY = "/var/lib/containers"
NOTES = ("blob-info-cache-v1.boltdb", "blob-info-cache-v1.sqlite")
"""In its cache podman notes what it imports (containers/image, blobinfocache; sqlite since version 5), whatever storage it is
given."""

NETWORKS = "/run/containers/networks"
NETWORKS_LOCK = "/run/lock/netavark.lock"
"""Of root's containers on networks, whatever storage podman is given (container-libs, libnetwork/netavark/const.go). All share
them, so that no two have one address: they are not ours to cover."""

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
REMOVAL_DEADLINE_S = 60.0
REASON_MAX = 300
"""Characters of a line."""

CONFIGURATION = """\
# Of dbtoll's own service; the system's files are not read.
[engine]
# Locks in shared memory would be those of the system's podman too.
lock_type = "file"
events_logger = "none"
"""

WITHOUT_GROUPS = """\
[containers]
cgroups = "disabled"
"""
"""Of the configuration, where none can be made."""


_numbers = itertools.count()
"""Of the services of this process: an arm's image is imported by another one than it runs by."""


class Service:
    """A running service (`OwnDaemon`) at ``socket``, for the container of ``machine_spec``."""

    log = "podman.log"

    def __init__(
        self, machine: AgentMachine, journal: Journal, machine_spec: MachineSpec, data_root: str, runtime: str | None
    ) -> None:
        self._machine = machine
        self._data_root = data_root
        name = f"{machine_spec.name}-podman-{next(_numbers)}"
        stage = f"{machine.place(STAGES)}/{name}"
        self.socket = f"{stage}/podman.sock"
        self._staged = journal.create("stage", path=stage)
        self._stage = stage
        parts = (machine_spec.run_id, name)
        layout = find_layout(machine)
        paths = [tree.mount + layout.path(*parts) for tree in layout.hierarchies]
        self._identity = {
            "data_root": data_root,
            "service": name,
            "container": machine_spec.name,
            "paths": paths,
            "notes": not exists(machine, LIBRARY),
            "networks": not exists(machine, NETWORKS) and not exists(machine, NETWORKS_LOCK),
        }
        self._temporary = _temporary(data_root, name)
        self._entry = journal.create(KIND, **self._identity)
        try:
            # BIAS: like a Docker daemon's, its work is the container's: on the arm's processors, asleep with the arm.
            self._group = create_group(machine, journal, parts, Limits(machine_spec.cpuset))
            self._start(stage, runtime, machine_spec.cpuset)
        except BaseException:
            self.end()
            raise

    def _start(self, stage: str, runtime: str | None, cpus: tuple[int, ...]) -> None:
        machine = self._machine
        if find_program(machine, "podman") is None:
            raise Unavailable(f"{machine.name}: there is no podman", "apt-get install -y podman")
        if len(os.fsencode(self._data_root)) > DATA_ROOT_MAX_BYTES:
            raise Unavailable(
                f"{machine.name}: the path {self._data_root} is too long for podman",
                f"it may have {DATA_ROOT_MAX_BYTES} bytes: a shorter data_root, or directory of the host that it lies on",
            )
        machine.mkdir(stage, mode=0o700)
        machine.mkdir(self._data_root, mode=0o711)
        machine.mkdir(_state(self._data_root), mode=0o700)
        machine.mkdir(self._temporary, mode=0o700)
        machine.put(f"{self._data_root}/containers.conf", _configuration(machine).encode())
        chosen = [f"--runtime={runtime}"] if runtime else []
        argv = ["podman", *_globals(self._data_root), *chosen, "system", "service", "--time=0", f"unix://{self.socket}"]
        process = machine.spawn(
            argv,
            env={**_environment(self._data_root), "TMPDIR": self._temporary},
            stop_signal=signal.SIGTERM,
            within=LaunchLimits(self._group.directories, mounts=_mounts(machine), cpus=cpus),
        )
        self.process = process
        self._group.begun(process.pid)
        deadline = time.monotonic() + START_DEADLINE_S
        while not exists(machine, self.socket) or not answers(machine, self.socket):
            if not process.running() or time.monotonic() > deadline:
                raise ProgramFailed(
                    f"{machine.name}: podman's service did not start: {_reason(process.output())}",
                    "try what podman info says",
                )
            time.sleep(0.05)

    def rest(self) -> None:
        """Nothing will be asked of it until ``wake``."""
        self._group.freezer.freeze()

    def wake(self) -> None:
        """It may run."""
        self._group.freezer.thaw()

    def output(self) -> bytes:
        """The last of what it said."""
        return self.process.output()

    def end(self) -> None:
        """Whatever became of it; each is noted as gone when it is."""
        try:
            if hasattr(self, "process") and self.process.running():
                self.wake()
                self.process.signal(signal.SIGTERM)
                with contextlib.suppress(DbtollError, TimeoutError):
                    self.process.wait(STOP_DEADLINE_S)
                removal.remove(self._machine, {"paths": self._identity["paths"]})
                _forget_temporary(self._machine, self._temporary)
            elif hasattr(self, "process"):  # it ended by itself, and only podman can remove what it left
                remove(self._machine, self._identity)
            if hasattr(self, "_group"):
                self._group.close()
            _forget_notes(self._machine, self._identity)
            self._entry.done()
        finally:
            chroot.remove(self._machine, {"path": self._stage})
            self._staged.done()


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """End the service of a killed run, and take its container out of the storage. Images stay.

    The container's own processes are noted with its groups.
    """
    root = identities.path(identity, "data_root", "/")
    container, name = (identities.word(identity, key, "[a-z0-9][a-z0-9-]*") for key in ("container", "service"))
    removal.remove(machine, {"paths": identity.get("paths", [])})
    _forget_temporary(machine, _temporary(root, name))
    if exists(machine, f"{root}/containers.conf") and find_program(machine, "podman") is not None:

        def podman(*words: str, check: bool = True) -> None:
            machine.run(
                ["podman", *_globals(root), *words],
                env=_environment(root),
                timeout_s=REMOVAL_DEADLINE_S,
                check=check,
                within=LaunchLimits(mounts=_mounts(machine)),
            )

        try:
            podman("rm", "--force", "--ignore", "--volumes", "--time=0", container)
            podman("volume", "rm", "--force", container, check=False)  # there is one where its data lie on a device
        except ProgramFailed:
            if exists(machine, f"{root}/containers.conf"):  # else another host's agent has just removed it all
                raise
    _forget_notes(machine, identity)


def _reason(output: bytes) -> str:
    """Of what a service has said its last errors, without the stacks of goroutines that may follow them."""
    lines = output.decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if "level=error" in line or line.startswith("Error")] or lines
    return " | ".join(line[:REASON_MAX] for line in errors[-3:])


def _configuration(machine: AgentMachine) -> str:
    return CONFIGURATION if find_layout(machine).hierarchies else CONFIGURATION + WITHOUT_GROUPS


def _mounts(machine: AgentMachine) -> tuple[Json, ...]:
    """It has mounts of its own, which end with its last process. Without root there are more, over what only root may write to: its
    lock of networks is root's where root's podman made it first (libnetwork/netavark, const.go)."""
    over = [] if is_first_user_namespace(machine) else ["/var/cache", "/run/lock"]
    # crun refuses groups of both versions side by side, also those that it does not use. Where it may use none it sees none.
    over += [] if find_layout(machine).hierarchies else ["/sys/fs/cgroup"]
    present = (path for path in over if exists(machine, path))
    return tuple({"kind": "tmpfs", "target": path, "writable": True, "mode": 0o755} for path in present)


def _temporary(root: str, name: str) -> str:
    """Podman 4.3 leaves an imported image's archive in its directory for temporary files."""
    return f"{root}/tmp/{name}"


def _forget_temporary(machine: AgentMachine, path: str) -> None:
    if exists(machine, path):
        machine.remove(path, recursive=True)


def _forget_notes(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Those of others are left."""
    if not is_first_user_namespace(machine):
        return
    if identity.get("notes") is True:
        cache = f"{LIBRARY}/cache"
        machine.run(["rm", "--force", "--", *(f"{cache}/{name}" for name in NOTES)], check=False)
        machine.run(["rmdir", "--ignore-fail-on-non-empty", cache, LIBRARY], check=False)
    if identity.get("networks") is True:
        machine.run(["rmdir", "--ignore-fail-on-non-empty", NETWORKS, NETWORKS.rpartition("/")[0]], check=False)
        if not exists(machine, NETWORKS):  # no container is on one
            machine.run(["rm", "--force", "--", NETWORKS_LOCK], check=False)


def _globals(root: str) -> list[str]:
    """Everything that it has is its own, also what the runtime notes of containers."""
    return [
        f"--root={root}/root",
        f"--runroot={root}{RUNROOT}",
        f"--tmpdir={_state(root)}",
        f"--runtime-flag=root={root}/runtime",
        "--cgroup-manager=cgroupfs",  # systemd needs one that is running, and our groups are not systemd's
    ]


def _environment(root: str) -> dict[str, str]:
    """Asked for its version crun makes its directory there, or in /run, which is root's; podman's API panics where it fails."""
    return {"CONTAINERS_CONF": f"{root}/containers.conf", "HOME": root, "XDG_RUNTIME_DIR": _state(root)}


def _state(root: str) -> str:
    return f"{root}/state"
