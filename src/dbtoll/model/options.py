"""What a specification or a command line may say of an environment, an engine or a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option of an environment, engine or workload: its kind, default and one line of help.

    ``kind``: ``text``, ``integer``, ``number``, ``flag``, ``size`` (``2 GiB`` -> bytes), ``duration`` (``50ms`` -> ns),
    ``path`` (in a specification relative to its file), ``table`` or ``list``.
    ``choices`` limits text; with ``or_path`` a path from the root is allowed too.
    ``least``, ``most``: what an integer, a number, a size (bytes) or a duration (ns) is at least and at most.
    """

    kind: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    or_path: bool = False
    least: float | None = None
    most: float | None = None
