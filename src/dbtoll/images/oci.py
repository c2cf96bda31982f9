"""Container images from files: an OCI image layout (directory or tar), or what ``docker save`` writes.

Sources: OCI Image Format Specification 1.1 (image layout, index, manifest, configuration); Docker Image Specification 1.2
(manifest.json). Everything in such a file is foreign (`unpacking`).
"""

from __future__ import annotations

import gzip
import hashlib
import platform
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, TypeVar

import msgspec

from dbtoll.errors import ImageError
from dbtoll.images.unpacking import DAMAGE, Bounds, Metered, members, opened, unpack_layer
from dbtoll.images.within import LINKS_MAX, MISTRUST, Root

DOCUMENT_MAX_BYTES = 4 << 20
"""Manifests and configurations are some kilobytes; OCI's own recommendation is to accept 4 MiB."""

FILES_MAX = 10_000
"""Of an archive around layers: a few for each of at most 127 layers (overlay2's limit)."""

INDEXES_MAX = 4

AGAIN = "write the image again"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


# --- documents --------------------------------------------------------------------------------------------------------


class Platform(msgspec.Struct):
    """For what a manifest is."""

    os: str = ""
    architecture: str = ""


class Descriptor(msgspec.Struct):
    """Where a document or a layer lies (OCI descriptor)."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^sha(256|512):[0-9a-f]{1,128}$")]
    platform: Platform | None = None

    @property
    def name(self) -> str:
        return "blobs/" + self.digest.replace(":", "/")


class Manifest(msgspec.Struct):
    """An index (``manifests``) or an image's manifest (``config`` and ``layers``)."""

    manifests: list[Descriptor] | None = None
    config: Descriptor | None = None
    layers: list[Descriptor] = []


class Saved(msgspec.Struct):
    """One image in the manifest.json of ``docker save``."""

    config: str = msgspec.field(name="Config")
    layers: list[str] = msgspec.field(name="Layers")


class Defaults(msgspec.Struct):
    """What containers get from the image."""

    env: list[str] | None = msgspec.field(name="Env", default=None)


class RootFileSystem(msgspec.Struct):
    """The hash of each layer's tar, lowest first."""

    diff_ids: list[str] = []


class Configuration(msgspec.Struct):
    """An image's configuration, as far as it is used."""

    rootfs: RootFileSystem
    config: Defaults | None = None

    @property
    def environment(self) -> list[str]:
        """``NAME=VALUE`` of what containers get."""
        return (self.config and self.config.env) or []


Document = TypeVar("Document")


def _decoded(text: bytes, kind: type[Document], name: str) -> Document:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImageError(f"{name} is not as in a container image: {error}", "give what docker save wrote") from error


# --- images -----------------------------------------------------------------------------------------------------------


def is_oci(path: Path) -> bool:
    """Whether ``path`` is to be read as a container image in a file (and not as a root file system)."""
    if path.is_dir():
        return (path / "oci-layout").is_file() and (path / "index.json").is_file()
    return path.is_file()


def image_digest(path: Path) -> str:
    """SHA-256 of the image's configuration, which holds the hash of every layer: equal exactly for equal contents."""
    with _files(path) as files:
        return hashlib.sha256(files.image()[0]).hexdigest()


