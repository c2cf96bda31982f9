"""Reads a run folder and believes nothing: every hash, every link of the chain and every key is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from dbtoll.errors import RunFolderError
from dbtoll.model import Json
from dbtoll.store.schema import (
    FACTS_FILE,
    FIRST_CHAIN,
    HISTORY_FILE,
    PLAN_FILE,
    SCHEMA_VERSION,
    SPEC_FILE,
    AnyRecord,
    Interrupted,
    PlanFile,
    Record,
    RoundBegin,
    RoundEnd,
    RunBegin,
    RunEnd,
    Visit,
    chain_of,
)

_CHAIN_BEGIN, _CHAIN_END = b',"chain":"', b'"}'
_CHAIN_BYTES = len(_CHAIN_BEGIN) + len(FIRST_CHAIN) + len(_CHAIN_END)
_EDITED = "bring back the file from a copy; a run folder is never edited by hand"

R = TypeVar("R", bound=Record)
S = TypeVar("S", PlanFile, Json)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a round and what was recorded in it."""

    round: int
    attempt: int
    begin: RoundBegin
    end: RoundEnd | None
    records: tuple[Record, ...]

    @property
    def complete(self) -> bool:
        """Whether it was measured to its end."""
        return self.end is not None and self.end.complete


@dataclass(frozen=True)
class Run:
    """A verified run folder.

    ``verified_bytes``: length of the history up to its last whole line; ``unfinished_line``: whether more follows (its
    writer was killed); ``chain``: of that last line. ``outside``: records of no round, such as the starts that showed,
    before the first one, that an arm cannot run here.
    """

    folder: Path
    begin: RunBegin
    plan: PlanFile
    facts: Json
    outside: tuple[Record, ...]
    attempts: tuple[Attempt, ...]
    ends: tuple[RunEnd, ...]
    chain: str
    verified_bytes: int
    unfinished_line: bool
    lines: int

    @cached_property
    def counted(self) -> tuple[Attempt, ...]:
        """The last attempt of every round, where it is complete, by round: what may enter an interval."""
        last = {attempt.round: attempt for attempt in self.attempts}
        return tuple(last[index] for index in sorted(last) if last[index].complete)

    @property
    def complete_rounds(self) -> tuple[int, ...]:
        """Numbers of the rounds that count."""
        return tuple(attempt.round for attempt in self.counted)

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt that was going on when the writer was killed."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].end is None else None

    @property
    def end(self) -> RunEnd | None:
        """How the run ended; None while it goes on or after it was killed."""
        return self.ends[-1] if self.ends else None

    @property
    def elapsed_s(self) -> float:
        """How much of the budget the last attempt or the end of the run had seen."""
        seen = [attempt.end.elapsed_s if attempt.end else attempt.begin.elapsed_s for attempt in self.attempts]
        return max([*seen, *(end.elapsed_s for end in self.ends)], default=0.0)

    def next_attempt(self, index: int) -> int:
        """Which try at round ``index`` the next one is, from 0."""
        return 1 + max((attempt.attempt for attempt in self.attempts if attempt.round == index), default=-1)

    def records(self, kind: type[R]) -> Iterator[R]:
        """The records of one kind in the rounds that count."""
        for attempt in self.counted:
            for record in attempt.records:
                if isinstance(record, kind):
                    yield record

    def all_visits(self) -> Iterator[tuple[Visit, int, bool]]:
        """Every visit with its attempt and whether it counts: also those of interrupted and cut rounds."""
        counted = {id(attempt) for attempt in self.counted}
        for attempt in self.attempts:
            for record in attempt.records:
                if isinstance(record, Visit):
                    yield record, attempt.attempt, id(attempt) in counted


