"""Whether a class has the methods that an interface asks for."""

from __future__ import annotations

import inspect
from typing import Any


def demand_shape(member: type, interface: Any) -> None:
    """AssertionError unless each method of the interface is there, with the same parameters, and none is left out."""
    assert not getattr(member, "__abstractmethods__", frozenset()), sorted(member.__abstractmethods__)  # type: ignore[attr-defined]
    for name, wanted in inspect.getmembers(interface, inspect.isfunction):
        if not name.startswith("_"):
            there = list(inspect.signature(getattr(member, name)).parameters)
            assert there == list(inspect.signature(wanted).parameters), name
