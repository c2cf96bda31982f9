"""Values drawn from a seed: equal for equal seeds, byte for byte, on every machine and every version of Python."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of random values that depends on nothing but ``identity`` (seed, query …).

    The Python manual guarantees that ``random()`` keeps its sequence across versions, and guarantees it of no other
    method ("Notes on Reproducibility"); so everything here is made of ``random()``. Scaling 53 bits to n values favours
    none by more than n / 2**53.
    """

    def __init__(self, *identity: str | int) -> None:
        digest = hashlib.sha256("\0".join(map(str, identity)).encode()).digest()
        self._random = random.Random(int.from_bytes(digest))

    def integer(self, low: int, high: int) -> int:
        """A whole number of [low, high], both ends included."""
        return low + int(self._random.random() * (high - low + 1))

    def choice(self, values: Sequence[T]) -> T:
        """One of ``values``."""
        return values[self.integer(0, len(values) - 1)]

    def distinct(self, values: Sequence[T], count: int) -> list[T]:
        """``count`` different ones of ``values``, in random order."""
        left = list(values)
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(count)]
