"""What is kept from run to run, seen by who makes something for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact

FetchKernel = Callable[[], Artifact | None]
"""Brings what an environment asked for (the kernel that its guests boot, its program) when it is needed; None where none is."""


class CachedBuild(Protocol):
    """What lies in the cache: whole, as it was built, and not removed as long as this process lives."""

    @property
    def content(self) -> Path: ...


class BuildCache(Protocol):
    """The cache (`images.cache`), to who makes something for it."""

    def obtain(
        self,
        kind: str,
        recipe: Json,
        build: Callable[[Path], Json],
        *,
        estimate_bytes: int,
        progress: Callable[[str], None] = ...,
    ) -> CachedBuild:
        """What ``recipe`` says; ``build`` fills the directory that it is given if it is not there, and returns facts."""
        ...
