"""The user's wish that a run ends: control-C, SIGTERM, or a terminal that goes away.

The first one ends the run through every teardown; those that come while that goes on change nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PATIENCE = (
    b"dbtoll: what this run made is being removed; please wait"
    b" (after SIGKILL, `dbtoll clean` would have to remove the rest)\n"
)


class Stop:
    """Turns the first of these signals into a KeyboardInterrupt, at once or at the end of what must not be cut."""

    def __init__(self) -> None:
        self.asked = False
        self._told = False
        self._holds = 0

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """While this lasts the signals end the run in order. One that was ignored (nohup) stays ignored."""
        former = {number: signal.getsignal(number) for number in SIGNALS}
        taken = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
        for number in taken:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number in taken:
                signal.signal(number, former[number])

    @contextmanager
    def deferring_signals(self) -> Iterator[None]:
        """Around what must be done as a whole: a signal meanwhile is obeyed afterwards."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self.asked and not self._holds:
            self._tell()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            with suppress(OSError):  # a terminal that has gone away
                os.write(2, PATIENCE)
            return
        self.asked = True
        if not self._holds:
            self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            raise KeyboardInterrupt
