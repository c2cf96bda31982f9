"""Reading and checking a user's directory before anything is started. Every error names file and line; all are told at once.

::

    schema.sql            tables
    load.sql              rows, made by the server itself (generate_series)
    load/TABLE.csv        rows of a small table: a line of column names, then the rows; an empty field is null
    indexes.sql           what is quicker made when the rows are there
    statements/NAME.sql   what is measured: one statement that reads; its parameters (parameters.py) and, with
                          ``-- answer: exact numeric``, how its columns are compared (without it all exactly)
    expected/NAME.csv     its answer, for a statement without parameters; form as above
    README*, *.md         not looked at

Only statements/ must be there. The others are run in this order, statement by statement, each in its own transaction.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dbtoll.errors import SpecError, together
from dbtoll.model.reply import AnswerReference
from dbtoll.workload_parts import sql_text
from dbtoll.workloads.sql.parameters import Parameter, declared

SCRIPTS = ("schema.sql", "load.sql", "indexes.sql")
CSV_MAX_BYTES = 64 << 20
"""Of all load/*.csv together: they travel as SQL through the control stream, which is for small things."""

READING = re.compile(r"(select|with|values|table)\b|\(", re.IGNORECASE)
"""How a measured statement may begin. One that writes would find other data at its next execution, in another arm."""

KINDS = ("exact", "trimmed", "numeric")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class Asked:
    """One statement: ``parameters`` in the order of their numbers; ``answer`` if it is expected."""

    name: str
    template: str
    parameters: tuple[Parameter, ...]
    answer: AnswerReference | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for one table from a CSV file."""

    name: str
    file: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Directory:
    """All of it, checked. ``scripts`` by file name; a missing one is empty."""

    key: str
    scripts: dict[str, list[sql_text.Part]]
    tables: tuple[Table, ...]
    statements: dict[str, Asked]
    load_bytes: int


class _Faults:
    """All that is wrong with a directory."""

    def __init__(self) -> None:
        self.found: list[SpecError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """A fault inside is noted, and the reading goes on behind it."""
        try:
            yield
        except SpecError as error:
            self.found.append(error)

    def require_none(self) -> None:
        """SpecError, naming all of them."""
        if self.found:
            raise together(self.found)


def read(path: Path) -> Directory:
    """Raises SpecError for whatever is wrong with it, all of it at once."""
    if not path.is_dir():
        raise SpecError(f"{path}: there is no such directory", "give the directory with your schema and statements")
    faults = _Faults()
    with faults.collected():
        _only(path, lambda entry: entry.name in (*SCRIPTS, "load", "statements", "expected") or _is_text(entry))
    scripts: dict[str, list[sql_text.Part]] = {}
    for name in (name for name in SCRIPTS if (path / name).exists()):
        with faults.collected():
            scripts[name] = sql_text.split(_text(path / name), str(path / name))
    loads = _files(path / "load", ".csv", faults)
    statements = _files(path / "statements", ".sql", faults)
    expected = {file.stem: file for file in _files(path / "expected", ".csv", faults)}
    load_bytes = sum(file.stat().st_size for file in loads)
    with faults.collected():
        _check_load(path, load_bytes)
    tables = []
    for file in loads if load_bytes <= CSV_MAX_BYTES else ():
        with faults.collected():
            tables.append(Table(file.stem, str(file), *_rows(file)))
    if not statements:
        faults.found.append(
            SpecError(
                f"{path / 'statements'}: there is no statement to measure", "put one query into statements/NAME.sql"
            )
        )
    asked: dict[str, Asked] = {}
    for file in statements:
        with faults.collected():
            asked[file.stem] = _asked(file, expected.get(file.stem))
    for file in (file for name, file in expected.items() if name not in {each.stem for each in statements}):
        faults.found.append(
            SpecError(f"{file}: there is no statement {file.stem}", "name it as the file in statements/")
        )
    faults.require_none()
    return Directory(
        key=_digest(path, [*(path / name for name in scripts), *loads]),
        scripts={name: scripts.get(name, []) for name in SCRIPTS},
        tables=tuple(tables),
        statements=asked,
        load_bytes=load_bytes,
    )


def _check_load(path: Path, load_bytes: int) -> None:
    if load_bytes > CSV_MAX_BYTES:
        raise SpecError(
            f"{path / 'load'}: {load_bytes >> 20} MiB of rows; at most {CSV_MAX_BYTES >> 20} MiB are taken",
            "let load.sql make the rows, for instance with generate_series",
        )


def _asked(file: Path, expected: Path | None) -> Asked:
    if not _NAME.fullmatch(file.stem):
        raise SpecError(
            f"{file}: {file.stem!r} is no name for a statement", "use at most 40 letters, digits, hyphens, underscores"
        )
    text = _text(file)
    parts = sql_text.split(text, str(file))
    if not parts:
        raise SpecError(f"{file}: there is no statement in it", "write one query into it, or remove it")
    if len(parts) > 1:
        raise SpecError(f"{parts[1].where}: a second statement", "put each statement into a file of its own")
    (part,) = parts
    if not READING.match(part.sql):
        raise SpecError(f"{part.where}: this is not a statement that reads", "begin with select, with, values or table")
    parameters: dict[int, Parameter] = {}
    kinds: tuple[str, ...] | None = None
    faults = _Faults()
    for number, line in enumerate(text.split("\n")[: part.line - 1], 1):
        try:
            if (parameter := declared(line.strip())) is not None:
                if parameter.number in parameters:
                    raise ValueError(f"${parameter.number} is declared a second time")
                parameters[parameter.number] = parameter
            kinds = _kinds(line) or kinds
        except ValueError as error:
            faults.found.append(SpecError(f"{file}:{number}: {error}", "see the documentation of the workload sql"))
    faults.require_none()
    _check_numbers(part, parameters)
    answer = None
    if expected is not None:
        if parameters:
            raise SpecError(f"{expected}: {file.stem} has parameters, so it has no one answer", "remove one of the two")
        answer = _expected(expected, kinds)
    return Asked(file.stem, part.sql, tuple(parameters[number] for number in sorted(parameters)), answer)


def _check_numbers(part: sql_text.Part, parameters: dict[int, Parameter]) -> None:
    used = sql_text.placeholders(part.sql)
    for number in sorted(used - parameters.keys()):
        raise SpecError(
            f"{part.where}: ${number} is not declared", f"write before it: -- parameter ${number} integer 1..100"
        )
    for number in sorted(parameters.keys() - used):
        raise SpecError(f"{part.where}: ${number} is declared but not used", "remove its line")
    if used != set(range(1, len(used) + 1)):
        raise SpecError(f"{part.where}: the parameters are not numbered from $1 on without a gap", "number them anew")


def _kinds(line: str) -> tuple[str, ...] | None:
    match = re.fullmatch(r"\s*--\s*answer:\s*(.*?)\s*", line)
    if match is None:
        return None
    kinds = tuple(match[1].split())
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no way to compare a column; there are: {', '.join(KINDS)}")
    if not kinds:
        raise ValueError("no column is named")
    return kinds


def _expected(file: Path, kinds: tuple[str, ...] | None) -> AnswerReference:
    columns, rows = _rows(file)
    if kinds is not None and len(kinds) != len(columns):
        raise SpecError(f"{file}:1: {len(columns)} columns, but the statement declares {len(kinds)}", "make them equal")
    return AnswerReference(kinds or ("exact",) * len(columns), rows)


def _rows(file: Path) -> tuple[tuple[str, ...], tuple[tuple[str | None, ...], ...]]:
    reader = csv.reader(io.StringIO(_text(file), newline=""), strict=True)
    rows: list[tuple[str | None, ...]] = []
    try:
        columns = tuple(next(reader, ()))
        if not all(columns) or not columns:
            raise csv.Error("the first line must name the columns")
        for row in reader:
            if len(row) != len(columns):
                raise csv.Error(f"{len(row)} fields, but {len(columns)} columns")
            rows.append(tuple(field or None for field in row))
    except csv.Error as error:
        raise SpecError(
            f"{file}:{max(1, reader.line_num)}: {error}", 'write comma-separated values, quoted with "'
        ) from None
    return columns, tuple(rows)


def _files(directory: Path, suffix: str, faults: _Faults) -> list[Path]:
    """The files of a directory that may be missing, ``q2`` before ``q10``."""
    if not directory.exists():
        return []
    with faults.collected():
        _only(directory, lambda entry: entry.suffix == suffix or _is_text(entry))
    files = (entry for entry in directory.iterdir() if entry.suffix == suffix)
    return sorted(files, key=lambda file: [int(p) if p.isdigit() else p for p in re.split(r"([0-9]+)", file.stem)])


def _only(directory: Path, known: Callable[[Path], bool]) -> None:
    unknown = [
        SpecError(f"{entry}: the workload sql does not know what to do with it", "rename or remove it")
        for entry in sorted(directory.iterdir())
        if not entry.name.startswith(".") and not known(entry)
    ]
    if unknown:
        raise together(unknown)


def _is_text(entry: Path) -> bool:
    return entry.suffix == ".md" or entry.name.upper().startswith("README")


def _text(file: Path) -> str:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{file}:{line}: not UTF-8", "convert the file") from None
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}", "make it a readable file") from None
    if "\0" in text:
        raise SpecError(
            f"{file}:{text.count(chr(10), 0, text.index(chr(0))) + 1}: a zero byte", "remove it: SQL has none"
        )
    return text


def _digest(path: Path, files: list[Path]) -> str:
    digest = sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(path)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]
