"""The instrument end to end: real server, real data, real containers; and on `simulated` what needs many rounds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dbtoll.runner.preparation.processors import Reserved, reserved
from tests.support.program import ROOT, carried, dbtoll, is_root, only_run

needs_root = pytest.mark.skipif(not is_root(), reason="native and Docker arms need root")
needs_docker = pytest.mark.skipif(shutil.which("dockerd") is None, reason="no dockerd here: apt-get install docker.io")

FAKE = """
question = "What does a planted effect look like?"
baseline = "base"
[engine]
name = "noop"
[workload]
name = "tpch"
queries = ["Q1", "Q6", "Q14"]
[precision]
budget = "{budget}"
rounds_min = 5
rounds_max = {rounds}
target = "0.1%"
[[arm]]
name = "base"
stack = "simulated"
[[arm]]
name = "slow"
stack = "simulated:effect=0.25"
"""


REAL = """
question = "Does it go all the way?"
explain = {explain}
parameter_sets = 2
[engine]
name = "postgres"
[workload]
{workload}
[factors]
{factors}
[precision]
budget = "{budget}"
rounds_min = 2
rounds_max = 2
blocks_max = 2
[[arm]]
name = "native"
stack = "native"
{arms}
"""
"""Two rounds, however long a busy machine takes for them."""
TPCH = 'name = "tpch"\nscale = 0.01\nqueries = {queries}'


def run_of(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "spec.toml").write_text(text)
    return dbtoll("run", str(folder / "spec.toml"), "--runs-dir", str(folder / "runs"), "--json", *options)


def result_of(folder: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((folder / "result.json").read_text())
    return result


def effect(result: dict[str, object], arm: str, estimand: str = "geomean") -> dict[str, float]:
    comparisons = result["comparisons"]
    assert isinstance(comparisons, list)
    (found,) = [c for c in comparisons if (c["arm"], c["estimand"], c["metric"]) == (arm, estimand, "run_time")]
    return dict(found)


def rounds_of(result: dict[str, object], arm: str) -> int:
    arms = result["arms"]
    assert isinstance(arms, list)
    return int(next(each["rounds"] for each in arms if each["name"] == arm))


def test_a_run_waits_for_processors_that_another_measures_on_and_can_be_stopped(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('[engine]\nname = "noop"\n[[arm]]\nname = "a"\nstack = "native"\n')
    with ExitStack() as held:
        try:
            held.enter_context(reserved([max(os.sched_getaffinity(0))]))
        except Reserved as busy:
            pytest.skip(busy.message)
        program = Path(sys.executable).parent / "dbtoll"
        runs = ["--runs-dir", tmp_path / "runs"]
        process = subprocess.Popen([program, "run", spec, *runs], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = ""
        while "waiting" not in said:
            said = process.stderr.readline()
            assert said, "it ended"
        assert f"another dbtoll (process {os.getpid()}) measures on processor" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stderr.close()


# --- on simulated ---------------------------------------------------------------------------------------------------------


def test_a_planted_effect_is_found_and_the_gate_says_so(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(FAKE.format(budget="20s", rounds=8))
    files = ["--junit", str(tmp_path / "junit.xml"), "--markdown", str(tmp_path / "summary.md")]
    done = dbtoll("run", str(spec), "--runs-dir", str(tmp_path / "runs"), "--max-overhead", "5%", "--json", *files)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    folder = only_run(tmp_path / "runs")
    assert result == result_of(folder)
    assert (result["gate"]["limit"], result["gate"]["decision"]) == (0.05, "exceeded")
    assert [(cell["arm"], cell["decision"]) for cell in result["gate"]["cells"]] == [("slow", "exceeded")]
    assert "gate: exceeded: slow takes more than 5 % longer" in done.stderr
    assert '<failure message="more than 5 % longer: ' in (tmp_path / "junit.xml").read_text(encoding="utf-8")
    assert "**Gate exceeded: slow" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert dbtoll("analyze", str(folder)).returncode == 1  # the run's own limit
    assert dbtoll("analyze", str(folder), "--max-overhead", "60%").returncode == 0
    assert result_of(folder)["gate"]["decision"] == "within"  # type: ignore[index]
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text())
    Draft202012Validator(schema).validate(result)
    slow = effect(result, "slow")
    assert slow["low"] < 0.25 < slow["high"]
    assert slow["verdict"] == "loses"
    assert dbtoll("run", str(spec), "--runs-dir", str(tmp_path / "more"), "--max-overhead", "60%").returncode == 0
    short = tmp_path / "short.toml"
    short.write_text(
        FAKE.format(budget="20s", rounds=8)
        .replace("rounds_min = 5", "rounds_min = 2")
        .replace("rounds_max = 8", "rounds_max = 2")
    )
    assert dbtoll("run", str(short), "--runs-dir", str(tmp_path / "few"), "--max-overhead", "25%").returncode == 2


def test_a_run_whose_budget_ended_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(FAKE.format(budget="20s", rounds=3).replace("rounds_min = 5", "rounds_min = 2"))
    assert dbtoll("run", str(spec), "--runs-dir", str(tmp_path / "runs"), "--budget", "1ms").returncode == 0
    folder = only_run(tmp_path / "runs")
    before = (folder / "plan.json").read_bytes()
    assert rounds_of(result_of(folder), "slow") < 3
    done = dbtoll("run", str(folder), "--resume", "--budget", "20s", "--max-overhead", "5%")
    assert done.returncode == 2, done.stderr
    assert rounds_of(result_of(folder), "slow") == 3
    assert (folder / "plan.json").read_bytes() == before


def test_a_killed_run_resumes_with_the_same_plan_and_loses_no_round(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(FAKE.format(budget="60s", rounds=30))
    program = Path(sys.executable).parent / "dbtoll"
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        [program, "run", spec, "--runs-dir", runs], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while time.monotonic() < until:
        histories = list(runs.glob("*/history.ndjson"))
        if histories and histories[0].read_bytes().count(b'"record":"round_end"') >= 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = only_run(runs)
    plan = (folder / "plan.json").read_bytes()
    ended = (folder / "history.ndjson").read_bytes().count(b'"record":"round_end"')
    assert 3 <= ended < 30
    done = dbtoll("run", str(folder), "--resume")
    assert done.returncode == 0, done.stderr
    assert (folder / "plan.json").read_bytes() == plan
    records = [json.loads(line) for line in (folder / "history.ndjson").read_text().splitlines()]
    complete = [r["round"] for r in records if r["record"] == "round_end" and r["complete"]]
    assert complete == sorted(set(complete))
    assert complete[:ended] == list(range(ended))
    assert any(r["record"] == "run_end" for r in records)
    assert [r["record"] for r in records].count("run") == 1


def test_stopping_it_ends_it_in_order(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(FAKE.format(budget="60s", rounds=60))
    program = Path(sys.executable).parent / "dbtoll"
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        [program, "run", spec, "--runs-dir", runs, "--max-overhead", "5%"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not any(b'"round":6' in p.read_bytes() for p in runs.glob("*/history.ndjson")):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    folder = only_run(runs)
    assert '"reason":"stopped by the user"' in (folder / "history.ndjson").read_text()
    assert (folder / "report.html").exists()
    assert process.returncode == 130
    gate = result_of(folder)["gate"]
    assert isinstance(gate, dict)
    assert (gate["decision"], gate["reason"]) == ("undecided", "its user stopped the run")  # six rounds would decide
    assert dbtoll("analyze", str(folder)).returncode == 2


# --- on real servers ---------------------------------------------------------------------------------------------------


@pytest.mark.alone
@needs_root
@needs_docker
def test_native_against_docker_on_tpch_leaves_nothing_behind(tmp_path: Path) -> None:
    before = carried()
    text = REAL.format(
        explain="false", workload=TPCH.format(queries='["Q1", "Q6", "Q13"]'), budget="45s",
        factors='connection = ["persistent", "per_statement"]\nquery_protocol = ["extended"]',
        arms='[[arm]]\nname = "docker"\nstack = "docker"',
    )  # fmt: skip
    done = run_of(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert carried() == before
    result = json.loads(done.stdout)
    outcomes = {arm["name"]: arm["outcome"] for arm in result["arms"]}
    assert outcomes == {"native": "ok", "native (A/A)": "ok", "docker": "ok"}, done.stderr
    assert {c["levels"]["connection"] for c in result["comparisons"]} == {"persistent", "per_statement"}
    assert {c["metric"] for c in result["comparisons"]} == {"run_time", "connect_time"}
    checks = {(arm["name"], check["name"]): check for arm in result["arms"] for check in arm["checks"]}
    for arm in outcomes:
        assert checks[arm, "equal_answers"]["passed"]
        assert checks[arm, "same_plans"]["passed"]
        assert checks[arm, "others_asleep"]["passed"], checks[arm, "others_asleep"]
    folder = only_run(tmp_path / "runs")
    assert (folder / "report.html").stat().st_size > 20_000
    assert any((folder / "logs").iterdir())
    journal = [json.loads(line) for line in (folder / "journal.ndjson").read_text().splitlines()]
    assert {line["entry"] for line in journal if "kind" in line} == {
        line["entry"] for line in journal if "done" in line
    }


@needs_root
def test_cold_statements_read_the_disk_and_warm_ones_do_not(tmp_path: Path) -> None:
    text = REAL.format(
        explain="true", workload=TPCH.format(queries='["Q1", "Q6"]'), budget="40s",
        factors='cache = ["warm", "cold"]', arms="",
    )  # fmt: skip
    done = run_of(tmp_path, text, "--exclusive")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (only_run(tmp_path / "runs") / "history.ndjson").read_text().splitlines()]
    visits = [
        {**record, **record["units"][0]}
        for record in records
        if record["record"] == "visit" and not record["first_execution"] and record["units"][0]["batches"] is None
    ]
    cold = [v for v in visits if v["levels"]["cache"] == "cold"]
    assert cold
    assert all(v["disk_read_bytes"] > 0 for v in cold)
    warm = [v for v in visits if v["levels"]["cache"] == "warm"]
    assert sum(v["disk_read_bytes"] == 0 for v in warm) > len(warm) / 2
    (ledger,) = (each for each in json.loads(done.stdout)["ledgers"] if each["levels"]["cache"] == "cold")
    reads = next(item for item in ledger["items"] if item["amount"]["name"] == "device: pages read")
    read_bytes = sum(
        statistics.median(v["disk_read_bytes"] for v in cold if v["query"] == query) for query in ("Q1", "Q6")
    )
    assert reads["baseline_count"] * 8192 == pytest.approx(read_bytes, rel=0.3)
    assert reads["baseline_cost_ns"] > 500


@needs_root
def test_where_all_is_cold_nothing_is_warmed_up_and_plans_are_compared(tmp_path: Path) -> None:
    text = REAL.format(
        explain="true", workload=TPCH.format(queries='["Q6"]'), budget="30s", factors='cache = ["cold"]', arms=""
    )
    done = run_of(tmp_path, text, "--exclusive")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (only_run(tmp_path / "runs") / "history.ndjson").read_text().splitlines()]
    visits = [record for record in records if record["record"] == "visit"]
    assert {visit["query"] for visit in visits} > {"Q6"}  # the probes of an experiment that explains
    assert not any(visit["first_execution"] for visit in visits)
    checks = [
        check for arm in json.loads(done.stdout)["arms"] for check in arm["checks"] if check["name"] == "same_plans"
    ]
    assert [check["passed"] for check in checks] == [True, True], checks


@needs_root
def test_the_users_own_statements(tmp_path: Path) -> None:
    workload = f'name = "sql"\ndirectory = "{ROOT / "examples" / "sql"}"'
    done = run_of(tmp_path, REAL.format(explain="false", workload=workload, budget="30s", factors="", arms=""))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    queries = {c["estimand"] for c in result["comparisons"] if c["estimand"].startswith("query:")}
    assert len(queries) == len(list((ROOT / "examples" / "sql" / "statements").glob("*.sql")))
    assert all(arm["outcome"] == "ok" for arm in result["arms"])


@pytest.mark.alone
@needs_root
def test_a_killed_run_is_cleaned_and_resumed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    dbtoll("clean", "--runs-dir", str(runs))  # what others left, too
    before = carried()
    program = Path(sys.executable).parent / "dbtoll"
    words = ["compare", "docker" if shutil.which("dockerd") else "native", "--baseline", "native", "--scale", "0.01"]
    words += ["--queries", "Q6", "--budget", "15s", "--yes", "--target", "0.01%", "--runs-dir", str(runs)]
    process = subprocess.Popen([program, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while time.monotonic() < until:
        histories = list(runs.glob("*/history.ndjson"))
        if histories and b'"record":"round_end"' in histories[0].read_bytes():
            break
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1.5)  # somewhere inside the next round
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(3)  # the host's agent notices the end of its line and ends what it started
    cleaned = dbtoll("clean", "--runs-dir", str(runs), "--json")
    assert cleaned.returncode == 0, cleaned.stdout + cleaned.stderr
    assert carried() == before, cleaned.stdout
    again = json.loads(dbtoll("clean", "--runs-dir", str(runs), "--json").stdout)
    assert (again["removed"], again["failed"]) == ([], [])
    folder = only_run(runs)
    done = dbtoll("run", str(folder), "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert carried() == before


def test_a_missing_environment_is_named_with_its_mend(tmp_path: Path) -> None:
    done = dbtoll("compare", "docker:runtime=kata,runtime_path=/nowhere/kata", "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 69, done.stderr
    assert "docker" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.alone
@needs_root
def test_a_busy_port_is_named(tmp_path: Path) -> None:
    before = carried()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = tmp_path / "spec.toml"
        spec.write_text(
            f'[engine]\nname = "postgres"\nlisten = "tcp"\nport = {port}\n[workload]\nname = "tpch"\nscale = 0.01\n'
            'queries = ["Q6"]\n[[arm]]\nname = "native"\nstack = "native"\n'
        )
        done = dbtoll("run", str(spec), "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 71, done.stderr
    assert "Address already in use" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert carried() == before
