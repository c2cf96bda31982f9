"""Arms of several units, in the simulated world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from dbtoll.analysis.result.builder import analyze
from dbtoll.commands import inspect
from dbtoll.environments.simulated.session import SimulatedTerminals
from dbtoll.environments.simulated.world import GAP_NS
from dbtoll.errors import DbtollError
from dbtoll.model.experiment import Outcome
from dbtoll.model.reply import TIME_PER_TRANSACTION_LEAST
from dbtoll.runner import run as runs
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Start, Visit
from tests.support.few_rounds import Counting

WORKLOADS = {
    "tatp": 'name = "tatp"\nwindow = "1s"\nramp_up = "0s"',
    "tpch": 'name = "tpch"\nqueries = ["Q1", "Q6"]',
}


def specification(workload: str) -> str:
    return f"""
question = "How much do three machines lose that work at the same time?"
baseline = "three"
seed = 5
[engine]
name = "noop"
[workload]
{WORKLOADS[workload]}
[precision]
rounds_min = 5
rounds_max = 5
[[arm]]
name = "three"
stack = "simulated"
machines = 3
[[arm]]
name = "slow"
stack = "simulated:effect=0.3"
machines = 3
[[arm]]
name = "two by two"
stack = "simulated"
machines = 2
servers = 2
"""


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_unit_is_recorded_and_all_begin_at_one_moment(workload: str, tmp_path: Path) -> None:
    text = specification(workload)
    folder = runs.begin(experiment(text), text, tmp_path, Counting(5))
    run = read_run(folder)
    units = {"three": 3, "three (A/A)": 3, "slow": 3, "two by two": 4, "two by two (A/A)": 4}
    for visit in run.records(Visit):
        assert len(visit.units) == units[visit.arm]
        assert len({unit.host_start_ns for unit in visit.units}) == 1
        assert len({unit.end_ns for unit in visit.units}) > 1  # they are not one and the same
    assert {len(start.servers) for start in run.records(Start) if start.arm == "two by two"} == {4}
    inspect.report(folder, as_json=False)
    result = analyze(folder)
    arms = {arm.name: arm for arm in result.arms}
    assert {name: arm.units for name, arm in arms.items()} == units
    assert all(arm.outcome == Outcome.OK for arm in arms.values())
    assert arms["two by two"].stack == "simulated, machines=2, servers=2"
    checks = {check.name: check.passed for check in arms["slow"].checks}
    assert checks["started_together"] is True
    main = next(c for c in result.comparisons if c.arm == "slow" and c.metric == result.main_metric)
    assert main.estimate == pytest.approx(0.3, abs=0.08)
    if workload == "tpch":
        rows = duckdb.sql(
            f"SELECT unit, count(*) FROM '{folder}/tables/samples.parquet' WHERE arm = 'slow' GROUP BY unit"
        )
        assert sorted(unit for unit, _ in rows.fetchall()) == [0, 1, 2]
        return
    least = next(c for c in result.comparisons if (c.arm, c.metric) == ("slow", TIME_PER_TRANSACTION_LEAST))
    assert least.estimate == pytest.approx(0.3, abs=0.2) and least.throughput_drop is not None
    for windows in result.windows:
        assert windows.units is not None and len(windows.units.throughput) == units[windows.arm]
        assert windows.units.least < sum(windows.units.throughput) / len(windows.units.throughput) < windows.units.most
        assert 1 / 3 < windows.units.fairness < 1 and windows.units.start_spread_ns == GAP_NS
        assert windows.throughput is not None
        assert windows.throughput.estimate == pytest.approx(sum(windows.units.throughput), rel=0.05)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'id="units"' in page and "Fairness" in page
    rows = duckdb.sql(
        f"SELECT unit, count(*) FROM '{folder}/tables/windows.parquet' WHERE arm = 'two by two' GROUP BY unit"
    )
    made = [visit for visit, *_ in run.all_visits() if visit.arm == "two by two"]
    assert sorted(rows.fetchall()) == [(number, len(made)) for number in range(4)]


def test_a_unit_that_fails_fails_its_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SimulatedTerminals._window

    def window(terminals: SimulatedTerminals, *asked: Any) -> Any:
        if terminals._machine.name.split("-")[-3:-2] == ["slow"] and terminals._machine.name.endswith("-m2"):
            raise DbtollError("its server died")
        return honest(terminals, *asked)

    monkeypatch.setattr(SimulatedTerminals, "_window", window)
    text = specification("tatp")
    folder = runs.begin(experiment(text), text, tmp_path, Counting(2))
    arms = {arm.name: arm for arm in analyze(folder).arms}
    assert (arms["three"].outcome, arms["slow"].outcome) == (Outcome.OK, Outcome.FAILED)
    assert "its server died" in (arms["slow"].reason or "")
    assert not [visit for visit in read_run(folder).records(Visit) if visit.arm == "slow"]
