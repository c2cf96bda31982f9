"""What an arm has that the arm it is held against has not: what was asked for, and the versions that came with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from dbtoll.analysis.result.provenance import version_of
from dbtoll.analysis.result.schema import ArmDifference
from dbtoll.model.experiment import Arm, Difference
from dbtoll.model.json import Json
from dbtoll.store.reader import Run
from dbtoll.store.schema import Start

LIBC = "libc6:"
"""Begins the package of the C library, whose code is in every server."""

GIB = 1 << 30


def server(run: Run, arm: str) -> str:
    """``PostgreSQL 17.6``, as its starts told; the name alone where none did."""
    starts = (record for record in chain(run.records(Start), run.outside) if isinstance(record, Start))
    versions = (version for start in starts if start.arm == arm and (version := version_of(start.facts)))
    return " ".join(filter(None, (run.engine_of(arm).title, next(versions, ""))))


def of_arm(run: Run, arm: Arm) -> tuple[ArmDifference, ...]:
    """Of an arm that is held against none, and of a copy: nothing."""
    if arm.against is None:
        return ()
    return tuple(_found(run, arm, run.plan.experiment.arm(arm.against)))


def _found(run: Run, arm: Arm, baseline: Arm) -> Iterator[ArmDifference]:
    asked = arm.configuration.differences(baseline.configuration)
    own, other = run.facts_of(arm.name), run.facts_of(baseline.name)
    servers = server(run, arm.name), server(run, baseline.name)
    if servers[0] != servers[1]:
        yield ArmDifference("server", "version", *servers)
    if any(each.part == "image" for each in asked):
        yield from _images(asked, own.get("image") or {}, other.get("image") or {})
    settings, theirs = own.get("settings") or {}, other.get("settings") or {}
    for name in sorted({*settings, *theirs}):
        if (
            settings.get(name) != theirs.get(name)
            and arm.configuration.engine.name == baseline.configuration.engine.name
        ):
            yield ArmDifference("setting", name, _text(name, settings.get(name)), _text(name, theirs.get(name)))
    for each in asked:
        if each.part in ("resources", "workload", "devices") or (
            each.part == "engine" and each.name != "name" and each.name not in {*settings, *theirs}
        ):
            yield ArmDifference(each.part, _name(each), _text(each.name, each.value), _text(each.name, each.other))


def _images(asked: tuple[Difference, ...], own: Json, other: Json) -> Iterator[ArmDifference]:
    """The system, and its C library, where both images tell."""
    systems = [image.get("release") for image in (own, other)]
    if None in systems or systems[0] == systems[1]:
        chosen = [each for each in asked if each.part == "image"]
        systems = [next(filter(None, map(side, chosen)), None) for side in (_own, _other)]
    yield ArmDifference("image", "system", *systems)
    libraries = [_version_of_libc(image) for image in (own, other)]
    if libraries[0] != libraries[1]:
        yield ArmDifference("image", "C library", *libraries)


def _version_of_libc(image: Json) -> str | None:
    packages = image.get("packages") or {}
    return next((version for name, version in packages.items() if name.startswith(LIBC)), None)


def _own(difference: Difference) -> str | None:
    return _text(difference.name, difference.value)


def _other(difference: Difference) -> str | None:
    return _text(difference.name, difference.other)


def _name(difference: Difference) -> str:
    is_ours = difference.part in ("resources", "devices")
    return difference.name.removesuffix("_bytes").replace("_", " ") if is_ours else difference.name


def _text(name: str, value: Any) -> str | None:
    """As people write it; None: not set."""
    match value:
        case None | "":
            return None
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_bytes"):
            return f"{value / GIB:g} GiB"
        case list() | tuple():
            return "+".join(map(str, value))
        case str() if value.startswith("/"):
            return Path(value).name
    return str(value)
