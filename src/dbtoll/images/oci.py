"""Container images from files: an OCI image layout (directory or tar), or what ``docker save`` writes.

Sources: OCI Image Format Specification 1.1 (layout, manifest, layer whiteouts); Docker Image Specification 1.2
(manifest.json). Everything in such a file is foreign: no path of it may lead out of the directory that it is unpacked
into.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dbtoll.errors import DbtollError
from dbtoll.model import Json

DOCUMENT_MAX_BYTES = 4 << 20
"""Manifests and configurations are some kilobytes; OCI's own recommendation is to accept 4 MiB."""

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"

_DAMAGE = (
    *(tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error),
    *(FileNotFoundError, NotADirectoryError, FileExistsError, ValueError, OverflowError),
)
"""What unpacking a layer that is cut off, changed or made in bad faith ends in."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageError(DbtollError):
    """The image is damaged, or of a form that cannot be read."""

    exit_code = 65  # EX_DATAERR


def is_oci(path: Path) -> bool:
    """Whether ``path`` looks like a container image in a file (and not like a root file system)."""
    if path.is_dir():
        return (path / "oci-layout").is_file() and (path / "index.json").is_file()
    return path.is_file() and tarfile.is_tarfile(path)


def image_digest(path: Path) -> str:
    """SHA-256 of the image's configuration, which holds the hash of every layer: equal exactly for equal contents."""
    with _Archive.open(path) as archive:
        configuration, _ = archive.image()
        return hashlib.sha256(configuration).hexdigest()


def unpack_image(path: Path, root: Path, *, set_owner: bool) -> Json:
    """Unpacks all layers, lowest first, into the empty directory ``root``; returns the image's configuration.

    Every layer is compared with the hash in the configuration: a truncated or changed file raises ImageError.
    """
    with _Archive.open(path) as archive:
        text, layers = archive.image()
        configuration: Json = json.loads(text)
        expected = configuration.get("rootfs", {}).get("diff_ids", [])
        if len(expected) != len(layers):
            raise ImageError(
                f"{path.name}: {len(layers)} layers, but {len(expected)} in the configuration", "write it again"
            )
        for name, diff_id in zip(layers, expected, strict=True):
            with archive.file(name) as packed, _Hashing(_unpacked(packed, name)) as layer:
                try:
                    with tarfile.open(fileobj=layer, mode="r|") as tar:
                        unpack_tar(tar, root, set_owner=set_owner)
                    found = layer.finish()
                except _DAMAGE as error:
                    raise ImageError(
                        f"{path.name}: layer {name} is damaged: {error}", "write the image again"
                    ) from error
            if f"sha256:{found}" != diff_id:
                raise ImageError(
                    f"{path.name}: layer {name} is sha256:{found}, expected {diff_id}", "write the image again"
                )
        return configuration


def unpack_tar(tar: tarfile.TarFile, root: Path, *, set_owner: bool) -> None:
    """Unpacks one layer over what lies in ``root``, obeying whiteouts.

    Links inside the image are followed as they will be when ``root`` is /: never out of it. Devices, pipes and
    sockets are left out (every environment brings its own /dev). ``set_owner`` False leaves everything with the caller.
    """
    here: set[Path] = set()  # what this layer brought: whiteouts hide only what came from below
    directories: list[tuple[Path, tarfile.TarInfo]] = []
    for member in tar:
        path = _absolute(member.name)
        if path == PurePosixPath("/"):
            continue
        parent = _inside(root, path.parent)
        parent.mkdir(parents=True, exist_ok=True)
        if path.name.startswith(WHITEOUT):
            for hidden in _hidden(parent, path.name):
                if hidden not in here:
                    _remove(hidden)
            continue
        target = parent / path.name
        here.update([target, *target.parents])
        if member.isdir():
            if target.is_symlink() or not target.is_dir():
                _remove(target)
                target.mkdir()
            directories.append((target, member))
        else:
            _remove(target)
            _place(tar, member, root, target, set_owner)
    # Last, as the contents of a directory change its time, and a read-only one takes no contents.
    for target, member in reversed(directories):
        if target.is_dir() and not target.is_symlink():
            _attributes(target, member, set_owner)


def _absolute(name: str) -> PurePosixPath:
    path = PurePosixPath("/" + name)
    if ".." in path.parts:
        raise ImageError(f"{name!r} leads out of the image", "do not trust where it came from")
    return path


