"""Programs of dbtoll's own that run in the image: packaged in the wheel, or built from the checkout when they are first needed.

Each is a crate in a folder of the checkout's root. They are linked to the image's C library, unlike the agent.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dbtoll
from dbtoll.errors import ProgramFailed, Unavailable
from dbtoll.images.building import PATH, run_build
from dbtoll.images.cache import Cache
from dbtoll.model.json import Json

CRATES = {"dbtoll-embedded": "embedded"}
"""Program -> its folder."""

ESTIMATE_BYTES = 1 << 30
"""What its compilation takes meanwhile."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a program is made of: a crate's folder, or the program itself, packaged. ``digest``: of all of it."""

    path: Path
    digest: str


def source_of(name: str) -> Source:
    """Raises Unavailable where there is neither."""
    package = Path(dbtoll.__file__).parent
    packaged = package / "_agent" / platform.machine() / name
    if packaged.is_file():
        return Source(packaged, hashlib.sha256(packaged.read_bytes()).hexdigest())
    crate = package.parent.parent / CRATES[name]
    files = [crate / "Cargo.toml", crate / "Cargo.lock", *sorted((crate / "src").rglob("*.rs"))]
    if not files[0].is_file():
        raise Unavailable(f"there is no {name} for {platform.machine()} in this installation", "install dbtoll anew")
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(crate)}\0".encode() + file.read_bytes() + b"\0")
    return Source(crate, digest.hexdigest())


def made(cache: Cache, name: str, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The program; a crate is compiled at the first use (half a minute), then taken from the cache."""
    source = source_of(name)

    def build(content: Path) -> Json:
        progress(f"making {name}")
        if source.path.is_file():
            shutil.copy2(source.path, content / name)
        else:
            _compile(source.path, name, content, progress)
        (content / name).chmod(0o755)
        return {"sha256": hashlib.sha256((content / name).read_bytes()).hexdigest()}

    recipe: Json = {"name": name, "source": source.digest, "processor": platform.machine()}
    return cache.obtain("program", recipe, build, estimate_bytes=ESTIMATE_BYTES, progress=progress).content / name


def _compile(crate: Path, name: str, content: Path, progress: Callable[[str], None]) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable(f"{name} has to be compiled, and there is no cargo", "./dbtoll setup")
    own_cargo = f"{Path(cargo).parent}:{PATH}"  # a toolchain of the user's has its compiler beside it
    kept = {
        key: value for key, value in os.environ.items() if key.startswith(("CARGO_HOME", "RUSTUP_", "CARGO_REGISTR"))
    }
    with tempfile.TemporaryDirectory(dir=content.parent) as target:
        manifest = ["--manifest-path", str(crate / "Cargo.toml"), "--target-dir", target]
        try:
            run_build(
                [cargo, "build", "--release", "--locked", *manifest], progress, hint="", env={**kept, "PATH": own_cargo}
            )
        except ProgramFailed as error:
            raise Unavailable(
                f"{name} cannot be compiled: {error.message}",
                "cargo needs a crates index, once; see the messages above",
            ) from error
        shutil.copy2(Path(target) / "release" / name, content / name)
