"""The pilot: a round of one block, which sizes all others."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dbtoll.errors import EngineError
from dbtoll.model.experiment import Experiment, Precision
from dbtoll.model.neighbours import FAULTS, NEIGHBOUR
from dbtoll.plan import Plan, thinned_arms
from dbtoll.runner.budget import Budget
from dbtoll.runner.cleanup.signals import Stop
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.rounds import RoundRun, Watch
from dbtoll.store import schema
from dbtoll.store.reader import answered_wrongly

ROUNDS_WANTED = 10
"""How many rounds the budget is dealt to, by choosing the blocks of a round: the start is the unit of replication, and
beyond ten the t quantile falls too little to pay for more starts."""

COUNTS_UP_TO_BLOCKS = 2
"""The pilot is the first round where the others have no more blocks than this. Beside rounds of many blocks one of a single block
makes the interval longer than it would be without it, where most of the noise is of the blocks (docs/adr/0027)."""

SLOW_FACTOR = 3.0
"""An arm that takes so many times the baseline's time for a block of a phase takes part in one block of it: it would take most
of the budget, and where a loss is that large a few per cent more or less of it matter to nobody. One that does so in every phase
takes part in as many rounds as a verdict needs, or as the specification gives it (``rounds_slow``), and no more (docs/adr/0026)."""


@dataclass(frozen=True, slots=True)
class ArmCost:
    """What an arm takes of a round, s: ``fixed_s`` for its start, warm-up, checks and end; ``block_s`` for one block of all timed
    phases, of which ``slow_s`` is for those in which it takes part in one block only."""

    fixed_s: float = 0.0
    block_s: float = 0.0
    slow_s: float = 0.0

    def of(self, blocks: int) -> float:
        """Of a round of so many blocks."""
        return self.fixed_s + self.slow_s + blocks * (self.block_s - self.slow_s)


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a round was seen to cost: each arm's share, and ``shared_s`` that is no arm's.

    ``slow``: arm -> levels of the phases in which it takes so long that it takes part in one block, however many there are.
    ``thinned``: those that are slow in all phases.
    """

    shared_s: float
    arms: Mapping[str, ArmCost]
    slow: dict[str, tuple[dict[str, str], ...]] = field(default_factory=dict)
    thinned: frozenset[str] = frozenset()

    def round_s(self, blocks: int, without: Collection[str] = ()) -> float:
        """Of a round of so many blocks, ``without`` some arms."""
        return self.shared_s + sum(cost.of(blocks) for name, cost in self.arms.items() if name not in without)

    def rounds_s(self, blocks: int, rounds: int, precision: Precision) -> float:
        """How long so many take; after ``rounds_of_slow`` of them the thinned arms are left out."""
        whole = min(rounds, precision.rounds_of_slow)
        return whole * self.round_s(blocks) + (rounds - whole) * self.round_s(blocks, self.thinned)

    def rounds(self, blocks: int, precision: Precision) -> int:
        """How many fit into the budget. After ``rounds_of_slow`` of them the thinned arms are left out."""
        whole_s, later_s = self.round_s(blocks), self.round_s(blocks, self.thinned)
        left_s = precision.budget_s - precision.rounds_of_slow * whole_s
        if left_s < 0:
            return int(precision.budget_s // whole_s)
        return precision.rounds_of_slow + (int(left_s // later_s) if later_s > 0 else 0)

    def blocks(self, precision: Precision) -> int:
        """As many as let ROUNDS_WANTED rounds fit. Where starts are expensive, so many that they pay, if as many rounds as decide
        fit.

        With a cost of ``start`` for a round's starts and ``block`` for each of its blocks, and starts that differ about as much as
        blocks do, the square root of ``start / block`` blocks in each make the interval shortest (Cochran: Sampling Techniques,
        1977, §10.6).
        """
        block_s = self.round_s(1) - self.round_s(0)
        start_s = self.round_s(0, self.thinned)
        budget_s = precision.budget_s - precision.rounds_of_slow * (self.round_s(0) - start_s)
        if block_s <= 0:
            return precision.blocks_max
        wanted, possible = (
            int((budget_s / rounds - start_s) / block_s) for rounds in (ROUNDS_WANTED, precision.rounds_to_decide)
        )
        paying = round(math.sqrt(start_s / block_s))
        return max(1, min(precision.blocks_max, max(wanted, min(paying, possible))))


@dataclass(frozen=True, slots=True)
class PilotRound:
    """The records of round 0, how long it took, and what it tells of the others."""

    records: tuple[schema.Record, ...]
    whole_s: float
    pilot: Pilot


def run_pilot_round(prepared: Prepared, logs: Path, watch: Watch, stop: Stop) -> PilotRound:
    """Round 0 with one block; whether it counts shows by how many the others get. ``logs``: where those of its arms are kept.

    DbtollError if the baseline or its copy does not get through.
    """
    experiment = prepared.inputs.experiment
    watch.say("pilot: a round of one block, to see how many fit into the budget")
    records: list[schema.Record] = []
    plan = Plan(experiment, prepared.queries, 1, {}, pilot=True).round(0)
    budget, deferring = Budget(float("inf")), stop.deferring_signals
    run = RoundRun(
        prepared.context, prepared.inputs, plan, records.append, watch, budget, logs, set(), deferring=deferring
    )
    begin = time.monotonic()
    run.measure()
    whole_s = time.monotonic() - begin
    for start in (record for record in records if isinstance(record, schema.Start) and record.outcome != "ok"):
        if experiment.baseline in (start.arm, experiment.arm(start.arm).copy_of):
            raise EngineError(f"the baseline cannot be measured: {start.arm}: {start.reason}", "see `dbtoll doctor`")
    for arm, query in answered_wrongly(records).items():
        if experiment.baseline in (arm, experiment.arm(arm).copy_of):
            raise EngineError(
                f"the baseline cannot be measured: {arm} answers {query} wrongly",
                f"make its answer definite (order by, no random()), or leave {query} out",
            )
    timed = [phase for phase in plan.phases if phase.kind == "timed"]
    slow: dict[str, tuple[dict[str, str], ...]] = {}
    for phase in timed:
        of_phase = [record for record in records if isinstance(record, schema.Visit) and record.levels == phase.levels]
        for arm in slow_arms(experiment, visits_s(of_phase, timed=set(prepared.queries))):
            slow[arm] = (*slow.get(arm, ()), dict(phase.levels))
    once = {number for number, phase in enumerate(plan.phases) if phase.levels.get(NEIGHBOUR) in FAULTS}
    slow_phases = {
        arm: {number for number, phase in enumerate(plan.phases) if phase.levels in slow[arm]} - once for arm in slow
    }
    costs = {
        arm: ArmCost(
            fixed_s=spent.untimed_s + sum(s for number, s in spent.timed_s.items() if number in once),
            block_s=sum(s for number, s in spent.timed_s.items() if number not in once),
            slow_s=sum(s for number, s in spent.timed_s.items() if number in slow_phases.get(arm, ())),
        )
        for arm, spent in run.spent.items()
    }
    pilot = Pilot(
        shared_s=whole_s - sum(cost.of(1) for cost in costs.values()),
        arms=costs,
        slow=slow,
        thinned=thinned_arms(experiment, slow),
    )
    return PilotRound(tuple(records), whole_s, pilot)


def slow_arms(experiment: Experiment, by_arm: Mapping[str, float]) -> list[str]:
    """Those that take more than SLOW_FACTOR times as long as the baseline. ``by_arm``: see visits_s.

    A copy is one where its original is, also if it stood still for a while: both take part in the same blocks. An arm against which
    others are held takes part where these do.
    """
    limit_s = SLOW_FACTOR * by_arm[experiment.baseline]
    copies, held = experiment.copies, experiment.held_against
    slow = {arm for arm in by_arm if by_arm.get(copies.get(arm, arm), 0.0) > limit_s}
    needed = {to for arm, to in held.items() if arm in by_arm and arm not in slow}
    return [arm for arm in by_arm if arm in slow and copies.get(arm, arm) not in needed]


def visits_s(visits: Sequence[schema.Visit], timed: Collection[str]) -> dict[str, float]:
    """Arm -> time of its visits after the warm-up, by the clock of whoever drove it (its own where nobody else did).

    ``timed``: the workload's queries; what is only counted or probed is left out.
    """
    total: dict[str, float] = {}
    for visit in visits:
        if not visit.first_execution and visit.counts is None and visit.query in timed:
            total[visit.arm] = total.get(visit.arm, 0.0) + max(map(_taken_ns, visit.units)) / 1e9
    return total


def _taken_ns(unit: schema.UnitVisit) -> int:
    begin_ns = unit.start_ns if unit.host_start_ns is None else unit.host_start_ns
    end_ns = unit.end_ns if unit.host_end_ns is None else unit.host_end_ns
    return end_ns - begin_ns
