"""Transaction workloads end to end: planted losses on `simulated`; real servers, whose data are right or the arm is void."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbtoll.interfaces.machine import Session
from dbtoll.machines.agent.terminals import AgentTerminals
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Outcome
from dbtoll.selfbench.robustness import faults
from dbtoll.workloads.tpcc import Workload as Tpcc
from tests.support.one_round import measure_one_round
from tests.support.program import dbtoll, is_root

needs_root = pytest.mark.skipif(not is_root(), reason="native arms need root")

FAKE = """
question = "Is a planted loss of throughput found?"
baseline = "base"
[engine]
name = "noop"
[workload]
name = "{workload}"
terminals = 2
window = "2s"
ramp_up = "100ms"
rate = {rate}
[precision]
budget = "10s"
rounds_max = 8
[[arm]]
name = "base"
stack = "simulated"
[[arm]]
name = "slow"
stack = "simulated:effect=0.25"
"""

REAL = """
question = "Are the data right?"
baseline = "native"
[engine]
name = "{engine}"
[workload]
name = "{workload}"
terminals = 2
window = "300ms"
ramp_up = "100ms"
{size}
[factors]
interaction = {interactions}
[[arm]]
name = "native"
stack = "native"
"""


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "history.ndjson").read_text().splitlines()]
    return [line for line in lines if line["record"] == kind]


@pytest.mark.parametrize(("workload", "rate"), [("tpcc", 0.0), ("tatp", 0.0), ("tatp", 50.0)])
def test_a_planted_loss_of_throughput_is_found(tmp_path: Path, workload: str, rate: float) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(FAKE.format(workload=workload, rate=rate))
    done = dbtoll("run", str(file), "--runs-dir", str(tmp_path / "runs"), "--json")
    assert done.returncode == 0, done.stderr
    comparisons = json.loads(done.stdout)["comparisons"]
    # Arrivals decide on the throughput of an open loop, and who arrives meanwhile waits: its response loses more.
    metric, most = ("time_per_transaction", 0.30) if rate == 0 else ("response_p50", 0.60)
    (found,) = [c for c in comparisons if (c["arm"], c["metric"], c["estimand"]) == ("slow", metric, "geomean")]
    assert 0.20 < found["estimate"] < most, found


@needs_root
@pytest.mark.parametrize(
    ("engine", "workload", "size", "interactions"),
    [
        ("postgres", "tpcc", "warehouses = 1", ["statement", "pipelined", "procedure"]),
        ("mariadb", "tpcc", "warehouses = 1", ["statement", "pipelined", "procedure"]),
        ("postgres", "tatp", "subscribers = 10000", ["statement", "pipelined"]),
        ("mariadb", "tatp", "subscribers = 10000", ["statement", "pipelined"]),
    ],
)
def test_a_round_is_measured_and_its_data_are_right(
    run_folder: Path, engine: str, workload: str, size: str, interactions: list[str]
) -> None:
    text = REAL.format(engine=engine, workload=workload, size=size, interactions=json.dumps(interactions))
    result = measure_one_round(text, run_folder)
    (native,) = (arm for arm in result.arms if arm.name == "native")
    assert native.outcome is Outcome.OK, native.reason
    assert {check.name: check.passed for check in native.checks}["consistent"] is True
    driver = json.loads((run_folder / "facts.json").read_text())["configurations"][0]["driver"]
    assert set(driver["null_per_s"]) == set(interactions)
    assert all(0 < us < 1000 for us in driver["null_us_per_transaction"].values())
    windows = [
        visit for visit in records(run_folder, "visit") if not visit["first_execution"] and visit["arm"] == "native"
    ]
    assert {visit["levels"]["interaction"] for visit in windows} == set(interactions)
    for visit in windows:
        kinds = visit["units"][0]["window"]["transactions"].values()
        assert sum(kind["committed"] for kind in kinds) > 2
        assert all(kind["failed"] == {} and kind["lost"] == 0 for kind in kinds), visit["levels"]


@needs_root
@pytest.mark.parametrize("engine", ["postgres", "mariadb", "monetdb"])
def test_foreign_keys_come_and_go(run_folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """As a factor; without them InnoDB has no more indexes than before."""
    whole, seen = Tpcc.constrain, []

    def watched(self: Tpcc, session: Session, sql: Dialect, foreign_keys: str) -> None:
        whole(self, session, sql, foreign_keys)
        indexes = "SELECT count(*) FROM information_schema.statistics WHERE table_schema = database()"
        counted = int(session.query(indexes)[0][0] or 0) if engine == "mariadb" else 0
        seen.append((foreign_keys, len(session.query(sql.foreign_keys)), counted))

    monkeypatch.setattr(Tpcc, "constrain", watched)
    text = REAL.format(engine=engine, workload="tpcc", size="warehouses = 1", interactions='["statement"]')
    text = text.replace("[factors]", '[factors]\nforeign_keys = ["no", "yes"]')
    if engine == "monetdb":  # of two transactions that write one row it refuses one
        text = text.replace("terminals = 2", "terminals = 1")
    result = measure_one_round(text, run_folder)
    assert {arm.outcome for arm in result.arms} == {Outcome.OK}
    assert {(level, count) for level, count, _ in seen} == {("no", 0), ("yes", 10)}
    assert len({counted for level, _, counted in seen if level == "no"}) == 1
    windows = [visit for visit in records(run_folder, "visit") if not visit["first_execution"]]
    assert {visit["levels"]["foreign_keys"] for visit in windows} == {"no", "yes"}


@needs_root
def test_data_that_are_wrong_void_the_arm(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody changes a sum behind the workload's back."""
    whole = Tpcc.violations

    def meddle(self: Tpcc, session: Session, *, initially: bool = False) -> list[str]:
        if not initially:
            session.query("UPDATE warehouse SET w_ytd = w_ytd + 1")
        return whole(self, session, initially=initially)

    monkeypatch.setattr(Tpcc, "violations", meddle)
    text = REAL.format(engine="postgres", workload="tpcc", size="warehouses = 1", interactions='["statement"]')
    result = measure_one_round(text, run_folder)
    for arm in result.arms:
        assert arm.outcome is Outcome.INVALID
        assert "w_ytd is the sum of the districts' d_ytd (1 violations)" in (arm.reason or "")


