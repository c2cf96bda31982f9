"""From what is missing to the one command that brings it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from dbtoll import namespaces
from dbtoll.model.machine import MissingRequirement

INSTALL = "apt-get install -y --no-install-recommends"

_INSTALLS = re.compile(r"apt-get install(?: -\S+)*((?: [a-z0-9][a-z0-9+.-]+)+)")
_PROGRAMS = ("mount ", "modprobe ", "sysctl ", "usermod ")
"""A hint that begins with one of these is a command as it stands."""


def together(missing_requirements: Iterable[MissingRequirement]) -> tuple[str | None, list[str]]:
    """(one command for everything that commands fix, or None; the other hints as advice, each once).

    Packages of all hints go into one installation.
    """
    packages: dict[str, None] = {}
    commands: dict[str, None] = {}
    advice: dict[str, None] = {}
    for lack in missing_requirements:
        if named := _INSTALLS.match(lack.hint):
            packages |= dict.fromkeys(named[1].split())
        elif lack.hint.startswith(_PROGRAMS):
            commands[lack.hint] = None
        elif lack.hint:
            advice[lack.hint] = None
    steps = ([f"{INSTALL} {' '.join(packages)}"] if packages else []) + list(commands)
    if not steps:
        return None, list(advice)
    return _as_root(" && ".join(steps), several=len(steps) > 1), list(advice)


def _as_root(command: str, *, several: bool) -> str:
    if namespaces.is_root():
        return command
    return f"sudo sh -c {shlex.quote(command)}" if several else f"sudo {command}"
