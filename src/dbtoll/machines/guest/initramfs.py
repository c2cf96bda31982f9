"""The initial memory file system of a guest: the agent as its first program, kernel modules, and what the guest shall be.

Format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (``newc``).
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

CONSOLE = (5, 1)
"""Device numbers of /dev/console, which the kernel opens before it starts the first program."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of the guest. ``device``: a path there, or ``serial:TEXT``; ``at``: its mount point, ``/`` for the image."""

    device: str
    at: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """An empty file system in the guest's memory."""

    at: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of the guest, by the name that its kernel gives it, and the address that it gets."""

    interface: str
    address: str
    mask: str


@dataclass(frozen=True, slots=True)
class Guest:
    """What the agent makes of the guest before it serves on ``line`` (agent/src/guest.rs).

    ``line``: a device's path, or ``port:NAME``. ``image``: None leaves it in the memory file system. ``network``: None
    leaves it alone with its loopback.
    """

    line: str
    image: Disk | None
    disks: Sequence[Disk]
    shm_bytes: int
    open_files: int
    network: Interface | None = None
    memories: Sequence[Memory] = ()


def initramfs(agent: bytes, guest: Guest, modules: Mapping[str, bytes]) -> bytes:
    """The archive. ``modules``: name -> file, in the order in which they are to be loaded."""
    description = asdict(guest) | {"modules": [f"/modules/{name}.ko" for name in modules]}
    members = [
        _member("dev", stat.S_IFDIR | 0o755),
        _member("dev/console", stat.S_IFCHR | 0o600, device=CONSOLE),
        _member("init", stat.S_IFREG | 0o755, agent),
        _member("guest.json", stat.S_IFREG | 0o644, json.dumps(description).encode()),
        _member("modules", stat.S_IFDIR | 0o755),
        *(_member(f"modules/{name}.ko", stat.S_IFREG | 0o644, content) for name, content in modules.items()),
        _member("TRAILER!!!", 0),
    ]
    return _numbered(members)


def _numbered(members: Iterable[tuple[list[int], bytes, bytes]]) -> bytes:
    pieces = []
    for inode, (fields, name, content) in enumerate(members, 1):
        header = b"070701" + b"".join(b"%08X" % field for field in [inode, *fields])
        pieces += [_padded(header + name), _padded(content)]
    return b"".join(pieces)


def _member(
    path: str, mode: int, content: bytes = b"", *, device: tuple[int, int] = (0, 0)
) -> tuple[list[int], bytes, bytes]:
    """Fields after the inode: mode, uid, gid, nlink, mtime, size, device of the file, device it is, name's length, check."""
    name = path.encode() + b"\0"
    return [mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0], name, content


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
