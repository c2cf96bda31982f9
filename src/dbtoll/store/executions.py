"""The executions of a visit, packed: a long run has millions, and an object each would be most of its memory.

No array library here: the measuring side keeps its history in memory too.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct, pack
from typing import Any, Literal, overload

from dbtoll.store.schema import Timing

OUTCOMES: tuple[Literal["ok", "timeout", "error", "wrong_answer"], ...] = ("ok", "timeout", "error", "wrong_answer")
"""An outcome is packed as its place here."""

WIDTH = len(Timing.__struct_fields__)
"""Whole numbers of 64 bits in an execution, in the order of `Timing`; UNKNOWN for what is null there."""
UNKNOWN = -1

_row = Struct(f"={WIDTH}q")
_CODES: dict[str, int] = {outcome: code for code, outcome in enumerate(OUTCOMES)}


class Executions(Sequence[Timing]):
    """Reads as the sequence that was packed, equals it, and cannot be changed.

    ``data``: WIDTH numbers for each, one after the other. ``outcomes``: how many ended in each way.
    """

    __slots__ = ("data", "outcomes")

    def __init__(self, executions: Sequence[Timing]) -> None:
        numbers: list[int] = []
        all_ok = True
        for each in executions:
            connected_ns, first_byte_ns, rows, size = (
                each.connected_ns,
                each.first_byte_ns,
                each.rows,
                each.result_bytes,
            )
            outcome = each.outcome
            all_ok = all_ok and outcome == "ok"
            numbers += (
                each.start_ns,
                UNKNOWN if connected_ns is None else connected_ns,
                UNKNOWN if first_byte_ns is None else first_byte_ns,
                each.end_ns,
                UNKNOWN if rows is None else rows,
                UNKNOWN if size is None else size,
                _CODES[outcome],
            )
        self.data: bytes = pack(f"={len(numbers)}q", *numbers)
        self.outcomes: Mapping[str, int] = _ok(len(executions)) if all_ok else outcomes(executions)

    def __len__(self) -> int:
        return len(self.data) // _row.size

    @overload
    def __getitem__(self, index: int) -> Timing: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Timing]: ...
    def __getitem__(self, index: int | slice) -> Timing | Sequence[Timing]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return _timing(_row.unpack_from(self.data, _row.size * range(len(self))[index]))

    def __iter__(self) -> Iterator[Timing]:
        return map(_timing, _row.iter_unpack(self.data))

    def columns(self) -> dict[str, list[Any]]:
        """By the names of `Timing`: a value for each execution."""
        numbers = array("q", self.data)
        found: dict[str, list[Any]] = {}
        for place, name in enumerate(Timing.__struct_fields__):
            column: list[Any] = numbers[place::WIDTH].tolist()
            found[name] = [None if number == UNKNOWN else number for number in column] if UNKNOWN in column else column
        return {**found, "outcome": [OUTCOMES[code] for code in found["outcome"]]}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Executions):
            return self.data == other.data
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Executions({tuple(self)!r})"


def packed(executions: Sequence[Timing]) -> Executions:
    """These, packed if they are not yet."""
    return executions if isinstance(executions, Executions) else Executions(executions)


def outcomes(executions: Sequence[Timing]) -> Mapping[str, int]:
    """How many ended in each way; of packed ones without looking at each."""
    return executions.outcomes if isinstance(executions, Executions) else Counter(each.outcome for each in executions)


@lru_cache(maxsize=4096)
def _ok(count: int) -> Mapping[str, int]:
    """Nearly all visits are like that: they share it."""
    return {"ok": count} if count else {}


def _timing(numbers: Sequence[Any]) -> Timing:
    start_ns, connected_ns, first_byte_ns, end_ns, rows, size, code = numbers
    return Timing(
        start_ns,
        None if connected_ns == UNKNOWN else connected_ns,
        None if first_byte_ns == UNKNOWN else first_byte_ns,
        end_ns,
        None if rows == UNKNOWN else rows,
        None if size == UNKNOWN else size,
        OUTCOMES[code],
    )
