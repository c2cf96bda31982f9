"""What several selfbenches measure of designs for tenants."""

from __future__ import annotations

import os
from collections.abc import Iterable

from dbtoll.model.experiment import Experiment
from dbtoll.selfbench.support.native_setup import experiment


def of_tenants(
    designs: Iterable[tuple[str, str]], tenants: int, *, engine: str = "postgres", memory: str = "8 GiB"
) -> Experiment:
    """TPC-C, a warehouse for each tenant, commits that wait for no device, on all processors. ``designs``: (stack, design) of each
    arm."""
    return experiment(
        f"""
[engine]
name = "{engine}"
[workload]
name = "tpcc"
window = "1s"
ramp_up = "1s"
[factors]
durability = ["server_buffer"]
[resources]
cpus = {len(os.sched_getaffinity(0))}
memory = "{memory}"
"""
        + "".join(
            f'[[arm]]\nstack = "{stack}"\ndesign = "{design}"\ntenants = {tenants}\n' for stack, design in designs
        )
    )
