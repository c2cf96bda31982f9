"""The controller's side of one line to one agent: handshake, streams with credit, calls.

A line that breaks fails everything that waits on it with one ChannelError that says in plain words what happened.

Threads: a reader turns bytes into frames and hands them to the streams. It never writes, so an agent that waits for us
to read never meets a controller that waits for it to read; what follows from a frame and must be sent (credit for bytes
that were taken at once, the last ERROR) is an errand of a second thread.

No deadline runs except inside a call, and nothing is called while a machine sleeps: so deadlines count awake time.
They only break a hang; no clock of Python ever becomes a number.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Final, Protocol, runtime_checkable

from dbtoll.channel.frames import (
    CREDIT_MAX_BYTES,
    MAX_PAYLOAD_BYTES,
    Decoder,
    Encoder,
    Frame,
    FrameError,
    Kind,
    json_object,
    json_payload,
)
from dbtoll.channel.handshake import WINDOW_BYTES, agent_hello, controller_hello
from dbtoll.channel.output_buffer import Head, Tail, said
from dbtoll.channel.replies import RESULTS, check
from dbtoll.channel.stream import CONTROL, ERROR_OUTPUT, MAIN, Piece, Sink, Stream, again
from dbtoll.errors import AgentFailure, ChannelError, DbtollError
from dbtoll.interfaces.machine import ByteStream, Killable
from dbtoll.model.json import Json

__all__ = ["CALL_TIMEOUT_S", "CONTROL", "ERROR_OUTPUT", "MAIN", "Channel", "Head", "Piece", "Sink", "Stream", "Tail"]

CODES: Final = frozenset(
    (
        *("protocol", "version", "bad_request", "unknown_method", "refused", "not_found"),
        *("io", "timeout", "cancelled", "too_large", "server", "internal"),
    )
)

GREETING_TIMEOUT_S: Final = 30.0
CALL_TIMEOUT_S: Final = 60.0
_READ_BYTES: Final = 1 << 18
_LAST_READ_S: Final = 2.0
_STALLED_S: Final = 120.0
_BROKEN_MEND: Final = "run again; if it repeats, the logs of this machine say what ended its agent"


@runtime_checkable
class Explaining(Protocol):
    """Power of a ByteStream that knows more about its end than that it came."""

    def last_words(self) -> str:
        """Why it ended; "" if it has nothing to say."""
        ...


class Channel:
    """A line to one agent. ``name`` (of its machine) stands in every error. The constructor says hello.

    ``line`` is closed by :meth:`close`, and also when the handshake fails. ``hello`` is the agent's HELLO.
    ``waits_for_sign``: say nothing before the first byte has come, as on a serial line whose far end is still booting and
    would garble what it gets (``serve --device`` gives such a sign).
    """

    def __init__(
        self,
        line: ByteStream,
        name: str,
        *,
        greeting_timeout_s: float = GREETING_TIMEOUT_S,
        window_bytes: int = WINDOW_BYTES,
        waits_for_sign: bool = False,
    ) -> None:
        self.line = line
        self.name = name
        self.hello: Json = {}
        self.window_bytes = window_bytes
        self.peer_window_bytes = 0
        self.max_payload_bytes = MAX_PAYLOAD_BYTES
        self._encoder = Encoder()
        self._write_lock = threading.Lock()
        self._written_count = 0
        self._line_credit: int | None = None
        self._state = threading.Condition()
        self._streams: dict[int, Stream] = {}
        self._last_number = 0
        self._failure: ChannelError | None = None
        self._closing = False
        self._waits_for_sign = waits_for_sign
        self._errands: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read_frames, name=f"{name}: reader", daemon=True),
            threading.Thread(target=self._run_errands, name=f"{name}: errands", daemon=True),
        ]
        try:
            self._greet(greeting_timeout_s)
        except BaseException:
            if isinstance(line, Killable):
                line.kill()  # whoever has not answered would not notice either that its input ends
            self.close()
            raise

    # --- calls ---

    def open(self, method: str, parameters: Json, *, sinks: Mapping[int, Sink] | None = None) -> Stream:
        """Begin ``method``. A sink gets the DATA of its channel in the reader's thread and must not block."""
        payload = json_payload({"method": method, "params": parameters})
        if len(payload) > self.max_payload_bytes:
            raise AgentFailure("too_large", f"{self.name}: the parameters of `{method}` take {len(payload)} bytes")
        # Numbers must reach the line in order.
        with self._write_lock:
            with self._state:
                self._raise_failure()
                self._last_number += 1
                stream = Stream(self, self._last_number, method, sinks or {})
                self._streams[stream.number] = stream
            stream.written_count = self._write(Kind.OPEN, stream.number, payload)
        return stream

    def call(
        self,
        method: str,
        parameters: Json,
        *,
        data: bytes | None = None,
        output: Sink | None = None,
        on_data: Callable[[bytes], None] | None = None,
        on_control: Callable[[bytes], None] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Json:
        """Begin ``method``, send ``data`` and the end of it (None: no input), wait for the END and return it.

        ``output`` gets DATA in the reader's thread; ``on_data`` (which may block) and ``on_control`` get DATA and
        control messages in the caller's.
        """
        until = time.monotonic() + timeout_s
        stream = self.open(method, parameters, sinks={} if output is None else {MAIN: output})
        try:
            if data is not None and stream.write(data, until):
                stream.end_input()
            while (piece := stream.receive(until)) is not None:
                if piece.channel == CONTROL and on_control is not None:
                    on_control(piece.payload)
                elif piece.channel == MAIN and on_data is not None:
                    on_data(piece.payload)
        except BaseException:
            stream.cancel()
            raise
        return stream.result(until)

    # --- the line ---

    def send(self, kind: Kind, stream: int, payload: bytes | memoryview, channel: int = MAIN) -> int:
        """Write one frame; returns how many bytes of the line were written with its last one. Raises ChannelError."""
        with self._write_lock:
            return self._write(kind, stream, payload, channel)

    def errand(self, errand: Callable[[], object]) -> None:
        """Have ``errand`` done soon, by the thread that may write."""
        self._errands.put(errand)

    def close(self) -> None:
        """End the connection: the agent ends everything that it started. What still waits fails. Also twice."""
        with self._state:
            already, self._closing = self._closing, True
        if already:
            return
        self._fail(ChannelError(f"the line to {self.name} was closed here while something still waited for it"))
        reader, errands = self._threads
        self._errands.put(None)
        _join(errands, 1.0)  # a last ERROR may be among them
        self.line.close()
        _join(reader, 5.0)

    @property
    def failure(self) -> ChannelError | None:
        """Why nothing can be called any more; None while all is well."""
        return self._failure

    def _write(self, kind: Kind, stream: int, payload: bytes | memoryview, channel: int = MAIN) -> int:
        """Under the write lock. Nothing follows a failure: half a frame may be on the line."""
        self._raise_failure()
        return self._put(self._encoder.encode(kind, stream, payload, channel))

    def _put(self, frame: bytes) -> int:
        try:
            for piece in self._fitting(frame):
                self.line.write(piece)
        except (OSError, ValueError, DbtollError) as error:
            # Who hangs up may have said why: what the reader still finds explains more than a broken pipe.
            with self._state:
                self._state.wait_for(lambda: self._failure is not None, _LAST_READ_S)
            self._fail(self._broken_by(error))
            self._raise_failure()
        self._written_count += len(frame)
        return self._written_count

    def _fitting(self, frame: bytes) -> Iterator[bytes]:
        """The frame in pieces that the line has room for, each when there is room. Raises ChannelError if none comes."""
        if self._line_credit is None or not self._written_count:  # the greeting needs none
            yield frame
            return
        rest = memoryview(frame)
        while rest:
            with self._state:
                if not self._state.wait_for(lambda: self._line_credit or self._failure, _STALLED_S):
                    raise ChannelError(f"the agent on {self.name} took nothing from its line for {_STALLED_S:g} s")
                self._raise_failure()
                size = min(self._line_credit, len(rest))
                self._line_credit -= size
            yield bytes(rest[:size])
            rest = rest[size:]

    def _greet(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        with self._write_lock:  # so that HELLO is the first, also if the other side is refused at once
            for thread in self._threads:
                thread.start()
            if self._waits_for_sign:
                self._await_sign(timeout_s)
            self._put(self._encoder.encode(Kind.HELLO, 0, json_payload(controller_hello(self.window_bytes))))
        with self._state:
            if not self._state.wait_for(lambda: self.hello or self._failure, max(0.0, until - time.monotonic())):
                raise self._unanswered(timeout_s)
            self._raise_failure()

    def _await_sign(self, timeout_s: float) -> None:
        with self._state:
            if not self._state.wait_for(lambda: not self._waits_for_sign or self._failure, timeout_s):
                raise self._unanswered(timeout_s)
            self._raise_failure()

    def _unanswered(self, timeout_s: float) -> ChannelError:
        words = self._last_words()
        return ChannelError(
            f"no agent answered on the line to {self.name} within {timeout_s:g} s" + (f" ({words})" if words else ""),
            "look whether dbtoll-agent was started at the other end of that line",
        )

    def _last_words(self) -> str:
        return said(self.line.last_words()) if isinstance(self.line, Explaining) else ""

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise again(self._failure)

    def _fail(self, failure: ChannelError) -> None:
        with self._state:
            if self._failure is None:
                self._failure = failure
            pending = list(self._streams.values())
            self._streams.clear()
            self._state.notify_all()
        for stream in pending:
            stream.on_closed(None, self._failure)

    def _broken(self, reason: str, hint: str = "") -> ChannelError:
        words = "" if self._closing else self._last_words()
        if words and words != reason:
            reason = f"{reason} ({words})"
        return ChannelError(f"the line to {self.name} broke: {reason}", hint or _BROKEN_MEND)

    def _broken_by(self, error: Exception) -> ChannelError:
        failure = self._broken(_plain(error), error.hint if isinstance(error, DbtollError) else "")
        failure.__cause__ = error
        return failure

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand()
            except ChannelError:
                pass  # the line broke; whoever waits on it is told
            except Exception as error:  # as in the reader's thread
                self._fail(self._broken_by(error))

    # --- the reader's thread ---

    def _read_frames(self) -> None:
        decoder = Decoder()
        try:
            while data := self.line.read(_READ_BYTES):
                if self._waits_for_sign:
                    with self._state:
                        self._waits_for_sign = False
                        self._state.notify_all()
                decoder.feed(data)
                while (frame := decoder.take()) is not None:
                    self._on_frame(frame)
            decoder.finish()
            self._fail(self._broken("its agent ended"))
        except FrameError as violation:
            self._say_goodbye(violation)
            self._fail(self._broken(violation.message, violation.hint))
        except Exception as error:  # whatever it is: without this thread everybody would wait for ever
            self._fail(self._broken_by(error))

    def _say_goodbye(self, violation: FrameError) -> None:
        """Tell the agent why, past the failure that keeps everything else from being sent."""
        payload = json_payload({"code": violation.code, "message": violation.message, "detail": {}})

        def write() -> None:
            with self._write_lock, contextlib.suppress(ChannelError):
                self._put(self._encoder.encode(Kind.ERROR, 0, payload))

        self.errand(write)

    def _on_frame(self, frame: Frame) -> None:
        if not self.hello and frame.kind is Kind.HELLO:
            hello = agent_hello(frame)
            self.peer_window_bytes = hello["window_bytes"]
            self.max_payload_bytes = hello["max_payload_bytes"]
            with self._state:
                self._line_credit = hello.get("line_bytes")
                self.hello = hello
                self._state.notify_all()
        elif frame.kind is Kind.ERROR and frame.stream == 0:
            code, message, _ = _failure_of(frame)
            raise ChannelError(f"its agent ended the connection: {code}: {message}", _mend_of(code))
        elif frame.kind is Kind.CREDIT and frame.stream == 0:
            if self._line_credit is None:
                raise FrameError("protocol", "CREDIT for a line that needs none")
            with self._state:
                self._line_credit += frame.credit()
                if self._line_credit > CREDIT_MAX_BYTES:
                    raise FrameError("protocol", f"credit beyond {CREDIT_MAX_BYTES} bytes for the line")
                self._state.notify_all()
        elif frame.kind in (Kind.HELLO, Kind.OPEN):
            raise FrameError("protocol", f"{frame.kind.name} from an agent that has said hello")
        else:
            self._on_stream_frame(frame)

    def _on_stream_frame(self, frame: Frame) -> None:
        with self._state:
            if frame.stream > self._last_number:
                raise FrameError("protocol", f"{frame.kind.name} on stream {frame.stream}, which was never opened")
            stream = self._streams.get(frame.stream)
        if stream is None:
            return  # it crossed the end of its stream on the way
        if frame.kind is Kind.DATA:
            stream.on_data(frame)
        elif frame.kind is Kind.CREDIT:
            stream.on_credit(frame.credit())
        else:
            result, error = None, None
            if frame.kind is Kind.END:
                result = frame.json()
                if (shape := RESULTS.get(stream.method)) is not None:
                    check(result, shape, f"the answer to `{stream.method}`")
            else:
                code, message, detail = _failure_of(frame)
                error = AgentFailure(code, f"{self.name}: `{stream.method}` failed: {message}", detail)
            with self._state:
                self._streams.pop(frame.stream, None)
            stream.end_count = frame.end_count
            stream.on_closed(result, error)


def control_message(payload: bytes) -> Json:
    """A message on channel 2. Raises FrameError."""
    return json_object(payload, "a control message")


def _join(thread: threading.Thread, timeout_s: float) -> None:
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(timeout_s)


def _failure_of(frame: Frame) -> tuple[str, str, Json]:
    """Code, message and detail of an ERROR. Raises FrameError."""
    value = frame.json()
    code, message, detail = value.get("code"), value.get("message"), value.get("detail") or {}
    if not isinstance(code, str) or code not in CODES or not isinstance(message, str) or not isinstance(detail, dict):
        raise FrameError("protocol", "an ERROR without a known code or without a message")
    return code, said(message), detail


def _mend_of(code: str) -> str:
    if code == "version":
        return "bring both to one version: `./dbtoll setup` builds the agent that belongs to this dbtoll"
    return _BROKEN_MEND


def _plain(error: Exception) -> str:
    if isinstance(error, DbtollError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
