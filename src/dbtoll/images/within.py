"""A directory taken as ``/``: its paths are found as a process finds them whose root it is, and nothing outside is touched.

Every part of a path is opened relative to the directory before it and never through a link (``O_NOFOLLOW``); links are read and
resolved here, path_resolution(7), an absolute one from this root. What openat2(2) calls ``RESOLVE_IN_ROOT``.

Paths are bytes: names in an image need not be UTF-8, and what they mean must not depend on the caller's locale.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dbtoll.errors import ImageError

DEPTH_MAX = 128
"""Directories within directories. The deepest of Debian's packages need 20, nested node_modules some 60; every program that
walks a tree by names meets PATH_MAX (4096) or its own recursion a little later."""

PATH_MAX_BYTES = 2048
"""Of a path in an image, so that every program reaches it below wherever the image lies (the kernel's PATH_MAX is 4096)."""

LINKS_MAX = 40
"""The kernel's own limit, path_resolution(7)."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

MISTRUST = "do not trust where it came from"

Make = Callable[[int, bytes], None]
"""Makes the directory of that name below an open one."""


@dataclass(frozen=True, slots=True)
class Place:
    """An open directory, and its path from the root without any link. The handle is closed by who gave it."""

    handle: int
    path: tuple[bytes, ...]


def parts_of(path: str | bytes) -> list[bytes]:
    """``"a//b/./c"`` -> its names; ``..`` stays. Text as `tarfile` decodes it: UTF-8, other bytes as surrogates."""
    raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    return [part for part in raw.split(b"/") if part not in (b"", b".")]


class Root:
    """Use it as a context manager. All methods raise ImageError for a path that is too deep or behind too many links."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> Self:
        self._handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    @contextmanager
    def directory(self, path: Sequence[bytes], make: Make | None = None) -> Iterator[Place]:
        """The directory ``path``; what is missing on the way is made by ``make``. Raises FileNotFoundError, NotADirectoryError."""
        handle, here, links = os.dup(self._handle), list[bytes](), 0
        try:
            rest = list(reversed(path))
            while rest:
                part = rest.pop()
                if part == b"..":
                    if here:  # above the root is the root
                        here.pop()
                        handle = _instead(handle, os.open("..", DIRECTORY, dir_fd=handle))
                    continue
                target = link_at(handle, part)
                if target is None:
                    handle = _instead(handle, _opened(handle, part, make))
                    here.append(part)
                    if len(here) > DEPTH_MAX:
                        raise ImageError(f"{self._directory.name}: more than {DEPTH_MAX} directories deep", MISTRUST)
                    if sum(map(len, here)) + len(here) > PATH_MAX_BYTES:
                        raise ImageError(
                            f"{self._directory.name}: a path has more than {PATH_MAX_BYTES} bytes", MISTRUST
                        )
                    continue
                links += 1
                if links > LINKS_MAX:
                    raise ImageError(f"{self._directory.name}: {shown(path)} is behind too many links", MISTRUST)
                if target.startswith(b"/"):
                    handle, here = _instead(handle, os.dup(self._handle)), []
                rest += reversed(parts_of(target))
            yield Place(handle, tuple(here))
        finally:
            os.close(handle)

    def open(self, path: str) -> BinaryIO | None:
        """A regular file, links followed; None if there is none."""
        parts, links = parts_of(path), 0
        while parts and parts[-1] != b".." and links <= LINKS_MAX:
            try:
                with self.directory(parts[:-1]) as place:
                    target = link_at(place.handle, parts[-1])
                    if target is None:
                        return _regular(place.handle, parts[-1])
                    parts = [*(() if target.startswith(b"/") else place.path), *parts_of(target)]
            except (FileNotFoundError, NotADirectoryError):
                return None
            links += 1
        return None

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """The content of such a file. ImageError if it is larger."""
        file = self.open(path)
        if file is None:
            return None
        with file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ImageError(f"{path} has more than {max_bytes} bytes", MISTRUST)
        return content

    def mode(self, path: str) -> int | None:
        """Type and permissions (``st_mode``) of what is there if no part of ``path`` is a link, else None."""
        parts = parts_of(path)
        try:
            with self.directory(parts[:-1]) as place:
                if place.path != tuple(parts[:-1]):
                    return None
                return os.stat(parts[-1], dir_fd=place.handle, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None


def link_at(handle: int, name: bytes) -> bytes | None:
    """Where the link of that name leads; None if it is none, or nothing."""
    try:
        return os.readlink(name, dir_fd=handle)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def remove_at(handle: int, name: bytes) -> None:
    """Removes what has that name, with all below it; nothing there is no error."""
    try:
        is_directory = stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return
    if is_directory:
        shutil.rmtree(name, dir_fd=handle)
    else:
        os.unlink(name, dir_fd=handle)


def shown(path: Sequence[bytes]) -> str:
    """A path for people."""
    return "/" + b"/".join(path).decode("utf-8", "replace")


def _opened(handle: int, name: bytes, make: Make | None) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=handle)
    except FileNotFoundError:
        if make is None:
            raise
    make(handle, name)
    return os.open(name, DIRECTORY, dir_fd=handle)


def _instead(former: int, handle: int) -> int:
    os.close(former)
    return handle


def _regular(handle: int, name: bytes) -> BinaryIO | None:
    # Before it is opened: a pipe would be waited for, and a device may act.
    if not stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
        return None
    return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle), "rb")
