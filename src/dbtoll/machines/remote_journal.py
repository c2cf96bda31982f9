"""What is made on another host, noted in the journal of this one: each entry with the host that has it.

``{"kind": "remote", "host": …, "environment": …, "options": …, "what": {"kind": KIND, …identity}}``: the environment, with
these options, reaches that host again, and what removes KIND there removes this (runner/cleanup/removers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.machines import tmpfs
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.json import Json

KIND = "remote"
"""Kind of journal entry."""


class RemoteJournal:
    """Implements interfaces.RemoteJournal for one host. ``host``: its name; ``environment``, ``options``: what reaches it."""

    def __init__(self, journal: Journal, host: str, environment: str, options: Mapping[str, Any]) -> None:
        self._journal = journal
        self._reached_by: Json = {"host": host, "environment": environment, "options": dict(options)}
        self.open: list[RemoteEntry] = []
        """What is there now, the oldest first."""

    def create(self, kind: str, **identity: Any) -> JournalEntry:
        """Note it, unless it lies in a directory of ours there that is noted itself: then it goes with that. A mount does not."""
        if kind != tmpfs.KIND and self._goes_with_another(identity.get("path")):
            return NullJournal()
        what: Json = {"kind": kind, **identity}
        entry = RemoteEntry(self, what, self._journal.create(KIND, **self._reached_by, what=what))
        self.open.append(entry)
        return entry

    def left(self) -> list[RemoteEntry]:
        """See interfaces.RemoteJournal."""
        return self.open[::-1]

    def _goes_with_another(self, path: object) -> bool:
        return isinstance(path, str) and any(
            path.startswith(f"{entry.what['path']}/") for entry in self.open if entry.what["kind"] == PLACE
        )


PLACE = "place"
"""Kind of what is noted on another host: ``path``, a directory of dbtoll's own there, with all that is in it."""

PLACE_NAMED = "dbtoll-[0-9a-f]{16}"
"""What such a directory is called."""


@dataclass(slots=True, eq=False)
class RemoteEntry:
    """One thing on that host. ``what``: its kind and identity, as a journal there would have it."""

    journal: RemoteJournal
    what: Json
    entry: JournalEntry

    def done(self) -> None:
        """It is gone again."""
        self.entry.done()
        if self in self.journal.open:
            self.journal.open.remove(self)
