"""Reads a run folder and believes nothing: every hash, every link of the chain, every key and every value is checked.

Sums and chain find damage. They are no signature: who sends a folder can have sealed anything into it, so all of it is data that
`contents` judges, links are not followed, and text is made printable before anybody looks at it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from dbtoll.errors import RunFolderError
from dbtoll.model.description import Descriptions, EngineDescription
from dbtoll.model.json import Json
from dbtoll.store import contents, upgrade
from dbtoll.store.executions import packed
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
    Start,
    Visit,
    chain_of,
)
from dbtoll.text import printable

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding raises."""

_CHAIN_BEGIN, _CHAIN_END = b',"chain":"', b'"}'
_CHAIN_BYTES = len(_CHAIN_BEGIN) + len(FIRST_CHAIN) + len(_CHAIN_END)
_RECEIVED = "ask who sent the folder; dbtoll writes no such thing"
_EDITED = "bring back the file from a copy; a run folder is never edited by hand"

R = TypeVar("R", bound=Record)
S = TypeVar("S", PlanFile, Json)

FILE_BYTES_MAX = 64 << 20
"""Of plan, facts and specification, which have some hundred kB at most."""
HISTORY_BYTES_MAX = 4 << 30
"""Of what grows with a run, or with the answers of its statements."""

_UNPRINTABLE = re.compile(rb"\\u|\\[bfr]|[\x7f-\xff]")
"""Where JSON may hold what is not: escaped, or of several bytes."""


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

    @property
    def failed(self) -> frozenset[str]:
        """Arms that did not start, or failed later on."""
        return frozenset(each.arm for each in self.records if isinstance(each, Start) and each.outcome != "ok")

    @property
    def healthy(self) -> frozenset[str]:
        """Arms that took part and got through."""
        return frozenset(each.arm for each in self.records if isinstance(each, Start)) - self.failed


@dataclass(frozen=True)
class Run:
    """A verified run folder.

    ``verified_bytes``: length of the history up to its last whole line; ``unfinished_line``: whether more follows (its
    writer was killed); ``chain``: of that last line. ``outside``: records of no round, such as the starts that showed,
    before the first one, that an arm cannot run here. ``end``: None while the run goes on or after it was killed.
    """

    folder: Path
    schema_version: int
    begin: RunBegin
    spec: str
    plan: PlanFile
    facts: Json
    outside: tuple[Record, ...]
    attempts: tuple[Attempt, ...]
    end: RunEnd | None
    chain: str
    verified_bytes: int
    unfinished_line: bool
    lines: int

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What was worked out of it and takes long, by name."""
        return {}

    @cached_property
    def counted(self) -> tuple[Attempt, ...]:
        """The last attempt of every round, where it is complete, by round: what may enter an interval."""
        last = {attempt.round: attempt for attempt in self.attempts}
        return tuple(last[index] for index in sorted(last) if last[index].complete)

    @cached_property
    def descriptions(self) -> Descriptions:
        """What the environments, the engines and the workload are called, and what else of them is to be known here."""
        return msgspec.convert(self.facts["descriptions"], Descriptions)

    def engine_of(self, arm: str) -> EngineDescription:
        """What an arm's engine is called, and what else of it is to be known here."""
        return self.descriptions.engines[self.plan.experiment.arm(arm).configuration.engine.name]

    def facts_of(self, arm: str) -> Json:
        """What was made for an arm and those of its configuration: engine, settings, image, dataset."""
        return next((told for told in self.facts["configurations"] if arm in told["arms"]), {})

    @property
    def host(self) -> Json:
        """What is known of the host; empty where the kept facts tell nothing."""
        host = self.facts.get("host")
        return host if isinstance(host, dict) else {}

    @property
    def complete_rounds(self) -> tuple[int, ...]:
        """Numbers of the rounds that count."""
        return tuple(attempt.round for attempt in self.counted)

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt that was going on when the writer was killed."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].end is None else None

    @property
    def elapsed_s(self) -> float:
        """How much of the budget the last attempt or the end of the run had seen."""
        seen = [attempt.end.elapsed_s if attempt.end else attempt.begin.elapsed_s for attempt in self.attempts]
        return max([*seen, self.end.elapsed_s if self.end else 0.0])

    def next_attempt(self, index: int) -> int:
        """Which try at round ``index`` the next one is, from 0."""
        return 1 + max((attempt.attempt for attempt in self.attempts if attempt.round == index), default=-1)

    def records(self, kind: type[R]) -> Iterator[R]:
        """The records of one kind in the rounds that count."""
        return iter(cast("list[R]", self._by_kind.get(kind, [])))

    @cached_property
    def _by_kind(self) -> dict[type[Record], list[Record]]:
        """Those in the rounds that count: nearly all are visits, and whoever asks for the few others is not to look at these."""
        found: dict[type[Record], list[Record]] = {}
        for attempt in self.counted:
            for record in attempt.records:
                found.setdefault(type(record), []).append(record)
        return found

    def all_visits(self) -> Iterator[tuple[Visit, int, bool]]:
        """Every visit with its attempt and whether it counts: also those of interrupted and cut rounds."""
        counted = {id(attempt) for attempt in self.counted}
        for attempt in self.attempts:
            for record in attempt.records:
                if isinstance(record, Visit):
                    yield record, attempt.attempt, id(attempt) in counted


