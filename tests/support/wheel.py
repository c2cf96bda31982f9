"""The wheel, built from this checkout, and what is in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.program import ROOT

_EXECUTABLE = b"\x7fELF\x02\x01"
"""How a little-endian ELF file of 64 bits begins (System V ABI), as are the two below."""
_MACHINES = {"x86_64": 62, "aarch64": 183}
_PT_INTERP = 3
"""The program header that names a dynamic linker."""


def build_wheel(folder: Path, architectures: str) -> Path:
    """With agents for ``architectures``, in a new ``folder``/wheel. Skips the test where there is no compiler for one."""
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: ./dbtoll setup brings one")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "wheel", ROOT],
        env={**os.environ, "DBTOLL_WHEEL_ARCHITECTURES": architectures}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if lack := re.search("there is no compiler for .*", built.stdout + built.stderr):
        pytest.skip(lack[0])
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (folder / "wheel").glob("*.whl")
    return wheel


def agents_in(wheel: Path, folder: Path) -> dict[str, Path]:
    """Architecture -> the agent in the wheel, which is a static program for it; unpacked into ``folder``."""
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
    agents = {path.parent.name: path for path in (folder / "dbtoll/_agent").glob("*/dbtoll-agent")}
    for architecture, agent in agents.items():
        content = agent.read_bytes()
        assert (content[:6], content[18]) == (_EXECUTABLE, _MACHINES[architecture])
        at = int.from_bytes(content[32:40], "little")
        size, count = (int.from_bytes(content[where : where + 2], "little") for where in (54, 56))
        headers = [int.from_bytes(content[at + size * each :][:4], "little") for each in range(count)]
        assert headers
        assert _PT_INTERP not in headers
        agent.chmod(0o755)
    return agents
