"""Where an arm's data lie (model/storage.py), as far as environments place them: by a copy inside the arm, or on a block device.

A copy is made by the arm itself, so what it leaves in memory, and all of a memory file system, is charged to the arm.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from dbtoll import identities
from dbtoll.errors import ProgramFailed, Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.block_device import DEVICES, RELEASE_S, BlockDevice, block_device, demand_unused, look
from dbtoll.machines.page_cache import COPY_DEADLINE_S, write_back_and_drop
from dbtoll.machines.sysctl import boot_id
from dbtoll.model.machine import MachineSpec, Provision
from dbtoll.model.storage import BIND, DIRECT, EXT4_FEATURES, EXT4_JOURNAL_BYTES, MEMORY, OPTION, is_device

KIND = "device"
"""Of the journal's entries: ``device``, its path; ``uuid`` of the file system that is made on it; ``mount``, where that is mounted
while it is filled; ``boot``."""

MOUNTS = "/run/dbtoll"
"""Where a device is mounted while it is filled."""

EMPTY_BYTES = 1 << 20
"""So many zeros begin a device that is taken for empty."""

SPARE_BYTES = 256 << 20
"""For a write-ahead log and temporary files, at least."""

SOURCE = "/dbtoll/run/source"
"""What is copied is seen below this path inside the arm."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How the writable provisions of one arm are placed. ``device``: the block device that holds them, ready, or None."""

    kind: str
    memory_bytes: int
    device: str | None = None

    @property
    def in_memory(self) -> bool:
        """Whether that is a memory file system, of ``memory_bytes`` at most."""
        return self.kind == MEMORY

    def is_copied(self, provision: Provision) -> bool:
        """Whether the arm copies it from `source_of` to where it is wanted."""
        return provision.writable and self.kind not in DIRECT and self.device is None

    def fill(self, arm: Machine, machine_spec: MachineSpec) -> None:
        """Copies what is to be copied, inside the arm. Raises ProgramFailed."""
        for provision in filter(self.is_copied, machine_spec.provisions):
            _copied(arm, source_of(provision), provision.at)
            if not self.in_memory:
                write_back_and_drop(arm, provision.at)


BOUND = Placement(BIND, 0)
"""Where there is no choice: what is provided is mounted."""


def source_of(provision: Provision) -> str:
    """Where the arm finds what is copied, read-only."""
    return f"{SOURCE}{provision.at.replace('/', '-')}"


def _copied(machine: Machine, source: str, target: str) -> None:
    """A directory into one that is there. BIAS: without holes, so that no arm allocates in measured time."""
    words = ["cp", "--archive", "--sparse=never", "--no-target-directory", "--", source, target]
    machine.run(words, timeout_s=COPY_DEADLINE_S)


def place(
    parent: Machine, machine_spec: MachineSpec, options: Mapping[str, Any], journal: Journal, on_close: ExitStack
) -> Placement:
    """Before anything else of the arm is made. ``on_close`` empties the device again: what uses it has to end before.

    Raises Unavailable where the device is none, is in use, is too small, or holds something and ``overwrite`` was not given.
    """
    kind, memory_bytes = options[OPTION], machine_spec.resources.memory_bytes
    written = [provision for provision in machine_spec.provisions if provision.writable]
    if not is_device(kind) or not written:
        return Placement(kind, memory_bytes)
    source, is_directory = parent.provide(written[0].artifact), written[0].artifact.kind == "directory"
    taken_bytes = int(parent.run(["du", "--summarize", "--block-size=1", source]).output.split()[0])
    needed_bytes = taken_bytes + (EXT4_JOURNAL_BYTES + SPARE_BYTES if is_directory else 0)
    # Last, so that nobody has time to take it before something is on it.
    device = demand_device(parent, kind, overwrite=options["overwrite"]).path
    has_bytes = int(parent.run(["blockdev", "--getsize64", device]).output)
    if has_bytes < needed_bytes:
        raise Unavailable(
            f"the device {device} has {has_bytes >> 20} MiB, and the data need {needed_bytes >> 20} MiB",
            "name a larger one, or take a smaller scale",
        )
    on_close.enter_context(_filled(parent, machine_spec, device, source, journal, is_directory=is_directory))
    return Placement(kind, memory_bytes, device)


