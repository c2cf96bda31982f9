"""What this machine lacks for a stack. Asked once in a process, since the answer may take a daemon or the boot of a guest."""

from __future__ import annotations

import functools

import pytest

from dbtoll.machines.agent.local import open_local
from dbtoll.model.experiment import Arm
from dbtoll.runner.preparation import requirements
from dbtoll.spec.stack import parse_stack


@functools.cache
def lacking(stack: str) -> str:
    """What is missing, and why; empty where an arm of that stack can be opened."""
    with open_local() as host:
        missing = requirements.missing_requirements(host, [Arm(stack, parse_stack(stack))])
    return f"{stack}: {missing[stack][0].what}: {missing[stack][0].why}" if missing else ""


def needs(stack: str) -> None:
    """Skip, saying what is missing, where that stack cannot be opened."""
    if why := lacking(stack):
        pytest.skip(why)
