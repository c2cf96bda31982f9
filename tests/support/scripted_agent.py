"""The other end of a line to an agent: a socket pair, spoken to frame by frame."""

from __future__ import annotations

import socket
import threading
from typing import Any

from dbtoll.channel.client import Channel
from dbtoll.channel.frames import Decoder, Encoder, Frame, Kind, json_payload
from dbtoll.model.json import Json

HELLO: Json = {
    "magic": "dbtoll",
    "role": "agent",
    "protocol": 1,
    "build": "0.1.0",
    "architecture": "x86_64",
    "pid": 17,
    "clock": {"source": "CLOCK_MONOTONIC", "resolution_ns": 1},
    "max_payload_bytes": 262144,
    "max_streams": 256,
    "window_bytes": 1 << 20,
}

USAGE: Json = dict.fromkeys(("wall_ns", "user_ns", "system_ns", "max_rss_bytes", "minor_faults", "major_faults"), 5)
ENDED: Json = {"exit_code": 0, "signal": None} | USAGE
"""An END of `run`."""


class SocketLine:
    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.closed = False

    def read(self, size: int) -> bytes:
        return self.end.recv(size)

    def write(self, data: bytes) -> None:
        self.end.sendall(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.end.shutdown(socket.SHUT_RDWR)
            self.end.close()


class ScriptedAgent:
    """Says what a test lets it say, and reads what the controller sends."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        self.end = ours
        self.line = SocketLine(theirs)
        self.encoder = Encoder()
        self.decoder = Decoder()

    def send(self, kind: Kind, stream: int, value: Json | bytes, channel: int = 0) -> None:
        payload = value if isinstance(value, bytes) else json_payload(value)
        self.end.sendall(self.encoder.encode(kind, stream, payload, channel))

    def receive(self) -> Frame:
        while (frame := self.decoder.take()) is None:
            data = self.end.recv(1 << 16)
            assert data, "the controller closed the line"
            self.decoder.feed(data)
        return frame

    def expect(self, kind: Kind, stream: int) -> Frame:
        frame = self.receive()
        assert (frame.kind, frame.stream) == (kind, stream)
        return frame

    def connect(self, hello: Json | None = None, **options: Any) -> Channel:
        self.send(Kind.HELLO, 0, HELLO | (hello or {}))
        channel = Channel(self.line, "arm", **options)
        assert self.expect(Kind.HELLO, 0).json()["role"] == "controller"
        return channel

    def leave(self) -> None:
        self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()


class Later:
    """Something that blocks, done in a thread."""

    def __init__(self, work: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.value = work()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def get(self) -> Any:
        self.thread.join(10)
        assert not self.thread.is_alive(), "it still blocks"
        if self.error is not None:
            raise self.error
        return self.value
