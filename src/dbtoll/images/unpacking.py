"""The layers of an image, unpacked one over the other into a directory. Everything in them is foreign.

Sources: OCI Image Format Specification 1.1, layer.md (change sets, whiteouts); POSIX.1-2017, pax (ustar and extended headers).
No member leads out of the directory (`within.Root`), and no archive takes more of the machine than `Bounds` says.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tarfile import ReadError
from typing import IO, Literal, Self

from dbtoll.errors import ImageError
from dbtoll.images.within import MISTRUST, Place, Root, parts_of, remove_at, shown

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"

HEADERS_MAX_BYTES = 64 << 10
"""All headers of one member: names are at most 4096 bytes long, and what else extended headers hold is not used here."""

ENTRY_BYTES = 4096
"""What a file, link or directory is counted with beside its content: an inode and a place in a directory, or a block."""

_READ_AHEAD_BYTES = 4 * tarfile.RECORDSIZE
"""`tarfile` reads records, and a decompressor fills its buffer."""

_IDS_MAX = (1 << 32) - 2
"""The largest user and group; one more means "leave it" to chown(2)."""

DAMAGE = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError, RecursionError)
"""What reading an archive that is cut off, changed or made in bad faith ends in, beside the OSErrors of `_UNFIT`."""

_UNFIT = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL),
    *(errno.EMLINK, errno.EXDEV, errno.ENOTEMPTY, errno.EILSEQ, errno.EOVERFLOW),
}
"""What a member that fits nowhere ends in; others (a full disk, one that fails) are this machine's."""


@dataclass(slots=True)
class Bounds:
    """What is left to all layers of one image together. A disk that is too small for it ends in one clear error earlier."""

    members: int = 1_000_000
    """Of archives, and directories that they need; a whole Debian desktop has 300 000."""
    content_bytes: int = 64 << 30
    stream_bytes: int = field(init=False)
    """Of archives, unpacked: contents and the padding and headers around them."""

    def __post_init__(self) -> None:
        self.stream_bytes = 2 * self.content_bytes

    def take(self, content_bytes: int = 0) -> None:
        """Before something is made. Raises ImageError where it is too much."""
        self.members -= 1
        self.content_bytes -= ENTRY_BYTES + max(0, content_bytes)
        if self.members < 0 or self.content_bytes < 0:
            what = "members" if self.members < 0 else "bytes"
            raise ImageError(f"the image holds more {what} than are unpacked", MISTRUST)

    def read(self, count: int) -> None:
        """After so many bytes of an archive. Raises ImageError where it is too much."""
        self.stream_bytes -= count
        if self.stream_bytes < 0:
            raise ImageError("the image's layers are longer than are unpacked", MISTRUST)


def unpack_layer(source: IO[bytes], directory: Path, bounds: Bounds, *, set_owner: bool) -> str:
    """Unpacks one layer, a tar, over what lies in ``directory``, obeying whiteouts. Returns the SHA-256 of the whole tar.

    Links inside the image are followed as they will be when ``directory`` is /: never out of it. Devices, pipes and sockets are
    never made: every environment brings its own /dev. Extended attributes are left out.

    Owners and modes are the image's, setuid bits too: server and baseline are to be what the user runs elsewhere, and nobody
    else on this host reaches the file (the cache is its owner's alone). ``set_owner`` False leaves all with the caller,
    readable and removable.

    Raises ImageError: damaged, or made in bad faith.
    """
    digest = hashlib.sha256()
    metered = Metered(source, bounds, digest.update)
    with Root(directory) as root, _told_plainly("the archive"):
        layer = _Layer(root, bounds, set_owner)
        with opened(metered, "r|") as tar:
            for member in members(tar, metered):
                with _told_plainly(repr(member.name[:200])):
                    layer.add(tar, member)
        layer.finish()
        while metered.read(1 << 20):  # what follows the last member is hashed too
            pass
    return digest.hexdigest()


