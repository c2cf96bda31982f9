"""What this machine lacks for a stack. Where it lacks nothing it is asked once in a process: that may take a daemon or a guest."""

from __future__ import annotations

import pytest

from dbtoll.machines.agent.local import open_local
from dbtoll.model.experiment import Arm
from dbtoll.runner.preparation import requirements
from dbtoll.spec.stack import parse_stack

_able: set[str] = set()


def lacking(stack: str) -> str:
    """What is missing, and why; empty where an arm of that stack can be opened."""
    if stack in _able:
        return ""
    with open_local() as host:
        missing = requirements.missing_requirements(host, [Arm(stack, parse_stack(stack))])
    if missing:
        return f"{stack}: {missing[stack][0].what}: {missing[stack][0].why}"
    _able.add(stack)
    return ""


def needs(stack: str) -> None:
    """Skip, saying what is missing, where that stack cannot be opened."""
    if why := lacking(stack):
        pytest.skip(why)
