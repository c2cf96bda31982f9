"""The codec of docs/PROTOCOL.md: frames to bytes and back. Pure: no clock, no input or output; bounded memory.

What a frame *means* (which streams are open, how much credit there is) is the business of ``client``.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from dbtoll.errors import ChannelError
from dbtoll.model.json import Json

VERSION: Final = 1
SYNC: Final = b"dbtl"
MAX_PAYLOAD_BYTES: Final = 262_144
MAX_SKIPPED_BYTES: Final = 65_536
CREDIT_MAX_BYTES: Final = (1 << 31) - 1
DEPTH_MAX: Final = 64
"""Of objects and lists in each other: what is read is written again elsewhere, where there is less room for recursion."""

_HEADER: Final = struct.Struct("<4sBBHIIII")
HEADER_BYTES: Final = _HEADER.size
_CHECKED_BYTES: Final = HEADER_BYTES - 4  # the crc covers the header up to itself
_CREDIT: Final = struct.Struct("<I")
_SEQUENCES: Final = 1 << 32


class Kind(IntEnum):
    """The second byte after the sync."""

    HELLO = 1
    OPEN = 2
    DATA = 3
    CREDIT = 4
    END = 5
    ERROR = 6


class FrameError(ChannelError):
    """A rule of the protocol is broken; ``code`` is ``protocol`` or ``version`` and stands in the message too."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}", hint)
        self.code = code


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as received. ``end_count``: how many bytes of the line had been consumed with its last byte."""

    kind: Kind
    stream: int
    channel: int
    payload: bytes
    end_count: int

    def json(self) -> Json:
        """The payload as the JSON object that it must be."""
        return json_object(self.payload, f"the payload of {self.kind.name}")

    def credit(self) -> int:
        """The payload of CREDIT."""
        (granted,) = _CREDIT.unpack(self.payload)
        return int(granted)


def json_object(data: bytes, what: str) -> Json:
    """``data`` as the JSON object that ``what`` must be: UTF-8, finite numbers, at most DEPTH_MAX deep. Raises FrameError."""
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise FrameError("protocol", f"{what} is not a JSON object")
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise FrameError("protocol", f"{what} is nested more than {DEPTH_MAX} deep")
    return value


def _depth(value: Json) -> int:
    """Of containers in each other; no more than one beyond DEPTH_MAX is looked at."""
    depth = 0
    level: list[Json | list[Any]] = [value]
    while level and depth <= DEPTH_MAX:
        depth += 1
        inner = (child for each in level for child in (each.values() if isinstance(each, dict) else each))
        level = [child for child in inner if isinstance(child, (dict, list))]
    return depth


def credit_payload(granted_bytes: int) -> bytes:
    """The payload of a CREDIT frame."""
    return _CREDIT.pack(granted_bytes)


def json_payload(value: Json) -> bytes:
    """A JSON object as compact UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Encoder:
    """Numbers the frames of one direction."""

    def __init__(self) -> None:
        self._sequence = 0

    def encode(self, kind: Kind, stream: int = 0, payload: bytes | memoryview = b"", channel: int = 0) -> bytes:
        """The bytes of the next frame. Raises FrameError for what a receiver would have to refuse."""
        _check_length(len(payload))
        _check_shape(kind, channel, stream, len(payload))
        header = _HEADER.pack(SYNC, VERSION, kind, channel, stream, self._sequence, len(payload), 0)[:_CHECKED_BYTES]
        crc = zlib.crc32(payload, zlib.crc32(header))
        self._sequence = (self._sequence + 1) % _SEQUENCES
        return b"".join((header, crc.to_bytes(4, "little"), payload))


class _Intact(NamedTuple):
    """A frame that arrived unchanged; whether it was allowed is still to be seen."""

    kind: int
    channel: int
    stream: int
    sequence: int
    payload: bytes


