"""One micro-probe of the agent's, in a process of its own in the arm."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dbtoll.errors import UsageError
from dbtoll.interfaces.machine import Machine
from dbtoll.interfaces.workload import ProbeWorkload
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import AGENT
from dbtoll.model.machine import DATA
from dbtoll.model.plan import Block, Phase
from dbtoll.model.probes import EXECUTOR_PROBES
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.protocol import PROBLEM_MAX, VisitResult
from dbtoll.store import schema

PROBE_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class ProbeDriver:
    """One micro-probe of the agent's, in a process of its own in the arm.

    BIAS: none is bracketed by the host; the clocks of the arms are judged where statements are measured.
    """

    experiment: Experiment
    host: Machine
    workload: ProbeWorkload

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """Nothing."""

    def make_ready(self, running: RunningArm, phase: Phase, *, first_execution: bool) -> None:
        """A probe prepares what it needs by itself."""

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool
    ) -> VisitResult:
        """See VisitDriver. What an arm cannot do is its problem, not a failure."""
        looked_up = running.arm.name in self.experiment.baselines and query in EXECUTOR_PROBES
        request = {**self.workload.request(query, DATA), "samples": looked_up}
        if self.workload.uncached(query):
            if not self.experiment.exclusive:
                raise UsageError(f"{query} drops the page cache of the whole host", "--exclusive")
            running.drop_caches(self.host)
        done = running.machine.run([AGENT, "probe", json.dumps(request)], timeout_s=PROBE_DEADLINE_S)
        told = json.loads(done.output)
        batches = (schema.Batch(each["events"], each["elapsed_ns"], each["cpu_ns"]) for each in told.get("batches", ()))
        found = schema.UnitVisit(
            start_ns=told["start_ns"],
            end_ns=told["end_ns"],
            host_start_ns=None,
            host_end_ns=None,
            batches=tuple(batches),
            problem=told.get("unsupported") and str(told["unsupported"])[:PROBLEM_MAX],
            samples=told.get("samples"),
        )
        return VisitResult((found,))

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """There are no data."""
        return None
