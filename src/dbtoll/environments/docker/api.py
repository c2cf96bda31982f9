"""The Docker Engine API of any machine: the SDK over a bridge, and a container's streams as one line to its agent.

The SDK wants a Unix socket here; the daemon's is on a machine that only an agent may reach. So a socket of ours hands
every connection to ``machine.connect``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Self

from dbtoll.channel.output_buffer import Tail
from dbtoll.channel.relay import ByteTimestamps
from dbtoll.errors import ChannelError, DbtollError, ProgramFailed, Unavailable
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.socket_proxy import bridge, shut

if TYPE_CHECKING:
    from docker import APIClient

API_TIMEOUT_S = 120.0
"""The slowest calls (starting a container on a busy disk) take seconds."""

PING_TIMEOUT_S = 10.0

RESPONSE_HEAD_MAX_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16


class Api:
    """The API behind ``path`` on ``machine``. ``client`` is the SDK's; use it while this is open."""

    client: APIClient

    def __init__(self, machine: AgentMachine, path: str, *, timeout_s: float = API_TIMEOUT_S) -> None:
        self._machine = machine
        self._timeout_s = timeout_s
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: list[socket.socket] = []
        # The socket has no name any more when the SDK connects to it: nobody else can, and a killed run leaves no file.
        with tempfile.TemporaryDirectory(prefix="dbtoll-") as directory:
            held = os.open(directory, os.O_PATH)
            try:
                name = f"/proc/self/fd/{held}/socket"  # the path itself may have more than unix(7)'s 107 bytes
                self._listener.bind(name)
                self._handle: int | None = os.open(name, os.O_PATH)
            finally:
                os.close(held)
        try:
            self._listener.listen()
            threading.Thread(target=self._accept, name=f"{machine.name}: {path}", daemon=True).start()
            self.client = self._connected(f"/proc/self/fd/{self._handle}")
        except BaseException:
            self.close()
            raise

    def _connected(self, here: str) -> APIClient:
        import docker  # takes a tenth of a second, which only those who use it shall pay

        try:
            client = docker.APIClient(base_url=f"unix://{here}", version="auto", timeout=int(self._timeout_s))
        except docker.errors.DockerException as error:
            raise Unavailable(
                f"{self._machine.name}: no Docker API answers at {self.path}: {error}", "start that daemon"
            ) from error
        # Each connection is a stream to the machine's agent, which has no more than some hundreds for all containers: none stays.
        client.headers["Connection"] = "close"
        return client

    def close(self) -> None:
        """Also twice."""
        if hasattr(self, "client"):
            self.client.close()
        shut(self._listener)  # wakes its thread
        self._listener.close()
        for connection in self._open:
            shut(connection)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._relay, args=(connection,), daemon=True).start()

    def _relay(self, here: socket.socket) -> None:
        with here:
            try:
                there = self._machine.connect(unix=self.path)
            except DbtollError:
                return  # the SDK sees a connection that was closed and says so
            with there:
                bridge(here, there)
        self._open.remove(here)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AttachedStream:
    """Standard input and output of a container as a ByteStream, Stamped by the relay to the daemon.

    The API answers ``attach`` by switching the connection over: what is written goes in raw, what comes out has 8 bytes
    before each piece: 1 or 2 for output or error output, three zeros, the size in big-endian (Engine API: "stream
    format").
    BIAS: the stamps are those of the daemon's socket: daemon and shim copy each byte once more, inside the bracket.
    """

    def __init__(self, machine: AgentMachine, api_path: str, api_version: str, container: str) -> None:
        self._stream = machine.connect(unix=api_path, stamps=True)
        self._input_offset = 0
        self._taken = 0
        """Bytes of the connection that were taken out of ``_buffer`` so far."""
        self._buffer = b""
        self._piece_rest = 0
        self._output_count = 0
        self._passages = ByteTimestamps()
        self._errors = Tail(1 << 16)
        try:
            self._switch(
                f"POST /v{api_version}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
                "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
            )
        except BaseException:
            self._stream.close()
            raise

    def _switch(self, request: str) -> None:
        self.write(request.encode())
        self._input_offset = len(request)
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > RESPONSE_HEAD_MAX_BYTES or not self._fill():
                raise ChannelError(f"the Docker API did not answer `attach`: {self._buffer[:200]!r}")
        head, _, _ = self._buffer.partition(b"\r\n\r\n")
        self._take(len(head) + 4)
        # 200 is the older way of saying the same.
        if head.split(b" ", 2)[1] not in (b"101", b"200"):
            length = re.search(rb"(?i)^content-length:\s*(\d{1,6})\s*$", head, re.MULTILINE)
            while len(self._buffer) < (int(length[1]) if length else 0) and self._fill():
                pass
            raise ProgramFailed(
                f"the Docker API refused `attach`: {head.splitlines()[0].decode(errors='replace')}: {_told(self._buffer)}",
                "its log says more",
            )

    def read(self, size: int) -> bytes:
        """The container's standard output; its error output is kept for ``last_words``."""
        while True:
            while not self._piece_rest:
                if len(self._buffer) >= 8:
                    self._kind, self._piece_rest = struct.unpack(">BxxxI", self._take(8))
                elif not self._fill():
                    return b""
            if not self._buffer and not self._fill():
                return b""
            data = self._take(min(size, self._piece_rest))
            self._piece_rest -= len(data)
            if self._kind == 1:
                self._output_count += len(data)
                self._passages.add(self._output_count, self._taken)
                return data
            self._errors.take(data)

    def write(self, data: bytes) -> None:
        """To the container's standard input."""
        self._stream.write(data)

    def close(self) -> None:
        """End the container's standard input and wait for the end of its output. Also twice."""
        self._stream.close()

    def written_at(self, count: int) -> int | None:
        """When the first ``count`` bytes had been written to the daemon's socket."""
        return self._stream.written_at(self._input_offset + count)

    def read_at(self, count: int) -> int | None:
        """When the first ``count`` bytes of output had been read from the daemon's socket."""
        mark = self._passages.mark_of(count)
        return None if mark is None else self._stream.read_at(mark)

    def last_words(self) -> str:
        """The end of the container's error output."""
        return self._errors.content().decode(errors="replace").strip()[-400:]

    def _fill(self) -> bool:
        data = self._stream.read(_PIECE_BYTES)
        self._buffer += data
        return bool(data)

    def _take(self, size: int) -> bytes:
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        self._taken += len(data)
        return data


def _told(body: bytes) -> str:
    """The message in an answer of the API: JSON, unless something else answers there."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:400]


def answers(machine: AgentMachine, path: str) -> bool:
    """Whether a daemon answers at ``path`` on ``machine``, soon."""
    try:
        with Api(machine, path, timeout_s=PING_TIMEOUT_S):
            return True
    except DbtollError:
        return False


def reason(error: Any) -> str:
    """What the daemon said, without the SDK's words around it."""
    return str(getattr(error, "explanation", None) or error)
