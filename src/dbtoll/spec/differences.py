"""What arms of unlike configuration have, in words: for the question and for `dbtoll plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbtoll import registry, units
from dbtoll.model.experiment import Configuration, Difference


def sides(configuration: Configuration, other: Configuration) -> tuple[list[str], list[str]]:
    """What each has that the other has not: ``["PostgreSQL 17", "jit on"]`` and ``["PostgreSQL 15", "jit off"]``."""
    own, its = [], []
    servers = server(configuration), server(other)
    if servers[0] != servers[1]:
        own, its = [servers[0]], [servers[1]]
    for each in configuration.differences(other):
        if (each.part, each.name) != ("engine", "name"):
            own.append(_text(each, each.value))
            its.append(_text(each, each.other))
    return own, its


def server(configuration: Configuration) -> str:
    """``PostgreSQL 17``; the name alone where the image is the user's own, or nobody numbers it."""
    engine = registry.find("engines", configuration.engine.name)
    version = engine.software.versions.get(configuration.image.get("suite", ""), "")
    return f"{engine.description.title} {version}".strip()


def _text(difference: Difference, value: Any) -> str:
    name = difference.name.removesuffix("_bytes").replace("_", " ") if difference.part != "engine" else difference.name
    match value:
        case None | "" | [] | ():
            return f"{name} not set"
        case bool():
            shown = "yes" if value else "no"
        case int() if difference.name.endswith("_bytes"):
            shown = units.size_text(value)
        case list() | tuple():
            shown = "+".join(map(str, value))
        case str() if "/" in value and difference.part != "devices":
            shown = Path(value).name
        case _:
            shown = str(value)
    name = "image" if (difference.part, difference.name) == ("image", "suite") else name
    return f"{name} {shown}"