class _Layer:
    """One layer on its way into the root."""

    def __init__(self, root: Root, bounds: Bounds, set_owner: bool) -> None:
        self._root, self._bounds, self._set_owner = root, bounds, set_owner
        self._here: set[tuple[bytes, ...]] = set()
        """What this layer brought: whiteouts hide only what came from below."""
        self._times: dict[tuple[bytes, ...], float] = {}

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = parts_of(member.name)
        if b".." in path:
            raise ImageError(f"{member.name!r} leads out of the image", MISTRUST)
        if not path:
            return  # the root is ours
        with self._root.directory(path[:-1], self._make) as place:
            if path[-1].startswith(WHITEOUT):
                self._hide(place, path[-1])
                return
            whole = (*place.path, path[-1])
            self._here.update(whole[: length + 1] for length in range(len(whole)))
            if member.isdir():
                self._directory(place, whole, member)
            elif member.issym():
                self._link(place, path[-1], member)
            elif member.islnk():
                self._hard_link(place, path[-1], member)
            elif member.isfile():
                self._file(tar, place, path[-1], member)
            elif not member.isdev():
                raise ImageError(f"{member.name!r} is of a type that no file has: {member.type!r}", MISTRUST)

    def finish(self) -> None:
        """Times of directories, which their contents changed; but for those that something else has taken the place of."""
        for path, time in self._times.items():
            try:
                with self._root.directory(path) as place:
                    if place.path == path:
                        os.utime(place.handle, (time, time))
            except (FileNotFoundError, NotADirectoryError):
                continue

    def _make(self, handle: int, name: bytes) -> None:
        self._bounds.take()
        os.mkdir(name, dir_fd=handle)
        os.chmod(name, 0o755, dir_fd=handle)  # it was made a moment ago; whatever the caller's umask is

    def _directory(self, place: Place, path: tuple[bytes, ...], member: tarfile.TarInfo) -> None:
        name = path[-1]
        if not _is_directory(place.handle, name):
            remove_at(place.handle, name)
        with self._root.directory(path, self._make) as made:
            self._attributes(made.handle, member)
            self._times[path] = member.mtime

    def _link(self, place: Place, name: bytes, member: tarfile.TarInfo) -> None:
        remove_at(place.handle, name)
        os.symlink(_raw(member.linkname), name, dir_fd=place.handle)
        if self._set_owner:
            os.chown(name, *_owner(member), dir_fd=place.handle, follow_symlinks=False)

    def _hard_link(self, place: Place, name: bytes, member: tarfile.TarInfo) -> None:
        source = parts_of(member.linkname)
        if b".." in source or not source:
            raise ImageError(f"the hard link {member.name!r} leads out of the image", MISTRUST)
        with self._root.directory(source[:-1]) as other:
            status = os.stat(source[-1], dir_fd=other.handle, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
                raise ImageError(f"the hard link {member.name!r} leads to no file", MISTRUST)
            if (*other.path, source[-1]) == (*place.path, name):
                return
            remove_at(place.handle, name)
            os.link(source[-1], name, src_dir_fd=other.handle, dst_dir_fd=place.handle, follow_symlinks=False)

    def _file(self, tar: tarfile.TarFile, place: Place, name: bytes, member: tarfile.TarInfo) -> None:
        remove_at(place.handle, name)
        source = tar.extractfile(member)
        assert source is not None  # it is a file
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=place.handle)
        with os.fdopen(handle, "wb") as file:
            while data := source.read(1 << 20):
                file.write(data)
            file.flush()
            self._attributes(handle, member)
            os.utime(handle, (member.mtime, member.mtime))

    def _attributes(self, handle: int, member: tarfile.TarInfo) -> None:
        if self._set_owner:
            os.fchown(handle, *_owner(member))
        # After chown, which clears setuid. Files that their owner could not remove again would stay in the cache for ever.
        own = 0 if self._set_owner else stat.S_IRWXU if member.isdir() else stat.S_IRUSR | stat.S_IWUSR
        os.fchmod(handle, member.mode & 0o7777 | own)

    def _hide(self, place: Place, whiteout: bytes) -> None:
        """What came from lower layers goes: the one of that name, or all in the directory, however deep."""
        if whiteout == OPAQUE:
            self._hide_below(place.handle, place.path)
            return
        name = whiteout.removeprefix(WHITEOUT)
        if name in (b"", b".", b".."):
            raise ImageError(f"the whiteout {shown([*place.path, whiteout])} leads out of its directory", MISTRUST)
        if (*place.path, name) not in self._here:
            remove_at(place.handle, name)

    def _hide_below(self, handle: int, path: tuple[bytes, ...]) -> None:
        for entry in os.listdir(handle):
            name = os.fsencode(entry)
            if (*path, name) not in self._here:
                remove_at(handle, name)
            elif _is_directory(handle, name):
                with self._root.directory((*path, name)) as below:
                    self._hide_below(below.handle, below.path)


