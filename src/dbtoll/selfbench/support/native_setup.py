"""What several selfbenches need: one native arm on the system image, with a directory for its data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbtoll import registry, spec
from dbtoll.defaults import BASELINE
from dbtoll.images import system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Experiment, Resources
from dbtoll.model.machine import DATA, Artifact, MachineSpec, Provision
from dbtoll.runner.cleanup.beside_arms import workspace
from dbtoll.runner.preparation.software import image_software
from dbtoll.selfbench.support.certificate import Say


@contextmanager
def native_arm(
    resources: Resources, say: Say, *extra: Provision, engine: Engine | None = None
) -> Iterator[tuple[AgentMachine, AgentMachine, Path]]:
    """(host, arm, the arm's data directory on the host): an arm with all processors, its data on the cache's disk, on an image
    with that engine."""
    cache = Cache()
    image, _ = system.obtain_image(cache, progress=say, software=image_software(engine))
    with workspace("selfbench") as (folder, journal), open_local() as host:
        data = folder / "data"
        data.mkdir()
        native = registry.find("environments", BASELINE)()
        machine_spec = MachineSpec(
            name=f"selfbench-{os.getpid()}",
            run_id="selfbench",
            arm=BASELINE,
            image=image,
            provisions=(Provision(Artifact("selfbench", str(data)), DATA, writable=True), *extra),
            resources=resources,
            cpuset=tuple(sorted(os.sched_getaffinity(0))),
        )
        with native.open(host, machine_spec, journal) as arm:
            yield host, arm, data


def experiment(text: str) -> Experiment:
    """An experiment of a selfbench's own specification."""
    return spec.parse(text, "selfbench")
