"""How much longer TPC-H takes to be generated, loaded, indexed and analyzed than the server alone needs for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from dbtoll import facts, registry
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Resources
from dbtoll.model.json import AGENT, Json
from dbtoll.model.machine import DATA, Address, ServerPlace
from dbtoll.model.options import Option
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.native_setup import native_arm
from dbtoll.workload_parts.loading import run_side_by_side
from dbtoll.workload_parts.sql_text import Part
from dbtoll.workloads.tpch import Workload

SUMMARY = "loading: ratio_to_floor, the time to generate, load, index and analyze TPC-H over COPY FROM of ready files"
OPTIONS = {
    "scale": Option("number", 1.0, "scale factor"),
    "pairs": Option("integer", 3, "how often each of the two is run, in turn", least=1),
    "indexes": Option("text", "keys", "index profile"),
}

TABLES = ("lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region")
"""Largest first, as the loader begins them."""

FILES = f"{DATA}/files"
BOUNDS = {"ratio_to_floor": Bound(max=1.3)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Both in one run, in turn, in the same arm with the same server settings; the order alternates.

    The floor is the server's own work: ``COPY t FROM 'file' (FORMAT binary, FREEZE)`` of files that the agent wrote before and
    that are in the page cache, over as many connections, then the same key, index and analyze statements.
    """
    resources = Resources(cpus=2, memory_bytes=8 << 30)
    engine: Engine = registry.find("engines", "postgres")({})
    given = {"scale": options["scale"], "indexes": options["indexes"]}
    whole, floor = Workload(given), Floor(given)
    times: dict[str, list[Json]] = {"dbtoll": [], "floor": []}
    with native_arm(resources, say) as (host, arm, _):
        settings = engine.load_settings(resources)
        say("writing the files of the floor")
        arm.mkdir(FILES)
        for table in TABLES:
            words = ["tpch", "--table", table, "--scale", str(options["scale"]), "--format", "copy"]
            arm.run(["sh", "-c", 'exec "$@" > "$0"', f"{FILES}/{table}", AGENT, *words], timeout_s=600)
        for pair in range(options["pairs"]):
            steps: list[tuple[str, Workload]] = [("dbtoll", whole), ("floor", floor)]
            for name, workload in steps if pair % 2 == 0 else reversed(steps):
                seen = one(arm, engine, workload, settings)
                times[name].append(seen)
                say(f"{name}: {seen['whole_ns'] / 1e9:.1f} s")
        ratios = [ours["whole_ns"] / its["whole_ns"] for ours, its in zip(times["dbtoll"], times["floor"], strict=True)]
        figures: dict[str, Any] = {"ratio_to_floor": statistics.median(ratios), "ratios": ratios}
        for name, seen_times in times.items():
            figures[f"{name}_s"] = statistics.median(seen["whole_ns"] for seen in seen_times) / 1e9
        told = {"host": facts.host(host), "scale": options["scale"], **times}
        return Certificate("load", figures, BOUNDS, told)


class Floor(Workload):
    """TPC-H whose rows lie ready in files that the server itself reads."""

    def make_rows(self, machine: Machine, sql: Dialect, address: Address, progress: Callable[[str], None]) -> Json:
        # As the loader does: each table in one transaction with its truncation, so that FREEZE may skip what it can.
        copies = [
            Part(
                f"BEGIN; TRUNCATE {table}; COPY {table} FROM '{FILES}/{table}' (FORMAT binary, FREEZE); COMMIT",
                table,
                1,
            )
            for table in TABLES
        ]
        wall_ns = run_side_by_side(machine, address, copies, connections=sql.connections)
        return {"rows": {}, "generate_ns": 0, "wall_ns": wall_ns}


def one(arm: AgentMachine, engine: Engine, workload: Workload, settings: Mapping[str, str]) -> Json:
    """A fresh server, loaded one way or the other, and gone again. Times by the arm's agent."""
    data = f"{DATA}/server"
    engine.create(arm, data)
    server = engine.start(arm, ServerPlace(data), settings)
    try:
        begin_ns = now_ns(arm)
        told = workload.load(arm, engine.sql, server, lambda text: None)
        session = arm.serial(server.address, connection="persistent")
        engine.finish_load(session)
        session.close()
        whole_ns = now_ns(arm) - begin_ns
    finally:
        engine.stop(arm, server)
        arm.remove(data, recursive=True)
    return {"whole_ns": whole_ns, **told}


def now_ns(arm: AgentMachine) -> int:
    """The clock of the arm's agent."""
    return int(arm.call("ping", {})["at_ns"])
