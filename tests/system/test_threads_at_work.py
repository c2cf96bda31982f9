"""A query has the threads that its server says it has: by the CPU time of the server's threads, and by PostgreSQL's workers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.contracts.engine import DATA
from dbtoll.contracts.machines import OpenArm
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision, ServerPlace

RESOURCES = Resources(cpus=2, memory_bytes=1 << 30)
QUERY = "select b, count(*), sum(a), min(a + b), max(a - b) from big group by b order by b"
TIMES = 10
AT_ONCE = 1.15
"""CPU time over elapsed time that one thread can reach: besides it works what reads statements and writes answers."""
WORKED = 0.1
"""Share of the CPU time that a thread has that took part."""

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a second processor")


@pytest.mark.parametrize("name", ["duckdb", "hyper", "monetdb"])
def test_threads_that_work_are_as_many(name: str, open_arm: OpenArm, tmp_path: Path) -> None:
    engine, machine = made(name, open_arm, tmp_path)
    ratios, workers = {}, {}
    for threads in (1, 2):
        server = engine.start(
            machine, ServerPlace(), {**engine.settings(RESOURCES), **engine.settings_of_threads(threads)}
        )
        session = machine.serial(server.address, connection="persistent")
        if threads == 1:
            fill(session)
        session.query(QUERY)
        before, begin = run_ns(machine, server.pid), time.monotonic_ns()
        for _ in range(TIMES):
            session.query(QUERY)
        elapsed_ns, after = time.monotonic_ns() - begin, run_ns(machine, server.pid)
        took = {thread: ns - before.get(thread, 0) for thread, ns in after.items()}
        ratios[threads] = sum(took.values()) / elapsed_ns
        workers[threads] = sum(ns > WORKED * sum(took.values()) for ns in took.values())
        session.close()
        engine.stop(machine, server)
    assert ratios[1] < AT_ONCE, (ratios, workers)
    assert workers[2] >= 2, (ratios, workers)


def test_postgres_launches_one_worker_less(open_arm: OpenArm, tmp_path: Path) -> None:
    engine, machine = made("postgres", open_arm, tmp_path)
    small_too = {"min_parallel_table_scan_size": "0", "parallel_setup_cost": "0", "parallel_tuple_cost": "0"}
    launched = {}
    for threads in (1, 2, 3):
        settings = {**engine.settings(RESOURCES), **small_too, **engine.settings_of_threads(threads)}
        server = engine.start(machine, ServerPlace(), settings)
        session = machine.serial(server.address, connection="persistent")
        if threads == 1:
            fill(session)
            session.query("analyze big")
            session.query("alter table big set (parallel_workers = 8)")
        told = session.query(f"explain (analyze, timing off, format json) {QUERY}")
        launched[threads] = sum(found(json.loads("\n".join(row[0] or "" for row in told)), "Workers Launched"))
        session.close()
        engine.stop(machine, server)
    assert launched == {1: 0, 2: 1, 3: 2}


def made(name: str, open_arm: OpenArm, tmp_path: Path) -> tuple[Any, Machine]:
    engine = registry.find("engines", name)({})
    data = tmp_path / "data"
    data.mkdir()
    machine = open_arm(
        Provision(Artifact("test-data", str(data)), DATA, writable=True), resources=RESOURCES, engine=engine
    )
    engine.create(machine, DATA)
    return engine, machine


def fill(session: Session) -> None:
    """A million rows."""
    session.query("create table big (a integer, b integer)")
    session.query("insert into big values " + ", ".join(f"({n}, {n % 97})" for n in range(1000)))
    for _ in range(10):
        session.query("insert into big select a + 1, b from big")


def run_ns(machine: Machine, pid: int) -> dict[str, int]:
    """CPU time of each thread of a process so far (Documentation/scheduler/sched-stats.rst)."""
    told = machine.run(["sh", "-c", f"cd /proc/{pid}/task && grep -H . */schedstat"]).output.decode()
    return {line.partition("/")[0]: int(line.partition(":")[2].split()[0]) for line in told.splitlines()}


def found(plan: Any, key: str) -> list[int]:
    """All values of that name in a plan."""
    if isinstance(plan, list):
        return [value for each in plan for value in found(each, key)]
    if isinstance(plan, dict):
        own = [plan[key]] if key in plan else []
        return own + [value for each in plan.values() for value in found(each, key)]
    return []
