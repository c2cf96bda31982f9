"""A socket of ours as the near end of a stream on another machine, for libraries that want a socket."""

from __future__ import annotations

import contextlib
import socket
import threading

from dbtoll.channel.relay import RelayStream
from dbtoll.errors import DbtollError

_PIECE_BYTES = 1 << 16


def bridge(here: socket.socket, there: RelayStream) -> None:
    """Pass bytes both ways; returns when both directions have ended. ``here`` and ``there`` stay the caller's to close."""
    answers = threading.Thread(target=_pump_back, args=(there, here), daemon=True)
    answers.start()
    with contextlib.suppress(OSError, DbtollError):
        while data := here.recv(_PIECE_BYTES):
            there.write(data)
        there.half_close()
    answers.join()


def shut(connection: socket.socket) -> None:
    """Wake whoever reads from it or waits on it; also where it is shut already."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _pump_back(there: RelayStream, here: socket.socket) -> None:
    with contextlib.suppress(OSError, DbtollError):
        while data := there.read(_PIECE_BYTES):
            here.sendall(data)
    shut(here)
