"""dbtoll's source elsewhere, with something more in it; and programs that use it, or packages beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.program import ROOT

MAIN = "from dbtoll.cli import main; main()"


def copy_of_source(folder: Path) -> Path:
    """``folder/src`` with the package, which finds the agent of this checkout."""
    shutil.copytree(ROOT / "src/dbtoll", folder / "src/dbtoll", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "agent").symlink_to(ROOT / "agent")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    return folder / "src"


def python(words: Sequence[str], *paths: Path, cwd: Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """This Python with ``paths`` before everything that is installed."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def dbtoll(*words: str, paths: Sequence[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line program."""
    return python(["-c", MAIN, *words], *paths, cwd=cwd)


def contract_tests(file: Path, *words: str, paths: Sequence[Path], cwd: Path) -> str:
    """pytest's last line. AssertionError, with all that it said, unless all of them pass."""
    done = python(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(file), *words], *paths, cwd=cwd)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]
