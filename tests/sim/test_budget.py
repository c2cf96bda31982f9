"""What a budget buys: rounds of arms that are many times slower, the round that a verdict lacks, and what it takes to decide."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dbtoll import errors, facts
from dbtoll.analysis.effects.stopping import BUDGET_ENDED
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.commands import measure
from dbtoll.model.experiment import Experiment, Verdict
from dbtoll.progress import Progress
from dbtoll.report import page
from dbtoll.runner import pilot
from dbtoll.runner import run as runs
from dbtoll.runner.budget import Budget
from dbtoll.runner.preparation import requirements
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import Record, Start, Visit
from tests.support.few_rounds import Counting
from tests.support.program import dbtoll_forked, only_run

SPEC = """
question = "What does a budget buy?"
baseline = "base"
[engine]
name = "noop"
[workload]
name = "tpch"
queries = ["Q1", "Q6", "Q14"]
[precision]
budget = "60s"
target = "0.001%"
{precision}
[[arm]]
name = "base"
stack = "simulated"
[[arm]]
name = "near"
stack = "simulated:effect=0.02"
"""
SLOW = """
[[arm]]
name = "emulated"
stack = "simulated:effect=11.0"
"""


def measured(folder: Path, rounds: int, text: str) -> Run:
    return read_run(runs.begin(experiment(text), text, folder, Counting(rounds)))


def test_an_arm_that_is_many_times_slower_takes_part_in_the_rounds_of_a_verdict(tmp_path: Path) -> None:
    run = measured(tmp_path, 8, SPEC.format(precision="") + SLOW)
    assert run.plan.slow.keys() == {"emulated"}
    visited = {arm: {visit.round for visit in run.records(Visit) if visit.arm == arm} for arm in ("near", "emulated")}
    assert visited == {"near": set(range(8)), "emulated": set(range(5))}
    assert {start.round for start in run.records(Start) if start.arm == "emulated"} == set(range(5))
    result = analyze_run(run)
    found = {told.arm: told for told in result.comparisons if told.estimand == "geomean" and not told.is_aa}
    assert (found["near"].rounds, found["emulated"].rounds) == (8, 5)
    assert found["emulated"].verdict == Verdict.LOSES
    assert found["emulated"].estimate == pytest.approx(11, rel=0.2)
    slow = next(arm for arm in result.arms if arm.name == "emulated")
    assert (slow.outcome, slow.reason, slow.rounds) == ("ok", None, 5)


def test_the_pilot_is_the_first_round_where_rounds_have_few_blocks(tmp_path: Path) -> None:
    run = measured(tmp_path, 3, SPEC.format(precision=""))
    assert run.plan.blocks > pilot.COUNTS_UP_TO_BLOCKS and not run.plan.pilot  # its rounds take no time
    assert all(len({visit.block for visit in visits}) == run.plan.blocks for visits in by_round(run).values())

    run = measured(tmp_path / "few", 3, SPEC.format(precision="blocks_max = 1"))
    assert run.plan.blocks == 1 and run.plan.pilot
    assert run.complete_rounds == (0, 1, 2) and [attempt.attempt for attempt in run.attempts] == [0, 0, 0]
    assert {number: len(visits) for number, visits in by_round(run).items()} == dict.fromkeys(range(3), 9)
    assert {start.round for start in run.records(Start)} == {0, 1, 2}
    first = run.attempts[0]
    assert first.end is not None and 0 == first.begin.elapsed_s < first.end.elapsed_s <= run.attempts[1].begin.elapsed_s


def by_round(run: Run) -> dict[int, list[Visit]]:
    found: dict[int, list[Visit]] = {}
    for visit in run.records(Visit):
        if not visit.first_execution:
            found.setdefault(visit.round, []).append(visit)
    return found


def test_a_slow_arm_may_be_given_fewer_rounds_and_has_an_interval_then(tmp_path: Path) -> None:
    run = measured(tmp_path, 6, SPEC.format(precision="rounds_slow = 3") + SLOW)
    result = analyze_run(run)
    slow = next(told for told in result.comparisons if (told.arm, told.estimand) == ("emulated", "geomean"))
    assert (slow.rounds, slow.verdict) == (3, Verdict.CANNOT_TELL)
    assert slow.low is not None and slow.low > 5
    assert any(
        "starts and copies of the dataset of emulated: 3 drawn" in each for each in result.not_inside_the_interval
    )
    assert "over 6 rounds (emulated 3) of fresh starts" in re.sub(r"\s+", " ", page.render(result, run))
    assert run.end is not None
    ended = replace(run, end=msgspec.structs.replace(run.end, reason=BUDGET_ENDED))
    assert "emulated" not in (measure.going_on(result, ended) or "")  # more rounds would not have it


def test_where_all_are_slow_none_is_thinned(tmp_path: Path) -> None:
    run = measured(tmp_path, 7, SPEC.format(precision="").replace("effect=0.02", "effect=11.0"))
    assert run.plan.slow.keys() == {"near"}
    assert {visit.round for visit in run.records(Visit) if visit.arm == "near"} == set(range(7))


def test_a_thinned_arm_stays_out_after_a_resume(tmp_path: Path) -> None:
    run = measured(tmp_path, 6, SPEC.format(precision="") + SLOW)
    again = read_run(runs.resume(run.folder, Counting(8)))
    assert len(again.counted) == 8
    assert {visit.round for visit in again.records(Visit) if visit.arm == "emulated"} == set(range(5))


def test_another_machine_is_named_before_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody installs what is missing for a run that cannot go on there."""
    run = measured(tmp_path, 2, SPEC.format(precision=""))
    host = facts.host

    def lacking(*_: object) -> None:
        raise errors.Unavailable("a program is missing", "install it")

    monkeypatch.setattr(requirements, "require_all", lacking)
    with pytest.raises(errors.Unavailable, match="a program is missing"):
        runs.resume(run.folder, Counting(3))
    monkeypatch.setattr(facts, "host", lambda machine: host(machine) | {"kernel": "0.01"})
    with pytest.raises(errors.RunFolderError, match=r"cannot be continued here: host.kernel was .* and is '0.01'"):
        runs.resume(run.folder, Counting(3))
    assert len(read_run(run.folder).counted) == 2


