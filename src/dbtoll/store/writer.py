"""Writes a run folder: three files once, then the history, a record at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from dbtoll import __version__
from dbtoll.durable import sync_directory, write_durably
from dbtoll.errors import RunFolderError
from dbtoll.model.json import Json
from dbtoll.store import contents, reader
from dbtoll.store.schema import (
    FACTS_FILE,
    FIRST_CHAIN,
    HISTORY_FILE,
    PLAN_FILE,
    SPEC_FILE,
    Interrupted,
    PlanFile,
    Record,
    RoundBegin,
    RoundEnd,
    RunBegin,
    Visit,
    seal,
)


class RunWriter:
    """The one writer of a run's history; a second one is refused by a lock on the file.

    Every record is handed to the kernel at once, so that a killed dbtoll loses nothing; ``round_end`` also waits for
    the disk, so that a machine that loses power loses at most one round.
    """

    def __init__(self, history: Path) -> None:
        self._file = history.open("ab", buffering=0)
        self._chain = FIRST_CHAIN
        self._expected: contents.Expected | None = None
        self._sharing = reader.Sharing()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RunFolderError(f"{history}: another dbtoll writes this run", "wait for it, or stop it") from None

    @classmethod
    def create(cls, folder: Path, *, spec: bytes, plan: PlanFile, facts: Json) -> RunWriter:
        """A new run; its id is the folder's name. The folder may exist but must not hold a history."""
        history = folder / HISTORY_FILE
        if history.exists():
            raise RunFolderError(f"{history}: there is a run already", "resume it, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            SPEC_FILE: spec,
            PLAN_FILE: msgspec.json.format(msgspec.json.encode(plan)),
            FACTS_FILE: msgspec.json.format(msgspec.json.encode(facts)),
        }
        for name, content in files.items():
            write_durably(folder / name, content)
        writer = cls(history)
        writer._expected = contents.Expected(plan)
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        writer.append(
            RunBegin(
                run=folder.name,
                dbtoll=__version__,
                started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                plan_sha256=sums[PLAN_FILE],
                spec_sha256=sums[SPEC_FILE],
                facts_sha256=sums[FACTS_FILE],
            )
        )
        writer.sync()
        sync_directory(folder)
        return writer

    @classmethod
    def resume(cls, folder: Path) -> tuple[RunWriter, reader.Run]:
        """Go on with a run: verifies all of it, drops an unfinished last line, marks an unfinished round.

        Returns the run as it was, from which the caller reads ``complete_rounds``, ``next_attempt`` and ``elapsed_s``.
        """
        history = folder / HISTORY_FILE
        if not history.exists():
            raise RunFolderError(f"{history}: there is no run to resume", "start a new one")
        writer = cls(history)  # first the lock, then the reading: another writer might still be at work
        try:
            run = reader.read_run(folder)
        except BaseException:
            writer.close()
            raise
        writer._chain = run.chain
        writer._expected = contents.Expected(run.plan)
        for attempt in run.attempts:
            for record in (attempt.begin, *attempt.records, *([attempt.end] if attempt.end else [])):
                writer._expected.demand(record)
        os.truncate(history, run.verified_bytes)
        if run.open_attempt is not None:
            writer.append(Interrupted(round=run.open_attempt.round, attempt=run.open_attempt.attempt))
        return writer, run

    def append(self, record: Record) -> Record:
        """Write one record whole; returns it as readers will have it.

        ValueError for one that they would refuse, since part of it is what an arm says; OSError where the disk is full. Then
        nothing of it stays.
        """
        try:
            line, chain = seal(record, self._chain)
            read = reader.record_of(line)
        except (*reader.UNREADABLE, OverflowError) as error:
            raise ValueError(f"no record of a run: {error}") from None
        if self._expected is not None:
            self._expected.demand(read)
        before_bytes = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line)
            while written < len(line):  # a full disk or a signal may cut a write short
                written += self._file.write(line[written:])
        except OSError:
            os.ftruncate(self._file.fileno(), before_bytes)
            raise
        self._chain = chain
        if isinstance(record, RoundEnd):
            self.sync()
        return self._sharing.packed(read) if isinstance(read, Visit) else read

    def sync(self) -> None:
        """Wait until all records are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and let go of the file; twice is once."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def next_round(run: reader.Run, index: int) -> RoundBegin:
    """The record that begins round ``index`` of a resumed run: its attempts are counted on."""
    return RoundBegin(round=index, attempt=run.next_attempt(index), elapsed_s=run.elapsed_s)
