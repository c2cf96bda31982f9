"""The pilot round, which sizes all others."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dbtoll.errors import EngineError
from dbtoll.model.experiment import Experiment
from dbtoll.plan import Plan
from dbtoll.runner.budget import Budget
from dbtoll.runner.cleanup.signals import Stop
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.rounds import RoundRun, Watch
from dbtoll.store import schema

ROUNDS_WANTED = 10
"""How many rounds the budget is dealt to, by choosing the blocks of a round: the start is the unit of replication, and
beyond ten the t quantile falls too little to pay for more starts."""

BLOCKS_MAX = 10

SLOW_FACTOR = 3.0
"""An arm that takes so many times the baseline's time for a block of a phase takes part in one block of it: it would take most
of the budget, and where a loss is that large a few per cent more or less of it matter to nobody."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a round was seen to cost (seconds): the fixed part, each block of all its timed phases, and the only block of the slow.

    ``slow``: arm -> levels of the phases in which it takes so long that it takes part in one block, however many there are.
    """

    fixed_s: float
    block_s: float
    slow_s: float = 0.0
    slow: dict[str, tuple[dict[str, str], ...]] = field(default_factory=dict)

    def round_s(self, blocks: int) -> float:
        return self.fixed_s + self.slow_s + blocks * self.block_s

    def blocks(self, budget_s: float, rounds_min: int) -> int:
        """As many as let ROUNDS_WANTED rounds fit. Where starts are dear, so many that they pay, if ``rounds_min`` rounds fit.

        With a cost of ``fixed`` for a start and ``block`` for each of its blocks, and starts that differ about as much as blocks
        do, the square root of ``fixed / block`` blocks in each make the interval shortest (Cochran: Sampling Techniques, 1977,
        §10.6).
        """
        if self.block_s <= 0:
            return BLOCKS_MAX
        start_s = self.fixed_s + self.slow_s
        wanted, possible = (int((budget_s / rounds - start_s) / self.block_s) for rounds in (ROUNDS_WANTED, rounds_min))
        paying = round(math.sqrt(start_s / self.block_s))
        return max(1, min(BLOCKS_MAX, max(wanted, min(paying, possible))))


def run_pilot_round(prepared: Prepared, watch: Watch, stop: Stop) -> Pilot:
    """A round of one block, measured for its length only. DbtollError if the baseline or its copy does not get through."""
    experiment = prepared.inputs.experiment
    watch.say("pilot: one round of one block, to see how many fit into the budget")
    records: list[schema.Record] = []
    plan = Plan(experiment, prepared.queries, 1, {}).round(-1)
    budget, deferring = Budget(float("inf")), stop.deferring_signals
    run = RoundRun(
        prepared.context, prepared.inputs, plan, records.append, watch, budget, None, set(), deferring=deferring
    )
    begin = time.monotonic()
    run.measure()
    whole_s = time.monotonic() - begin
    for start in (record for record in records if isinstance(record, schema.Start) and record.outcome != "ok"):
        if experiment.baseline in (start.arm, experiment.arm(start.arm).copy_of):
            raise EngineError(f"the baseline cannot be measured: {start.arm}: {start.reason}", "see `dbtoll doctor`")
    slow: dict[str, tuple[dict[str, str], ...]] = {}
    slow_s = 0.0
    for phase in (phase for phase in plan.phases if phase.kind == "timed"):
        of_phase = [record for record in records if isinstance(record, schema.Visit) and record.levels == phase.levels]
        by_arm = visits_s(of_phase, timed=set(prepared.queries))
        for arm in slow_arms(experiment, by_arm):
            slow[arm] = (*slow.get(arm, ()), dict(phase.levels))
            slow_s += by_arm[arm]
    return Pilot(fixed_s=whole_s - run.timed_s, block_s=run.timed_s - slow_s, slow_s=slow_s, slow=slow)


def slow_arms(experiment: Experiment, by_arm: Mapping[str, float]) -> list[str]:
    """Those that take more than SLOW_FACTOR times as long as the baseline. ``by_arm``: see visits_s.

    A copy is one where its original is, also if it stood still for a while: both take part in the same blocks.
    """
    limit_s = SLOW_FACTOR * by_arm[experiment.baseline]
    return [arm for arm in by_arm if by_arm.get(experiment.arm(arm).copy_of or arm, 0.0) > limit_s]


def visits_s(visits: Sequence[schema.Visit], timed: Collection[str]) -> dict[str, float]:
    """Arm -> time of its visits after the warm-up, by the clock of whoever drove it (its own where nobody else did).

    ``timed``: the workload's queries; what is only counted or probed is left out.
    """
    total: dict[str, float] = {}
    for visit in visits:
        if not visit.first_execution and visit.counts is None and visit.query in timed:
            begin_ns = visit.start_ns if visit.host_start_ns is None else visit.host_start_ns
            end_ns = visit.end_ns if visit.host_end_ns is None else visit.host_end_ns
            total[visit.arm] = total.get(visit.arm, 0.0) + (end_ns - begin_ns) / 1e9
    return total
