"""The 22 queries, one file each, read as data.

``q07.sql`` is for every engine; ``q07.DIALECT.sql`` takes its place where an engine needs another text for the same
question, and ``tpch/queries/q07.sql`` in a package of the engine's own (`Dialect.scripts`) that of both. A file opens with
three comments: the clause of the TPC-H specification that it implements, the names of its parameters ($1, $2 …) in the
clause's order, and the kind of each column of its answer (docs/PROTOCOL.md, ANSWER). Every placeholder has a cast, so that
the text may be sent with parameters beside it or with literals in it.

``order by`` is total in each: where the specification's leaves equal rows in any order, a key is added and the file
says so. All collations agree on the strings that are sorted on: they differ first in a letter or a digit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from dbtoll.model.dialect import Dialect

NAMES = tuple(f"Q{number}" for number in range(1, 23))

_HEADER = re.compile(
    r"-- TPC-H (?P<clause>2\.4\.[0-9]+) (?P<title>.+)\n"
    r"-- parameters: (?P<parameters>.+)\n"
    r"-- answer: (?P<answer>.+)\n"
    r"(?:-- .*\n)*"
)


@dataclass(frozen=True, slots=True)
class Query:
    """One query: ``answer`` holds the kind of each column, ``template`` the SQL with its placeholders."""

    clause: str
    title: str
    parameters: tuple[str, ...]
    answer: tuple[str, ...]
    template: str


def query(name: str, dialect: Dialect) -> Query:
    """The query ``name`` (``Q1`` … ``Q22``) in the words of ``dialect``."""
    return _query(name, dialect.name, dialect.scripts, tuple(dialect.types.items()))


@cache
def _query(name: str, dialect: str, scripts: str | None, types: tuple[tuple[str, str], ...]) -> Query:
    stem = f"q{int(name[1:]):02}"
    directory = resources.files(__name__)
    places = [directory / f"{stem}.{dialect}.sql", directory / f"{stem}.sql"]
    if scripts is not None:
        places.insert(0, resources.files(scripts) / "tpch" / "queries" / f"{stem}.sql")
    text = next(place for place in places if place.is_file()).read_text(encoding="utf-8")
    for word, other in types:
        text = text.replace(word, other)
    header = _HEADER.match(text)
    if header is None:
        raise ValueError(f"the file of {name} does not open with its three comments")
    return Query(
        header["clause"],
        header["title"],
        tuple(header["parameters"].split()),
        tuple(header["answer"].split()),
        text[header.end() :].strip(),
    )