def unpack_image(path: Path, root: Path, *, set_owner: bool) -> Configuration:
    """Unpacks all layers, lowest first, into the empty directory ``root``; returns the image's configuration.

    Every layer is compared with the hash in the configuration: a truncated or changed file raises ImageError. What the layers
    may do is said in `unpack_layer`.
    """
    bounds = Bounds()
    with _files(path) as files:
        text, layers = files.image()
        configuration = _decoded(text, Configuration, "its configuration")
        expected = configuration.rootfs.diff_ids
        if len(expected) != len(layers):
            raise ImageError(f"{path.name}: {len(layers)} layers, but {len(expected)} in the configuration", AGAIN)
        for name, diff_id in zip(layers, expected, strict=True):
            with files.open(name) as packed:
                try:
                    found = unpack_layer(_unpacked(packed, name), root, bounds, set_owner=set_owner)
                except ImageError as error:
                    raise ImageError(f"{path.name}: layer {name}: {error.message}", error.hint) from error
            if f"sha256:{found}" != diff_id:
                raise ImageError(f"{path.name}: layer {name} is sha256:{found}, expected {diff_id}", AGAIN)
    return configuration


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of an image, by name. ``find`` gives one, to be closed, or None."""

    name: str
    find: Callable[[str], IO[bytes] | None]

    def open(self, name: str) -> IO[bytes]:
        found = self.find(name)
        if found is None:
            raise ImageError(f"{self.name}: {name} is missing", AGAIN)
        return found

    def document(self, name: str) -> bytes:
        return self._whole(self.open(name), name)

    def _whole(self, document: IO[bytes], name: str) -> bytes:
        with document:
            text = document.read(DOCUMENT_MAX_BYTES + 1)
        if len(text) > DOCUMENT_MAX_BYTES:
            raise ImageError(f"{self.name}: {name} has more than {DOCUMENT_MAX_BYTES} bytes", MISTRUST)
        return text

    def image(self) -> tuple[bytes, list[str]]:
        """Configuration (its bytes) and names of the layers, lowest first. The only image, or the one for this processor."""
        # docker save; since version 25 an OCI layout lies beside it, with the same layers
        if (listed := self.find("manifest.json")) is not None:
            images = _decoded(self._whole(listed, "manifest.json"), list[Saved], "manifest.json")
            if len(images) != 1:
                raise ImageError(f"{self.name} holds {len(images)} images", "save one: docker save -o image.tar NAME")
            return self.document(images[0].config), images[0].layers
        if (index := self.find("index.json")) is None:
            raise ImageError(
                f"{self.name} is no OCI image: it has neither index.json nor manifest.json",
                "docker save -o image.tar NAME writes one; or unpack a root file system and give its directory",
            )
        index.close()
        manifest = self._manifest("index.json", INDEXES_MAX)
        if manifest.config is None:
            raise ImageError(f"{self.name}: its manifest names no configuration", AGAIN)
        return self.document(manifest.config.name), [layer.name for layer in manifest.layers]

    def _manifest(self, name: str, indexes_left: int) -> Manifest:
        """The document ``name``, or what it leads to: the manifest for linux on this processor."""
        document = _decoded(self.document(name), Manifest, name)
        if document.manifests is None:
            return document
        if not indexes_left:
            raise ImageError(f"{self.name}: indexes within indexes", MISTRUST)
        wanted = Platform("linux", _ARCHITECTURES.get(platform.machine(), platform.machine()))
        fitting = [each for each in document.manifests if each.platform in (None, wanted)]
        if len(fitting) != 1:
            what = f"{len(fitting)} images for {wanted.os}/{wanted.architecture}"
            raise ImageError(f"{self.name} holds {what}", "copy exactly one into it")
        return self._manifest(fitting[0].name, indexes_left - 1)


@contextmanager
def _files(path: Path) -> Iterator[_Files]:
    try:
        if path.is_dir():
            with Root(path) as root:
                yield _Files(path.name, root.open)
        else:
            with path.open("rb") as file:
                yield _Files(path.name, _finder(_unpacked(file, path.name)))
    except DAMAGE as error:
        what = f"{path.name} is damaged, or no container image: {type(error).__name__}: {error}"
        raise ImageError(what, AGAIN) from error


def _finder(archive: IO[bytes]) -> Callable[[str], IO[bytes] | None]:
    """What finds the files of a tar. Links are followed: older versions of Docker save equal layers so."""
    metered = Metered(archive, Bounds(members=FILES_MAX))
    tar = opened(metered, "r:")
    found = {_plain(member.name): member for member in members(tar, metered)}

    def find(name: str) -> IO[bytes] | None:
        name = _plain(name)
        for _ in range(LINKS_MAX):
            member = found.get(name)
            if member is None or member.isfile():
                return tar.extractfile(member) if member else None
            above = posixpath.dirname(name) if member.issym() else ""
            name = _plain(posixpath.join(above, member.linkname))
        return None

    return find


def _plain(name: str) -> str:
    return posixpath.normpath("/" + name.lstrip("/"))


def _unpacked(packed: IO[bytes], name: str) -> IO[bytes]:
    """A tar's bytes. The media type is not asked: docker save has none, and the bytes do not lie."""
    magic = packed.read(4)
    packed.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=packed)  # type: ignore[return-value]  # it is an IO[bytes] in all but its declaration
    if magic == b"\x28\xb5\x2f\xfd":
        raise ImageError(
            f"{name} is packed with zstd",
            "skopeo copy --dest-compress-format gzip --dest-force-compress-format …",
        )
    return packed
