"""Untimed work on the machines and servers of an arm, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_parallel(work: Sequence[Callable[[], T]], *, in_order: bool = False) -> list[T]:
    """What each of them returns, in order; as many at a time as there are processors, or with ``in_order`` one after the other.

    Raises what the first one that fails raises, once none works any more: those that have not begun by then do not begin.
    """
    if in_order or len(work) <= 1:
        return [one() for one in work]
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="parallel")
    try:
        return [each.result() for each in [pool.submit(one) for one in work]]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
