"""What is mounted where, as a machine itself sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dbtoll.interfaces.machine import InspectableMachine

IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
"""File systems without a device."""

OUT_OF_SIGHT = "a mount around this root"


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A line of proc(5) ``mountinfo``: ``device`` as MAJOR:MINOR, mounted ``at``, ``options`` of mount and file system."""

    device: str
    at: str
    options: tuple[str, ...]
    file_system: str
    source: str


def mount_of(machine: InspectableMachine, path: str) -> MountPoint:
    """The mount that holds ``path`` (no links in it).

    In a chroot whose root is no mount point it may lie around that root, where ``mountinfo`` does not reach: then it is `at`
    `OUT_OF_SIGHT`, with what stat(1) tells of a file in it.
    """
    mountinfo = machine.get("/proc/self/mountinfo", max_bytes=16 << 20).decode(errors="replace")
    return mount_in(mountinfo, path) or _mount_out_of_sight(machine, path)


def mount_in(mountinfo: str, path: str) -> MountPoint | None:
    """As `mount_of`, of what is in that text alone."""
    best = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        device, _, at, options = before.split()[2:6]
        kind, source, *more = (unescape(word) for word in after.split())
        at = unescape(at)
        # Of two on one mount point the later hides the earlier.
        is_nearer = best is None or len(at) >= len(best.at)
        if is_nearer and f"{path.rstrip('/')}/".startswith(f"{at.rstrip('/')}/"):
            every = dict.fromkeys(",".join([options, *more]).split(","))
            best = MountPoint(device, at, tuple(every), kind, source)
    return best


def _mount_out_of_sight(machine: InspectableMachine, path: str) -> MountPoint:
    device = machine.run(["stat", "--format=%Hd:%Ld", "--", path]).output.decode().strip()
    kind = machine.run(["stat", "--file-system", "--format=%T", "--", path]).output.decode().strip()
    # The magic number is that of ext4 too (Linux, include/uapi/linux/magic.h), with which today's kernels mount all three.
    return MountPoint(device, OUT_OF_SIGHT, (), "ext4" if kind == "ext2/ext3" else kind, f"the device {device}")


def real_path(machine: InspectableMachine, path: str) -> str:
    """The same without links."""
    return machine.run(["readlink", "-f", "--", path]).output.decode().rstrip("\n")


def unescape(field: str) -> str:
    """A field of mountinfo: blanks and the like are octal in there, proc(5)."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)
