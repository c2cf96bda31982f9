"""A setting as its user wrote it into a file of the server's own form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Given:
    """A setting's value, and where its user wrote it (``file:line``)."""

    value: str
    where: str
