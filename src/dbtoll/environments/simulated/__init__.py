"""``simulated``: machines in a simulated world with planted effects, to test plan, runner and statistics against known
truths.

No process runs and no real clock is read. All simulated machines of a run live on one timeline, which only their visits
advance; what disturbs the world is a function of that time, so it hits whichever arm is awake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbtoll.environments.simulated.machine import SimulatedMachine
from dbtoll.environments.simulated.world import OPTIONS, Timeline, World, timelines
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.model.machine import MachineSpec, MissingRequirement


class Environment:
    """Opens a machine that is not there. Its arm is slower than the undisturbed world by ``effect``."""

    name = "simulated"
    primary = "effect"
    packages = ()
    programs = ()
    simulated = True
    """Needs no image and no data."""

    options = OPTIONS

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Nothing is needed."""
        return []

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> SimulatedMachine:
        """On any machine: it is not used."""
        world = World(**{name: machine_spec.options.get(name, option.default) for name, option in self.options.items()})
        return SimulatedMachine(machine_spec, world, timelines.setdefault(machine_spec.run_id, Timeline()))
