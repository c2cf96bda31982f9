"""Figures and verdicts in plain words: the one place where a number becomes text, for terminal, HTML and figures.

Fractions come in (0.01 is 1 %), text goes out. Nothing here decides a verdict: the analysis did.

Digits: an interval is shown with two significant digits of its half-width, and its estimate with as many decimals, so
that no digit is printed which another run would not repeat (the rule of the GUM, JCGM 100:2008, 7.2.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


WORTH_NAMING, MOST = 0.2, 0.5
"""Of an overhead, by the lower bound: what explains less of it is not its cause in a word; what explains more is most of it."""