class Decoder:
    """Cuts the bytes of one direction into frames: ``feed`` bytes, then ``take`` frames until it returns None.

    Holds at most one frame beyond what it was fed. The first violation is raised by ``take``, and again at every later
    one: nothing after it is interpreted. Before the first HELLO, bytes that are no frame are skipped (boot messages).
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start = 0  # of the next frame in the buffer
        self._base_count = 0  # bytes of the line that stood before the buffer
        self._sequence = 0
        self._greeted = False
        self._violation: FrameError | None = None

    @property
    def skipped_bytes(self) -> int:
        """Bytes before the first HELLO that were no frame."""
        return 0 if self._greeted else self._base_count + self._start

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes) -> None:
        """More bytes of the line."""
        if self._start:
            del self._buffer[: self._start]
            self._base_count += self._start
            self._start = 0
        if self._violation is None:
            self._buffer += data

    def take(self) -> Frame | None:
        """The next frame, or None when it is not complete yet. Raises FrameError."""
        if self._violation is not None:
            raise self._violation
        try:
            intact = self._intact() if self._greeted else self._first_intact()
            return None if intact is None else self._accept(intact)
        except FrameError as violation:
            self._violation = violation
            self._buffer.clear()
            self._start = 0
            raise

    def finish(self) -> None:
        """The line has ended. Raises FrameError if that was inside a frame or before the first one."""
        if self._violation is None and (unread := self.skipped_bytes + self.pending_bytes):
            what = "inside a frame" if self._greeted else f"after {unread} bytes without a HELLO"
            self._violation = FrameError("protocol", f"the line ended {what}")
        if self._violation is not None:
            raise self._violation

    def _intact(self) -> _Intact | None:
        """The frame at the start of the buffer, once it is there and unchanged."""
        start = self._start
        if not SYNC.startswith(self._buffer[start : start + len(SYNC)]):  # refused at once, not waited for
            raise FrameError("protocol", "no frame begins here: the line lost, changed or added bytes")
        if self.pending_bytes < HEADER_BYTES:
            return None
        _, version, kind, channel, stream, sequence, length, crc = _HEADER.unpack_from(self._buffer, start)
        # Among boot messages the sync letters may stand by chance: there a version counts only in an unchanged frame.
        if version != VERSION and self._greeted:
            raise version_mismatch(version)
        _check_length(length)
        if self.pending_bytes < HEADER_BYTES + length:
            return None
        body = start + HEADER_BYTES
        with memoryview(self._buffer) as view:
            payload = bytes(view[body : body + length])
            actual = zlib.crc32(payload, zlib.crc32(view[start : start + _CHECKED_BYTES]))
        if actual != crc:
            raise FrameError("protocol", f"a frame arrived changed: its CRC is {actual:08x}, it says {crc:08x}")
        if version != VERSION:
            raise version_mismatch(version)
        return _Intact(kind, channel, stream, sequence, payload)

    def _first_intact(self) -> _Intact | None:
        """The first frame after at most MAX_SKIPPED_BYTES of anything else."""
        while True:
            found = self._buffer.find(SYNC, self._start)
            # Without a sync the buffer may still end within one.
            self._start = found if found >= 0 else max(self._start, len(self._buffer) - len(SYNC) + 1)
            if self._base_count + self._start > MAX_SKIPPED_BYTES:
                raise FrameError(
                    "protocol",
                    f"no HELLO within the first {MAX_SKIPPED_BYTES} bytes",
                    "look at what this line carries: it must be raw, with dbtoll-agent at its other end",
                )
            if found < 0:
                return None
            try:
                return self._intact()
            except FrameError as violation:
                if violation.code == "version":
                    raise
                self._start += 1  # it only looked like a frame

    def _accept(self, intact: _Intact) -> Frame:
        """Sequence, kind, channel, stream: what an unchanged frame can still do wrong."""
        if intact.sequence != self._sequence:
            message = f"frame {intact.sequence} arrived where {self._sequence} was due: frames were lost or repeated"
            raise FrameError("protocol", message)
        kind = _check_shape(intact.kind, intact.channel, intact.stream, len(intact.payload))
        # In place of its HELLO the other side may say why there is none.
        if not self._greeted and kind not in (Kind.HELLO, Kind.ERROR):
            raise FrameError("protocol", f"{kind.name} came before HELLO")
        self._greeted = True
        self._sequence = (intact.sequence + 1) % _SEQUENCES
        self._start += HEADER_BYTES + len(intact.payload)
        return Frame(kind, intact.stream, intact.channel, intact.payload, self._base_count + self._start)


def _check_length(length: int) -> None:
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError("protocol", f"a payload of {length} bytes; the maximum is {MAX_PAYLOAD_BYTES}")


def version_mismatch(theirs: int) -> FrameError:
    """The error that names both versions."""
    older = "the agent" if theirs < VERSION else "dbtoll here"
    return FrameError(
        "version",
        f"the other side speaks protocol version {theirs}, this side version {VERSION}",
        f"bring both to one version: {older} is older; `./dbtoll setup` builds the agent that belongs to this dbtoll",
    )


def _check_shape(kind: int, channel: int, stream: int, length: int) -> Kind:
    """The rules that one frame alone can break, in the order of docs/PROTOCOL.md: kind, channel, stream, payload."""
    try:
        known = Kind(kind)
    except ValueError:
        raise FrameError("protocol", f"unknown kind of frame: {kind}") from None
    if channel > (2 if known is Kind.DATA else 0):
        raise FrameError("protocol", f"{known.name} on channel {channel}")
    if known not in (Kind.ERROR, Kind.CREDIT) and (stream == 0) is not (known is Kind.HELLO):
        raise FrameError("protocol", f"{known.name} on stream {stream}")
    if known is Kind.DATA and length == 0:
        raise FrameError("protocol", "DATA without bytes")
    if known is Kind.CREDIT and length != _CREDIT.size:
        raise FrameError("protocol", f"CREDIT of {length} bytes")
    return known
