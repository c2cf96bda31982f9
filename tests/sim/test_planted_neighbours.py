"""A neighbour of other tenants, in the simulated world: what is planted is found, and what does no harm stays quiet."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dbtoll.analysis.effects import interference
from dbtoll.analysis.result.builder import analyze
from dbtoll.analysis.result.schema import Interference, Levels
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.commands import inspect
from dbtoll.environments.simulated import machine
from dbtoll.model.experiment import Verdict
from dbtoll.model.neighbours import COUNTED, SERVER_KILLED
from dbtoll.model.plan import Phase
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.report import tables
from dbtoll.runner import run as runs
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.protocol import VisitResult
from dbtoll.runner.drivers.transactions import TransactionDriver
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Neighbour, Visit
from tests.support.few_rounds import Counting
from tests.support.one_round import measure_one_round

TEXT = """
question = "How much do tenants feel of their neighbour?"
seed = 11
parameter_sets = 2
[engine]
name = "noop"
[workload]
name = "tatp"
window = "2s"
ramp_up = "0s"
{workload}
[factors]
neighbour = [{levels}]
[precision]
rounds_min = 6
rounds_max = 6
[[arm]]
name = "apart"
stack = "simulated"
machines = 3
[[arm]]
name = "together"
stack = "simulated:neighbour=0.4"
machines = 3
"""


def measured(folder: Path, levels: str, workload: str = "") -> Path:
    text = TEXT.format(levels=levels, workload=workload)
    return runs.begin(experiment(text), text, folder, Counting(6))


def cells(folder: Path, metric: str) -> dict[tuple[str, str], Interference]:
    return {(cell.arm, cell.level): cell for cell in analyze(folder).interference if cell.metric == metric}


def test_planted_interference_is_found_and_an_idle_neighbour_is_not(tmp_path: Path) -> None:
    folder = measured(tmp_path, '"idle", "processor", "fsync"')
    for visit in read_run(folder).records(Visit):
        assert len(visit.units) == 2, "the neighbour is not among the others"
        neighbour = visit.neighbour
        if visit.levels["neighbour"] == "none":
            assert neighbour is None
            continue
        assert neighbour is not None and neighbour.problem is None and min(neighbour.did.values()) > 0
        assert neighbour.elapsed_ns is not None and neighbour.elapsed_ns >= 2_000_000_000
    found = cells(folder, TIME_PER_TRANSACTION)
    assert found.keys() == {(arm, level) for arm in ("apart", "together") for level in ("idle", "processor", "fsync")}
    for (arm, level), cell in found.items():
        assert cell.against == "none" and cell.rounds == 6 and cell.estimate is not None
        planted = 0.4 if arm == "together" and level != "idle" else 0.0
        assert cell.estimate == pytest.approx(planted, abs=0.05)
        assert cell.verdict is not Verdict.GAINS and (cell.verdict is Verdict.LOSES) is (planted > 0), cell
        drop, decisive = cell.throughput_drop, cell.throughput_drop_decisive
        assert drop is not None and decisive is not None
        assert drop.estimate == pytest.approx(1 - 1 / (1 + planted), abs=0.04)
        # Four cells are adjusted for one another, and none is narrower than its own interval.
        assert decisive.high - decisive.low >= drop.high - drop.low
        assert (cell.p_holm is None) is (level == "idle")
    tails = cells(folder, "response_p99")
    assert tails["together", "processor"].verdict is Verdict.LOSES
    assert tails["apart", "processor"].verdict is not Verdict.LOSES
    assert all(cell.throughput_drop is None for cell in tails.values())
    result = analyze(folder)
    did = {(each.arm, each.level): each for each in result.neighbours}
    assert did["together", "fsync"].did_per_s.keys() == {"fsyncs", "bytes_written"}
    assert did["together", "fsync"].did_per_s["fsyncs"].estimate == pytest.approx(1e6, rel=0.01)
    checks = {arm.name: {check.name: check.passed for check in arm.checks} for arm in result.arms}
    assert checks["together"]["neighbour_acted"] is True
    # How much more an aggressor costs one arm than the other is a contrast, against the level without it.
    contrast = next(c for c in result.contrasts if (c.arm, c.level) == ("together", "processor"))
    assert contrast.against == "none" and contrast.estimate == pytest.approx(0.4, abs=0.06)


def test_the_load_of_a_neighbour_is_held_against_its_own_rate(tmp_path: Path) -> None:
    folder = measured(tmp_path, '"load_x4", "processor"', "rate = 200\nterminals = 20")
    arrived = Counter[str]()
    for visit in read_run(folder).records(Visit):
        if visit.neighbour is not None and visit.neighbour.unit is not None and visit.neighbour.unit.window is not None:
            kinds = visit.neighbour.unit.window["transactions"].values()
            arrived[visit.levels["neighbour"]] += sum(kind["committed"] for kind in kinds)
    assert arrived.keys() == {"load_x1", "load_x4"}
    assert arrived["load_x4"] / arrived["load_x1"] == pytest.approx(4, rel=0.1)
    assert not cells(folder, TIME_PER_TRANSACTION), "throughput is the schedule's"
    found = cells(folder, "response_p99")
    assert {level: cell.against for (_, level), cell in found.items()} == {"load_x4": "load_x1", "processor": "none"}
    assert found["together", "processor"].verdict is Verdict.LOSES
    # The simulated servers have room for all, so nobody feels the load.
    assert found["together", "load_x4"].verdict is not Verdict.LOSES
    assert all(cell.unserved is not None for cell in found.values())
    did = {each.level: each for each in analyze(folder).neighbours if each.arm == "together"}
    assert did["load_x1"].throughput is not None and did["load_x4"].throughput is not None
    assert did["load_x4"].throughput.estimate > 3 * did["load_x1"].throughput.estimate


def test_response_times_of_what_was_served_are_no_good_news_where_connections_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a struck server did not do has no response time, so those that are left can be shorter."""
    folder = measured(tmp_path, '"processor"')
    windows = interference._windows

    def struck(measured: ValidVisits, arm: str, levels: Levels) -> Any:
        """With the neighbour as it is without one, and the other way round, so that it seems to help."""
        found = windows(
            measured, arm, {**levels, "neighbour": {"none": "processor", "processor": "none"}[levels["neighbour"]]}
        )
        lost = 3 if levels["neighbour"] == "processor" else 0
        return {
            key: structs.replace(visit, window={**visit.window, "connections_lost": lost} if visit.window else None)
            for key, visit in found.items()
        }

    monkeypatch.setattr(interference, "_windows", struck)
    cell = cells(folder, "response_p99")["together", "processor"]
    assert cell.high_decisive is not None and cell.high_decisive < -0.05
    assert (
        cell.verdict is Verdict.CANNOT_TELL and cell.reason is not None and "180 connections were lost" in cell.reason
    )
    assert cells(folder, TIME_PER_TRANSACTION)["together", "processor"].verdict is Verdict.GAINS


