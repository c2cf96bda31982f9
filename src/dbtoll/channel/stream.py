"""One call in progress over a channel: its input with credit, its output, its end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from dbtoll.channel.frames import CREDIT_MAX_BYTES, Frame, FrameError, Kind, credit_payload, json_payload
from dbtoll.errors import AgentFailure, ChannelError, DbtollError
from dbtoll.model.json import Json

if TYPE_CHECKING:
    from dbtoll.channel.client import Channel

MAIN: Final = 0
ERROR_OUTPUT: Final = 1
CONTROL: Final = 2

WAITING_MAX: Final = 1 << 16
"""DATA frames of one stream that nobody has taken yet; each takes far more than its bytes."""

Sink = Callable[[bytes], None]


class Piece(NamedTuple):
    """The payload of one DATA frame. ``end_count``: bytes of the line up to its last one."""

    channel: int
    payload: bytes
    end_count: int


class Stream:
    """One call in progress. Made by :meth:`Channel.open`. One thread writes, one reads.

    ``written_count`` and ``read_count``: bytes of the whole line up to the last frame that was sent and received here;
    ``end_count``: up to its END or ERROR, 0 before.
    """

    def __init__(self, channel: Channel, number: int, method: str, sinks: Mapping[int, Sink]) -> None:
        self.number = number
        self.method = method
        self.written_count = 0
        self.read_count = 0
        self.end_count = 0
        self._channel = channel
        self._sinks = sinks
        self._changed = threading.Condition()
        self._inbox: deque[Piece] = deque()
        self._credit = channel.peer_window_bytes
        self._room = channel.window_bytes
        self._taken = 0  # taken from the stream, not yet granted again
        self._input_ended = False
        self._result: Json | None = None
        self._error: DbtollError | None = None

    # --- the caller's side ---

    @property
    def closed(self) -> bool:
        """Whether the agent has ended it, or the line broke."""
        return self._result is not None or self._error is not None

    def write(self, data: bytes, until: float | None = None) -> bool:
        """Send ``data``, waiting for credit. False: the agent ended the stream before it took all. Raises its error."""
        rest = memoryview(data)
        while rest:
            with self._changed:
                self._wait(lambda: self._credit > 0 or self.closed, until)
                if self._error is not None:
                    raise again(self._error)
                if self._result is not None:
                    return False
                size = min(len(rest), self._credit, self._channel.max_payload_bytes)
                self._credit -= size
            self.written_count = self._channel.send(Kind.DATA, self.number, rest[:size])
            rest = rest[size:]
        return True

    def end_input(self) -> None:
        """No more DATA will be written."""
        with self._changed:
            if self._input_ended or self.closed:
                return
            self._input_ended = True
        self.written_count = self._channel.send(Kind.END, self.number, b"{}")

    def receive(self, until: float | None = None) -> Piece | None:
        """The next DATA that no sink took; None after the last. Raises the stream's error, after the DATA before it."""
        with self._changed:
            self._wait(lambda: bool(self._inbox) or self.closed, until)
            if not self._inbox:
                if self._error is not None:
                    raise again(self._error)
                return None
            piece = self._inbox.popleft()
            self.read_count = piece.end_count
        if (credit := self._due(len(piece.payload))) is not None:
            with contextlib.suppress(ChannelError):  # what has arrived is still given; the next read says it
                self._channel.send(Kind.CREDIT, self.number, credit)
        return piece

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is closed within ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.closed, timeout_s)

    def result(self, until: float | None = None) -> Json:
        """The agent's END. Raises its ERROR as AgentFailure, a broken line as ChannelError."""
        with self._changed:
            self._wait(lambda: self.closed, until)
            if self._result is None:
                assert self._error is not None
                raise again(self._error)
            return self._result

    def cancel(self) -> None:
        """Tell the agent to give up. Returns at once; the end comes as for any other stream."""
        payload = json_payload({"code": "cancelled", "message": "cancelled", "detail": {}})

        def send() -> None:
            if not self.closed:
                self._channel.send(Kind.ERROR, self.number, payload)

        self._channel.errand(send)

    def _wait(self, ready: Callable[[], bool], until: float | None) -> None:
        if not self._changed.wait_for(ready, None if until is None else max(0.0, until - time.monotonic())):
            self.cancel()
            raise ChannelError(
                f"{self._channel.name} did not answer `{self.method}` in time; the call was given up",
                "look whether that machine still runs and is not paused",
            )

    def _due(self, size: int) -> bytes | None:
        """``size`` more bytes are taken: the payload of the CREDIT to send now, if any."""
        with self._changed:
            self._taken += size
            # In quarters: most calls then need no CREDIT at all, and a sender never runs dry.
            if self.closed or self._taken * 4 < self._channel.window_bytes:
                return None
            granted, self._taken = self._taken, 0
            self._room += granted
        return credit_payload(granted)

    # --- the reader's side ---

    def on_data(self, frame: Frame) -> None:
        """DATA arrived."""
        size = len(frame.payload)
        with self._changed:
            self._room -= size
            if self._room < 0:
                raise FrameError("protocol", f"more DATA than credit on stream {self.number} (`{self.method}`)")
            sink = self._sinks.get(frame.channel)
            if sink is None:
                if len(self._inbox) >= WAITING_MAX:
                    raise FrameError(
                        "protocol", f"{WAITING_MAX} DATA frames wait on stream {self.number} (`{self.method}`)"
                    )
                self._inbox.append(Piece(frame.channel, frame.payload, frame.end_count))
                self._changed.notify_all()
        if sink is not None:
            sink(frame.payload)
            if (credit := self._due(size)) is not None:
                self._channel.errand(lambda: self._channel.send(Kind.CREDIT, self.number, credit))

    def on_credit(self, granted: int) -> None:
        """CREDIT arrived."""
        with self._changed:
            self._credit += granted
            if self._credit > CREDIT_MAX_BYTES:
                raise FrameError("protocol", f"credit beyond {CREDIT_MAX_BYTES} bytes on stream {self.number}")
            self._changed.notify_all()

    def on_closed(self, result: Json | None, error: DbtollError | None) -> None:
        """END or ERROR arrived, or the line broke."""
        with self._changed:
            if not self.closed:
                self._result, self._error = result, error
            self._changed.notify_all()


def again(error: DbtollError) -> DbtollError:
    """The same error for one more waiter: raised twice, one object would collect the tracebacks of both."""
    if isinstance(error, AgentFailure):
        again: DbtollError = AgentFailure(error.code, error.message, error.detail)
        again.hint = error.hint
    else:
        again = ChannelError(error.message, error.hint)
    again.__cause__ = error.__cause__
    return again
