"""The system image: one directory with the database servers that every environment starts from (DESIGN §4).

Either Debian (``debian``), or the user's own: a directory, or an OCI image. Environments mount their own things over it
(``inspect.DIRECTORIES`` and ``FILES``); the image itself is never written to.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from dbtoll import namespaces
from dbtoll.errors import Unavailable
from dbtoll.images import oci
from dbtoll.images.cache import Cache, key_of
from dbtoll.images.debian import SUITE, debian_image
from dbtoll.images.inspect import (
    DIRECTORIES,
    FILES,
    image_facts,
    make_mount_points,
    missing_mount_points,
    tree_digest,
)
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact
from dbtoll.model.software import NOTHING, Software

RECIPE_VERSION = 2
"""Raise it when an OCI image comes to be unpacked differently."""

Progress = Callable[[str], None]


def obtain_image(
    cache: Cache,
    *,
    choice: str | None = None,
    suite: str = SUITE,
    mirror: str | None = None,
    progress: Progress = lambda line: None,
    software: Software = NOTHING,
) -> tuple[Artifact, Json]:
    """The image to use, and its facts: ``source``, ``release``, ``packages``, ``packages_sha256`` and more.

    ``choice``: the user's own directory or OCI image (see ``own_image``); None: Debian's ``suite``, from ``mirror``
    (a URL) or from where this host gets its own packages, with ``software``. Raises Unavailable, UsageError,
    ProgramFailed, ImageError.
    """
    if choice is not None:
        return own_image(cache, choice, progress)
    entry = debian_image(cache, suite, mirror, progress, software)
    return entry.artifact(), entry.facts


def own_image(cache: Cache, choice: str, progress: Progress = lambda line: None) -> tuple[Artifact, Json]:
    """A root file system in a directory (used in place, never written), or an OCI image (a layout directory, a tar of
    one, or what ``docker save`` writes), whose layers are unpacked into the cache. Nothing is fetched from a registry.
    """
    path = require_image(choice)
    return _unpacked(cache, path, progress) if oci.is_oci(path) else _in_place(path)


def require_image(choice: str) -> Path:
    """The user's image, absolute. Unavailable, unless it is an OCI image or a directory with all mount points; it is not opened."""
    path = Path(choice).absolute()
    if not path.exists():
        raise Unavailable(
            f"there is no image {choice}",
            f"give a directory or a tar; one that is in Docker is written with: docker save -o image.tar {path.name}",
        )
    if oci.is_oci(path):
        return path
    if not path.is_dir():
        raise Unavailable(
            f"{choice} is neither a directory nor an OCI image", "give what docker save or skopeo copy wrote"
        )
    if lacking := missing_mount_points(path):
        directories = [shlex.quote(str(path / name)) for name in lacking if name in DIRECTORIES]
        files = [shlex.quote(str(path / name)) for name in lacking if name in FILES]
        hints = [f"mkdir -p {' '.join(directories)}"] * bool(directories) + [f"touch {' '.join(files)}"] * bool(files)
        missing = ", ".join(f"/{name}" for name in lacking)
        raise Unavailable(f"the image {path} lacks mount points (links are none): {missing}", " && ".join(hints))
    return path


def _unpacked(cache: Cache, path: Path, progress: Progress) -> tuple[Artifact, Json]:
    digest = oci.image_digest(path)
    files = path.glob("blobs/*/*") if path.is_dir() else [path]
    size_bytes = sum(file.stat(follow_symlinks=file is path).st_size for file in files)
    root_user = namespaces.has_users()

    def build(root: Path) -> Json:
        progress(f"unpacking {path.name}")
        configuration = oci.unpack_image(path, root, set_owner=root_user)
        make_mount_points(root)
        # Names alone: values may be secrets, and facts are passed on.
        env = sorted(line.partition("=")[0] for line in configuration.environment)
        return {"source": f"oci {digest}", "env": env, **image_facts(root)}

    recipe: Json = {"version": RECIPE_VERSION, "oci": digest, "ownership": "image" if root_user else "flat"}
    # Packed layers are a third to a half of what they hold; whether it really fits shows when they are unpacked.
    entry = cache.obtain("image", recipe, build, estimate_bytes=3 * size_bytes, progress=progress)
    return entry.artifact(), entry.facts


def _in_place(path: Path) -> tuple[Artifact, Json]:
    listing = tree_digest(path)
    facts: Json = {"source": f"directory {path.name}", "tree_sha256": listing, **image_facts(path)}
    return Artifact(key=key_of("image", {"directory": listing}), path=str(path)), facts
