"""The handshake: who is at the other end, and what it takes."""

from __future__ import annotations

import os
import platform
from typing import Final

import dbtoll
from dbtoll.channel.frames import CREDIT_MAX_BYTES, MAX_PAYLOAD_BYTES, VERSION, Frame, FrameError
from dbtoll.channel.output_buffer import said
from dbtoll.model.json import Json

WINDOW_BYTES: Final = 1 << 20
MAX_STREAMS: Final = 512
_LEAST_BYTES: Final = 4096
"""The least payload and window that make sense."""

_TEXT_MAX: Final = 100
"""Characters of a version, of an architecture."""

_TYPES: Final[dict[str, type]] = {
    "magic": str,
    "role": str,
    "protocol": int,
    "build": str,
    "architecture": str,
    "pid": int,
    "max_payload_bytes": int,
    "max_streams": int,
    "window_bytes": int,
}
_RANGES: Final = {
    "pid": (0, (1 << 32) - 1),
    "max_payload_bytes": (_LEAST_BYTES, MAX_PAYLOAD_BYTES),
    "max_streams": (1, (1 << 32) - 1),
    "window_bytes": (_LEAST_BYTES, CREDIT_MAX_BYTES),
}


def controller_hello(window_bytes: int = WINDOW_BYTES) -> Json:
    """What this side says of itself."""
    return {
        "magic": "dbtoll",
        "role": "controller",
        "protocol": VERSION,
        "build": dbtoll.__version__,
        "architecture": platform.machine(),
        "pid": os.getpid(),
        "max_payload_bytes": MAX_PAYLOAD_BYTES,
        "max_streams": MAX_STREAMS,
        "window_bytes": window_bytes,
    }


def agent_hello(frame: Frame) -> Json:
    """The agent's HELLO, checked. Unknown keys stay in it. Raises FrameError."""
    hello = frame.json()
    _check(hello, _TYPES, "")
    for key in ("build", "architecture"):
        if len(hello[key]) > _TEXT_MAX:
            raise FrameError("protocol", f"HELLO: {key} has {len(hello[key])} characters")
    if hello["magic"] != "dbtoll":
        raise FrameError("protocol", "HELLO without the magic word: the other side is not dbtoll")
    if hello["role"] != "agent":
        raise FrameError(
            "protocol",
            f"HELLO from another {said(hello['role'][:40])}, not from an agent",
            "a line that echoes sends back what was written: make the terminal raw",
        )
    if hello["protocol"] != VERSION:
        raise FrameError("protocol", f"HELLO of protocol {hello['protocol']} in a frame of version {VERSION}")
    for key, (least, most) in _RANGES.items():
        if not least <= hello[key] <= most:
            raise FrameError("protocol", f"HELLO: {key} is {hello[key]}, not from {least} to {most}")
    clock = hello.get("clock")
    if not isinstance(clock, dict):
        raise FrameError("protocol", "HELLO of an agent without its clock")
    _check(clock, {"source": str, "resolution_ns": int}, "clock.")
    if "line_bytes" in hello and not (type(hello["line_bytes"]) is int and 0 < hello["line_bytes"] <= CREDIT_MAX_BYTES):
        raise FrameError("protocol", f"HELLO: line_bytes is {hello['line_bytes']}, not from 1 to {CREDIT_MAX_BYTES}")
    return hello


def _check(value: Json, types: dict[str, type], prefix: str) -> None:
    for key, kind in types.items():
        if key not in value:
            raise FrameError("protocol", f"HELLO without {prefix}{key}")
        if type(value[key]) is not kind:  # not isinstance: true is no number here
            raise FrameError("protocol", f"HELLO: {prefix}{key} is not of type {kind.__name__}")
