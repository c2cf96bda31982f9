"""Two versions of a server, two of its settings and two wordings of a statement, as arms of one run; every answer is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import dbtoll, is_root, only_run

pytestmark = pytest.mark.skipif(not is_root(), reason="native arms need root")

SPEC = """
[engine]
settings = { jit = "off" }
[workload]
name = "tpch"
scale = 0.01
queries = ["Q1", "Q6"]
[precision]
budget = "40s"
rounds_min = 2
rounds_max = 2
blocks_max = 2
[visit]
measurement_time = "10ms"
[[arm]]
name = "old"
stack = "native"
[[arm]]
name = "new"
stack = "native"
[arm.engine]
version = "17"
[[arm]]
name = "compiled"
stack = "native"
[arm.engine]
settings = { jit = "on", jit_above_cost = "0" }
[arm.resources]
memory = "2 GiB"
"""

OWN = """
[workload]
name = "sql"
directory = "one"
[precision]
budget = "40s"
rounds_min = 2
rounds_max = 2
blocks_max = 2
[visit]
measurement_time = "10ms"
[[arm]]
name = "one"
stack = "native"
[[arm]]
name = "other"
stack = "native"
[arm.workload]
directory = "other"
"""


def measured(folder: Path, text: str) -> dict[str, Any]:
    (folder / "spec.toml").write_text(text)
    done = dbtoll(
        "run", str(folder / "spec.toml"), "--runs-dir", str(folder / "runs"), "--json", "--yes", timeout_s=900
    )
    assert done.returncode == 0, done.stderr
    assert only_run(folder / "runs").is_dir()
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check(arm: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in arm["checks"] if each["name"] == name)
    return found


def test_versions_and_settings_are_compared_in_one_run(tmp_path: Path) -> None:
    result = measured(tmp_path, SPEC)
    arms = {arm["name"]: arm for arm in result["arms"]}
    assert list(arms) == ["old", "old (A/A)", "new", "new (A/A)", "compiled", "compiled (A/A)"]
    assert {name: arm["outcome"] for name, arm in arms.items()} == dict.fromkeys(arms, "ok")
    assert {name: check(arm, "equal_answers")["passed"] for name, arm in arms.items()} == dict.fromkeys(arms, True)
    assert {floor["arm"] for floor in result["noise_floor"]} == {"old", "new", "compiled"}

    versions = {name: arm["server"].split(".")[0] for name, arm in arms.items()}
    assert versions == {name: f"PostgreSQL {17 if name.startswith('new') else 15}" for name in arms}
    differences = {each["name"]: (each["value"], each["baseline"]) for each in arms["new"]["differences"]}
    assert differences.keys() == {"version", "system", "C library"}
    assert "trixie" in differences["system"][0] and "bookworm" in differences["system"][1]
    server = check(arms["new"], "same_server")
    assert not server["void_rounds"] and "as asked for" in server["finding"]

    differences = {each["name"]: (each["value"], each["baseline"]) for each in arms["compiled"]["differences"]}
    assert differences["jit"] == ("on", "off") and differences["memory"] == ("2 GiB", "4 GiB")
    assert check(arms["compiled"], "same_server")["passed"] is True
    assert "memory 2.00 GiB (4.00 GiB), as asked for" in check(arms["compiled"], "same_resources")["finding"]
    assert "How much do new (PostgreSQL 17, image trixie) and compiled (" in result["question"]


def test_other_statements_must_give_the_same_answers(tmp_path: Path) -> None:
    """What the baseline answers to the query of that name holds for all."""
    for name, wrong in (("one", "100"), ("other", "101")):
        folder = tmp_path / name
        (folder / "statements").mkdir(parents=True)
        (folder / "schema.sql").write_text("create table t (x integer not null);\n")
        (folder / "load.sql").write_text("insert into t select generate_series(1, 1000);\n")
        (folder / "statements" / "wrong.sql").write_text(f"select count(*) from t where x <= {wrong};\n")
    (tmp_path / "one/statements/right.sql").write_text("select sum(x) from t;\n")
    (tmp_path / "other/statements/right.sql").write_text("select count(*) * 1001 / 2 from t;\n")
    arms = {arm["name"]: arm for arm in measured(tmp_path, OWN)["arms"]}
    assert check(arms["one"], "equal_answers")["passed"] is True
    assert arms["other"]["outcome"] == "invalid"
    assert "wrong (" in arms["other"]["reason"] and "right" not in arms["other"]["reason"]
