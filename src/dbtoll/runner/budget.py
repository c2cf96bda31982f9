"""The time that a run may take."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar


class Budget:
    """What is left of the time to measure. Python's clock decides when to stop and never becomes a number of a result."""

    OVERRUN = 1.10
    """A round that runs past the budget is cut here and marked (DESIGN §5)."""

    def __init__(self, budget_s: float, used_s: float = 0.0) -> None:
        self.budget_s = budget_s
        self._begin = time.monotonic() - used_s

    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def left_s(self) -> float:
        return self.budget_s - self.elapsed_s()

    def stretch(self, until_s: float) -> None:
        """Let it end so late."""
        self.budget_s = max(self.budget_s, until_s)

    def overrun(self) -> bool:
        return self.elapsed_s() > self.budget_s * self.OVERRUN


SPARE = 1.1
"""A budget is proposed so many times as long as what it is for is expected to take."""


def proposed_minutes(used_s: float, more_s: float) -> int:
    """A budget in which ``more_s`` of rounds are expected to fit, in whole minutes; ``used_s`` of it are gone."""
    return math.ceil((used_s + more_s * SPARE) / 60)


@dataclass(slots=True)
class RoundLength:
    """How long the next round is expected to take, s: the longest that each share took so far, slowly forgotten, so that a round
    that would not fit is not begun. ``guess_s``: of a whole round, before one was seen."""

    guess_s: float = 0.0
    shared_s: float = 0.0
    arms: dict[str, float] = field(default_factory=dict)

    FORGOTTEN: ClassVar[float] = 0.8

    def see(self, whole_s: float, arms: Mapping[str, float]) -> None:
        """A round took so long; ``arms``: what of it was whose."""
        self.guess_s = 0.0
        self.shared_s = max(whole_s - sum(arms.values()), self.FORGOTTEN * self.shared_s)
        for name, took_s in arms.items():
            self.arms[name] = max(took_s, self.FORGOTTEN * self.arms.get(name, 0.0))

    def next_s(self, without: Collection[str] = ()) -> float:
        """Of a round ``without`` some arms."""
        return self.guess_s or self.shared_s + sum(s for name, s in self.arms.items() if name not in without)
