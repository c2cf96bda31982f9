"""A stream of an agent's ``run`` or ``connect`` as a line of its own: what a nested agent is reached through."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, NotRequired, Self, TypedDict

from dbtoll.channel.client import Channel, control_message
from dbtoll.channel.output_buffer import Tail
from dbtoll.channel.replies import Count, check
from dbtoll.channel.stream import CONTROL, ERROR_OUTPUT, Stream
from dbtoll.errors import ChannelError, DbtollError
from dbtoll.interfaces.machine import TimestampedStream
from dbtoll.model.json import Json

_STAMPS_MAX: Final = 16_384
"""Far more than the frames of one visit; older ones are forgotten."""

_LATE_STAMP_S: Final = 2.0
"""A stamp of written bytes and the answer to them travel apart; the stamp may come second."""

_STALLED_S: Final = 120.0
"""A far end that takes no byte for so long while it is awake hangs."""

_CLOSE_S: Final = 30.0
"""What an agent may take to end everything it started; then it is killed."""


class _Stamp(TypedDict):
    """Or the first message of ``run``."""

    at_ns: Count
    pid: NotRequired[Count]
    written_bytes: NotRequired[Count]
    read_bytes: NotRequired[Count]


class ByteTimestamps:
    """When bytes passed: rising ``(count, mark)`` pairs, the last ones kept."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, int]] = deque()
        self._changed = threading.Condition()
        self._forgotten_count = 0

    def add(self, count: int, mark: int) -> None:
        """The first ``count`` bytes have passed at ``mark``."""
        with self._changed:
            self._pairs.append((count, mark))
            if len(self._pairs) > _STAMPS_MAX:
                self._forgotten_count, _ = self._pairs.popleft()
            self._changed.notify_all()

    def mark_of(self, count: int, wait_s: float = 0.0) -> int | None:
        """The first mark by which ``count`` bytes had passed; None if it is forgotten or not there in ``wait_s``."""
        with self._changed:
            if count <= self._forgotten_count:
                return None
            if not self._changed.wait_for(lambda: bool(self._pairs) and self._pairs[-1][0] >= count, wait_s):
                return None
            first = self._pairs[-1][1]
            for passed, mark in reversed(self._pairs):
                if passed < count:
                    break
                first = mark
            return first


class RelayStream:
    """Implements interfaces.ByteStream and Stamped over a stream of ``channel``.

    The stamps are those of the outermost agent on the way: where the line of ``channel`` is stamped itself, positions
    in this stream are translated into positions in that line. So one clock brackets all visits, however deep.

    BIAS: a write is stamped just before it is made and a read just after: a relay that is preempted there makes the
    bracket longer, never shorter.
    """

    def __init__(self, channel: Channel, method: str, parameters: Json, *, stamps: bool) -> None:
        self._outer = channel.line if stamps and isinstance(channel.line, TimestampedStream) else None
        self._written = ByteTimestamps()
        self._read = ByteTimestamps()
        self._written_count = 0
        self._read_count = 0
        self._rest = b""
        self._errors = Tail(1 << 16)
        self._name = channel.name
        self._closed = threading.Event()
        self.pid: int | None = None
        """Of the program at the far end; None before it has said anything, and for a socket."""
        own_stamps = stamps and self._outer is None
        self._stream: Stream = channel.open(
            method,
            parameters | {"stamps": own_stamps},
            sinks={ERROR_OUTPUT: self._errors.take, CONTROL: self._on_control},
        )

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, b"" after the last. Raises ChannelError or AgentFailure."""
        if not self._rest:
            piece = self._stream.receive()
            if piece is None:
                return b""
            self._rest = piece.payload
            self._read_count += len(piece.payload)
            if self._outer is not None:
                self._read.add(self._read_count, piece.end_count)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def write(self, data: bytes) -> None:
        """All of ``data``. Raises ChannelError when the far end is gone or takes nothing."""
        if not self._stream.write(data, time.monotonic() + _STALLED_S):
            raise ChannelError(f"the far end of a stream on {self._name} is gone")
        self._written_count += len(data)
        if self._outer is not None:
            self._written.add(self._written_count, self._stream.written_count)

    def close(self) -> None:
        """End the input and wait for the far end to finish; what does not finish is killed. Also twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            self._stream.end_input()
        except ChannelError:
            return  # the line below is gone and took this stream with it
        threading.Thread(target=self._drain, name=f"{self._name}: drain", daemon=True).start()
        if not self._stream.wait(_CLOSE_S):
            self._stream.cancel()
            self._stream.wait(_CLOSE_S)

    def kill(self) -> None:
        """Have the far end ended; `close` then does not wait for it to end by itself."""
        self._stream.cancel()

    def half_close(self) -> None:
        """No more will be written; what is still to come can be read."""
        self._stream.end_input()

    def written_at(self, count: int) -> int | None:
        """When the first ``count`` bytes had been written to the far end (ns, outermost agent's clock)."""
        mark = self._written.mark_of(count, _LATE_STAMP_S)
        return mark if mark is None or self._outer is None else self._outer.written_at(mark)

    def read_at(self, count: int) -> int | None:
        """When the first ``count`` bytes had been read from the far end (ns, outermost agent's clock)."""
        mark = self._read.mark_of(count)
        return mark if mark is None or self._outer is None else self._outer.read_at(mark)

    def error_output(self) -> bytes:
        """The last that the program wrote to its error output."""
        return self._errors.content()

    def last_words(self) -> str:
        """How the program ended and the last it wrote to its error output; "" for a socket."""
        words = self._errors.content().decode(errors="replace").strip()[-400:]
        end = ""
        if self._stream.wait(2.0):
            try:
                end = _ending(self._stream.result())
            except DbtollError as error:
                end = error.message
        return "; ".join(part for part in (end, words) if part)

    def _drain(self) -> None:
        """Take what still comes, so that the far end is not held up while it ends."""
        try:
            while self._stream.receive() is not None:
                pass
        except DbtollError:
            return

    def _on_control(self, payload: bytes) -> None:
        message = control_message(payload)
        check(message, _Stamp, "a stamp")
        self.pid = message.get("pid", self.pid)
        for key, passages in (("written_bytes", self._written), ("read_bytes", self._read)):
            if key in message:
                passages.add(message[key], message["at_ns"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ending(result: Json) -> str:
    if result.get("signal") is not None:
        return f"killed by signal {result['signal']}"
    if result.get("exit_code") is not None:
        return f"exit code {result['exit_code']}"
    return ""
