"""Programs and files of a machine, looked for."""

from __future__ import annotations

import posixpath

from dbtoll.interfaces.machine import InspectableMachine


def find_program(machine: InspectableMachine, name: str) -> str | None:
    """Absolute path of a program on the machine's PATH."""
    found = machine.run(["sh", "-c", 'command -v -- "$1"', "sh", name], check=False).output.decode().strip()
    return found if posixpath.isabs(found) else None


def exists(machine: InspectableMachine, path: str) -> bool:
    """Whether there is anything at ``path``."""
    return machine.run(["test", "-e", path], check=False).exit_code == 0