def answered_wrongly(records: Iterable[Record]) -> dict[str, str]:
    """Arm -> the first query that it answered wrongly."""
    found: dict[str, str] = {}
    for visit in (each for each in records if isinstance(each, Visit) and each.arm not in found):
        if any(timing.outcome == "wrong_answer" for unit in visit.units for timing in unit.executions):
            found[visit.arm] = visit.query
    return found


def read_run(folder: Path) -> Run:
    """All of a run. RunFolderError names file and line of the first thing that is wrong, and the hint."""
    history = folder / HISTORY_FILE
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: there is no such run folder", "`dbtoll runs` lists the runs")
    with _opened(history, HISTORY_BYTES_MAX) as file:
        return _read(folder, _History(history, file))


def _read(folder: Path, history: _History) -> Run:
    begin = next(history, None)
    if begin is None:
        raise RunFolderError(f"{history.path}:1: the history is empty or has not one whole line", "measure again")
    if not isinstance(begin, RunBegin):
        raise RunFolderError(f"{history.path}:1: it does not begin with the record of the run", _EDITED)
    version = history.version
    earlier = version < SCHEMA_VERSION
    plan = _checked_json(
        folder / PLAN_FILE, begin.plan_sha256, PlanFile, partial(upgrade.plan, version=version) if earlier else None
    )
    _demand(folder / PLAN_FILE, partial(contents.demand_plan, plan))  # what follows takes it for a plan
    kept = _checked_json(
        folder / FACTS_FILE, begin.facts_sha256, Json, partial(upgrade.facts, version=version) if earlier else None
    )
    facts = upgrade.completed(kept, plan.experiment)
    _demand(folder / FACTS_FILE, partial(contents.demand_facts, facts, plan.experiment))
    outside, attempts, end = _grouped(history, contents.Expected(plan))
    return Run(
        folder=folder,
        schema_version=version,
        begin=begin,
        spec=printable(_check_sum(folder / SPEC_FILE, begin.spec_sha256).decode(errors="replace"), lines=True),
        plan=plan,
        facts=facts,
        outside=outside,
        attempts=attempts,
        end=end,
        chain=history.chain,
        verified_bytes=history.verified_bytes,
        unfinished_line=history.unfinished_line,
        lines=history.lines,
    )


def _demand(path: Path, demand: Callable[[], None]) -> None:
    """RunFolderError with the file, where its content is judged not to be a run's."""
    try:
        demand()
    except ValueError as error:
        raise RunFolderError(f"{path}:1: no run of dbtoll has this: {error}", _EDITED) from None


def read_file(path: Path, most_bytes: int = FILE_BYTES_MAX) -> bytes:
    """What a file of a run folder holds. RunFolderError as of `_opened`."""
    with _opened(path, most_bytes) as file:
        return file.read(most_bytes)


@contextmanager
def _opened(path: Path, most_bytes: int) -> Iterator[BinaryIO]:
    """A file of a run folder, to be read. RunFolderError for what cannot be read, is no file (a link or a pipe, which would lead or
    hold the reader elsewhere), or is larger than any that dbtoll writes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise RunFolderError(f"{path}: it is no file", _RECEIVED)
            if about.st_size > most_bytes:
                raise RunFolderError(f"{path}: it is too large: {about.st_size} bytes", _RECEIVED)
            yield file
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunFolderError(f"{path}: it is a link, and a run folder holds none", _RECEIVED) from None
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}", "give a whole run folder") from None


class _Version(msgspec.Struct):
    schema_version: int


_decoder = msgspec.json.Decoder(AnyRecord)


class _History(Iterator[Record]):
    """The records of a history, line by line: no more of the file than a line is held. RunFolderError for a line whose chain or
    form is wrong; what they say is not judged yet.

    ``version``: of the schema in which they were written, known from the first line on; what is returned is of today's. Of the
    lines so far: ``chain`` of the last one, how many ``lines`` and ``verified_bytes``; at the end whether an
    ``unfinished_line`` follows.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.version = SCHEMA_VERSION
        self.chain = FIRST_CHAIN
        self.lines = self.verified_bytes = 0
        self.unfinished_line = False
        self._file = file

    def __next__(self) -> Record:
        line = self._file.readline(HISTORY_BYTES_MAX - self.verified_bytes)
        if not line.endswith(b"\n"):
            self.unfinished_line = bool(line)
            raise StopIteration
        open_line, tail = line[: -_CHAIN_BYTES - 1], line[-_CHAIN_BYTES - 1 : -1]
        if not (tail.startswith(_CHAIN_BEGIN) and tail.endswith(_CHAIN_END)):
            raise RunFolderError(f"{self._where}: the line is damaged: it does not end with its chain", _EDITED)
        self.chain = chain_of(open_line, self.chain)
        if tail[len(_CHAIN_BEGIN) : -len(_CHAIN_END)] != self.chain.encode():
            raise RunFolderError(
                f"{self._where}: this line was edited, or lines before it are missing or in another order", _EDITED
            )
        if self.lines == 0:
            self.version = _checked_version(self._where, line)
        try:
            record = record_of(line, self.version)
        except UNREADABLE as error:
            raise RunFolderError(f"{self._where}: not a record of schema {self.version}: {error}", _EDITED) from None
        self.lines += 1
        self.verified_bytes += len(line)
        return record

    @property
    def _where(self) -> str:
        """Of the line that is looked at."""
        return f"{self.path}:{self.lines + 1}"


