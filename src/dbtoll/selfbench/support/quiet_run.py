"""Rounds measured for a figure of the instrument itself: nothing is shown, and no rule ends them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dbtoll.analysis.visits.units import VisitTotals, totals
from dbtoll.model.plan import Round
from dbtoll.runner.budget import Budget
from dbtoll.runner.preparation import inputs
from dbtoll.runner.rounds import RoundRun
from dbtoll.selfbench.support.certificate import Say
from dbtoll.store.reader import Run
from dbtoll.store.schema import Record, Visit


class Quiet:
    """A watch that shows nothing."""

    settled = frozenset[str]()
    rounds_with_effect: Mapping[str, int] = MappingProxyType({})

    def __init__(self, say: Say) -> None:
        self.say = say

    def larger_budget(self, budget_s: float) -> bool:
        self.say(f"the budget is {budget_s:.0f} s instead: within its own nothing could be decided")
        return True

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        """Nothing."""

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return None


def measured(prepared: inputs.Prepared, rounds: Sequence[Round], watch: Quiet) -> list[VisitTotals]:
    """The steady visits of these rounds."""
    records: list[Record] = []
    for round_ in rounds:
        run = RoundRun(
            prepared.context, prepared.inputs, round_, records.append, watch, Budget(math.inf), None, seen_plans=set()
        )
        run.measure()
    return [totals(record) for record in records if isinstance(record, Visit) and not record.first_execution]
