"""Small things of text: what somebody else wrote, made harmless for whoever looks at it; and numbers of things."""

from __future__ import annotations

from collections.abc import Sequence

SPACES = ("\N{NARROW NO-BREAK SPACE}", "\N{THIN SPACE}", "\N{NO-BREAK SPACE}")
LINES = ("\n", "\t")


def noun(count: int, one: str, many: str | None = None) -> str:
    """``round`` for one, ``rounds`` for all other numbers."""
    return one if count == 1 else many or one + "s"


def listed(names: Sequence[str]) -> str:
    """``a, b and c``"""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def printable(text: str, *, lines: bool = False) -> str:
    """Without anything that a terminal would obey, or that shows text in another order than it has: ESC, backspace, the controls of
    writing direction … (all that Unicode calls "other"). ``lines``: more than one line may be told."""
    if text.isprintable():
        return text
    kept = (*SPACES, *LINES) if lines else SPACES
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)
