"""Programs and files of a machine, looked for."""

from __future__ import annotations

import json
import posixpath
from typing import Any

from dbtoll.interfaces.machine import InspectableMachine, Machine
from dbtoll.model.machine import Artifact

PACKAGE = "package.json"
"""Beside a program that was taken out of its package (`images.program`): package, version, suite, sha256."""


def find_program(machine: InspectableMachine, name: str) -> str | None:
    """Absolute path of a program on the machine's PATH."""
    found = machine.run(["sh", "-c", 'command -v -- "$1"', "sh", name], check=False).output.decode().strip()
    return found if posixpath.isabs(found) else None


def packaged_program(machine: Machine, artifact: Artifact, name: str) -> tuple[str, dict[str, Any]]:
    """Path of a program that was taken out of its Debian package, and what is known of the package."""
    directory = machine.provide(artifact)
    return f"{directory}/{name}", json.loads(machine.get(f"{directory}/{PACKAGE}"))


def exists(machine: InspectableMachine, path: str) -> bool:
    """Whether there is anything at ``path``."""
    return machine.run(["test", "-e", path], check=False).exit_code == 0
