"""What a statement's file may say of its parameters, one comment line each, before the statement::

    -- parameter $1 date 1995-01-01..1997-12-31
    -- parameter $2 integer 1..100
    -- parameter $3 decimal 0.02..0.09
    -- parameter $4 choice 'BUILDING', 'FURNITURE'

Values are drawn evenly, both ends included; a decimal in steps of the last digit that its bounds are written with.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from dbtoll.workload_parts.drawing import Draw

_DECLARATION = re.compile(r"--\s*parameter\s+\$(?P<number>[0-9]+):?\s+(?P<kind>\w+)\s*(?P<values>.*?)\s*")
_QUOTED = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class Parameter:
    """``$number`` and how its next value is drawn."""

    number: int
    next_value: Callable[[Draw], str]


def declared(line: str) -> Parameter | None:
    """The parameter that a comment line declares; None for any other comment. ValueError says what is wrong."""
    if not re.match(r"--\s*parameter\b", line):
        return None
    match = _DECLARATION.fullmatch(line)
    if match is None:
        raise ValueError("a parameter is declared as in: -- parameter $1 integer 1..100")
    kind = _KINDS.get(match["kind"])
    if kind is None:
        raise ValueError(f"{match['kind']!r} is no kind of parameter; there are: {', '.join(_KINDS)}")
    return Parameter(int(match["number"]), kind(match["values"]))


def _date(values: str) -> Callable[[Draw], str]:
    low, high = (datetime.date.fromisoformat(value) for value in _range(values, "1995-01-01..1997-12-31"))
    days = _span((high - low).days)
    return lambda draw: str(low + datetime.timedelta(days=draw.integer(0, days)))


def _integer(values: str) -> Callable[[Draw], str]:
    low, high = (int(value) for value in _range(values, "1..100"))
    _span(high - low)
    return lambda draw: str(draw.integer(low, high))


def _decimal(values: str) -> Callable[[Draw], str]:
    texts = _range(values, "0.02..0.09")
    if not all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) for text in texts):
        raise ValueError(f"{values!r} is not a range such as 0.02..0.09")
    digits = max(len(text.partition(".")[2]) for text in texts)
    low, high = (int(Decimal(text).scaleb(digits)) for text in texts)
    _span(high - low)
    return lambda draw: f"{Decimal(draw.integer(low, high)).scaleb(-digits):.{digits}f}"


def _choice(values: str) -> Callable[[Draw], str]:
    choices = [match[1].replace("''", "'") for match in _QUOTED.finditer(values)]
    if not choices or _QUOTED.sub("", values).replace(",", "").strip():
        raise ValueError(f"{values!r} is not a list such as 'BUILDING', 'FURNITURE'")
    return lambda draw: draw.choice(choices)


def _range(values: str, example: str) -> tuple[str, str]:
    low, dots, high = values.partition("..")
    if not (low and dots and high):
        raise ValueError(f"{values!r} is not a range such as {example}")
    return low.strip(), high.strip()


def _span(width: int) -> int:
    if width < 0:
        raise ValueError("the range ends before it begins")
    return width


_KINDS: dict[str, Callable[[str], Callable[[Draw], str]]] = {
    "date": _date,
    "integer": _integer,
    "decimal": _decimal,
    "choice": _choice,
}
