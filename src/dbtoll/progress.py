"""What is shown while a run goes on, and the decision after each round whether another one is worth it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.prompt import Confirm
from rich.text import Text

from dbtoll.analysis.effects import stopping
from dbtoll.model.experiment import Experiment
from dbtoll.report.text import numbers
from dbtoll.store.reader import Run
from dbtoll.terminal import Terminal


class Progress:
    """Live line on a terminal; elsewhere a line for each round, and one for each minute without any. Always on standard error.
    Implements runner.rounds.Watch. ``quiet``: says nothing.

    BIAS: drawing costs CPU time of the processors that are not the arms'; with one processor for all it is drawn between
    visits only, at most four times a second.
    """

    INTERVAL_S = 0.25
    SILENCE_S = 60.0
    """Longer than this nothing is silent where no terminal shows a live line: a job's log must tell work from a hang."""

    def __init__(self, experiment: Experiment, *, quiet: bool = False, yes: bool = False) -> None:
        self.experiment = experiment
        self._yes = yes
        self._console = Terminal(quiet=quiet)
        shows = sys.stderr.isatty() and not quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if shows else None
        self._interval = ""
        self._drawn = 0.0
        self._said = time.monotonic()
        self._pilot_began: float | None = None
        self._looked = False
        self.settled = frozenset[str]()
        self.rounds_with_effect: Mapping[str, int] = {}

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
        self._said = time.monotonic()
        self._console.say(text)

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        now = time.monotonic()
        is_pilot = math.isinf(left_s)  # nobody knows yet how long a round takes
        if is_pilot and self._pilot_began is None:
            self._pilot_began = now
        if now - self._drawn < self.INTERVAL_S if self._live else now - self._said < self.SILENCE_S:
            return
        self._drawn = now
        head = "pilot" if is_pilot else f"round {round_index + 1}"
        if is_pilot:
            left_s = self._left_of_pilot_s(now, done, of) + self.experiment.precision.budget_s
        line = f"{head}  {done}/{of}  {doing}{_left(left_s)}"
        if self._live is None:
            self.say(line)
            return
        text = Text(line, no_wrap=True, overflow="ellipsis")
        if self._interval:
            text.append(f"\n{self._interval}")
        with suppress(OSError):
            self._live.update(text, refresh=True)

    def _left_of_pilot_s(self, now: float, done: int, of: int) -> float:
        """As long for each visit that is to come as for those that were made; infinite before the first one."""
        began = now if self._pilot_began is None else self._pilot_began
        return (now - began) * (of - done) / done if done else math.inf

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        """The interval so far, and whether it is narrow enough (analysis.effects.stopping); neither between two looks."""
        rounds, precision = len(run.counted), self.experiment.precision
        # The first time also between two looks: a run that goes on must know who is settled.
        if self._looked and not stopping.must_look(elapsed_s, next_round_s, precision, rounds):
            self.say(f"round {rounds} at {elapsed_s:.0f} s")
            return None
        seen = stopping.look(run, precision, elapsed_s=elapsed_s, next_round_s=next_round_s)
        self._looked, self.settled, self.rounds_with_effect = True, seen.settled, seen.rounds
        self._interval = "  ".join(
            f"{arm} {numbers.EffectText(seen.metric, found.estimate, found.low, found.high).text}"
            for arm, found in seen.intervals.items()
        )
        needed = seen.decision.rounds_needed
        more = ""
        if needed and not seen.decision.stop:
            still_s = max(0, needed - rounds) * next_round_s
            more = f", about {numbers.plural(needed, 'round')} needed for the target ({numbers.span(still_s)} more)"
        left = "" if seen.decision.stop else _left(precision.budget_s - elapsed_s)
        if rounds:
            self.say(f"round {rounds} at {elapsed_s:.0f} s{more}: {self._interval or 'no interval yet'}{left}")
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


def _left(left_s: float) -> str:
    """``  7:37 left``; nothing where it is not known."""
    return f"  {int(left_s) // 60}:{int(left_s) % 60:02d} left" if 0 <= left_s < math.inf else ""