def _hidden(parent: Path, whiteout: str) -> list[Path]:
    """What a whiteout file in ``parent`` hides."""
    if whiteout == OPAQUE:
        return list(parent.iterdir())
    name = whiteout.removeprefix(WHITEOUT)
    if name in ("", ".", ".."):
        raise ImageError(f"the whiteout {whiteout!r} leads out of its directory", "do not trust where it came from")
    return [parent / name]


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path, target: Path, set_owner: bool) -> None:
    """Makes what is no directory."""
    if member.issym():
        target.symlink_to(member.linkname)
        if set_owner:
            os.lchown(target, member.uid, member.gid)
    elif member.islnk():
        linked = _absolute(member.linkname)
        os.link(_inside(root, linked.parent) / linked.name, target, follow_symlinks=False)
    elif member.isfile():
        source = tar.extractfile(member)
        assert source is not None  # it is a file
        with target.open("xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        _attributes(target, member, set_owner)


def _attributes(target: Path, member: tarfile.TarInfo, set_owner: bool) -> None:
    if set_owner:
        os.chown(target, member.uid, member.gid)
    # After chown, which clears setuid. Files that their owner could not remove again would stay in the cache for ever.
    own = 0 if set_owner else stat.S_IRWXU if member.isdir() else stat.S_IRUSR | stat.S_IWUSR
    target.chmod(member.mode & 0o7777 | own)
    os.utime(target, (member.mtime, member.mtime))


def _inside(root: Path, path: PurePosixPath) -> Path:
    """The directory ``path`` as a process would find it whose / is ``root``; all links on the way are resolved within
    it.

    Parts that are not there are taken as they are.
    """
    done = root
    rest = list(path.parts[1:])
    links = 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            done = done if done == root else done.parent
            continue
        step = done / part
        if not step.is_symlink():
            done = step
            continue
        links += 1
        if links > 40:  # the kernel's own limit, path_resolution(7)
            raise ImageError(f"{path} is behind too many links", "do not trust where it came from")
        goal = str(step.readlink())
        if goal.startswith("/"):
            done = root
        rest = [name for name in goal.split("/") if name not in ("", ".")] + rest
    return done


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- where the parts lie -------------------------------------------------------------------------------------------


class _Archive:
    """The files of an image, by name, whether they lie in a directory or in a tar."""

    def __init__(self, path: Path, tar: tarfile.TarFile | None) -> None:
        self._path = path
        self._tar = tar

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[_Archive]:
        if path.is_dir():
            yield cls(path, None)
            return
        try:
            with tarfile.open(path) as tar:
                yield cls(path, tar)
        except tarfile.TarError as error:
            raise ImageError(f"{path.name} is damaged: {error}", "write the image again") from error

    def file(self, name: str) -> IO[bytes]:
        try:
            if self._tar is None:
                inside = (self._path / name).resolve()
                if not inside.is_relative_to(self._path.resolve()):
                    raise KeyError(name)
                return inside.open("rb")
            found = self._tar.extractfile(name)
        except (KeyError, FileNotFoundError):
            found = None
        if found is None:
            raise ImageError(f"{self._path.name}: {name} is missing", "write the image again")
        return found

    def document(self, name: str) -> bytes:
        with self.file(name) as file:
            text = file.read(DOCUMENT_MAX_BYTES + 1)
        if len(text) > DOCUMENT_MAX_BYTES:
            raise ImageError(
                f"{self._path.name}: {name} has more than {DOCUMENT_MAX_BYTES} bytes", "do not trust where it came from"
            )
        return text

    def has(self, name: str) -> bool:
        return (self._path / name).is_file() if self._tar is None else name in self._tar.getnames()

    def image(self) -> tuple[bytes, list[str]]:
        """Configuration (its bytes) and names of the layers, lowest first. The only image, or the one for this
        processor."""
        try:
            if self.has(
                "manifest.json"
            ):  # docker save; since version 25 an OCI layout lies beside it, with the same layers
                images = json.loads(self.document("manifest.json"))
                if len(images) != 1:
                    raise ImageError(
                        f"{self._path.name} holds {len(images)} images", "save one: docker save -o image.tar NAME"
                    )
                return self.document(images[0]["Config"]), list(images[0]["Layers"])
            manifest = self._manifest(json.loads(self.document("index.json")), depth=0)
            return self.document(_blob(manifest["config"])), [_blob(layer) for layer in manifest["layers"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(
                f"{self._path.name} is not a container image: {error!r}", "give what docker save wrote"
            ) from error

    def _manifest(self, index: Any, depth: int) -> Any:
        """Follows an index (at most four deep) to the manifest for linux on this processor."""
        if depth > 4:
            raise ImageError(f"{self._path.name}: indexes within indexes", "do not trust where it came from")
        wanted = ("linux", _ARCHITECTURES.get(platform.machine(), platform.machine()))
        fitting = []
        for descriptor in index["manifests"]:
            place = descriptor.get("platform")
            if place is None or (place.get("os"), place.get("architecture")) == wanted:
                fitting.append(descriptor)
        if len(fitting) != 1:
            raise ImageError(
                f"{self._path.name} holds {len(fitting)} images for {'/'.join(wanted)}", "copy exactly one into it"
            )
        document = json.loads(self.document(_blob(fitting[0])))
        return self._manifest(document, depth + 1) if "manifests" in document else document


def _blob(descriptor: Any) -> str:
    algorithm, _, digest = descriptor["digest"].partition(":")
    if algorithm not in ("sha256", "sha512") or not digest.isalnum():
        raise ValueError(f"digest {descriptor['digest']!r}")
    return f"blobs/{algorithm}/{digest}"


def _unpacked(packed: IO[bytes], name: str) -> IO[bytes]:
    """A layer's tar bytes. The media type is not asked: docker save has none, and the bytes do not lie."""
    magic = packed.read(4)
    packed.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=packed)  # type: ignore[return-value]  # it is an IO[bytes] in all but its declaration
    if magic == b"\x28\xb5\x2f\xfd":
        raise ImageError(
            f"layer {name} is packed with zstd",
            "skopeo copy --dest-compress-format gzip --dest-force-compress-format …",
        )
    return packed


class _Hashing(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._digest.update(data)
        return data

    def finish(self) -> str:
        """Reads what a tar reader leaves after the last member; the hash of everything."""
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()