def record_of(line: bytes, version: int = SCHEMA_VERSION) -> Record:
    """What a line of a history holds, its text printable. `msgspec.DecodeError` or `UnicodeDecodeError` where it is no record."""
    data = _printable(line)
    if version < SCHEMA_VERSION:
        data = msgspec.json.encode(upgrade.record(msgspec.json.decode(data, type=Json), version))
    record: Record = _decoder.decode(data)
    return record


class Sharing:
    """Makes the visits of one run small: executions are packed, and what many visits say alike they share."""

    def __init__(self) -> None:
        self._levels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._names: dict[str, str] = {}

    def packed(self, visit: Visit) -> Visit:
        """The visit, which nobody else may have yet: it is changed in its place."""
        change, names = msgspec.structs.force_setattr, self._names
        for unit in visit.units:
            change(unit, "executions", packed(unit.executions))
        change(visit, "levels", self._levels.setdefault(tuple(visit.levels.items()), visit.levels))
        change(visit, "arm", names.setdefault(visit.arm, visit.arm))
        change(visit, "query", names.setdefault(visit.query, visit.query))
        return visit


def _checked_version(where: str, line: bytes) -> int:
    try:
        version = msgspec.json.decode(line, type=_Version).schema_version
    except UNREADABLE as error:
        raise RunFolderError(f"{where}: not the record of a run: {error}", _EDITED) from None
    if version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{where}: written in schema {version}, this dbtoll reads up to {SCHEMA_VERSION}",
            "read it with a newer dbtoll",
        )
    return version


def _grouped(
    history: _History, expected: contents.Expected
) -> tuple[tuple[Record, ...], tuple[Attempt, ...], RunEnd | None]:
    """The records by attempt, and the end of the run, which is none if another round began after it."""
    outside: list[Record] = []
    attempts: list[Attempt] = []
    run_end: RunEnd | None = None
    begin: RoundBegin | None = None
    inside: list[Record] = []

    def close(end: RoundEnd | None) -> None:
        nonlocal begin
        if begin is not None:
            attempts.append(Attempt(begin.round, begin.attempt, begin, end, tuple(inside)))
        begin = None
        inside.clear()

    sharing = Sharing()
    for record in history:
        try:
            expected.demand(record)
        except ValueError as error:
            where = f"{history.path}:{history.lines}"
            raise RunFolderError(f"{where}: no run of this plan has this: {error}", _EDITED) from None
        match record:
            case Visit():
                (outside if begin is None else inside).append(sharing.packed(record))
            case RoundBegin():
                close(None)
                begin, run_end = record, None
            case RoundEnd():
                if begin is None or (record.round, record.attempt) != (begin.round, begin.attempt):
                    raise RunFolderError(
                        f"{history.path}:{history.lines}: round {record.round} ends that did not begin", _EDITED
                    )
                close(record)
            case Interrupted():
                close(None)
            case RunEnd():
                close(None)
                run_end = record
            case RunBegin():
                raise RunFolderError(f"{history.path}:{history.lines}: a second run begins here", _EDITED)
            case _:
                (outside if begin is None else inside).append(record)
    close(None)
    return tuple(outside), tuple(attempts), run_end


def _checked_json(path: Path, sha256: str, kind: type[S], upgraded: Callable[[Json], Json] | None) -> S:
    data = _check_sum(path, sha256)
    try:
        if upgraded is None:
            return msgspec.json.decode(_printable(data), type=kind)
        return msgspec.convert(upgraded(msgspec.json.decode(_printable(data), type=Json)), type=kind, strict=True)
    except UNREADABLE as error:
        line = data[: getattr(error, "position", 0)].count(b"\n") + 1
        raise RunFolderError(f"{path}:{line}: not of schema {SCHEMA_VERSION}: {error}", _EDITED) from None


def _check_sum(path: Path, sha256: str) -> bytes:
    data = read_file(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RunFolderError(f"{path}:1: the file is not the one that the run began with", _EDITED)
    return data


def _printable(data: bytes) -> bytes:
    """JSON with all its text printable. That is so as a rule, and costs a glance."""
    if data.isascii() and b"\\" not in data and b"\x7f" not in data:
        return data
    if _UNPRINTABLE.search(data) is None:
        return data
    return msgspec.json.encode(_each_printable(msgspec.json.decode(data)))


def _each_printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value, lines=True)
        case dict():
            return {printable(name): _each_printable(each) for name, each in value.items()}
        case list():
            return [_each_printable(each) for each in value]
    return value