FAR = """
[[arm]]
name = "far"
stack = "simulated:effect=0.8"
"""


class Looking(Counting):
    """Ends as Counting does, and looks as `Progress` does."""

    def __init__(self, rounds: int, asked: Experiment) -> None:
        super().__init__(rounds)
        self.progress = Progress(asked, quiet=True)
        self.said: list[str] = []
        self.say = self.said.append

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        self.progress.decide(run, elapsed_s, next_round_s)
        self.settled, self.rounds_with_effect = self.progress.settled, self.progress.rounds_with_effect
        return super().decide(run, elapsed_s, next_round_s)


def void_rounds_of_the_slow_arm(monkeypatch: pytest.MonkeyPatch, rounds: Container[int]) -> None:
    """In each of them another arm was awake during one of its visits, each time for the next query."""
    append = runs.Measurement.append

    def disturbed(self: runs.Measurement, record: Record) -> Record:
        if isinstance(record, Visit) and record.arm == "emulated" and record.round in rounds:
            in_turn = ("Q1", "Q6", "Q14")[record.round % 3]  # what lacks one query in most rounds is told of the others
            record = msgspec.structs.replace(record, asleep_ok=record.query != in_turn)
        return append(self, record)

    monkeypatch.setattr(runs.Measurement, "append", disturbed)


def test_a_slow_arm_takes_part_again_for_a_round_without_an_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in five, two of them had a void visit, and an hour of measuring ended without its verdict."""
    void_rounds_of_the_slow_arm(monkeypatch, (1, 3))
    text = SPEC.format(precision="") + SLOW
    watch = Looking(8, asked := experiment(text))
    run = read_run(runs.begin(asked, text, tmp_path, watch))
    assert {visit.round for visit in run.records(Visit) if visit.arm == "emulated"} == set(range(7))
    found = {told.arm: told for told in analyze_run(run).comparisons if told.estimand == "geomean" and not told.is_aa}
    assert (found["emulated"].rounds, found["emulated"].verdict) == (5, Verdict.LOSES)
    (said,) = [line for line in watch.said if "no more rounds" in line]
    assert said.endswith("it is many times slower, and was in 7, 5 of them without a void visit")
    again = read_run(runs.resume(run.folder, Looking(10, asked)))
    assert {visit.round for visit in again.records(Visit) if visit.arm == "emulated"} == set(range(7))


def test_a_slow_arm_takes_part_in_twice_its_rounds_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    void_rounds_of_the_slow_arm(monkeypatch, range(1, 100))
    text = SPEC.format(precision="") + SLOW
    run = read_run(runs.begin(asked := experiment(text), text, tmp_path, Looking(12, asked)))
    assert {visit.round for visit in run.records(Visit) if visit.arm == "emulated"} == set(range(10))
    assert run.end is not None
    ended = replace(run, end=msgspec.structs.replace(run.end, reason=BUDGET_ENDED))
    assert "emulated" not in (measure.going_on(analyze_run(run), ended) or "")  # more rounds would not have it


def test_a_slow_arm_that_can_have_no_effect_takes_part_in_its_rounds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its queries fails every time: more rounds would not help."""
    append = runs.Measurement.append

    def failing(self: runs.Measurement, record: Record) -> Record:
        if isinstance(record, Visit) and (record.arm, record.query) == ("emulated", "Q1"):
            (unit,) = record.units
            executions = [msgspec.structs.replace(each, outcome="error") for each in unit.executions]
            record = msgspec.structs.replace(record, units=(msgspec.structs.replace(unit, executions=executions),))
        return append(self, record)

    monkeypatch.setattr(runs.Measurement, "append", failing)
    text = SPEC.format(precision="") + SLOW
    run = read_run(runs.begin(asked := experiment(text), text, tmp_path, Looking(12, asked)))
    assert {visit.round for visit in run.records(Visit) if visit.arm == "emulated"} == set(range(5))


