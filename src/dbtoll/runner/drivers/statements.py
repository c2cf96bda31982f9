"""One statement after the other on one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dbtoll.interfaces.machine import Begun, Machine, Session
from dbtoll.model.experiment import THREADS, Experiment
from dbtoll.model.plan import Block, Phase
from dbtoll.model.reply import AnswerReference, Execution, Statement, VisitReply
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.protocol import CPU, PROBLEM_MAX, ServerCounters, VisitResult, is_cold, together
from dbtoll.store import schema

REUSES = 5
"""Executions on a connection that is made for one visit: what each of them costs shows how soon its making is paid off
(Minhas et al. 2008, Figure 2: page faults of the first run on a connection against those of the second and later ones). As many
as the analysis looks at (`analysis.visits.metrics.REUSES`)."""


@dataclass(frozen=True, slots=True)
class StatementDriver:
    """One statement after the other on one session of each unit, all at the same time. ``statements`` and ``answers`` by parameter
    set."""

    experiment: Experiment
    host: Machine
    statements: Sequence[Mapping[str, Statement]]
    answers: Sequence[Mapping[str, AnswerReference]]

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """How many threads a query has; all other levels are the session's."""
        if THREADS in phase.levels:
            running.use_threads(int(phase.levels[THREADS]))

    def make_ready(self, running: RunningArm, phase: Phase, *, first_execution: bool) -> None:
        """A cold one begins with a restart."""
        if is_cold(phase) and not first_execution:
            running.restart_cold(self.host)

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool
    ) -> VisitResult:
        """See VisitDriver."""
        levels = phase.levels
        steady_warm = not first_execution and not is_cold(phase)
        sessions = [unit.session(levels["connection"]) for unit in running.units]
        if per_visit := levels["connection"] == "per_visit":
            for session in sessions:
                session.disconnect()
        # The backend of a connection per statement has ended with its counters: then what the whole machine read.
        # BIAS: that holds other programs' reads as well; all other arms are asleep.
        by_server = levels["connection"] == "persistent"

        def begin(session: Session, hold: bool) -> Begun[VisitReply]:
            return session.visit(
                [self.statements[block.parameter_set][query]],
                query_protocol=levels["query_protocol"],
                timing=self.experiment.visit_timing,
                answers=self.answers[block.parameter_set],
                lead_in=steady_warm and phase.kind == "timed",  # what is counted is counted in all executions
                repeat=steady_warm,
                min_executions=REUSES if per_visit and steady_warm else 1,
                hold=hold,
            )

        counters, replies = ServerCounters.around(
            running, lambda: together([partial(begin, session) for session in sessions]), brief=by_server
        )
        reads = ("processes", ("read_bytes",)) if by_server else ("machine", ("pages_in_bytes",))
        counted = counters.of({**CPU, "minor_faults": ("processes", ("minor_faults",)), "disk_read_bytes": reads})
        found = []
        for own, reply in zip(counted.own, replies, strict=True):
            problems = [
                e.difference or str((e.error or {}).get("message", "")) for e in reply.executions if e.outcome != "ok"
            ]
            found.append(
                schema.UnitVisit(
                    start_ns=reply.start_ns,
                    end_ns=reply.end_ns,
                    host_start_ns=reply.host_start_ns,
                    host_end_ns=reply.host_end_ns,
                    held_ns=reply.held_ns,
                    host_held_ns=reply.host_held_ns,
                    host_asked_ns=reply.host_asked_ns,
                    executions=tuple(map(_timing, reply.executions)),
                    problem=problems[0][:PROBLEM_MAX] if problems else None,
                    **own,
                )
            )
        return VisitResult(tuple(found), shared=counted.shared)

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """Each answer was compared."""
        return None


def _timing(e: Execution) -> schema.Timing:
    return schema.Timing(e.start_ns, e.connected_ns, e.first_byte_ns, e.end_ns, e.rows, e.result_bytes, e.outcome)
