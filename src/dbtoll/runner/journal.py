"""Every resource is written down before it is made, so that what a killed run left can be found and removed (DESIGN §6).

`journal.ndjson`: ``{"entry": N, "kind": KIND, …identity}`` before a resource is made, ``{"entry": N, "done": true}`` when it
is gone. The writer holds a lock on the file for as long as the run lives: an open entry of an unlocked journal is a leftover.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dbtoll.errors import DbtollError, RunFolderError

FILE = "journal.ndjson"

ACTING = frozenset({"agent"})
"""Kinds that go first, whatever their age: what still acts could make again what has just been removed."""

Remover = Callable[[Mapping[str, Any]], str | None]
"""Removes one resource by its identity; one that is gone already is no error. May return what the user should know."""


class StillAlive(RunFolderError):
    """The run of that journal is going on."""


@dataclass(slots=True)
class Entry:
    """One resource that may exist now."""

    journal: Journal
    number: int

    def done(self) -> None:
        """It is gone again. Where that cannot be written the entry stays open, and `clean` will find nothing to remove."""
        with suppress(RunFolderError):
            self.journal.append({"entry": self.number, "done": True})


class Journal:
    """The journal of one run, open for writing and locked. StillAlive if another process holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / FILE
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise RunFolderError(
                f"{self._path}: cannot be written: {error.strerror}", "give a writable folder"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StillAlive(f"{folder}: another dbtoll is working on this run", "wait for it, or end it") from None
        self._drop_cut_line()
        self._next = max((entry["entry"] for entry in _lines(self._path)), default=0) + 1

    def create(self, kind: str, **identity: Any) -> Entry:
        """Note, synced to disk, that this resource is about to be made. RunFolderError where it cannot be noted."""
        entry = Entry(self, self._next)
        self._next += 1
        self.append({"entry": entry.number, "kind": kind, **identity}, synced=True)
        return entry

    def append(self, line: Mapping[str, Any], *, synced: bool = False) -> None:
        """Write one line whole, or none of it."""
        data = json.dumps(line).encode() + b"\n"
        before_bytes = os.fstat(self._file.fileno()).st_size
        try:
            while data:  # a full disk or a signal may cut a write short
                data = data[self._file.write(data) :]
            if synced:
                os.fsync(self._file.fileno())
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), before_bytes)
            if not isinstance(error, OSError):
                raise
            raise RunFolderError(
                f"{self._path}: cannot be written: {error.strerror}", f"make room there; {resuming(self.folder)}"
            ) from error

    def sweep(self, removers: Mapping[str, Remover]) -> tuple[list[str], list[str]]:
        """Remove all that is open, newest first, what still acts before everything else. (removed, failed) as sentences."""
        removed, failed = [], []
        for line in sorted(leftovers(self.folder), key=lambda line: line["kind"] not in ACTING):
            identity = {key: value for key, value in line.items() if key not in ("entry", "kind")}
            said = f"{line['kind']} {', '.join(f'{k}={v}' for k, v in identity.items())}"
            remover = removers.get(line["kind"])
            try:
                if remover is None:
                    raise DbtollError(f"this dbtoll does not know how to remove a {line['kind']}")
                remark = remover(identity)
            except Exception as error:  # also a defect: whatever it is, it must not keep the rest from being removed
                why = error.message if isinstance(error, DbtollError) else f"{type(error).__name__}: {error}"
                failed.append(f"{said}: {why}")
                continue
            Entry(self, line["entry"]).done()
            removed.append(f"{said}: {remark}" if remark else said)
        return removed, failed

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop_cut_line(self) -> None:
        """What follows the last whole line: its writer was killed in the middle of it, before it made anything."""
        data = self._path.read_bytes()
        os.ftruncate(self._file.fileno(), data.rfind(b"\n") + 1)


def resuming(folder: Path) -> str:
    """What to do once the reason is gone."""
    return f"then go on: dbtoll run {folder} --resume"


@contextmanager
def passing() -> Iterator[Journal]:
    """A journal for what is no run, such as a trial: among the temporary files, where `clean` finds it. It goes when it ends,
    unless something that it notes could not be removed.
    """
    folder = Path(tempfile.mkdtemp(prefix="dbtoll-passing-"))
    try:
        with Journal(folder) as journal:
            yield journal
    finally:
        if not leftovers(folder):
            shutil.rmtree(folder)


class GoneWithIt:
    """A journal (and its own entries) for what is made inside a guest: that is gone when the guest is.

    Noted on the host, its paths and names would be taken for the host's own.
    """

    def create(self, kind: str, **identity: Any) -> GoneWithIt:
        """Notes nothing."""
        return self

    def done(self) -> None:
        """Notes nothing."""


def leftovers(folder: Path) -> list[dict[str, Any]]:
    """What a run made and did not remove, newest first; each with its ``entry``, ``kind`` and identity."""
    open_entries: dict[int, dict[str, Any]] = {}
    for line in _lines(folder / FILE):
        if line.get("done"):
            open_entries.pop(line["entry"], None)
        else:
            open_entries[line["entry"]] = line
    return sorted(open_entries.values(), key=lambda line: -int(line["entry"]))


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
