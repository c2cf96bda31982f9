"""What is mounted where, as a machine itself sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dbtoll.interfaces.machine import Machine

IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
"""File systems without a device."""


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A line of proc(5) ``mountinfo``: ``device`` as MAJOR:MINOR, mounted ``at``, ``options`` of mount and file system."""

    device: str
    at: str
    options: tuple[str, ...]
    file_system: str
    source: str


def mount_of(machine: Machine, path: str) -> MountPoint | None:
    """The mount that holds ``path`` (no links in it); None if it cannot be told."""
    best = None
    for line in machine.get("/proc/self/mountinfo", max_bytes=16 << 20).decode(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        device, _, at, options = before.split()[2:6]
        kind, source, *more = (_plain(word) for word in after.split())
        at = _plain(at)
        # Of two on one mount point the later hides the earlier.
        is_nearer = best is None or len(at) >= len(best.at)
        if is_nearer and f"{path.rstrip('/')}/".startswith(f"{at.rstrip('/')}/"):
            every = dict.fromkeys(",".join([options, *more]).split(","))
            best = MountPoint(device, at, tuple(every), kind, source)
    return best


def real_path(machine: Machine, path: str) -> str:
    """The same without links."""
    return machine.run(["readlink", "-f", "--", path]).output.decode().rstrip("\n")


def _plain(word: str) -> str:
    """Blanks and the like are octal in there."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), word)