def demand_device(parent: Machine, path: str, *, overwrite: bool) -> BlockDevice:
    """Raises Unavailable where it may not be written to."""
    found = block_device(parent, path)
    demand_unused(parent, found)
    device = found.path
    # Opens it exclusively: the kernel's own word for what is made of it or mounted anywhere.
    looked = look(parent, ["wipefs", "--all", "--no-act", device])
    if looked.exit_code != 0:
        said = looked.error_output.decode(errors="replace").strip().rpartition(": ")[2]
        raise Unavailable(
            f"the device {device} is in use, or cannot be opened: {said}",
            "name one that is not mounted and that nothing else uses",
        )
    if overwrite:
        return found
    signatures = [
        line.partition("(")[2].partition(")")[0] for line in looked.output.decode(errors="replace").splitlines()
    ]
    zeros = look(parent, ["cmp", "--bytes", str(EMPTY_BYTES), device, "/dev/zero"]).exit_code == 0
    if signatures or not zeros:
        holds = ", ".join(dict.fromkeys(signatures)) or "something in its first MiB"
        raise Unavailable(
            f"the device {device} is not empty: it holds {holds}",
            f"look at it (wipefs {device}); if all of it may be lost, add overwrite=yes to the arm",
        )
    return found


@contextmanager
def _filled(
    parent: Machine, machine_spec: MachineSpec, device: str, source: str, journal: Journal, *, is_directory: bool
) -> Iterator[None]:
    """While this lasts the device holds an ext4 file system with what is at ``source``, a directory or such a file system in a
    file; mounted nowhere."""
    mark = str(uuid.uuid4()) if is_directory else _uuid(parent, source)
    identity = {
        "device": device,
        "uuid": mark,
        "mount": f"{MOUNTS}/{machine_spec.name}-device",
        "boot": boot_id(parent),
    }
    entry = journal.create(KIND, **identity)
    try:
        if is_directory:
            make_file_system(parent, device, mark)
            _copy(parent, device, source, identity["mount"])
        else:
            # Past the page cache, which would be written back in some arm's measured time.
            words = [f"if={source}", f"of={device}", "bs=1M", "oflag=direct", "conv=fsync", "status=none"]
            parent.run(["dd", *words], timeout_s=COPY_DEADLINE_S)
        yield
    finally:
        _empty(parent, identity)
        entry.done()


def make_file_system(parent: Machine, device: str, mark: str) -> None:
    """An empty one with that UUID, on a device or in a file; as the disks of guests are made (images/disk.py). BIAS: nothing is
    left to the kernel's thread that would make the tables of inodes in measured time (lazy_itable_init)."""
    parent.run(
        [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-U", mark, "-O", f"none,{','.join(EXT4_FEATURES)}"),
            *("-J", f"size={EXT4_JOURNAL_BYTES >> 20}", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"),
            device,
        ],
        timeout_s=COPY_DEADLINE_S,
    )  # fmt: skip


def _copy(parent: Machine, device: str, source: str, at: str) -> None:
    """Mounted only meanwhile: with the mount all goes that it left in memory."""
    parent.run(["mkdir", "-p", at])
    parent.run(["mount", "-t", "ext4", device, at])
    try:
        parent.run(["rmdir", f"{at}/lost+found"])  # a server takes it for a database, or complains of it
        _copied(parent, source, at)
    finally:
        parent.run(["umount", at], timeout_s=COPY_DEADLINE_S)
        parent.run(["rmdir", at])


def _uuid(machine: Machine, path: str) -> str:
    """Of the file system on a device or in a file; empty if there is none."""
    words = ["blkid", "--probe", "--match-tag", "UUID", "--output", "value", path]
    return machine.run(words, check=False).output.decode(errors="replace").strip()


def _empty(machine: Machine, identity: Mapping[str, Any]) -> None:
    _unmount(machine, identity["mount"])
    device = identity["device"]
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            machine.run(["wipefs", "--all", "--quiet", device])
            break
        except ProgramFailed:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)
    machine.run(["dd", "if=/dev/zero", f"of={device}", "bs=1M", "count=1", "oflag=direct", "conv=fsync", "status=none"])


def _unmount(machine: Machine, mount: str) -> None:
    if machine.run(["mountpoint", "--quiet", mount], check=False).exit_code == 0:
        machine.run(["umount", mount], timeout_s=COPY_DEADLINE_S)
    machine.run(["rmdir", "--ignore-fail-on-non-empty", mount], check=False)


def remove(machine: Machine, identity: Mapping[str, Any]) -> None:
    """Empty a device on which a killed run had made a file system. Nothing is done where it holds another one, or where it may be
    another device: its name is another's after the next boot. Unavailable where it is used: a later run may have the same data on
    it. DbtollError for what no entry of `KIND` can have."""
    device = identities.path(identity, "device", DEVICES)
    mount = identities.path(identity, "mount", MOUNTS)
    mark = identities.word(identity, "uuid", "[0-9a-f-]{36}")
    if machine.run(["test", "-b", device], check=False).exit_code != 0:
        return
    signatures = machine.run(["wipefs", "--all", "--no-act", device], check=False).output.strip()
    if _uuid(machine, device) == mark or (not signatures and identity.get("boot") == boot_id(machine)):
        _unmount(machine, mount)
        demand_unused(machine, block_device(machine, device))
        _empty(machine, identity)
