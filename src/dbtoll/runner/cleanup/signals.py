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
    """Turns the first of these signals into a KeyboardInterrupt, at once or at the end of what must not be cut.

    A KeyboardInterrupt can be lost: a clean-up on its way may fail with another error, which is then taken for all that went wrong.
    So it is raised again after all that signals were deferred for, until somebody says that the wish is `granted`.
    """

    def __init__(self) -> None:
        self.asked = False
        self._granted = False
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
        if self.asked:
            self._interrupt()

    def granted(self) -> None:
        """All goes to its end now, which nothing is to interrupt."""
        self._granted = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            with suppress(OSError):  # a terminal that has gone away
                os.write(2, PATIENCE)
            return
        self.asked = True
        self._interrupt()

    def _interrupt(self) -> None:
        if not self._holds and not self._granted:
            raise KeyboardInterrupt
