"""What an image must have, and what it is, read from its files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dbtoll.errors import ImageError
from dbtoll.images.within import DEPTH_MAX, Root, parts_of, remove_at
from dbtoll.model.json import Json

DIRECTORIES = ("dbtoll/data", "dbtoll/run", "proc", "sys", "dev", "run", "tmp")
FILES = ("dbtoll/agent",)
"""Mount points, relative to the image: an environment mounts data, run directory, agent and file systems of the kernel
there. An image cannot get them later: nobody writes to it."""

LISTING_MAX_BYTES = 64 << 20
"""dpkg's status of a whole desktop has 5 MB."""


def missing_mount_points(root: Path) -> list[str]:
    """Those of DIRECTORIES and FILES that ``root`` lacks. Links count as none: whoever mounts there would follow them, out of
    the image too."""
    with Root(root) as image:
        directories = [name for name in DIRECTORIES if not stat.S_ISDIR(image.mode(name) or 0)]
        return directories + [name for name in FILES if not stat.S_ISREG(image.mode(name) or 0)]


def make_mount_points(root: Path) -> None:
    """Brings ``root`` all that it lacks of them. What stands in the way, such as a link, gives way."""
    for name in missing_mount_points(root):
        *above, last = parts_of(name)
        with Root(root) as image:
            for depth in range(len(above) + (name in DIRECTORIES)):
                with image.directory(parts_of(name)[:depth]) as place:
                    _make_directory(place.handle, parts_of(name)[depth])
            if name in FILES:
                with image.directory(above) as place:
                    remove_at(place.handle, last)
                    os.close(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=place.handle))


def tree_digest(root: Path) -> str:
    """SHA-256 over name, type, owner, size and modification time of all below ``root``: changes when a file is changed.
    Raises ImageError if it is too deep to be handled.

    Contents are not read: that would take minutes for a large image, and whoever sets back a time stamp means to
    deceive.
    """
    digest = hashlib.sha256()
    above = len(root.parts)
    for directory, directories, files in os.walk(root):
        if len(Path(directory).parts) - above > DEPTH_MAX:
            raise ImageError(f"the image {root} is more than {DEPTH_MAX} directories deep", "give another image")
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
    their hash. Links are followed within the image alone. Raises ImageError for lists of absurd size."""
    with Root(root) as image:
        packages = dict(_dpkg_packages(image.read("var/lib/dpkg/status", LISTING_MAX_BYTES) or b""))
        release = image.read("etc/os-release", LISTING_MAX_BYTES) or image.read("usr/lib/os-release", LISTING_MAX_BYTES)
    listing = "".join(f"{name}={version}\n" for name, version in sorted(packages.items()))
    return {
        "release": _pretty_name(release or b""),
        "packages": packages,
        "packages_sha256": hashlib.sha256(listing.encode()).hexdigest() if packages else None,
    }


def _dpkg_packages(status: bytes) -> Iterator[tuple[str, str]]:
    for paragraph in status.decode("utf-8", "replace").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed") and {"Package", "Architecture", "Version"} <= fields.keys():
            yield f"{fields['Package']}:{fields['Architecture']}", fields["Version"]


def _pretty_name(release: bytes) -> str | None:
    for line in release.decode("utf-8", "replace").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.removeprefix("PRETTY_NAME=").strip('"')
    return None


def _make_directory(handle: int, name: bytes) -> None:
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
            return
    except FileNotFoundError:
        pass
    remove_at(handle, name)
    os.mkdir(name, dir_fd=handle)
    os.chmod(name, 0o755, dir_fd=handle)  # whatever the caller's umask is
