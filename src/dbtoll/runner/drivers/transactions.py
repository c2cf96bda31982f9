"""Measurement windows of a transaction workload."""

from __future__ import annotations

from dataclasses import dataclass

from dbtoll.errors import EngineError
from dbtoll.interfaces.engine import DurabilityEngine
from dbtoll.interfaces.workload import TransactionWorkload
from dbtoll.model.experiment import Experiment
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.protocol import PROBLEM_MAX, VisitResult, difference, ended, settle


@dataclass(frozen=True, slots=True)
class TransactionDriver:
    """Whole measurement windows, each begun with a checkpoint and never cut by a sleep (DESIGN §1.3)."""

    experiment: Experiment
    workload: TransactionWorkload

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """How durable commits are, and whether there are foreign keys; and whether the server gives the isolation that is asked
        for. The terminals of the phase connect when they are first needed."""
        engine, levels = running.engine, phase.levels
        if not isinstance(engine, DurabilityEngine):
            return
        engine.make_durable(running.session(), levels["durability"])
        self.workload.constrain(running.session(), engine.sql, levels["foreign_keys"])
        assert running.server is not None
        session = running.machine.serial(running.server.address, connection="persistent")
        try:
            for statement in engine.session(levels["isolation"], multi_statement=self.workload.multi_statement):
                session.query(statement)
            told = engine.isolation(session)
        finally:
            session.close()
        if told != levels["isolation"]:
            raise EngineError(f"{running.arm.name}: its sessions are {told}, not {levels['isolation']}", "")

    def make_ready(self, running: RunningArm, phase: Phase, *, first_execution: bool) -> None:
        """Nothing: a window begins with its checkpoint."""

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool
    ) -> VisitResult:
        """See VisitDriver. A first execution is a window too: the terminals' first."""
        levels = phase.levels
        engine = running.engine
        parameters = self.workload.driver_parameters(levels, self.experiment.seed * 1000 + block.parameter_set)
        session = (
            engine.session(levels["isolation"], multi_statement=self.workload.multi_statement)
            if isinstance(engine, DurabilityEngine)
            else []
        )
        terminals = running.terminals(
            levels["placement"], {**parameters, "session": session, "imitation": not engine.returns_rows}
        )
        settle(running)
        before = running.counters()
        ramp_up_ns, window_ns, rate = self.workload.window_timing()
        if phase.kind == "counted":
            ramp_up_ns = 0
        reply = terminals.window(ramp_up_ns=ramp_up_ns, window_ns=window_ns, rate=rate)
        after = running.counters()
        running.executed.update({name: ended(kind) for name, kind in reply.counts["transactions"].items()})
        refusal = reply.counts.get("refusal")
        return VisitResult(
            start_ns=reply.start_ns,
            end_ns=reply.end_ns,
            host_start_ns=reply.host_start_ns,
            host_end_ns=reply.host_end_ns,
            window={
                "length_ns": reply.until_ns - reply.from_ns,
                "throughput_transaction": self.workload.throughput_transaction,
                **reply.counts,
            },
            problem=f"connections were refused: {refusal}"[:PROBLEM_MAX] if refusal else None,
            cpu=difference(before, after, "processes", ("user_ns", "system_ns")),
        )

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """Of the conditions that the workload's specification states, and of its mix; None where the server keeps nothing."""
        if not running.engine.returns_rows:
            return None
        mix = self.workload.unlikely_mix(running.executed)
        return [*self.workload.violations(running.session(), initially=initially), *([mix] if mix else [])]
