"""What the driver of a transaction workload costs by itself: the same terminals against a server that answers at once."""

from __future__ import annotations

from dbtoll import registry
from dbtoll.defaults import BASELINE, FLOOR
from dbtoll.interfaces.workload import TransactionWorkload
from dbtoll.model.experiment import Experiment, Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import MachineSpec, ServerPlace
from dbtoll.model.reply import ended_well
from dbtoll.runner.arms import HostContext, machine_name

RAMP_UP_NS, WINDOW_NS = 200_000_000, 1_000_000_000
"""Against the null server a second holds thousands of transactions of every kind but the rarest."""


def driver_alone(
    context: HostContext, experiment: Experiment, resources: Resources, workload: TransactionWorkload
) -> Json:
    """``{"null_us_per_transaction": {INTERACTION: us}, "null_per_s": {INTERACTION: rate}}``: CPU time of the driver for each
    transaction, and how many it gets through, in a native arm that it shares with the null server.

    BIAS: the null server speaks PostgreSQL's protocol alone; for MariaDB the figure is that of another, similar protocol.
    """
    native = registry.find("environments", BASELINE)()
    engine = registry.find("engines", FLOOR)({})
    machine_spec = MachineSpec(
        name=machine_name(context.run_id, "calibration", 0),
        run_id=context.run_id,
        arm="calibration",
        image=context.image,
        provisions=(),
        resources=resources,
        cpuset=context.cpuset[-resources.cpus :],
    )
    found: Json = {"null_us_per_transaction": {}, "null_per_s": {}}
    with native.open(context.host, machine_spec, context.journal) as machine:
        server = engine.start(machine, ServerPlace(), {})
        try:
            for interaction in experiment.factors["interaction"]:
                driver_parameters = {
                    **workload.driver_parameters({"interaction": interaction}, experiment.seed),
                    "session": [],
                    "imitation": True,
                }
                terminals = machine.terminals(server.address, driver_parameters)
                try:
                    counts = terminals.window(ramp_up_ns=RAMP_UP_NS, window_ns=WINDOW_NS, rate=None).result().counts
                finally:
                    terminals.close()
                found["null_us_per_transaction"][interaction] = (
                    counts["driver_cpu_ns"] / 1e3 / max(ended_well(counts), 1)
                )
                found["null_per_s"][interaction] = ended_well(counts) * 1e9 / WINDOW_NS
        finally:
            engine.stop(machine, server)
    return found
