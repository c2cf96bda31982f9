"""What an image must have, and what it is, read from its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from dbtoll.model import Json

DIRECTORIES = ("dbtoll/data", "dbtoll/run", "proc", "sys", "dev", "run", "tmp")
FILES = ("dbtoll/agent",)
"""Mount points, relative to the image: an environment mounts data, run directory, agent and file systems of the kernel
there. An image cannot get them later: nobody writes to it."""


def tree_digest(root: Path) -> str:
    """SHA-256 over name, type, owner, size and modification time of all below ``root``: changes when a file is changed.

    Contents are not read: that would take minutes for a large image, and whoever sets back a time stamp means to
    deceive.
    """
    digest = hashlib.sha256()
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(directory, name)
            status = path.lstat()
            # A directory's size and time change when somebody mounts on it, or on nothing at all.
            size, changed_ns = (0, 0) if name in directories else (status.st_size, status.st_mtime_ns)
            line = (str(path.relative_to(root)), status.st_mode, status.st_uid, status.st_gid, size, changed_ns)
            digest.update(repr(line).encode())
    return digest.hexdigest()


def image_facts(root: Path) -> Json:
    """``release`` (from os-release), ``packages`` (name -> version, from dpkg's status; {} where there is none) and
    their hash."""
    packages = dict(_dpkg_packages(root / "var/lib/dpkg/status"))
    listing = "".join(f"{name}={version}\n" for name, version in sorted(packages.items()))
    return {
        "release": _release(root),
        "packages": packages,
        "packages_sha256": hashlib.sha256(listing.encode()).hexdigest() if packages else None,
    }


def _dpkg_packages(status: Path) -> Iterator[tuple[str, str]]:
    if not status.exists():
        return
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            yield f"{fields['Package']}:{fields['Architecture']}", fields["Version"]


def _release(root: Path) -> str | None:
    """PRETTY_NAME. /etc/os-release is most often a link, which must not be followed out of the image."""
    for name in ("usr/lib/os-release", "etc/os-release"):
        path = root / name
        if path.is_file() and not path.is_symlink():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("PRETTY_NAME="):
                    return line.removeprefix("PRETTY_NAME=").strip('"')
    return None
