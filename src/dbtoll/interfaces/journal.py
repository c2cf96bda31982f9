"""What is written down before a resource is made, so that a killed run can be cleaned."""

from __future__ import annotations

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
