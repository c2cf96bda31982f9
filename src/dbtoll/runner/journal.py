"""Every resource is written down before it is made, so that what a killed run left can be found and removed (DESIGN §6).

`journal.ndjson`: ``{"entry": N, "kind": KIND, …identity}`` before a resource is made, ``{"entry": N, "done": true}`` when it
is gone. The writer holds a lock on the file for as long as the run lives: an open entry of an unlocked journal is a leftover.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dbtoll.errors import DbtollError, RunFolderError

FILE = "journal.ndjson"

Remover = Callable[[Mapping[str, Any]], None]
"""Removes one resource by its identity; one that is gone already is no error."""


@dataclass(slots=True)
class Entry:
    """One resource that may exist now."""

    journal: Journal
    number: int

    def done(self) -> None:
        """It is gone again."""
        self.journal.append({"entry": self.number, "done": True})


class Journal:
    """The journal of one run, open for writing and locked. RunFolderError if another process holds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = self._path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise RunFolderError(f"{folder}: another dbtoll is working on this run", "wait for it, or end it") from None
        self._next = max((entry["entry"] for entry in _lines(self._path)), default=0) + 1

    def create(self, kind: str, **identity: Any) -> Entry:
        """Note, synced to disk, that this resource is about to be made."""
        entry = Entry(self, self._next)
        self._next += 1
        self.append({"entry": entry.number, "kind": kind, **identity})
        os.fsync(self._file.fileno())
        return entry

    def append(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def leftovers(folder: Path) -> list[dict[str, Any]]:
    """What a run made and did not remove, newest first; each with its ``entry``, ``kind`` and identity."""
    open_entries: dict[int, dict[str, Any]] = {}
    for line in _lines(folder / FILE):
        if line.get("done"):
            open_entries.pop(line["entry"], None)
        else:
            open_entries[line["entry"]] = line
    return sorted(open_entries.values(), key=lambda line: -int(line["entry"]))


def clean(folder: Path, removers: Mapping[str, Remover]) -> tuple[list[str], list[str]]:
    """Remove the leftovers of a run that no longer lives, newest first. Returns (removed, failed) as sentences.

    RunFolderError if the run is still alive.
    """
    removed, failed = [], []
    with Journal(folder) as journal:
        for line in leftovers(folder):
            identity = {key: value for key, value in line.items() if key not in ("entry", "kind")}
            said = f"{line['kind']} {', '.join(f'{k}={v}' for k, v in identity.items())}"
            remover = removers.get(line["kind"])
            try:
                if remover is None:
                    raise DbtollError(f"this dbtoll does not know how to remove a {line['kind']}")
                remover(identity)
            except DbtollError as error:
                failed.append(f"{said}: {error.message}")
                continue
            journal.append({"entry": line["entry"], "done": True})
            removed.append(said)
    return removed, failed


def _lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last may be cut where the writer was killed."""
    lines: list[dict[str, Any]] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return lines
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise RunFolderError(
                f"{path}:{number}: not a journal line", "restore the file; until then leftovers cannot be cleaned"
            ) from None
    return lines
