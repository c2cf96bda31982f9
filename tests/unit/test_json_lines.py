"""A driver that is held is told by its own clock when to go, as far as that is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from dbtoll.channel import json_lines
from dbtoll.channel.json_lines import BegunLines, HeldAt, JsonLines

AHEAD_NS = 7_000_000_000
RELAY_AHEAD_NS = 90_000_000_000
MS = 1_000_000


class Lines:
    """A driver behind a relay. Each answer takes ``(to the relay, on to the driver and back, from the relay)`` nanoseconds."""

    def __init__(self, answers: list[tuple[int, int, int]]) -> None:
        self.now_ns = 1_000_000_000
        self.answers = answers
        self.said: list[Mapping[str, Any]] = []
        self._bracket: tuple[int | None, int | None] = (None, None)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def send(self, command: Mapping[str, Any], until: float) -> None:
        self.said.append(command)

    def reply(self, until: float, shape: object) -> Mapping[str, Any]:
        there_ns, beyond_ns, back_ns = self.answers.pop(0)
        self.now_ns += there_ns
        asked_ns = self.now_ns + RELAY_AHEAD_NS
        self.now_ns += beyond_ns // 2
        told = {"held": True, "at_ns": self.now_ns + AHEAD_NS}
        self.now_ns += beyond_ns - beyond_ns // 2
        self._bracket = (asked_ns, self.now_ns + RELAY_AHEAD_NS)
        self.now_ns += back_ns
        return told

    def bracket(self) -> tuple[int | None, int | None]:
        return self._bracket


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lines], BegunLines[HeldAt]]:
    def begin(lines: Lines) -> BegunLines[HeldAt]:
        monkeypatch.setattr(json_lines.time, "monotonic_ns", lines.monotonic_ns)
        return BegunLines(cast("JsonLines", lines), 0.0, object(), lambda reply, held: held)

    return begin


def test_the_clock_is_told_by_the_answer_that_came_here_soonest(begun: Callable[[Lines], BegunLines[HeldAt]]) -> None:
    """What comes quickly from the driver to the relay may come late to this program, which was not running."""
    lines = Lines([(0, MS, 0), (0, MS // 20, 20 * MS), (MS // 10, MS // 10, MS // 10)])
    held = begun(lines)
    held.ready()
    held.go(100 * MS)
    moment_ns = lines.now_ns + 100 * MS + AHEAD_NS
    assert held.ahead_within_ns == 0.15 * MS
    assert abs(lines.said[-1]["at_ns"] - moment_ns) <= held.ahead_within_ns
    assert not lines.answers, "it was asked until both ways were quick"


def test_where_nothing_comes_soon_it_is_asked_some_times_and_the_best_is_kept(
    begun: Callable[[Lines], BegunLines[HeldAt]],
) -> None:
    slow = [(0, 9 * MS, 30 * MS)] * 10
    slow[4] = (2 * MS, 9 * MS, 2 * MS)
    lines = Lines([(0, MS, 0), *slow])
    held = begun(lines)
    held.ready()
    held.go(100 * MS)
    assert held.ahead_within_ns == 6.5 * MS and not lines.answers
    assert lines.said[-1]["at_ns"] == lines.now_ns + 100 * MS + AHEAD_NS
