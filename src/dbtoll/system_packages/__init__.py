"""The programs of the system that dbtoll calls: ``programs.txt`` lists them, ``install.sh`` installs those that are missing.

``install.sh`` is a shell script because a checkout's launcher uses it before there is any Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from dbtoll.errors import Unavailable
from dbtoll.images.cache import Cache

_HERE = Path(__file__).parent
PROGRAMS = _HERE / "programs.txt"
INSTALL = _HERE / "install.sh"

ALWAYS = "dbtoll"
"""The group of the programs that every measurement calls; the others' are called as their environment."""


def programs() -> Mapping[str, tuple[str, str]]:
    """Program -> (Debian's package, group)."""
    lines = [line.split() for line in PROGRAMS.read_text().splitlines() if not line.startswith("#")]
    return {program: (package, group) for program, package, group in lines}


def has_programs(group: str) -> bool:
    """Whether all programs of that group are there."""
    return all(shutil.which(program) for program, (_, of) in programs().items() if of == group)


def install_missing(environments: Iterable[str], *, yes: bool) -> None:
    """Install what dbtoll and these environments call and this machine lacks: as root, with apt, once the user has agreed.

    ``yes``: the user has agreed. Where nobody can be asked, nothing is installed; the arms then say what they lack. Raises
    Unavailable where the installation fails.
    """
    if not yes and not sys.stdin.isatty():
        return
    state = Cache().root / "set-up"
    state.mkdir(exist_ok=True)
    words = [*(["--yes"] if yes else []), str(state), *sorted({ALWAYS, *environments})]
    done = subprocess.run(["bash", INSTALL, *words], check=False)
    if done.returncode:
        raise Unavailable("the missing programs were not installed", "see the messages above")