def test_no_budget_is_overrun_for_a_round_without_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    void_rounds_of_the_slow_arm(monkeypatch, (1, 3))
    monkeypatch.setattr(Budget, "left_s", lambda self: 0.0)
    text = SPEC.format(precision="") + SLOW
    run = read_run(runs.begin(asked := experiment(text), text, tmp_path, Looking(8, asked)))
    assert {visit.round for visit in run.records(Visit) if visit.arm == "emulated"} == set(range(5))


def test_an_arm_that_is_settled_sits_out_and_so_after_a_resume(tmp_path: Path) -> None:
    text = SPEC.format(precision='settled = "20%"') + FAR
    asked = experiment(text)
    watch = Looking(8, asked)
    run = read_run(runs.begin(asked, text, tmp_path, watch))
    visited = {arm: {visit.round for visit in run.records(Visit) if visit.arm == arm} for arm in ("near", "far")}
    assert visited == {"near": set(range(8)), "far": set(range(5))}
    assert "far sits out: whatever comes, it is beyond 20%" in watch.said
    found = {told.arm: told for told in analyze_run(run).comparisons if told.estimand == "geomean" and not told.is_aa}
    assert (found["far"].rounds, found["far"].verdict) == (5, Verdict.LOSES)
    again = read_run(runs.resume(run.folder, Looking(10, asked)))
    assert len(again.counted) == 10
    assert {visit.round for visit in again.records(Visit) if visit.arm == "far"} == set(range(5))


def test_where_all_are_settled_all_stay(tmp_path: Path) -> None:
    text = (SPEC.format(precision='settled = "20%"') + FAR).replace("effect=0.02", "effect=0.7")
    asked = experiment(text)
    run = read_run(runs.begin(asked, text, tmp_path, Looking(7, asked)))
    assert {visit.round for visit in run.records(Visit) if visit.arm == "far"} == set(range(7))


def test_a_budget_in_which_nothing_can_be_decided_is_refused_before_the_first_round(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.format(precision=""))
    done = dbtoll_forked("run", str(spec), "--runs-dir", str(tmp_path / "runs"), "--budget", "1ms")
    assert done.returncode == errors.NO_VERDICT_POSSIBLE
    assert "nothing is decided on fewer than 5 rounds" in done.stderr
    folder = only_run(tmp_path / "runs")
    assert not (folder / "history.ndjson").exists()
    command = re.search(r"dbtoll (run \S+ --resume) --budget (\d+)m", done.stderr)
    assert command is not None and command[1].split()[1] == str(folder)
    done = dbtoll_forked(*command[1].split(), "--budget", "3s")
    assert done.returncode == 0, done.stderr
    assert len(read_run(folder).counted) >= 5


def test_fewer_rounds_than_decide_are_measured_where_they_were_asked_for(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.format(precision="rounds_min = 2\nrounds_max = 2"))
    done = dbtoll_forked("run", str(spec), "--runs-dir", str(tmp_path / "runs"), "--budget", "1ms")
    assert done.returncode == 0, done.stderr


def test_an_undecided_run_says_how_much_longer_and_by_which_command(tmp_path: Path) -> None:
    run = measured(tmp_path, 5, SPEC.format(precision=""))
    assert run.end is not None
    run = replace(run, end=msgspec.structs.replace(run.end, reason=BUDGET_ENDED))
    said = measure.going_on(analyze_run(run), run)
    assert said is not None
    assert re.search(
        rf"undecided: near: about \d+ rounds? more .* dbtoll run {run.folder} --resume --budget \d+m", said
    )


def test_an_undecided_run_that_its_rounds_max_ended_says_so(tmp_path: Path) -> None:
    """Resumed, it would end at once."""
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.format(precision="rounds_max = 5"))
    done = dbtoll_forked("run", str(spec), "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"undecided: near: .*; its rounds_max of 5 ended it: begin a new run with a larger one", done.stderr
    )
    assert "--resume" not in done.stderr
