"""Writing for people: notices on standard error, tables on standard output; whole lines where no terminal shows them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dbtoll.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

UNLIMITED = 10_000
"""Columns of what is no terminal: a log or a pipe folds nothing, and neither do we."""


class Terminal(Console):
    """Standard error, which may go away in mid-run (a closed terminal, ``| head``): the run and its teardown go on."""

    def __init__(self, *, quiet: bool = False) -> None:
        # Of what is no terminal a line stays a line, however long it is.
        super().__init__(stderr=True, quiet=quiet, highlight=False, soft_wrap=not sys.stderr.isatty())

    def on_broken_pipe(self) -> None:
        """Say no more; rich would end the program here."""
        self.quiet = True

    def say(self, text: str) -> None:
        """One notice, without anything that a terminal would obey."""
        with suppress(OSError):
            self.print(Text(printable(text, lines=True)))


def notices(*, quiet: bool = False) -> Callable[[str], None]:
    """What says a notice on standard error; nothing if ``quiet``."""
    return Terminal(quiet=quiet).say


def print_tables(shown: RenderableType) -> None:
    """On standard output: as wide as the terminal; where there is none, no line is folded or padded."""
    if sys.stdout.isatty():
        Console(highlight=False).print(shown)
        return
    written = io.StringIO()
    Console(file=written, width=UNLIMITED, highlight=False).print(shown)
    for line in written.getvalue().splitlines():
        print(line.rstrip())
