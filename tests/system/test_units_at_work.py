"""Arms of several units on real servers: each has data of its own, all begin together, and nothing of them is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from dbtoll.interfaces.machine import Session
from dbtoll.model.experiment import Outcome
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Start, Visit
from dbtoll.workloads.tpcc import Workload as Tpcc
from tests.support.one_round import measure_one_round
from tests.support.program import dbtoll, is_root

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_root(), reason="native arms need root"),
]

SPEC = """
question = "Do units disturb one another?"
baseline = "machines"
[engine]
name = "postgres"
[workload]
name = "{workload}"
{size}
terminals = 2
window = "{window}"
ramp_up = "200ms"
[resources]
memory = "2 GiB"
[[arm]]
name = "machines"
stack = "native"
machines = 2
"""

SERVERS = """
[[arm]]
name = "servers"
stack = "native"
servers = 2
[[arm]]
name = "databases"
stack = "native"
databases = 2
"""


def test_units_have_data_of_their_own_and_begin_together(tmp_path: Path) -> None:
    text = SPEC.format(workload="tpcc", size="warehouses = 1", window="2s") + SERVERS
    result = measure_one_round(text, tmp_path / "run")
    run = read_run(tmp_path / "run")
    servers = {"machines": 2, "servers": 2, "databases": 1}
    for arm in result.arms:
        assert arm.outcome is Outcome.OK, arm.reason
        checks = {check.name: check for check in arm.checks}
        for name in ("consistent", "started_together", "commit_reaches_device", "same_resources", "same_server"):
            assert checks[name].passed is True, checks[name]
        assert checks["consistent"].finding.endswith("in each of 2 units")
        (start,) = (start for start in run.records(Start) if start.arm == arm.name)
        assert len(start.servers) == servers[arm.name]
        settings = [facts["settings"] for facts in start.servers]
        assert len({each["data_directory"] for each in settings}) == (2 if arm.name == "servers" else 1)
        for visit in (visit for visit in run.records(Visit) if visit.arm == arm.name):
            assert len(visit.units) == 2
            for unit in visit.units:
                assert unit.window is not None and unit.problem is None
                kinds = unit.window["transactions"].values()
                assert sum(kind["committed"] for kind in kinds) > 0
                assert all(kind["failed"] == {} and kind["lost"] == 0 for kind in kinds)
            assert (visit.units[0].cpu is None) is (arm.name == "databases")
            assert [each.units for each in visit.shared] == ([(0, 1)] if arm.name == "databases" else [])
            first, second = (unit.window["series"] for unit in visit.units if unit.window)
            assert first != second  # they draw other transactions
    for windows in result.windows:
        assert windows.units is not None and windows.units.start_spread_ns is not None
        assert windows.units.start_spread_ns < 10_000_000


def test_statements_are_answered_rightly_in_every_unit(tmp_path: Path) -> None:
    text = SPEC.replace("terminals = 2\n", "").replace('window = "{window}"\n', "").replace('ramp_up = "200ms"\n', "")
    # On one processor one of two that begin at once waits for the other.
    text = text.replace("[resources]", "[resources]\ncpus = 2")
    text = text.format(workload="tpch", size='scale = 0.01\nqueries = ["Q6", "Q14"]') + SERVERS
    text += "[[arm]]\nname = 'schemas'\nstack = 'native'\nschemas = 2\n"
    result = measure_one_round("parameter_sets = 1\n" + text, tmp_path / "run")
    for arm in result.arms:
        checks = {check.name: check.passed for check in arm.checks}
        assert (arm.outcome, checks["equal_answers"], checks["started_together"]) == (Outcome.OK, True, True), arm
    for visit in read_run(tmp_path / "run").records(Visit):
        assert [bool(unit.executions) for unit in visit.units] == [True, True]


TENANTS = """
question = "Do tenants disturb one another?"
[engine]
name = "{engine}"
[workload]
name = "tpcc"
warehouses = {warehouses}
terminals = 2
window = "3s"
ramp_up = "200ms"
[resources]
memory = "2 GiB"
[[arm]]
name = "tenants"
stack = "native"
{level} = {tenants}
"""

ORDERS = "SELECT o_w_id, count(*) FROM orders WHERE o_id > 3000 GROUP BY o_w_id"
"""By warehouse, those that the population has not."""
REMOTE = """
SELECT DISTINCT h_w_id, h_c_w_id FROM history WHERE h_w_id <> h_c_w_id UNION
SELECT DISTINCT ol_w_id, ol_supply_w_id FROM order_line WHERE ol_w_id <> ol_supply_w_id
"""
"""Warehouses that had to do with one another, in payments and in lines of orders; the population has none."""


@pytest.mark.parametrize(
    ("engine", "level", "tenants", "warehouses"),
    [("postgres", "schemas", 3, 1), ("postgres", "keys", 3, 1), ("mariadb", "keys", 2, 2)],
)
def test_tenants_of_one_database_work_on_rows_of_their_own(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str, level: str, tenants: int, warehouses: int
) -> None:
    """All that is new in the tables is what its tenant was acknowledged."""
    whole, tables = Tpcc.violations, []

    def look(self: Tpcc, session: Session, *, initially: bool = False) -> list[str]:
        if not initially:
            orders, remote = session.query(ORDERS), session.query(REMOTE)
            tables.append(
                ({int(w or 0): int(n or 0) for w, n in orders}, [(int(a or 0), int(b or 0)) for a, b in remote])
            )
        return whole(self, session, initially=initially)

    monkeypatch.setattr(Tpcc, "violations", look)
    text = TENANTS.format(engine=engine, level=level, tenants=tenants, warehouses=warehouses)
    (arm,) = measure_one_round(text, run_folder).arms
    assert arm.outcome is Outcome.OK, arm.reason
    (consistent,) = (check for check in arm.checks if check.name == "consistent")
    assert consistent.passed is True and consistent.finding.endswith(f"in each of {tenants} units")
    *_, last = read_run(run_folder).records(Visit)
    assert len(last.units) == tenants and len(tables) == (tenants if level == "schemas" else 1)
    told: list[dict[int, int]] = [{} for _ in tables]
    for number, unit in enumerate(last.units):
        assert unit.window is not None and unit.window["refusal"] is None
        place, before = (number, 0) if level == "schemas" else (0, number * warehouses)
        ordered = Counter[int]()
        for ledger in unit.window["acknowledged"]:  # of both windows: one set of terminals drove them
            assert not ledger["unknown_new_orders"]
            for key, count in ledger["new_orders"].items():
                ordered[int(key.split()[0])] += count
        assert ordered.keys() == {*range(before + 1, before + warehouses + 1)}
        told[place] |= ordered
    assert [orders for orders, _ in tables] == told
    for _, remote in tables:
        assert bool(remote) is (warehouses > 1)
        assert all((one - 1) // warehouses == (other - 1) // warehouses for one, other in remote)


def test_a_killed_run_of_several_machines_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(SPEC.format(workload="tatp", size="subscribers = 1000", window="20s"))
    words = [str(Path(sys.executable).parent / "dbtoll"), "run", str(file), "--runs-dir", str(tmp_path / "runs")]
    killed = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 600
        while not (groups := _groups("-m1")):
            assert killed.poll() is None and time.monotonic() < until, "no arm came up"
            time.sleep(0.2)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    (run,) = {group.parents[1].name for group in groups}
    cleaned = dbtoll("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not _groups("", run)


def _groups(ending: str, run: str = "*") -> list[Path]:
    """Control groups of machines within the group of an arm, in every hierarchy."""
    found = [path for top in ("", "*/") for path in Path("/sys/fs/cgroup").glob(f"{top}dbtoll/{run}/*/*")]
    return [path for path in found if path.is_dir() and path.name.endswith(ending)]


ANALYTIC = """
question = "Do tenants of analytic engines disturb one another?"
[engine]
name = "{engine}"
[workload]
name = "tpch"
scale = 0.01
queries = ["Q1", "Q6"]
[resources]
cpus = 2
memory = "2 GiB"
[[arm]]
name = "dedicated"
stack = "native"
design = "dedicated"
tenants = 2
[[arm]]
name = "isolated"
stack = "docker"
design = "isolated"
tenants = 2
"""


@pytest.mark.parametrize("engine", ["hyper", "monetdb"])
def test_tenants_of_analytic_engines_have_servers_or_machines_of_their_own(engine: str, run_folder: Path) -> None:
    """Each has half of the memory as its limit, and answers as the others do."""
    result = measure_one_round(ANALYTIC.format(engine=engine), run_folder)
    run = read_run(run_folder)
    for arm in result.arms:
        assert arm.outcome is Outcome.OK, arm.reason
        checks = {check.name: check for check in arm.checks}
        for name in ("answers_known", "started_together", "same_resources", "same_server"):
            assert checks[name].passed is not False, checks[name]
        (start,) = (start for start in run.records(Start) if start.arm == arm.name)
        assert len(start.servers) == 2
        for visit in (visit for visit in run.records(Visit) if visit.arm == arm.name):
            assert len(visit.units) == 2
            assert all(unit.executions and unit.problem is None for unit in visit.units)
