"""One statement after the other on one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import THREADS, Experiment
from dbtoll.model.plan import Block, Phase
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.protocol import PROBLEM_MAX, VisitResult, difference, is_cold
from dbtoll.store import schema

REUSES = 5
"""Executions on a connection that is made for one visit: what each of them costs shows how soon its making is paid off
(Minhas et al. 2008, Figure 2: page faults of the first run on a connection against those of the second and later ones). As many
as the analysis looks at (`analysis.visits.metrics.REUSES`)."""


@dataclass(frozen=True, slots=True)
class StatementDriver:
    """One statement after the other on one session. ``statements`` and ``answers`` by parameter set."""

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
        session = running.session(levels["connection"])
        if per_visit := levels["connection"] == "per_visit":
            session.disconnect()
        # The backend of a connection per statement has ended with its counters: then what the whole machine read.
        # BIAS: that holds other programs' reads as well; all other arms are asleep.
        by_server = levels["connection"] == "persistent"
        before = running.counters(brief=by_server)
        reply = session.visit(
            [self.statements[block.parameter_set][query]],
            query_protocol=levels["query_protocol"],
            timing=self.experiment.visit_timing,
            answers=self.answers[block.parameter_set],
            lead_in=steady_warm and phase.kind == "timed",  # what is counted is counted in all executions
            repeat=steady_warm,
            min_executions=REUSES if per_visit and steady_warm else 1,
        )
        after = running.counters(brief=by_server)
        problems = [
            e.difference or str((e.error or {}).get("message", "")) for e in reply.executions if e.outcome != "ok"
        ]
        source, counter = ("processes", "read_bytes") if by_server else ("machine", "pages_in_bytes")
        read = difference(before, after, source, (counter,))
        faults = difference(before, after, "processes", ("minor_faults",))
        return VisitResult(
            start_ns=reply.start_ns,
            end_ns=reply.end_ns,
            host_start_ns=reply.host_start_ns,
            host_end_ns=reply.host_end_ns,
            executions=tuple(
                schema.Timing(e.start_ns, e.connected_ns, e.first_byte_ns, e.end_ns, e.rows, e.result_bytes, e.outcome)
                for e in reply.executions
            ),
            problem=problems[0][:PROBLEM_MAX] if problems else None,
            disk_read_bytes=read[counter] if read else None,
            cpu=difference(before, after, "processes", ("user_ns", "system_ns")),
            minor_faults=faults["minor_faults"] if faults else None,
        )

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """Each answer was compared."""
        return None
