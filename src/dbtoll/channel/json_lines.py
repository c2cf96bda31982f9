"""Commands and replies as JSON lines over one stream of an agent: what its drivers speak, and its disk model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dbtoll.channel.client import Channel
from dbtoll.channel.frames import FrameError, json_object, json_payload
from dbtoll.channel.output_buffer import said
from dbtoll.channel.replies import DriverError, Held, check
from dbtoll.channel.stream import MAIN
from dbtoll.errors import ChannelError, EngineError
from dbtoll.interfaces.machine import TimestampedStream
from dbtoll.model.json import Json

R = TypeVar("R")

LINE_MAX_BYTES: Final = 64 << 20
SLACK_S: Final = 120.0
"""Added to how long a command may take by itself."""


class JsonLines:
    """One driver of an agent. One command at a time; the stream ends with the driver. ``who`` it is, for people."""

    def __init__(self, channel: Channel, method: str, parameters: Json, who: str = "the load driver") -> None:
        self._channel = channel
        self._who = who
        self._buffer = bytearray()
        self._stream = channel.open(method, parameters)

    def ask(self, command: Json, timeout_s: float, shape: Any = None) -> Json:
        """The reply, which is of ``shape`` (None: any object). Raises EngineError for the server's own error, ChannelError without
        a reply in time."""
        until = time.monotonic() + timeout_s
        self.send(command, until)
        return self.reply(until, shape)

    def send(self, command: Json, until: float) -> None:
        """Without waiting for its reply. Errors as `ask`."""
        line = json_payload(command) + b"\n"
        if len(line) > LINE_MAX_BYTES:
            raise EngineError(
                f"a command of {len(line)} bytes for {self._channel.name}; at most {LINE_MAX_BYTES} are taken"
            )
        if not self._stream.write(line, until):
            raise self.strange("it has ended")

    def reply(self, until: float, shape: Any = None) -> Json:
        """The next reply, which nobody may have asked for. Errors as `ask`."""
        line = self._read_line(until)
        try:
            reply = json_object(line, "a reply")
            if (error := reply.get("error")) is not None:
                check(error, DriverError, "an error")
            elif shape is not None:
                check(reply, shape, "a reply")
        except FrameError as violation:
            raise self.strange(violation.message) from None
        if error is not None:
            state = said(error.get("sqlstate") or "no SQLSTATE")
            raise EngineError(f"the server on {self._channel.name} refused: {said(error['message'])} ({state})")
        return reply

    def bracket(self) -> tuple[int | None, int | None]:
        """When the last command was written and its reply read, by the clock of the agent that relays the stream; None
        where nobody does."""
        line = self._channel.line
        if not isinstance(line, TimestampedStream):
            return None, None
        return line.written_at(self._stream.written_count), line.read_at(self._stream.read_count)

    def close(self) -> None:
        """End the driver. Also after a failure, also twice."""
        try:
            self._stream.end_input()
            if not self._stream.wait(SLACK_S):
                self._stream.cancel()
        except ChannelError:
            return  # the line broke and took the driver with it

    def begin(self, command: Json, timeout_s: float, shape: Any, made: Callable[[Json, HeldAt], R]) -> BegunLines[R]:
        """The command is sent; what is ``made`` of its reply is what it results in."""
        until = time.monotonic() + timeout_s
        self.send(command, until)
        return BegunLines(self, until, shape, made)

    def strange(self, what: str) -> ChannelError:
        """An error for what the protocol does not foresee."""
        return ChannelError(f"{self._who} on {self._channel.name}: {what}", "run again; if it repeats, it is a defect")

    def _read_line(self, until: float) -> bytes:
        searched = 0
        while (newline := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LINE_MAX_BYTES:
                raise self.strange(f"an answer of more than {LINE_MAX_BYTES} bytes")
            piece = self._stream.receive(until)
            if piece is None:
                raise self.strange("it ended without an answer")
            if piece.channel == MAIN:
                self._buffer += piece.payload
        line = bytes(self._buffer[:newline])
        del self._buffer[: newline + 1]
        return line


ASKED_AGAIN = 10
"""How often a driver that is held is asked what its clock shows, of which the answer that came soonest tells how far that is from
the host's (Cristian: Probabilistic clock synchronization, 1989)."""

QUICK_NS = 500_000
"""Who answers within that need not be asked again."""


@dataclass(frozen=True, slots=True)
class HeldAt:
    """When a driver said that it is held, by its agent's clock, and when that was read, by the clock of `JsonLines.bracket`.

    ``host_asked_ns``: when it had been asked for it, by that clock, if it was.
    """

    held_ns: int | None = None
    host_held_ns: int | None = None
    host_asked_ns: int | None = None


class BegunLines(Generic[R]):
    """Implements interfaces.Begun."""

    def __init__(self, lines: JsonLines, until: float, shape: Any, made: Callable[[Json, HeldAt], R]) -> None:
        self._lines, self._until, self._shape, self._made = lines, until, shape, made
        self._held = HeldAt()
        # How far the driver's clock is ahead of this program's, and within what.
        self._ahead_ns: int | None = None
        self.ahead_within_ns = math.inf

    def ready(self) -> None:
        """Errors as `JsonLines.ask`."""
        told = self._lines.reply(self._until, Held)
        _, read_ns = self._lines.bracket()
        self._held = HeldAt(told["at_ns"], read_ns)
        quickest_ns = math.inf
        for _ in range(ASKED_AGAIN if read_ns is not None else 0):
            before_ns = time.monotonic_ns()
            self._lines.send({"command": "tell"}, self._until)
            told = self._lines.reply(self._until, Held)
            after_ns = time.monotonic_ns()
            asked_ns, read_ns = self._lines.bracket()
            # Two clocks, and two ways: the one to this program is longer, and may be delayed where the other is not.
            if asked_ns is not None and read_ns is not None and read_ns - asked_ns < quickest_ns:
                quickest_ns = read_ns - asked_ns
                self._held = HeldAt(told["at_ns"], read_ns, asked_ns)
            if after_ns - before_ns < 2 * self.ahead_within_ns:
                self._ahead_ns = told["at_ns"] - (before_ns + after_ns) // 2
                self.ahead_within_ns = (after_ns - before_ns) / 2
            if quickest_ns < QUICK_NS and self.ahead_within_ns < QUICK_NS:
                return

    def go(self, in_ns: int = 0) -> None:
        """One line to the driver. Where its clock is known it is told what that will show: the line may take its time."""
        when = {"in_ns": in_ns}
        if self._ahead_ns is not None and in_ns > 0:
            when = {"at_ns": max(time.monotonic_ns() + in_ns + self._ahead_ns, 0)}
        self._lines.send({"command": "go", **when}, self._until)

    def result(self) -> R:
        """Errors as `JsonLines.ask`."""
        return self._made(self._lines.reply(self._until, self._shape), self._held)
