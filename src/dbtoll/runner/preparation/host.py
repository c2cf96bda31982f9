"""The local host while a run measures: its agent and this process kept off the arms' processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.local import open_local
from dbtoll.model.experiment import Experiment
from dbtoll.runner.preparation import processors
from dbtoll.runner.preparation.requirements import require_beforehand, simulated


@contextmanager
def host_machine(
    experiment: Experiment, say: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Machine, tuple[int, ...]]]:
    """The local host, its agent and this process kept off the arms' processors; and those processors, reserved unless all
    is simulated.

    BIAS: with as many arms' processors as the host has, the rig's own work runs beside the arm; the counters of CPU spent
    outside the arms show how much.
    """
    mine = sorted(os.sched_getaffinity(0))
    require_beforehand(experiment)
    wanted = experiment.cpus
    arms, rest = tuple(mine[-wanted:]), mine[:-wanted] or mine
    measured = not all(simulated(arm.stack[-1]) for arm in experiment.arms)
    with processors.reserved(arms if measured else (), say):
        os.sched_setaffinity(0, rest)
        try:
            with open_local(cpus=rest) as host:
                yield host, arms
        finally:
            os.sched_setaffinity(0, mine)