@needs_root
@pytest.mark.parametrize(
    ("engine", "suffered"),
    [
        ("postgres", ["server_killed", "connections_reset", "deadlock_storm", "disk_full"]),
        ("mariadb", ["server_killed", "connections_reset", "disk_full"]),
    ],
)
def test_faults_are_survived_and_nothing_acknowledged_is_lost(engine: str, suffered: list[str]) -> None:
    said: list[str] = []
    certificate = faults.measure({"engines": [engine], "faults": suffered, "seconds": 4}, said.append)
    assert certificate.holds(), certificate.facts["cases"]
    assert certificate.figures["cases"] == len(suffered) + 2  # two less durable levels of a killed server


@needs_root
def test_each_block_has_terminals_of_its_own_and_no_others(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks have inputs of their own; the terminals of the one before are gone when the next begins."""
    connected: list[int] = []
    whole = Tpcc.window_timing

    def counted(self: Tpcc) -> tuple[int, int, float | None]:  # asked for right before a window
        connected.append(len(open_terminals))
        return whole(self)

    open_terminals: set[AgentTerminals] = set()
    begin, close = AgentTerminals.__init__, AgentTerminals.close

    def begun(self: AgentTerminals, *values: Any) -> None:
        begin(self, *values)
        open_terminals.add(self)

    def closed(self: AgentTerminals) -> None:
        close(self)
        open_terminals.discard(self)

    monkeypatch.setattr(Tpcc, "window_timing", counted)
    monkeypatch.setattr(AgentTerminals, "__init__", begun)
    monkeypatch.setattr(AgentTerminals, "close", closed)
    text = REAL.format(engine="postgres", workload="tpcc", size="warehouses = 1", interactions='["statement"]')
    measure_one_round(text, run_folder, blocks=3, copies=True)
    windows = [visit for visit in records(run_folder, "visit") if not visit["first_execution"]]
    assert len({visit["parameter_set"] for visit in windows}) > 1
    assert max(connected) == 2  # one set in each of the two arms
    assert open_terminals == set()
