"""A device of an arm's own, open on the machine on which the arm stands: a disk model or memory with a file system, or a directory.

All that an arm keeps on it lies below one directory, which containers and native arms mount and in which the disks of guests are
files. So whatever the environment, there is one device with one queue.

BIAS: what lies in a directory of the machine goes through its page cache, as on a disk of its own; what a guest writes goes through
it or not by the cache mode of its disks. What is copied into a memory file system is in nobody's memory limit; what an arm adds is
in its own.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from dbtoll import identities
from dbtoll.errors import AgentFailure, ChannelError, DbtollError, Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import tmpfs
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.block_device import DEVICES
from dbtoll.machines.disk_model import DiskModel, DiskStatistics, disk_model
from dbtoll.machines.mounts import IN_MEMORY, mount_of, real_path
from dbtoll.machines.page_cache import COPY_DEADLINE_S
from dbtoll.machines.storage import make_file_system
from dbtoll.model.devices import Device
from dbtoll.model.machine import Artifact
from dbtoll.model.storage import EXT4_JOURNAL_BYTES

KIND: Final = "device_directory"
"""Of the journal's entries: ``path``, a directory of ours on a device of the user's, with all that is in it."""

NAMED: Final = "dbtoll-device-[a-z0-9-]+"
"""What such a directory is called: only what we made is removed."""

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ArmDevice:
    """``directory``: the arm's own on it. ``block``: as the kernel's counters call what lies beneath; None: memory, or not shown.
    ``disk``: of a model."""

    device: Device
    machine: Machine
    directory: str
    block: str | None
    disk: DiskModel | None = None

    @property
    def in_memory(self) -> bool:
        return self.device.kind == "memory"

    def pace(self, on: bool) -> None:
        """Requests take what its model says, if it is one, or no longer than they must. All that was written before is on it then,
        without the pace."""
        if self.disk is not None and not on:
            self.disk.pace(False)
        self.machine.run(["sync", "--file-system", self.directory], timeout_s=COPY_DEADLINE_S)
        if self.disk is not None and on:
            self.disk.pace(True)

    def statistics(self) -> DiskStatistics | None:
        """Of a model, so far."""
        return None if self.disk is None else self.disk.statistics()

    def new_directory(self, name: str) -> Artifact:
        """An empty one on it."""
        path = f"{self.directory}/{name}"
        self.machine.run(["mkdir", "-m", "755", path])
        return Artifact(name, path, placed=True)

    def new_disk(self, name: str, size_bytes: int) -> Artifact:
        """A guest's disk in a file on it, with an empty file system. BIAS: written once, so that no arm allocates in measured
        time."""
        path = f"{self.directory}/{name}"
        words = ["if=/dev/zero", f"of={path}", "bs=1M", f"count={-(-size_bytes // MIB)}", "conv=fsync", "status=none"]
        self.machine.run(["dd", *words], timeout_s=COPY_DEADLINE_S)
        make_file_system(self.machine, path, str(uuid.uuid4()))
        return Artifact(name, path, "file", placed=True)


@contextmanager
def mounts_for_all(machine: AgentMachine, scratch: str, journal: Journal) -> Iterator[None]:
    """While this lasts, what `arm_device` mounts with that ``scratch`` is seen by all whose mounts follow the machine's, though
    they began before: by a daemon of containers, also where the machine's own mounts are private (mount_namespaces(7), shared
    subtrees).

    Where it cannot be taken away since the line to the machine broke, it is in the journal.
    """
    path = _mounts_of(scratch)
    with ExitStack() as mounted:
        mounted.enter_context(tmpfs.in_memory(machine, journal, path, MIB))
        machine.run(["mount", "--make-shared", path])
        mounted_then = mounted.pop_all()
    try:
        yield
    finally:
        with suppress(ChannelError):
            mounted_then.close()


def _mounts_of(scratch: str) -> str:
    return f"{scratch}/devices"


def file_system_bytes(content_bytes: int) -> int:
    """The size of one that has room for so much: with its journal, its tables of inodes, and some for the rest; whole MiB."""
    return -(-(content_bytes + content_bytes // 32 + EXT4_JOURNAL_BYTES + 64 * MIB) // MIB) * MIB


@contextmanager
def arm_device(
    machine: AgentMachine, device: Device, name: str, scratch: str, content_bytes: int, journal: Journal
) -> Iterator[ArmDevice]:
    """While this lasts it is open, and nothing of it is left; who uses it has to end before.

    ``name``: ``[a-z0-9-]+``, unique on that machine. ``scratch``: a directory of dbtoll's own there, in which it is mounted and
    what is written to a model really lies. ``content_bytes``: that it needs room for. A model begins without its pace. Raises
    Unavailable.
    """
    match device.kind:
        case "model":
            size_bytes = device.size_bytes or file_system_bytes(content_bytes)
            with (
                disk_model(
                    machine,
                    device.of,
                    scratch,
                    name,
                    journal,
                    size_bytes=size_bytes,
                    write_cache=device.write_cache,
                    queue_depth=device.queue_depth,
                ) as disk,
                _mounted(machine, disk.device, f"{_mounts_of(scratch)}/{name}", journal) as path,
            ):
                yield ArmDevice(device, machine, path, disk.device.removeprefix(f"{DEVICES}/"), disk)
        case "memory":
            size_bytes = device.size_bytes or file_system_bytes(content_bytes)
            with tmpfs.in_memory(machine, journal, f"{_mounts_of(scratch)}/{name}", size_bytes) as path:
                yield ArmDevice(device, machine, path, None)
        case "directory":
            path = f"{device.of}/dbtoll-device-{name}"
            with _own_directory(machine, path, journal, KIND):
                yield ArmDevice(device, machine, path, block_of(machine, path))
        case "own":
            path = f"{scratch}/{name}"
            with _own_directory(machine, path, journal, "directory"):
                yield ArmDevice(device, machine, path, block_of(machine, path))


def demand_directory(machine: Machine, path: str) -> None:
    """Unavailable unless it is a directory in which we may make one. A block device is none: all arms stand at the same time, and
    have directories of their own on one file system."""
    if machine.run(["test", "-b", path], check=False).exit_code == 0:
        raise Unavailable(
            f"{machine.name}: {path} is a block device, and arms need directories on it",
            f"make a file system on it (mke2fs -t ext4 {path}), mount it, and name the directory that it is mounted at",
        )
    if machine.run(["test", "-d", path], check=False).exit_code != 0:
        raise Unavailable(
            f"{machine.name} has no directory {path} to have data on",
            "make it, on a file system of the device that is to be measured, mounted there",
        )
    if machine.run(["test", "-w", path], check=False).exit_code != 0:
        raise Unavailable(f"{machine.name}: {path} may not be written to", "name another directory, or run it as root")
    if (kind := mount_of(machine, real_path(machine, path)).file_system) in IN_MEMORY:
        raise Unavailable(
            f"{machine.name}: {path} lies in memory ({kind}), and a directory is one on a device",
            'the device "memory" instead, which is bounded and is what it says',
        )


def number_of_file_system(machine: Machine, path: str) -> str:
    """MAJOR:MINOR of what holds a file."""
    return machine.run(["stat", "--format=%Hd:%Ld", "--", path]).output.decode().strip()


def block_of(machine: Machine, path: str) -> str | None:
    """The block device that holds a file system's file, as the kernel's counters call it."""
    return block_named(machine, number_of_file_system(machine, path))


def block_named(machine: Machine, number: str) -> str | None:
    """MAJOR:MINOR -> name; None where there is no such device, as beneath btrfs or a memory file system."""
    found = machine.run(["readlink", f"/sys/dev/block/{number}"], check=False).output.decode().strip()
    return posixpath.basename(found) or None


@contextmanager
def _mounted(machine: AgentMachine, device: str, path: str, journal: Journal) -> Iterator[str]:
    """A new ext4, mounted there."""
    make_file_system(machine, device, str(uuid.uuid4()))
    entry = journal.create(tmpfs.KIND, path=path)
    try:
        machine.run(["mkdir", "-p", path])
        machine.run(["mount", "-t", "ext4", device, path])
        yield path
    finally:
        tmpfs.remove(machine, path)
        entry.done()


@contextmanager
def _own_directory(machine: AgentMachine, path: str, journal: Journal, kind: str) -> Iterator[None]:
    entry = journal.create(kind, path=path)
    try:
        machine.mkdir(path)
        yield
    finally:
        _removed(machine, path)
        entry.done()


def _removed(machine: Machine, path: str) -> None:
    """No error if it is gone."""
    try:
        machine.remove(path, recursive=True)
    except AgentFailure as failure:
        if failure.code != "not_found":
            raise


def remove(machine: Machine, identity: Mapping[str, Any]) -> None:
    """Remove a directory that a killed run has left on a device of its user's. DbtollError for what no entry of `KIND` can have."""
    path = identities.path(identity, "path", "/")
    if re.fullmatch(NAMED, posixpath.basename(path)) is None:
        raise DbtollError(f"{path} is no directory that dbtoll makes on devices; nothing was done")
    _removed(machine, path)
