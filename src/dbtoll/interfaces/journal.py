"""What is written down before a resource is made, so that a killed run can be cleaned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class JournalEntry(Protocol):
    """One created resource in the journal."""

    def done(self) -> None:
        """It is gone again."""


class Journal(Protocol):
    """Written before a resource is made, so that a killed run can be cleaned (DESIGN §6).

    ``kind``: process, cgroup, mount, container, directory, setting; ``identity`` holds what its removal needs.
    """

    def create(self, kind: str, **identity: Any) -> JournalEntry: ...


class RemoteEntry(JournalEntry, Protocol):
    """``what``: ``kind`` and identity of a thing on another host, as a journal there would have them."""

    what: Mapping[str, Any]


class RemoteJournal(Journal, Protocol):
    """Notes what is made on another host, with what reaches that host."""

    def left(self) -> Sequence[RemoteEntry]:
        """What is not gone, newest first."""
        ...
