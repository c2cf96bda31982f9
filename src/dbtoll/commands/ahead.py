"""What `quick` needs and what needs no agent, made before it says how long it takes; the launcher has it made while the agent
is being built:

    python -m dbtoll.commands.ahead image | kernels

Both lie in the cache afterwards, where `quick` finds them; where there is nothing to make, nothing is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from dbtoll import namespaces, registry, spec
from dbtoll.commands.experiments import experiments
from dbtoll.commands.measure import QUICK
from dbtoll.errors import DbtollError
from dbtoll.images import debian
from dbtoll.images.cache import Cache
from dbtoll.model.experiment import Experiment
from dbtoll.runner.preparation.requirements import kernel_for
from dbtoll.runner.preparation.software import system_image
from dbtoll.system_packages import has_programs
from dbtoll.terminal import notices


def image(experiment: Experiment, say: Callable[[str], None]) -> None:
    """The system image of each engine of the experiment."""
    for configuration, _ in experiment.configurations:
        engine = registry.find("engines", configuration.engine.name)(configuration.engine.options)
        system_image(Cache(), configuration, engine, say)


def kernels(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Those that its guests boot, if the programs that run these guests are there."""
    for arm in experiment.arms:
        for step in arm.stack:
            if has_programs(step.environment):
                kernel_for(Cache(), step, debian.SUITE, say)


def main(what: str) -> int:
    """An exit code."""
    namespaces.enter()
    if debian.missing_requirements():
        return 0
    try:
        {"image": image, "kernels": kernels}[what](spec.read(experiments() / QUICK)[0], notices())
    except DbtollError as error:
        notices()(error.message)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
