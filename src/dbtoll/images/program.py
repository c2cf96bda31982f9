"""A program taken out of its Debian package, for machines where it is not installed.

What is kept: the program's file, and beside it ``package.json`` (`machines.programs.PACKAGE`): package, version, suite, and the
SHA-256 of the package's file.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

from dbtoll.errors import ImageError
from dbtoll.images.cache import Cache
from dbtoll.images.debian import take_package
from dbtoll.images.within import Root
from dbtoll.machines.programs import PACKAGE
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, PackagedProgram

RECIPE_VERSION = 1
"""Raise it when something else comes to be kept of the same package."""

ESTIMATE_BYTES = 300 << 20
"""Lists of packages take 50 to 100 MB on the way, a package and its content 40."""

FILE_MAX_BYTES = 256 << 20
"""Of a program. runsc has 30 MB."""


def debian_program(
    cache: Cache,
    wanted: PackagedProgram,
    mirror: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[Artifact, Json]:
    """A directory with the program; fetched at the first use, then taken from the cache.

    Facts: as in ``package.json``. Raises Unavailable, ProgramFailed, ImageError.
    """
    recipe: Json = {
        "version": RECIPE_VERSION,
        "name": wanted.name,
        "package": wanted.package,
        "suite": wanted.suite,
        "architecture": platform.machine(),
    }

    def build(content: Path) -> Json:
        progress(f"taking {wanted.name} out of Debian {wanted.suite}'s {wanted.package}")
        with tempfile.TemporaryDirectory(dir=content.parent) as scratch:
            root = Path(scratch) / "root"
            taken = {**take_package(wanted.suite, mirror, wanted.package, root, progress), "suite": wanted.suite}
            with Root(root) as package:
                program = package.read(f"usr/bin/{wanted.name}", FILE_MAX_BYTES)
        if program is None:
            raise ImageError(f"{wanted.package} of Debian {wanted.suite} has no /usr/bin/{wanted.name}", "install it")
        file = content / wanted.name
        file.write_bytes(program)
        file.chmod(0o755)
        (content / PACKAGE).write_text(json.dumps(taken, indent=1) + "\n", encoding="utf-8")
        return taken

    entry = cache.obtain("program", recipe, build, estimate_bytes=ESTIMATE_BYTES, progress=progress)
    return entry.artifact(), entry.facts
