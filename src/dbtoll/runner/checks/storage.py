"""Do an arm's data, and its log, lie where they were asked to lie? By what the arm itself sees of what holds them.

`storage`: once per start. It voids a start whose data lie elsewhere: then it is another arm under the same name.
"""

from __future__ import annotations

from dbtoll.interfaces.machine import CacheDroppingMachine, Machine
from dbtoll.machines.block_device import number_of
from dbtoll.machines.mounts import IN_MEMORY, MountPoint, mount_of
from dbtoll.model import storage as kinds
from dbtoll.model.json import Json
from dbtoll.model.machine import DATA, Artifact
from dbtoll.model.storage import is_device
from dbtoll.store.schema import CheckRecord

NAME = "storage"

OPAQUE = frozenset({"9p", "virtiofs", "fuse", "gofer"})
"""File systems that hand everything on, and do not show to what."""


def found(machine: Machine, kind: str, environment: Json, at: str = DATA) -> Json:
    """What holds the data, or what lies ``at`` another place, for the facts of a start: ``kind`` as asked for, ``file_system``,
    ``source`` as mounted, ``mount`` its mount point, ``options``, ``device`` MAJOR:MINOR, ``size_bytes`` and ``free_bytes`` of the
    file system, ``device_bytes`` of the device; null where it has none; ``cache``: how the monitor of a guest keeps what is
    written, by the machine's facts of its ``environment``."""
    mount = mount_of(machine, at)
    size, free = _sizes(machine, at)
    return {
        "kind": kind,
        "file_system": mount.file_system,
        "source": mount.source,
        "mount": mount.at,
        "options": list(mount.options),
        "device": mount.device,
        "size_bytes": size,
        "free_bytes": free,
        "device_bytes": _device_bytes(machine, mount.device),
        "cache": None if mount.file_system in IN_MEMORY else environment.get("cache"),
    }


def check(machine: Machine, kind: str, data: Artifact, round_index: int, arm: str, at: str = DATA) -> CheckRecord:
    """Whether what holds the data, or the log, ``at`` its place is of that kind."""
    passed, finding = _judged(machine, kind, data, mount_of(machine, at), at)
    return CheckRecord(round=round_index, arm=arm, check=NAME, passed=passed, finding=finding)


def _judged(machine: Machine, kind: str, data: Artifact, mount: MountPoint, at: str) -> tuple[bool | None, str]:
    own, in_memory = mount.at == at, mount.file_system in IN_MEMORY
    shown = {
        kinds.MEMORY: own and in_memory,
        kinds.LAYER: not own and not in_memory,
        kinds.VOLUME: own and not in_memory,
        kinds.IMAGE: own and not in_memory,
    }
    what = "data lie" if at == DATA else "log lies"
    seen = f"{kind} was asked for, and the {what} on {mount.file_system} at {mount.at}"
    around = getattr(machine, "parent", None)
    if kind in shown:
        return shown[kind], seen
    if around is None or mount.file_system in OPAQUE:
        return None, f"{seen}, which does not show what is beneath"
    if is_device(kind):
        # A guest's kernel has numbers of its own, and what it has of the device is its size.
        is_guest = isinstance(machine, CacheDroppingMachine)
        wanted = str(_bytes_of(around, kind)) if is_guest else number_of(around, kind)
        has = str(_device_bytes(machine, mount.device)) if is_guest else mount.device
        return own and wanted == has, f"{seen}, {has}{' bytes' if is_guest else ''}; {kind} is {wanted}"
    is_same = _file_number(machine, at) == _file_number(around, around.provide(data))
    return own and is_same, f"{seen}: {'' if is_same else 'not '}the directory that was to be mounted"


def _device_bytes(machine: Machine, device: str) -> int | None:
    """sysfs: ``size`` in units of 512 bytes, whatever the device's sectors are."""
    told = machine.run(["cat", f"/sys/dev/block/{device}/size"], check=False)
    return int(told.output) * 512 if told.exit_code == 0 else None


def _bytes_of(machine: Machine, path: str) -> int:
    return int(machine.run(["blockdev", "--getsize64", path]).output)


def _file_number(machine: Machine, path: str) -> bytes:
    """Device and inode: a directory has the same ones wherever it is mounted, and where the mount that holds it is out of
    sight (a chroot)."""
    return machine.run(["stat", "--dereference", "--format=%d:%i", "--", path]).output


def _sizes(machine: Machine, at: str) -> tuple[int, int]:
    told = machine.run(["stat", "--file-system", "--format=%S %b %a", at]).output.split()
    block_bytes, blocks, free = map(int, told)
    return block_bytes * blocks, block_bytes * free
