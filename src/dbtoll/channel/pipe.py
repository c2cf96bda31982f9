"""A program's standard input and output as a line."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

_STALLED_S: Final = 120.0
"""An agent always reads; one that takes no byte for so long hangs."""

_CLOSE_S: Final = 30.0
"""What the agent may take to end everything it started; then it is killed."""


class PipeStream:
    """Starts ``argv`` and implements interfaces.ByteStream over its pipes. Closing it ends the program.

    The program gets a session of its own: a Ctrl-C at the terminal is dbtoll's to handle, it must not end the agent
    before dbtoll has tidied up.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        # In memory: an agent may be needed where no temporary file can be made.
        self._errors = os.fdopen(os.memfd_create("dbtoll-agent-errors"), "r+b")
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        self._close_lock = threading.Lock()
        os.set_blocking(self._input.fileno(), False)
        self._writable = select.poll()
        self._writable.register(self._input, select.POLLOUT)

    @property
    def pid(self) -> int:
        """Of the program."""
        return self._process.pid

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; b"" when the program has ended."""
        return os.read(self._output.fileno(), size)

    def write(self, data: bytes) -> None:
        """All of ``data``. Raises OSError when the program is gone, TimeoutError when it takes nothing."""
        rest = memoryview(data)
        while rest:
            if not self._writable.poll(_STALLED_S * 1000):
                raise TimeoutError(f"process {self.pid} took no byte for {_STALLED_S:g} s")
            try:
                rest = rest[os.write(self._input.fileno(), rest) :]
            except BlockingIOError:
                continue  # a pipe counts as writable with less room than was asked for

    def close(self) -> None:
        """End its input, wait until it has ended; kill it if it does not. Also twice."""
        with self._close_lock:
            if self._input.closed:
                return
            self._input.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """How it ended, and the last it wrote to its error output."""
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return ""
        end = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 400))
        words = self._errors.read().decode(errors="replace").strip()
        return f"{end}; {words}" if words else end


def _signal_name(number: int) -> str:
    """A real-time signal has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
