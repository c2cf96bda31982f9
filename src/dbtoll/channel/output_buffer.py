"""What is kept of a program's output: the beginning or the end, within a bound, however small the pieces are."""

from __future__ import annotations

import threading

from dbtoll.text import printable

SAID_MAX = 2000
"""Characters of what others said that an error quotes."""


class Tail:
    """Keeps the last ``limit_bytes`` of what ``take`` (a sink) is given."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._dropped_bytes = 0
        self._lock = threading.Lock()

    def take(self, payload: bytes) -> None:
        """More bytes."""
        with self._lock:
            self._kept += payload
            if len(self._kept) > 2 * self._limit_bytes:  # not each time: what is left has to be moved
                self._cut()

    def content(self) -> bytes:
        """What was kept; a first line says how much was not."""
        with self._lock:
            self._cut()
            kept, dropped = bytes(self._kept), self._dropped_bytes
        note = f"[{dropped} bytes before this were not kept]\n".encode() if dropped else b""
        return note + kept

    def _cut(self) -> None:
        beyond = max(0, len(self._kept) - self._limit_bytes)
        del self._kept[:beyond]
        self._dropped_bytes += beyond


class Head:
    """Keeps the first ``limit_bytes`` of what ``take`` (a sink) is given, and counts all."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.seen_bytes = 0
        self._kept = bytearray()

    def take(self, payload: bytes) -> None:
        """More bytes."""
        self._kept += payload[: self.limit_bytes - len(self._kept)]
        self.seen_bytes += len(payload)

    def content(self) -> bytes:
        """What was kept."""
        return bytes(self._kept)


def said(text: str) -> str:
    """What another machine said, as part of an error: no longer than SAID_MAX, and without what a terminal would obey."""
    return printable(text if len(text) <= SAID_MAX else text[: SAID_MAX - 1] + "…", lines=True)
