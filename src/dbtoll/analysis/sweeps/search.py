"""Which value of a sweep to measure next, where the largest is looked for that keeps a limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from dbtoll.analysis.sweeps.schema import Bracket
from dbtoll.model.sweep import Value


def next_value(brackets: Sequence[Bracket], candidates: Sequence[Value], measured: Collection[Value]) -> Value | None:
    """By bisection: the middle of the larger gap beside what is not decided, of the designs that have one; what most of them want.

    ``candidates``: rising numbers. Without any bracket the middle of all. None where nothing is left to decide.
    """
    wanted = Counter(
        value for each in brackets if (value := _wanted(each, candidates, measured)) is not None
    ) if brackets else Counter([_middle(candidates)])  # fmt: skip
    return max(wanted, key=lambda value: (wanted[value], -candidates.index(value)), default=None)


def _wanted(bracket: Bracket, candidates: Sequence[Value], measured: Collection[Value]) -> Value | None:
    places = {value: index for index, value in enumerate(candidates)}
    low = -1 if bracket.holds is None else places[bracket.holds]
    # What does not fit is no candidate.
    high = sum(bracket.breaks is None or float(value) < float(bracket.breaks) for value in candidates)
    # Where some unit had no answer in some round it is not looked for above: what fails at a value fails at larger ones.
    high = min([high, *(places[each.value] for each in bracket.points if each.keeps is None and each.slowest is None)])
    open_at = [places[each.value] for each in bracket.points if each.keeps is None and low < places[each.value] < high]
    gaps = [(low, min(open_at)), (max(open_at), high)] if open_at else [(low, high)]
    inside = [
        [value for value in candidates[begin + 1 : end] if value not in measured] for begin, end in gaps
    ]  # fmt: skip
    largest = max(inside, key=len)
    return _middle(largest) if largest else None


def _middle(values: Sequence[Value]) -> Value:
    """The one nearest to the middle of their logarithms, where all are above 0; else the middle one."""
    if min(map(float, values)) <= 0:
        return values[len(values) // 2]
    middle = (math.log(float(values[0])) + math.log(float(values[-1]))) / 2
    return min(values, key=lambda value: abs(math.log(float(value)) - middle))
