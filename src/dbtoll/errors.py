"""Every error that a user can meet, with its exit code (sysexits.h, so that 0, 1, 2 and 3 stay free for what a run says).

A message is one sentence that says what is wrong and where; ``hint`` is one that says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dbtoll.text import printable

NO_OUTPUT = 74
"""EX_IOERR."""
NO_VERDICT_POSSIBLE = 3
"""Where the budget would end before anything can be decided, and nobody could be asked for a larger one."""
NO_PERMISSION = 77
"""EX_NOPERM."""
INTERRUPTED = 130
"""Of what its user stopped: 128 and the number of SIGINT, as shells have it."""
NOBODY_READS = 141
"""128 and the number of SIGPIPE."""

EXIT_CODES = {
    0: "It did what was asked. With --max-overhead: every arm is within the limit.",
    1: "With --max-overhead: an arm exceeds the limit. `selfbench`: a figure is out of its bounds.",
    2: "With --max-overhead: undecided.",
    NO_VERDICT_POSSIBLE: "Within the budget nothing can be decided, so nothing was measured; the last line says how to go on.",
    64: "The command line asks for something that does not exist.",
    65: "A specification, an SQL directory or an image is faulty.",
    66: "A run folder is missing, incomplete or damaged, or cannot be written.",
    69: "This machine lacks what was asked for.",
    70: "A check voids the run, something could not be removed, or dbtoll has a defect.",
    71: "A server, a program or an agent failed.",
    NO_OUTPUT: "A disk is full, or the output cannot be written.",
    76: "The connection to an agent broke.",
    NO_PERMISSION: "The user may not do this.",
    INTERRUPTED: "Its user stopped it. What was measured is kept, and the last line says how to go on.",
    NOBODY_READS: "Nobody reads the output any more.",
}
"""Every exit code of every command, with its meaning. Those from 64 to 78 are those of sysexits.h."""


class DbtollError(Exception):
    """The root: ``message`` (what and where), ``hint`` (what to do), ``exit_code``.

    A message may quote what an arm, a file or its name says: it is made printable, for it ends in a terminal.
    """

    exit_code = 70  # EX_SOFTWARE
    parts: tuple[DbtollError, ...] = ()
    """The single errors of which it is `together`."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = printable(message, lines=True)
        self.hint = printable(hint, lines=True)
        super().__init__(self.message)

    @property
    def in_one_line(self) -> str:
        """What is wrong and what to do, for a record or a line of progress."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(DbtollError):
    """The command line asks for something that does not exist."""

    exit_code = 64  # EX_USAGE


class SpecError(DbtollError):
    """A specification is wrong; the message begins with ``file:line``."""

    exit_code = 65  # EX_DATAERR


E = TypeVar("E", bound=DbtollError)


def together(errors: Sequence[E]) -> E:
    """One error that says all of them, each once and with its hint. ``errors``: of one class that takes message and hint, at least
    one."""
    single = [part for error in errors for part in error.parts or (error,)]
    said = list(dict.fromkeys(str(error) for error in single))
    if len(said) == 1:
        return errors[0]
    joined = type(errors[0])("\n".join([f"{len(said)} faults:", *said]))
    joined.parts = tuple(single)
    return joined


class ImageError(DbtollError):
    """A system image or a kernel package is damaged, made in bad faith, or of a form that cannot be read."""

    exit_code = 65  # EX_DATAERR


class RunFolderError(DbtollError):
    """A run folder is incomplete, damaged or of another schema; names file and line."""

    exit_code = 66  # EX_NOINPUT


class Unavailable(DbtollError):
    """This machine lacks what was asked for; ``hint`` is the command that brings it."""

    exit_code = 69  # EX_UNAVAILABLE


class ChannelError(DbtollError):
    """A line to an agent broke: changed or lost bytes, another protocol version, the end of its machine."""

    exit_code = 76  # EX_PROTOCOL


class AgentFailure(DbtollError):
    """An agent answered ERROR. ``code`` is one of the codes in docs/PROTOCOL.md, ``detail`` its JSON detail."""

    exit_code = 71  # EX_OSERR

    def __init__(self, code: str, message: str, detail: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail or {}


class ProgramFailed(DbtollError):
    """A program that had to succeed on a machine did not; the message holds its last lines."""

    exit_code = 71


class EngineError(DbtollError):
    """A database server did not start, stop or answer as it must."""

    exit_code = 71


class BudgetTooSmall(DbtollError):
    """The pilot has shown that nothing can be decided within the budget; nothing was measured."""

    exit_code = NO_VERDICT_POSSIBLE


class Invalid(DbtollError):
    """It ran, but a check voids it (DESIGN §2, outcome ``invalid``)."""

    exit_code = 70


class Stopped(DbtollError):
    """Its user stopped a command, or a run that others were to follow."""

    exit_code = INTERRUPTED
