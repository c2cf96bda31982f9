"""``fake``: machines in a simulated world with planted effects, to test plan, runner and statistics against known
truths.

No process runs and no real clock is read. All fake machines of a run live on one timeline, which only their visits
advance; what disturbs the world is a function of that time, so it hits whichever arm is awake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbtoll.environments.simulated.machine import FakeMachine
from dbtoll.environments.simulated.world import Timeline, World, timelines
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.model.machine import MachineSpec, MissingRequirement
from dbtoll.model.options import Option


class Environment:
    """Opens a machine that is not there. Its arm is slower than the undisturbed world by ``effect``."""

    name = "fake"
    primary = "effect"
    packages = ()
    simulated = True
    """Needs no image and no data."""

    options: Mapping[str, Option] = {
        "effect": Option("number", 0.0, "planted overhead, as a fraction"),
        "noise": Option("number", 0.02, "standard deviation of one execution, on the log scale"),
        "start_spread": Option("number", 0.005, "standard deviation between starts, on the log scale"),
        "drift": Option("number", 0.0, "fraction by which everything slows down per hour"),
        "steps": Option("number", 0.0, "standard deviation of the levels between which everything jumps"),
        "outliers": Option("number", 0.0, "probability that an execution takes five times as long"),
        "fault_ns": Option("number", 0.0, "what a page fault costs; a statement has some hundred"),
        "call_ns": Option("number", 0.0, "what a system call costs; a statement has some ten or hundred"),
        "round_trip_ns": Option("number", 0.0, "what a round trip costs; a statement has one"),
        "slowdown": Option("number", 1.0, "of user mode, a factor"),
        "seed": Option("integer", 1, "of the simulated world; equal in all arms of an experiment"),
    }

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Nothing is needed."""
        return []

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> FakeMachine:
        """On any machine: it is not used."""
        world = World(**{name: machine_spec.options.get(name, option.default) for name, option in self.options.items()})
        return FakeMachine(machine_spec, world, timelines.setdefault(machine_spec.run_id, Timeline()))
