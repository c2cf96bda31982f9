"""Arms that differ in more than their environment, measured: who is held against whom, with which copies; and a gate over them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbtoll.analysis.result.builder import analyze_run
from dbtoll.model.experiment import Verdict
from dbtoll.runner import run as runs
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Start
from tests.support.few_rounds import Counting
from tests.support.program import dbtoll

SPEC = """
question = "What does memory cost?"
[engine]
name = "noop"
[workload]
name = "tpch"
queries = ["Q1", "Q6", "Q14"]
[precision]
budget = "60s"
target = "0.001%"
[[arm]]
name = "roomy"
stack = "simulated"
[[arm]]
name = "tight"
stack = "simulated:effect=0.2"
[arm.resources]
memory = "1 GiB"
[[arm]]
name = "tight guest"
stack = "simulated:effect=0.5"
[arm.resources]
memory = "1 GiB"
"""


def test_each_arm_is_held_against_its_own_baseline_with_copies_on_both_sides(tmp_path: Path) -> None:
    run = read_run(runs.begin(experiment(SPEC), SPEC, tmp_path, Counting(6)))
    assert [told["arms"] for told in run.facts["configurations"]] == [
        ["roomy", "roomy (A/A)"],
        ["tight", "tight (A/A)", "tight guest"],
    ]
    assert {start.arm for start in run.records(Start)} == {arm.name for arm in run.plan.experiment.arms}
    result = analyze_run(run)
    found = {told.arm: told for told in result.comparisons if told.estimand == "geomean"}
    assert {arm: (told.baseline, told.is_aa) for arm, told in found.items()} == {
        "roomy (A/A)": ("roomy", True),
        "tight": ("roomy", False),
        "tight (A/A)": ("tight", True),
        "tight guest": ("tight", False),
    }
    assert found["tight"].estimate == pytest.approx(0.2, abs=0.05) and found["tight"].verdict == Verdict.LOSES
    assert found["tight guest"].estimate == pytest.approx(0.25, abs=0.05)
    assert {floor.arm for floor in result.noise_floor} == {"roomy", "tight"}
    differences = {
        arm.name: [(each.name, each.value, each.baseline) for each in arm.differences] for arm in result.arms
    }
    assert differences["tight"] == [("memory", "1 GiB", "4 GiB")] and differences["tight guest"] == []


@pytest.mark.parametrize(("one", "other", "code"), [("", ":effect=0.4", 1), (":effect=0.4", "", 0)])
def test_a_script_is_told_by_the_exit_code_which_way_it_goes(tmp_path: Path, one: str, other: str, code: int) -> None:
    arms = ("--arm", f"one: simulated{one}", "--arm", f"other: simulated{other}, memory=1GiB")
    asked = ("--engine", "noop", "--queries", "Q1+Q6", "--budget", "20s", "--max-overhead", "10%")
    done = dbtoll("compare", *arms, *asked, "--quiet", "--yes", "--json", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    (cell,) = json.loads(done.stdout)["gate"]["cells"]
    assert (cell["arm"], cell["baseline"]) == ("other", "one")
