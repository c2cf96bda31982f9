"""Drivers that begin at one moment, and untimed work on several machines at a time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial

import pytest

from dbtoll.errors import EngineError
from dbtoll.runner.drivers.protocol import AHEAD_NS, AHEAD_OF_EACH_NS, together
from dbtoll.runner.parallel import in_parallel


@dataclass
class Driver:
    """It is told some ms after the one before it, as a line takes its time."""

    asked: list[str] = field(default_factory=list)
    begins_ns: int = 0

    def ask(self, hold: bool) -> Driver:
        self.asked.append(f"hold={hold}")
        return self

    def ready(self) -> None:
        self.asked.append("ready")

    def go(self, in_ns: int = 0) -> None:
        self.asked.append("go")
        self.begins_ns = time.monotonic_ns() + in_ns
        time.sleep(0.003)

    def result(self) -> int:
        return self.begins_ns


def test_drivers_begin_at_one_moment_however_long_it_takes_to_tell_them() -> None:
    drivers = [Driver() for _ in range(8)]
    before_ns = time.monotonic_ns()
    moments = together([each.ask for each in drivers])
    assert all(each.asked == ["hold=True", "ready", "go"] for each in drivers)
    ahead_ns = AHEAD_NS + 8 * AHEAD_OF_EACH_NS
    assert min(moments) >= before_ns + ahead_ns
    # They were told 3 ms after one another: with the same delay for each the last would begin 21 ms after the first.
    assert sorted(moments)[-2] - min(moments) < 20_000_000


def test_who_is_alone_begins_at_once() -> None:
    driver = Driver()
    assert together([driver.ask]) == [0]
    assert driver.asked == ["hold=False"]


def test_work_is_done_at_the_same_time_and_comes_back_in_order() -> None:
    both = threading.Barrier(2, timeout=20)

    def meet(number: int) -> int:
        both.wait()  # returns when another thread is here too
        return number

    assert in_parallel([partial(meet, number) for number in range(2)]) == [0, 1]
    seen: list[int] = []
    in_parallel([partial(seen.append, number) for number in range(20)], in_order=True)
    assert seen == [*range(20)]


def test_a_failure_is_raised_once_nobody_works_any_more() -> None:
    begun, ended = threading.Event(), []

    def fail() -> None:
        begun.wait(20)
        raise EngineError("no", "")

    def work() -> None:
        begun.set()
        time.sleep(0.2)
        ended.append(True)

    with pytest.raises(EngineError, match="no"):
        in_parallel([fail, work, *[partial(time.sleep, 0.05)] * 20])
    assert ended == [True]