class Metered(io.RawIOBase):
    """An archive as `tarfile` may read it: no headers longer than HEADERS_MAX_BYTES, no more in all than the bounds say.

    `tarfile` takes an extended header of any length whole into memory, and a chain of them by recursion.
    """

    def __init__(self, source: IO[bytes], bounds: Bounds, seen: Callable[[bytes], None] = lambda data: None) -> None:
        self._source, self.bounds, self._seen = source, bounds, seen
        self.between_contents()

    def between_contents(self) -> None:
        """What is read from now on are headers."""
        self._left: int | None = HEADERS_MAX_BYTES + _READ_AHEAD_BYTES

    def in_content(self) -> None:
        """What is read from now on is a file's content, which the bounds count."""
        self._left = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._source.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.bounds.read(len(data))
        self._seen(data)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise ImageError(f"a member has more than {HEADERS_MAX_BYTES} bytes of headers", MISTRUST)
        return data


# Attributes in all but their declaration.
_WRONG_HEADERS = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]


class _Member(tarfile.TarInfo):
    """`tarfile` takes a header that is wrong for the end of the archive, and what follows for nothing: here it is damage."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except _WRONG_HEADERS as error:
            raise ReadError(str(error)) from None


def opened(metered: Metered, mode: Literal["r|", "r:"]) -> tarfile.TarFile:
    """An archive, as a stream or to be searched."""
    return tarfile.open(fileobj=metered, mode=mode, encoding="utf-8", errors="surrogateescape", tarinfo=_Member)


def members(tar: tarfile.TarFile, metered: Metered) -> Iterator[tarfile.TarInfo]:
    """All members of an archive that is read through ``metered``; not kept, as iterating over ``tar`` does."""
    before = -1
    while True:
        metered.between_contents()
        member = tar.next()
        metered.in_content()
        if member is None:
            return
        tar.members.clear()  # type: ignore[attr-defined]  # an attribute in all but its declaration
        if member.offset <= before or member.size < 0:
            raise ImageError(f"{member.name[:200]!r} leads backwards in the archive", MISTRUST)
        before = member.offset
        if sum(len(key) + len(value) for key, value in tar.pax_headers.items()) > HEADERS_MAX_BYTES:
            raise ImageError(f"global headers have more than {HEADERS_MAX_BYTES} bytes", MISTRUST)
        metered.bounds.take(member.size if member.isfile() else 0)
        yield member


@contextmanager
def _told_plainly(what: str) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise ImageError(f"{what} is damaged: {type(error).__name__}: {error}", "write the image again") from error
    except OSError as error:
        if error.errno not in _UNFIT:
            raise
        raise ImageError(f"{what} does not fit: {error.strerror}", MISTRUST) from error


def _is_directory(handle: int, name: bytes) -> bool:
    """Itself, not by a link."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _owner(member: tarfile.TarInfo) -> tuple[int, int]:
    for number in (member.uid, member.gid):
        if not 0 <= number <= _IDS_MAX:
            raise ImageError(f"{member.name!r} belongs to user or group {number}", MISTRUST)
    return member.uid, member.gid
