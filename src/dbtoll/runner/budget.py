"""The time that a run may take."""

from __future__ import annotations

import time


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

    def overrun(self) -> bool:
        return self.elapsed_s() > self.budget_s * self.OVERRUN
