"""What is shown while a run goes on, and the decision after each round whether another one is worth it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.prompt import Confirm
from rich.text import Text

from dbtoll.analysis.effects import stopping
from dbtoll.model.experiment import Experiment
from dbtoll.report.text import numbers
from dbtoll.store.reader import Run
from dbtoll.text import printable


class Terminal(Console):
    """Standard error, which may go away in mid-run (a closed terminal, ``| head``): the run and its teardown go on."""

    def on_broken_pipe(self) -> None:
        """Say no more; rich would end the program here."""
        self.quiet = True


class Progress:
    """Live line on a terminal, a line a round elsewhere; always on standard error. Implements runner.rounds.Watch.

    BIAS: drawing costs CPU time of the processors that are not the arms'; with one processor for all it is drawn between
    visits only, at most four times a second.
    """

    INTERVAL_S = 0.25

    def __init__(self, experiment: Experiment, *, quiet: bool = False, yes: bool = False) -> None:
        self.experiment = experiment
        self._yes = yes
        self._console = Terminal(stderr=True, quiet=quiet, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if sys.stderr.isatty() else None
        self._interval = ""
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._live:
            with suppress(OSError):
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            with suppress(OSError):
                self._live.stop()

    def say(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(Text(printable(text, lines=True)))

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        if self._live is None or time.monotonic() - self._drawn < self.INTERVAL_S:
            return
        self._drawn = time.monotonic()
        head = "pilot" if round_index < 0 else f"round {round_index + 1}"
        left = f"  {int(left_s) // 60}:{int(left_s) % 60:02d} left" if 0 <= left_s < float("inf") else ""
        line = Text(f"{head}  {done}/{of}  {doing}{left}", no_wrap=True, overflow="ellipsis")
        if self._interval:
            line.append(f"\n{self._interval}")
        with suppress(OSError):
            self._live.update(line, refresh=True)

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        """The interval so far, and whether it is narrow enough (analysis.effects.stopping); neither between two looks."""
        rounds, precision = len(run.counted), self.experiment.precision
        if not stopping.must_look(elapsed_s, next_round_s, precision, rounds):
            self.say(f"round {rounds} at {elapsed_s:.0f} s")
            return None
        seen = stopping.look(run, precision, elapsed_s=elapsed_s, next_round_s=next_round_s)
        self._interval = "  ".join(
            f"{arm} {numbers.EffectText(seen.metric, found.estimate, found.low, found.high).text}"
            for arm, found in seen.intervals.items()
        )
        needed = seen.decision.rounds_needed
        more = ""
        if needed and not seen.decision.stop:
            still_s = max(0, needed - rounds) * next_round_s
            more = f", about {numbers.plural(needed, 'round')} needed for the target ({numbers.span(still_s)} more)"
        if rounds:
            self.say(f"round {rounds} at {elapsed_s:.0f} s{more}: {self._interval or 'no interval yet'}")
        return seen.reason

    def larger_budget(self, budget_s: float) -> bool:
        """Asks on a terminal; yes without asking where its user has agreed to everything."""
        minutes = f"{budget_s / 60:.0f} min"
        if self._yes:
            self.say(f"the budget is {minutes} instead: within its own nothing could be decided")
        elif not (sys.stdin.isatty() and sys.stderr.isatty()) or not self._asked(minutes):
            return False
        precision = replace(self.experiment.precision, budget_s=budget_s)
        self.experiment = replace(self.experiment, precision=precision)
        return True

    def _asked(self, minutes: str) -> bool:
        if self._live:
            self._live.stop()
        try:
            return Confirm.ask(
                f"Within its budget nothing can be decided. Measure for {minutes} instead?",
                console=self._console,
                default=False,
            )
        except EOFError:
            return False
        finally:
            if self._live:
                self._live.start()