def read_run(folder: Path) -> Run:
    """All of a run. RunFolderError names file and line of the first thing that is wrong, and the mend."""
    history = folder / HISTORY_FILE
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: there is no such run folder", "see `dbtoll run --runs-dir` for where runs lie")
    data = _bytes(history)
    verified = data.rfind(b"\n") + 1
    if verified == 0:
        raise RunFolderError(f"{history}:1: the history is empty or has not one whole line", "measure again")
    records, chain = _verified_records(history, data[:verified])
    begin = records[0]
    if not isinstance(begin, RunBegin):
        raise RunFolderError(f"{history}:1: it does not begin with the record of the run", _EDITED)
    _check_sum(folder / SPEC_FILE, begin.spec_sha256)
    outside, attempts, ends = _grouped(history, records[1:])
    return Run(
        folder=folder,
        begin=begin,
        plan=_checked_json(folder / PLAN_FILE, begin.plan_sha256, PlanFile),
        facts=_checked_json(folder / FACTS_FILE, begin.facts_sha256, Json),
        outside=outside,
        attempts=attempts,
        ends=ends,
        chain=chain,
        verified_bytes=verified,
        unfinished_line=verified < len(data),
        lines=len(records),
    )


class _Version(msgspec.Struct):
    schema_version: int


def _verified_records(history: Path, data: bytes) -> tuple[list[Record], str]:
    decode = msgspec.json.Decoder(AnyRecord).decode
    records: list[Record] = []
    chain = FIRST_CHAIN
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        where = f"{history}:{number}"
        tail = line[-_CHAIN_BYTES:]
        if not (tail.startswith(_CHAIN_BEGIN) and tail.endswith(_CHAIN_END)):
            raise RunFolderError(f"{where}: the line is damaged: it does not end with its chain", _EDITED)
        chain = chain_of(line[:-_CHAIN_BYTES], chain)
        if tail[len(_CHAIN_BEGIN) : -len(_CHAIN_END)] != chain.encode():
            raise RunFolderError(
                f"{where}: this line was edited, or lines before it are missing or in another order", _EDITED
            )
        if number == 1:
            _check_version(where, line)
        try:
            records.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{where}: not a record of schema {SCHEMA_VERSION}: {error}", _EDITED) from None
    return records, chain


def _check_version(where: str, line: bytes) -> None:
    try:
        version = msgspec.json.decode(line, type=_Version).schema_version
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{where}: not the record of a run: {error}", _EDITED) from None
    if version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{where}: written in schema {version}, this dbtoll reads up to {SCHEMA_VERSION}",
            "read it with a newer dbtoll",
        )


def _grouped(
    history: Path, records: list[Record]
) -> tuple[tuple[Record, ...], tuple[Attempt, ...], tuple[RunEnd, ...]]:
    """The records by attempt. Line numbers are those of the history, whose first line is the run's own."""
    outside: list[Record] = []
    attempts: list[Attempt] = []
    ends: list[RunEnd] = []
    begin: RoundBegin | None = None
    inside: list[Record] = []

    def close(end: RoundEnd | None) -> None:
        nonlocal begin
        if begin is not None:
            attempts.append(Attempt(begin.round, begin.attempt, begin, end, tuple(inside)))
        begin = None
        inside.clear()

    for number, record in enumerate(records, 2):
        where = f"{history}:{number}"
        match record:
            case RoundBegin():
                close(None)
                begin = record
            case RoundEnd():
                if begin is None or (record.round, record.attempt) != (begin.round, begin.attempt):
                    raise RunFolderError(f"{where}: round {record.round} ends that did not begin", _EDITED)
                close(record)
            case Interrupted():
                close(None)
            case RunEnd():
                close(None)
                ends.append(record)
            case RunBegin():
                raise RunFolderError(f"{where}: a second run begins here", _EDITED)
            case _:
                (outside if begin is None else inside).append(record)
    close(None)
    return tuple(outside), tuple(attempts), tuple(ends)


def _checked_json(path: Path, sha256: str, kind: type[S]) -> S:
    data = _check_sum(path, sha256)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        line = data[: getattr(error, "position", 0)].count(b"\n") + 1
        raise RunFolderError(f"{path}:{line}: not of schema {SCHEMA_VERSION}: {error}", _EDITED) from None


def _check_sum(path: Path, sha256: str) -> bytes:
    data = _bytes(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RunFolderError(f"{path}:1: the file is not the one that the run began with", _EDITED)
    return data


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}", "give a whole run folder") from None
