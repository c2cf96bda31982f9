"""How many threads a query may have: the levels of the factor ``threads``, and what an engine is told without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dbtoll.errors import UsageError
from dbtoll.model.experiment import DOUBLING, THREADS_MAX, Resources
from dbtoll.spec.options import integer


def thread_levels(value: Any, resources: Resources, *, written: Callable[[str, Any], str]) -> tuple[str, ...]:
    """Rising numbers of threads. UsageError where ``value`` are none, or too many for an arm's processors.

    ``written``: how its user says a key of [resources].
    """
    given, cpus = value if isinstance(value, list) else [value], resources.cpus
    try:
        numbers = [n for each in given for n in (_doubling(cpus) if each == DOUBLING else [integer(each)])]
    except (TypeError, ValueError):
        numbers = []
    levels = sorted(set(numbers))
    twice = len(levels) < len(numbers) and DOUBLING not in given
    if not levels or levels[0] < 1 or levels[-1] > THREADS_MAX or twice:
        raise UsageError(
            f"{value!r} are not numbers of threads",
            f"write numbers from 1 to {THREADS_MAX}, each once, or {DOUBLING} for 1, 2, 4 … up to the arm's processors",
        )
    if levels == [1] and DOUBLING in given:
        raise UsageError(
            f"an arm has one processor, so {DOUBLING} is one thread", f"give it more: {written('cpus', 2)}"
        )
    demand_processors(levels[-1], resources, written=written)
    return tuple(map(str, levels))


def demand_processors(
    threads: int, resources: Resources, *, written: Callable[[str, Any], str], place: str = ""
) -> None:
    """UsageError where those of a query are more than an arm's processors and nobody says that they may be. ``place``: what asks
    for them."""
    cpus = resources.cpus
    if threads > cpus and not resources.oversubscribe:
        raise UsageError(
            f"{f'{place}: ' if place else ''}{threads} threads on {cpus} processor{'s' if cpus > 1 else ''}",
            f"give each arm more: {written('cpus', threads)}; or let threads share them: {written('oversubscribe', True)}",
        )


def _doubling(cpus: int) -> list[int]:
    """1, 2, 4 …, and the last one ``cpus`` itself."""
    return [*(2**power for power in range(cpus.bit_length()) if 2**power < cpus), cpus]
