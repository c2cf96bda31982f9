"""Environments, engines, workloads, collectors and papers by name.

A member is a module or folder of the family's package, under its own name, or an entry point in the group ``dbtoll.FAMILY`` of
an installed package (https://packaging.python.org/en/latest/specifications/entry-points/). Each is imported when it is asked
for; their names are known without that.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dbtoll.errors import Unavailable, UsageError

FAMILIES = {
    "environments": "Environment",
    "engines": "Engine",
    "workloads": "Workload",
    "collectors": "Collector",
    "papers": "Paper",
}

_said: set[str] = set()
"""What was said of members that cannot be loaded, so that it is said once."""


def names(family: str) -> list[str]:
    """All names of a family, sorted; also of members that turn out not to be loadable. UsageError if two have one name."""
    return sorted([*_built_in(family), *_outside(family)])


def find(family: str, name: str) -> Any:
    """The family's class (``Environment`` …) of that name.

    Raises UsageError, naming what there is, if there is none; Unavailable, naming its package, if it cannot be loaded.
    """
    if name in _built_in(family):
        return getattr(importlib.import_module(f"dbtoll.{family}.{name}"), FAMILIES[family])
    if (point := _outside(family).get(name)) is not None:
        return _loaded(family, point)
    known = names(family)
    word, colon, _ = name.lower().partition(":")
    meant = _meant(family, word, known)
    hint = f"did you mean {meant}? There is: {', '.join(known)}" if meant else f"choose one of: {', '.join(known)}"
    if other := next((other for other in FAMILIES if other != family and word in names(other)), None):
        hint += f"; {word} is one of the {other}"
    if family == "engines" and colon:
        hint += "; the version comes with the image: --image"
    elif family == "environments" and "/" in name:
        hint += "; a run folder is read with `dbtoll analyze` or `dbtoll report`"
    raise UsageError(f"there is no {family.removesuffix('s')} named {name!r}", hint)


def members(family: str) -> Iterator[Any]:
    """The classes of all members that can be loaded, by name. Of one that cannot, the error output says so once."""
    for name in names(family):
        try:
            member = find(family, name)
        except Unavailable as error:
            if error.message not in _said:
                _said.add(error.message)
                print(f"dbtoll: {error.message}\n  hint: {error.hint}", file=sys.stderr)
            continue
        yield member


def package_of(family: str, name: str) -> str | None:
    """The package that brings a member, with its version; None for dbtoll's own."""
    point = _outside(family).get(name)
    return None if point is None else _package(point)


@cache
def _built_in(family: str) -> Sequence[str]:
    package = importlib.import_module(f"dbtoll.{family}")
    return tuple(module.name for module in pkgutil.iter_modules(package.__path__))


def _outside(family: str) -> Mapping[str, EntryPoint]:
    """Name -> entry point. UsageError for a name that something else has already."""
    found: dict[str, EntryPoint] = {}
    whose = dict.fromkeys(_built_in(family), "dbtoll itself")
    for point in _entry_points(f"dbtoll.{family}", tuple(sys.path)):
        if point.name in whose:
            raise UsageError(
                f"the {family.removesuffix('s')} {point.name} is there twice: in {whose[point.name]} and in the package "
                f"{_package(point)}",
                "remove one of the packages (pip uninstall)",
            )
        whose[point.name] = f"the package {_package(point)}"
        found[point.name] = point
    return found


@lru_cache(maxsize=16)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """``path``: where packages are looked for, which decides what is found."""
    del path
    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, _package(point))))


def _loaded(family: str, point: EntryPoint) -> Any:
    """Whatever is wrong with it is one sentence: it is somebody else's code."""
    kind = family.removesuffix("s")
    try:
        member = point.load()
        if not isinstance(member, type):
            raise TypeError(f"{point.value} is not a class")
        if getattr(member, "name", None) != point.name:
            raise TypeError(f"{point.value} calls itself {getattr(member, 'name', None)!r}")
    except (Exception, SystemExit) as error:
        raise Unavailable(
            f"the {kind} {point.name} of the package {_package(point)} cannot be loaded: {type(error).__name__}: {error}",
            f"repair that package or remove it: pip uninstall {point.dist.name if point.dist else point.module}",
        ) from error
    return member


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def _meant(family: str, name: str, known: Sequence[str]) -> str | None:
    """The member that is named or ``also_called`` so, or whose name is nearly that."""
    if name in known:
        return name
    for member in members(family):
        if name in getattr(member, "also_called", ()):
            return str(member.name)
    return next(iter(difflib.get_close_matches(name, known, 1)), None)
