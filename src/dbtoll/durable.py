"""Files that are there whole or not at all, also after a power cut; every file that dbtoll keeps is written by this.

A file is written beside its place, synced, renamed, and its directory synced: without the last step the name may be lost
(fsync(2): "Calling fsync() does not necessarily ensure that the entry in the directory containing the file has also reached disk").
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_durably(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Make ``content`` what ``path`` holds. ``mode``: of the file, less the umask.

    Never through a link: one in the file's place raises OSError (ELOOP), as does a directory there (EISDIR). The name beside it
    cannot be predicted, so nobody can lay a link there either. OSError where it cannot be written: then the former file stays.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    beside = f".{path.name}.{secrets.token_hex(8)}"
    try:
        _demand_file(path)
        handle = os.open(
            beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory
        )
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.rename(beside, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        _sync(directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=directory)
        raise
    finally:
        os.close(directory)


def require_writable(path: Path) -> None:
    """OSError where `write_durably` could not write ``path`` now: tried with a file beside it, which is removed again.

    What is there and no file (a device, a pipe) is refused, too: the file would take its place.
    """
    _demand_file(path)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    beside.unlink()


def move_durably(made: Path, path: Path) -> None:
    """Put a file that was made elsewhere on the same file system in the place of ``path``, by the same rules."""
    handle = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    _demand_file(path)
    made.rename(path)
    sync_directory(path.parent)


def make_directory(path: Path) -> Path:
    """A directory in its parent, there already or made now. OSError (ELOOP) where a link is in its place."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    path.mkdir(exist_ok=True)
    return path


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def _demand_file(path: Path) -> None:
    """OSError where something else than a file lies in its place. Said for clarity: renaming follows no link."""
    for wrong, number in ((path.is_symlink(), errno.ELOOP), (path.is_dir(), errno.EISDIR)):
        if wrong:
            raise OSError(number, os.strerror(number), str(path))


def _sync(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (
            errno.EBADF,
            errno.EINVAL,
        ):  # file systems that know no such thing (PostgreSQL: fsync_fname_ext)
            raise
