"""Rounds measured for a figure of the instrument itself: little is shown, and nothing that is found ends them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dbtoll.analysis.effects.stopping import ROUNDS_MAX
from dbtoll.analysis.visits.units import VisitTotals, totals
from dbtoll.model.plan import Round
from dbtoll.progress import Progress
from dbtoll.runner.budget import Budget
from dbtoll.runner.preparation import inputs
from dbtoll.runner.rounds import RoundRun
from dbtoll.selfbench.support.certificate import Say
from dbtoll.store.reader import Run
from dbtoll.store.schema import Record, Visit


class Quiet:
    """A watch that shows no interval. Once a minute it says what is done (`Progress.SILENCE_S`)."""

    settled = frozenset[str]()
    rounds_with_effect: Mapping[str, int] = MappingProxyType({})

    def __init__(self, say: Say) -> None:
        self.say = say
        self._said = time.monotonic()

    def larger_budget(self, budget_s: float) -> bool:
        self.say(f"the budget is {budget_s:.0f} s instead: within its own nothing could be decided")
        return True

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        """What is done, if for a minute nothing was said of it."""
        now = time.monotonic()
        if now - self._said >= Progress.SILENCE_S:
            self._said = now
            self.say(f"round {round_index + 1}  {done}/{of}  {doing}")

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        """The budget and the most rounds end it, and nothing that is found."""
        return ROUNDS_MAX if len(run.complete_rounds) >= run.plan.experiment.precision.rounds_max else None


def measured(prepared: inputs.Prepared, rounds: Sequence[Round], watch: Quiet) -> list[VisitTotals]:
    """The steady visits of these rounds."""
    records: list[Record] = []
    for round_ in rounds:
        run = RoundRun(
            prepared.context, prepared.inputs, round_, records.append, watch, Budget(math.inf), None, seen_plans=set()
        )
        run.measure()
    return [totals(record) for record in records if isinstance(record, Visit) and not record.first_execution]