def test_a_fault_is_held_against_the_last_window_before_it() -> None:
    """Whose round and block it has, though it comes after all blocks (`plan.Plan`)."""
    windows: Any = {(number, block): f"{number}.{block}" for number in (1, 0) for block in (2, 0, 1)}
    assert interference._last_of_rounds(windows) == {(0, 0): "0.2", (1, 0): "1.2"}


def test_levels_are_interleaved_within_blocks(run_folder: Path) -> None:
    measure_one_round(TEXT.format(levels='"processor", "idle"', workload=""), run_folder, blocks=3, copies=False)
    order = [
        (visit.block, visit.levels["neighbour"])
        for visit in read_run(run_folder).records(Visit)
        if not visit.first_execution
    ]
    runs_of = list(dict.fromkeys(order))
    assert [block for block, _ in runs_of] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    orders = {tuple(level for block, level in runs_of if block == number) for number in range(3)}
    assert all(set(each) == {"none", "idle", "processor"} for each in orders)
    assert Counter(order) == dict.fromkeys(runs_of, 2), "every arm once at each level of a block"


def test_a_neighbour_that_does_nothing_voids_its_windows(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = machine.Aggressor.output

    def output(process: Any) -> bytes:
        told = honest(process)
        return told if process._arm != "together" else told.splitlines(keepends=True)[0] * 2

    monkeypatch.setattr(machine.Aggressor, "output", output)
    result = measure_one_round(TEXT.format(levels='"processor"', workload=""), run_folder, blocks=2)
    acted = {arm.name: next(c for c in arm.checks if c.name == "neighbour_acted") for arm in result.arms}
    assert acted["apart"].passed is True
    assert acted["together"].passed is False and acted["together"].void_visits == 2
    assert "the neighbour did nothing: no loops" in acted["together"].finding


def test_the_text_and_the_page_have_the_matrix(tmp_path: Path) -> None:
    folder = measured(tmp_path, '"processor"')
    inspect.report(folder, as_json=False)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'id="neighbours"' in page
    lines = [
        line for line in tables.markdown_interference(analyze(folder)).splitlines() if line.startswith("| computes |")
    ]
    assert len(lines) == len({cell.metric for cell in analyze(folder).interference})
    _, apart, together = lines[0].strip("| ").split(" | ")
    assert "loses" not in apart and together.endswith("loses")


def test_a_run_whose_arms_are_struck_goes_on_with_its_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has ended as a fault was to end it did not fail. A fault needs real servers; here the visit alone is the last."""
    drive = TransactionDriver.drive

    def struck(self: TransactionDriver, running: RunningArm, phase: Phase, *args: Any, **asked: Any) -> VisitResult:
        if phase.levels["neighbour"] != SERVER_KILLED:
            return drive(self, running, phase, *args, **asked)
        meanwhile = drive(
            self, running, replace(phase, levels={**phase.levels, "neighbour": "load_x1"}), *args, **asked
        )
        did = Neighbour(did=dict.fromkeys(COUNTED[SERVER_KILLED], 1), elapsed_ns=0, cpu_ns=0)
        return replace(meanwhile, neighbour=did, is_last=True)

    monkeypatch.setattr(TransactionDriver, "drive", struck)
    text = TEXT.format(levels=f'"{SERVER_KILLED}"', workload="").replace("rounds_min = 6", "rounds_min = 3")
    run = read_run(runs.begin(experiment(text), text, tmp_path, Counting(3)))
    assert len(run.complete_rounds) == 3 and all(attempt.complete for attempt in run.attempts)
    assert {visit.round for visit in run.records(Visit) if visit.levels["neighbour"] == SERVER_KILLED} == {0, 1, 2}
