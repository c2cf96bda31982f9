"""Environments, engines, workloads and collectors by name: the name is the file's name, imported when asked for."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from dbtoll.errors import UsageError

FAMILIES = {"environments": "Environment", "engines": "Engine", "workloads": "Workload", "collectors": "Collector"}


def names(family: str) -> list[str]:
    """All names of a family, sorted: the modules of its package that define the family's class."""
    package = importlib.import_module(f"dbtoll.{family}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if hasattr(_module(family, name), FAMILIES[family]))


def find(family: str, name: str) -> Any:
    """The class ``Environment``, ``Engine``, ``Workload`` or ``Collector`` of that name.

    Raises UsageError, naming what there is, if there is none.
    """
    known = names(family)
    if name not in known:
        word, colon, _ = name.lower().partition(":")
        meant = _meant(family, word, known)
        hint = f"did you mean {meant}? There is: {', '.join(known)}" if meant else f"choose one of: {', '.join(known)}"
        other = next((other for other in FAMILIES if other != family and word in names(other)), None)
        if other:
            hint += f"; {word} is one of the {other}"
        if family == "engines" and colon:
            hint += "; the version comes with the image: --image"
        elif family == "environments" and "/" in name:
            hint += "; a run folder is read with `dbtoll analyze` or `dbtoll report`"
        raise UsageError(f"there is no {family.removesuffix('s')} named {name!r}", hint)
    return getattr(_module(family, name), FAMILIES[family])


def _meant(family: str, name: str, known: Sequence[str]) -> str | None:
    """The member that is named or ``also_called`` so, or whose name is nearly that."""
    if name in known:
        return name
    for each in known:
        if name in getattr(getattr(_module(family, each), FAMILIES[family]), "also_called", ()):
            return each
    return next(iter(difflib.get_close_matches(name, known, 1)), None)


def _module(family: str, name: str) -> Any:
    return importlib.import_module(f"dbtoll.{family}.{name}")
