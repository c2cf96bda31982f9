"""Arms of several units, in the simulated world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from dbtoll.analysis.result.builder import analyze
from dbtoll.commands import inspect
from dbtoll.engines import noop
from dbtoll.environments.simulated.session import SimulatedTerminals
from dbtoll.environments.simulated.world import GAP_NS
from dbtoll.errors import DbtollError
from dbtoll.model.experiment import Outcome
from dbtoll.model.plan import Phase
from dbtoll.model.reply import TIME_PER_TRANSACTION_LEAST
from dbtoll.runner import run as runs
from dbtoll.runner.rounds import RoundRun
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Fingerprint, Start, Visit
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


@pytest.mark.parametrize("workload", WORKLOADS)
def test_units_that_hear_late_that_they_may_go_are_caught(workload: str, tmp_path: Path) -> None:
    """The host told all of them at one moment."""
    text = specification(workload).replace("effect=0.3", "late_ms=60")
    folder = runs.begin(experiment(text), text, tmp_path, Counting(2))
    for visit in read_run(folder).records(Visit):
        assert len({unit.host_start_ns for unit in visit.units}) == 1
    checks = {arm.name: {check.name: check for check in arm.checks} for arm in analyze(folder).arms}
    assert checks["three"]["started_together"].passed is True
    late = checks["slow"]["started_together"]
    assert late.passed is False and late.void_visits


def test_a_plan_of_another_unit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In unit 2 of one arm, and in unit 1 of another one's baseline."""

    def fingerprint(engine: Any, session: Any, statement: Any) -> tuple[str, str]:
        name, query = session._machine.name, statement.query
        other = (query == "Q6" and "-slow-" in name and name.endswith("-m2")) or (
            query == "Q1" and "-three-" in name and "three-a-a" not in name and name.endswith("-m1")
        )
        return ("other" if other else "usual", "a plan")

    monkeypatch.setattr(noop.Engine, "fingerprint", fingerprint)
    taken_by = RoundRun.take_plans

    def take_plans(run: RoundRun, phase: Phase) -> None:
        """As of an engine that plans, which nothing else of this round knows."""
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(noop.Engine, "returns_rows", True)
            taken_by(run, phase)

    monkeypatch.setattr(RoundRun, "take_plans", take_plans)
    text = specification("tpch")
    folder = runs.begin(experiment(text), text, tmp_path, Counting(2))
    taken = [each for each in read_run(folder).records(Fingerprint) if each.arm == "two by two" and each.round == 0]
    assert {each.unit for each in taken} == {0, 1, 2, 3}
    result = analyze(folder)
    findings = {arm.name: next(c for c in arm.checks if c.name == "same_plans").finding for arm in result.arms}
    assert findings["slow"] == "other plans than the baseline: Q6 (unit 2)"
    assert findings["three"] == "other plans than the baseline: Q1 (unit 1)"
    same = {c.arm: c for c in result.comparisons if c.estimand == "geomean_same_plans"}
    assert same["slow"].left_out == ("Q1: another plan", "Q6: another plan")
    assert same["two by two"].left_out == ("Q1: another plan",)
    assert {(each.arm, each.query) for each in result.plans_changed} == {("slow", "Q6"), ("three", "Q1")}


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
