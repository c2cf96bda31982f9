"""Just enough of SQL's lexical rules to tell statements and placeholders from what only looks like them.

Standard SQL with PostgreSQL's dollar quotes and escape strings; a backslash in an ordinary literal is an ordinary
character (``standard_conforming_strings``, the default since 9.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<quoted> \b[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
                | (?<![\w$]) \$(?P<tag>[A-Za-z_]\w*|)\$ .*? \$(?P=tag)\$ )
    | (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<placeholder> (?<![\w$]) \$ (?P<number>[0-9]+) )
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One statement of a script: its text without the closing semicolon, and where it begins (lines from 1)."""

    sql: str
    file: str
    line: int

    @property
    def where(self) -> str:
        """``file:line``, as errors begin."""
        return f"{self.file}:{self.line}"


def split(script: str, file: str) -> list[Part]:
    """The statements of a script, in order; what holds only blanks and comments is none. ``file``: for errors."""
    parts = []
    begin = 0
    for end in [*(match.start() for match in _tokens(script, "end")), len(script)]:
        first = _first_of_statement(script, begin, end)
        if first < end:
            parts.append(Part(script[first:end].strip(), file, script.count("\n", 0, first) + 1))
        begin = end + 1
    return parts


def placeholders(template: str) -> set[int]:
    """The numbers n of all ``$n`` that are neither quoted nor commented out."""
    return {int(match["number"]) for match in _tokens(template, "placeholder")}


def fill(template: str, parameters: Sequence[str | None]) -> str:
    """``template`` with each ``$n`` replaced by ``parameters[n - 1]`` as a literal: complete SQL for a simple query.

    A value can only ever become one literal, whatever it holds. ValueError for a number without a value and for a zero
    byte, which SQL text cannot hold.
    """

    def replace(match: re.Match[str]) -> str:
        if match["number"] is None:
            return match[0]
        number = int(match["number"])
        if not 1 <= number <= len(parameters):
            raise ValueError(f"${number} has no value: there are {len(parameters)}")
        return literal(parameters[number - 1])

    return _TOKEN.sub(replace, template)


def literal(value: str | None) -> str:
    """``value`` as an SQL literal, or ``null``. Its type is the placeholder's cast's affair."""
    if value is None:
        return "null"
    if "\0" in value:
        raise ValueError("a value with a zero byte cannot be written into SQL")
    return "'" + value.replace("'", "''") + "'"


def _tokens(sql: str, kind: str) -> Iterator[re.Match[str]]:
    return (match for match in _TOKEN.finditer(sql) if match[kind] is not None)


def _first_of_statement(script: str, begin: int, end: int) -> int:
    """Where the first character that is neither blank nor comment stands in [begin, end); ``end`` if there is none."""
    position = begin
    while position < end:
        if script[position].isspace():
            position += 1
        elif (match := _TOKEN.match(script, position)) and match["comment"] is not None:
            position = match.end()
        else:
            return position
    return end
