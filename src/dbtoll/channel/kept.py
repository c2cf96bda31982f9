"""What is kept of a program's output: the beginning or the end, within a bound."""

from __future__ import annotations

import threading
from collections import deque


class Tail:
    """Keeps the last ``limit_bytes`` of what ``take`` (a sink) is given."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: deque[bytes] = deque()
        self._kept_bytes = 0
        self._dropped_bytes = 0
        self._lock = threading.Lock()

    def take(self, payload: bytes) -> None:
        """More bytes."""
        with self._lock:
            self._pieces.append(payload)
            self._kept_bytes += len(payload)
            while self._kept_bytes - len(self._pieces[0]) >= self._limit_bytes:
                dropped = len(self._pieces.popleft())
                self._kept_bytes -= dropped
                self._dropped_bytes += dropped

    def content(self) -> bytes:
        """What was kept; a first line says how much was not."""
        with self._lock:
            kept = b"".join(self._pieces)
            dropped = self._dropped_bytes + max(0, len(kept) - self._limit_bytes)
        note = f"[{dropped} bytes before this were not kept]\n".encode() if dropped else b""
        return note + kept[-self._limit_bytes :]


class Head:
    """Keeps the first ``limit_bytes`` of what ``take`` (a sink) is given, and counts all."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.seen_bytes = 0
        self._pieces: list[bytes] = []

    def take(self, payload: bytes) -> None:
        """More bytes."""
        if self.seen_bytes < self.limit_bytes:
            self._pieces.append(payload)
        self.seen_bytes += len(payload)

    def content(self) -> bytes:
        """What was kept."""
        return b"".join(self._pieces)[: self.limit_bytes]
