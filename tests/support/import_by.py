"""Images imported by one program, as on a machine that has no other one for it."""

from __future__ import annotations

import pytest

from dbtoll.environments.docker import images
from dbtoll.machines import programs
from dbtoll.machines.agent.machine import AgentMachine


def import_by(program: str, machine: AgentMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on in this test; skips where that program is not installed."""
    if programs.find_program(machine, program) is None:
        pytest.skip(f"no {program} is installed")
    there = programs.find_program
    monkeypatch.setattr(images, "find_program", lambda asked, name: name == program and there(asked, name))
