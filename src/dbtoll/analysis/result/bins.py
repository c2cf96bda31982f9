"""Long series as a few entries: a result, and the page that holds it, stay small however long a run was."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import RoundEffect

ROUNDS_MAX = 24
"""Entries of a comparison's rounds, beside those of FAR_OUT_MAX."""
FAR_OUT_MAX = 10
"""Rounds that lie far out and have an entry of their own: the farthest."""


def parts(count: int, parts_max: int) -> list[slice]:
    """``count`` things in their order, cut into at most ``parts_max`` parts as equal as can be: one each where they fit."""
    many = min(count, parts_max)
    return [slice(count * index // many, count * (index + 1) // many) for index in range(many)]


def by_round(effects: Sequence[tuple[int, float]]) -> tuple[RoundEffect, ...]:
    """The effects of a comparison (round, log scale), in the order of the rounds; successive ones together where they are many."""
    values = np.array([value for _, value in effects])
    outlying = stats.far_out(values)
    alone = set(_farthest(values, outlying)) if len(effects) > ROUNDS_MAX else set(range(len(effects)))
    together = [index for index in range(len(effects)) if index not in alone]
    groups = [[index] for index in alone] + [together[part] for part in parts(len(together), ROUNDS_MAX)]
    found = [
        RoundEffect(
            round=effects[group[0]][0],
            effect=fraction(float(np.median(values[group]))),
            far_out=bool(outlying[group].any()),
            rounds=len(group),
            min=fraction(float(values[group].min())) if len(group) > 1 else None,
            max=fraction(float(values[group].max())) if len(group) > 1 else None,
        )
        for group in groups
    ]
    return tuple(sorted(found, key=lambda each: each.round))


def _farthest(values: Floats, outlying: NDArray[np.bool_]) -> list[int]:
    distance = np.abs(values - np.median(values)) * outlying
    farthest = np.argsort(-distance, kind="stable")[:FAR_OUT_MAX]
    return [int(index) for index in farthest if outlying[index]]


def fraction(value: float) -> float:
    """From the log scale; beyond the range of a float it is the largest one."""
    return math.expm1(min(value, 700.0))
