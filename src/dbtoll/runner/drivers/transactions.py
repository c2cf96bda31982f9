"""Measurement windows of a transaction workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain

from msgspec import structs

from dbtoll.errors import EngineError
from dbtoll.interfaces.engine import DurabilityEngine
from dbtoll.interfaces.machine import Begun, Session, Terminals
from dbtoll.interfaces.workload import TransactionWorkload
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json
from dbtoll.model.neighbours import AGGRESSORS, FAULTS, LOADS, NEIGHBOUR, NONE
from dbtoll.model.plan import Block, Phase
from dbtoll.model.reply import WindowReply
from dbtoll.runner.arms import RunningArm, RunningServer, RunningUnit, as_tenant
from dbtoll.runner.drivers import devices
from dbtoll.runner.drivers.faults import striking
from dbtoll.runner.drivers.neighbours import acting
from dbtoll.runner.drivers.protocol import CPU, PROBLEM_MAX, VisitResult, ended, settle, together
from dbtoll.store import schema


@dataclass(frozen=True, slots=True)
class TransactionDriver:
    """Whole measurement windows, each begun with a checkpoint and never cut by a sleep (DESIGN §1.3)."""

    experiment: Experiment
    workload: TransactionWorkload

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """How durable commits are, and whether there are foreign keys; and whether the server gives the isolation that is asked
        for. The terminals of the phase connect when they are first needed."""
        engine, levels = running.engine, phase.levels

        def constrain(unit: RunningUnit) -> None:
            self.workload.constrain(unit.session(), engine.sql, levels["foreign_keys"])

        running.in_parallel([partial(constrain, unit) for unit, *_ in running.units_by_tables()])
        if not isinstance(engine, DurabilityEngine):
            return

        def make_durable(server: RunningServer) -> None:
            engine.make_durable(running.first_unit_of(server).session(), levels["durability"])

        def require_isolation(unit: RunningUnit) -> None:
            self._require_isolation(running.arm.name, engine, unit.new_session(), levels["isolation"])

        running.in_parallel([partial(make_durable, server) for server in running.servers])
        running.in_parallel([partial(require_isolation, unit) for unit in running.units])

    def _require_isolation(self, arm: str, engine: DurabilityEngine, session: Session, isolation: str) -> None:
        try:
            for statement in engine.session(isolation, multi_statement=self.workload.multi_statement):
                session.query(statement)
            told = engine.isolation(session)
        finally:
            session.close()
        if told != isolation:
            raise EngineError(f"{arm}: its sessions are {told}, not {isolation}", "")

    def make_ready(self, running: RunningArm, phase: Phase, *, first_execution: bool) -> None:
        """A checkpoint: what a collector looks at is the window alone."""
        if not _only_ramps_up(phase, first_execution=first_execution):
            settle(running)

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool
    ) -> VisitResult:
        """See VisitDriver. A first execution is a window too: the terminals' first."""
        levels, beside = phase.levels, phase.levels.get(NEIGHBOUR)
        seed = self.experiment.seed * 1000 + block.parameter_set
        # The neighbour is the last unit; beside an aggressor, and at `none`, its terminals rest.
        working = (
            running.units[:-1] if beside is not None and (beside == NONE or beside in AGGRESSORS) else running.units
        )
        terminals = [
            unit.terminals(levels["placement"], driver_parameters(running, unit, self.workload, levels, seed))
            for unit in working
        ]
        ramp_up_ns, window_ns, rate = self.workload.window_timing()
        if _only_ramps_up(phase, first_execution=first_execution):
            ramp_up_ns, window_ns = 0, ramp_up_ns or window_ns
        elif phase.kind == "counted":
            ramp_up_ns = 0
        rates = [rate] * len(working)
        if beside is not None and rate is not None and beside in LOADS:
            rates[-1] = rate * LOADS[beside]

        def begin(its: Terminals, arriving: float | None, hold: bool) -> Begun[WindowReply]:
            return its.window(ramp_up_ns=ramp_up_ns, window_ns=window_ns, rate=arriving, hold=hold)

        def measure(may_lose: int = 0) -> list[WindowReply]:
            asked = [partial(begin, *each) for each in zip(terminals, rates, strict=True)]
            return together(asked, may_lose=may_lose)

        if beside is not None and beside in FAULTS:
            with striking(running, beside, (ramp_up_ns + window_ns / 3) / 1e9) as fault:
                replies = measure(may_lose=1)
            running.lost = fault.lost()
            # BIAS: counters of what was lost are not there any more, so there are none of any unit.
            others = [
                # Who was refused is what the fault costs the others, and no reason to leave it out.
                structs.replace(self._found(unit, reply, {}), problem=None)
                for unit, reply in zip(working[:-1], replies, strict=False)
            ]
            return VisitResult(tuple(others), neighbour=fault.told(), is_last=True)

        acts = beside is not None and beside in AGGRESSORS
        aggressor = acting(running, beside or "", ramp_up_ns + window_ns) if acts else nullcontext()
        with aggressor as told:
            counters, used, replies = devices.around(running, measure)
        counted = counters.of(CPU)
        units = [self._found(*each) for each in zip(working, replies, counted.own, strict=False)]
        neighbour = told() if told is not None else None
        if beside in LOADS:
            neighbour = schema.Neighbour(unit=units.pop())
        elif neighbour is not None:
            neighbour = structs.replace(neighbour, cpu=counted.own[-1].get("cpu"))
        return VisitResult(tuple(units), shared=counted.shared, devices=used, neighbour=neighbour)

    def _found(self, unit: RunningUnit, reply: WindowReply, own: Json) -> schema.UnitVisit:
        unit.executed.update({name: ended(kind) for name, kind in reply.counts["transactions"].items()})
        refusal = reply.counts.get("refusal")
        return schema.UnitVisit(
            start_ns=reply.start_ns,
            begin_ns=reply.begin_ns,
            end_ns=reply.end_ns,
            host_start_ns=reply.host_start_ns,
            host_end_ns=reply.host_end_ns,
            held_ns=reply.held_ns,
            host_held_ns=reply.host_held_ns,
            host_asked_ns=reply.host_asked_ns,
            window={
                "length_ns": reply.until_ns - reply.from_ns,
                "throughput_transaction": self.workload.throughput_transaction,
                **reply.counts,
            },
            problem=f"connections were refused: {refusal}"[:PROBLEM_MAX] if refusal else None,
            **own,
        )

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """Of the conditions that the workload's specification states, in each set of tables, and of its mix in each unit; None
        where the servers keep nothing, or a fault has taken them all."""
        if not running.engine.returns_rows:
            return None
        of_all = as_tenant(self.workload, running.arm.layout)
        left = running.left_by_tables()
        if not left:
            return None

        def violated(units: Sequence[RunningUnit]) -> list[str]:
            of_data = of_all.violations(units[0].session(), initially=initially)
            mixes = [(unit, self.workload.unlikely_mix(unit.executed)) for unit in units]
            return [running.named(units, text) for text in of_data] + [
                running.named([unit], mix) for unit, mix in mixes if mix
            ]

        return list(chain.from_iterable(running.in_parallel([partial(violated, units) for units in left])))


UNIT_SEED = 1_000_003
"""Between the seeds of two units, so that they draw other transactions; that of the first is the arm's."""


def driver_parameters(
    running: RunningArm, unit: RunningUnit, workload: TransactionWorkload, levels: Mapping[str, str], seed: int
) -> Json:
    """Of the terminals of one unit. ``seed``: the arm's."""
    engine, its = running.engine, unit.unit
    session = (
        engine.session(levels["isolation"], multi_statement=workload.multi_statement)
        if isinstance(engine, DurabilityEngine)
        else []
    )
    own = as_tenant(workload, running.arm.layout, its.key)
    return {
        **own.driver_parameters(levels, seed + UNIT_SEED * its.number),
        "session": session,
        "imitation": not engine.returns_rows,
    }


def _only_ramps_up(phase: Phase, *, first_execution: bool) -> bool:
    """Before windows that collectors look at, which have no ramp-up, one of its length goes that nobody looks at."""
    return phase.kind == "counted" and first_execution
