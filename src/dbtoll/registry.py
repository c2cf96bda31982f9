"""Environments, engines, workloads, collectors and papers by name.

A member is a module or folder of the family's package, under its own name, or an entry point in the group ``dbtoll.FAMILY`` of an
installed package. Each is imported when asked for.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dbtoll.errors import UsageError

FAMILIES = {
    "environments": "Environment",
    "engines": "Engine",
    "workloads": "Workload",
    "collectors": "Collector",
    "papers": "Paper",
}


def names(family: str) -> list[str]:
    """All names of a family, sorted: the modules of its package that define the family's class, and entry points."""
    package = importlib.import_module(f"dbtoll.{family}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted({*(name for name in found if hasattr(_module(family, name), FAMILIES[family])), *_outside(family)})


def find(family: str, name: str) -> Any:
    """The family's class (``Environment`` …) of that name.

    Raises UsageError, naming what there is, if there is none.
    """
    known = names(family)
    if name not in known:
        meant = _meant(family, name.lower(), known)
        hint = f"did you mean {meant}? There is: {', '.join(known)}" if meant else f"choose one of: {', '.join(known)}"
        raise UsageError(f"there is no {family.removesuffix('s')} named {name!r}", hint)
    point = _outside(family).get(name)
    return getattr(_module(family, name), FAMILIES[family]) if point is None else point.load()


def members(family: str) -> Iterator[Any]:
    """The classes of all members, by name."""
    return (find(family, name) for name in names(family))


def _outside(family: str) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"dbtoll.{family}")}


def _meant(family: str, name: str, known: Sequence[str]) -> str | None:
    """The member that is ``also_called`` so, or whose name is nearly that."""
    for each in known:
        if name in getattr(find(family, each), "also_called", ()):
            return each
    return next(iter(difflib.get_close_matches(name, known, 1)), None)


def _module(family: str, name: str) -> Any:
    return importlib.import_module(f"dbtoll.{family}.{name}")
