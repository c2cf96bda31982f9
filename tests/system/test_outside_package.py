"""A package of somebody else's with an environment, an engine and a workload: installed, held to the contracts, measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.copied import contract_tests, dbtoll, python
from tests.support.program import ROOT, carried, is_root

PACKAGE = ROOT / "tests/fixtures/outside_package"

RUN = """
question = "What does a jail cost?"
parameter_sets = 2
[engine]
name = "postgres"
[workload]
name = "arithmetic"
most = 50
[precision]
budget = "30s"
rounds_min = 2
rounds_max = 2
[visit]
lead_in = "1ms"
measurement_time = "10ms"
[resources]
memory = "1 GiB"
[[arm]]
name = "native"
stack = "native"
[[arm]]
name = "jail"
stack = "jail:alcatraz"
"""

SIMULATED = """
[engine]
name = "echo"
voice = "high"
[workload]
name = "arithmetic"
[factors]
query_protocol = ["simple", "extended"]
[precision]
budget = "30s"
rounds_min = 4
rounds_max = 4
[[arm]]
name = "native"
stack = "simulated"
[[arm]]
name = "slower"
stack = "simulated:effect=0.1"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Where the package lies, with what an installer writes beside it; and this dbtoll."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(PACKAGE, folder / "source")
    words = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    done = subprocess.run(
        [sys.executable, *words, str(folder / "site"), str(folder / "source")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [folder / "site", ROOT / "src"]


@pytest.mark.alone
def test_it_keeps_to_the_contracts(installed: list[Path], tmp_path: Path) -> None:
    shutil.copy(PACKAGE / "contract.py", tmp_path / "contract.py")
    shutil.copy(PACKAGE / "pyproject.toml", tmp_path)
    before = carried()
    told = contract_tests(tmp_path / "contract.py", "-rs", paths=installed, cwd=tmp_path)
    assert "passed" in told and "failed" not in told
    assert not is_root() or "skipped" not in told
    assert carried()["cgroups"] <= before["cgroups"]
    assert not list(Path("/run/dbtoll-outside").glob("*"))


@pytest.mark.skipif(not is_root(), reason="a jail needs root")
def test_its_environment_is_compared_with_native(installed: list[Path], tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(RUN)
    done = dbtoll("run", "spec.toml", "--runs-dir", "runs", "--json", paths=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (
        each for each in (tmp_path / "runs").iterdir() if not each.is_symlink() and (each / "result.json").exists()
    )
    result = json.loads((folder / "result.json").read_text())
    assert {arm["name"]: arm["outcome"] for arm in result["arms"]} == {
        "native": "ok", "native (A/A)": "ok", "jail": "ok"
    }  # fmt: skip
    jail = next(each for each in result["comparisons"] if each["arm"] == "jail" and each["estimand"] == "geomean")
    assert jail["rounds"] == 2 and jail["estimate"] is not None
    checks = {check["name"]: check for arm in result["arms"] if arm["name"] == "jail" for check in arm["checks"]}
    assert checks["equal_answers"]["passed"] is True
    assert checks["commit_reaches_device"]["finding"]
    assert result["facts"]["packages"] == {
        "environments jail": "dbtoll-outside 0.1", "workloads arithmetic": "dbtoll-outside 0.1"
    }  # fmt: skip
    page = (folder / "report.html").read_text()
    assert "Jail" in page and "Arithmetic measures nothing but how to add." in page and "PostgreSQL" in page
    assert not list(Path("/run/dbtoll-outside").glob("*"))


def test_its_engine_and_workload_run_in_a_simulated_world(installed: list[Path], tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SIMULATED)
    done = dbtoll("run", "spec.toml", "--runs-dir", "runs", "--json", paths=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (
        each for each in (tmp_path / "runs").iterdir() if not each.is_symlink() and (each / "result.json").exists()
    )
    result = json.loads((folder / "result.json").read_text())
    found = [each for each in result["comparisons"] if each["arm"] == "slower" and each["estimand"] == "geomean"]
    assert {each["levels"]["query_protocol"] for each in found} == {"simple", "extended"}
    assert all(0.05 < each["estimate"] < 0.2 for each in found)
    assert result["facts"]["descriptions"]["engines"]["echo"]["title"] == "Echo"
    # Whoever has not the package can read the run, and its page says the same.
    (folder / "report.html").unlink()
    read = dbtoll("report", str(folder), paths=[ROOT / "src"], cwd=tmp_path)
    assert read.returncode == 0, read.stderr
    assert "Arithmetic measures nothing but how to add." in (folder / "report.html").read_text()


def test_what_a_killed_one_left_is_cleaned_by_its_own_remover(
    installed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a jail needs root")
    script = """
from pathlib import Path
from dbtoll.runner.cleanup import removers
from dbtoll.runner.cleanup.journal import temporary_journal
cell = Path("/run/dbtoll-outside/left-behind")
cell.mkdir(parents=True)
with temporary_journal() as journal, removers.removers() as by_kind:
    journal.create("jail_cell", path=str(cell))
    journal.create("jail_cell", path="/etc/passwd")
    removed, failed = journal.sweep(by_kind)
    assert not cell.exists() and Path("/etc/passwd").exists()
    assert len(removed) == 1 and "it does not lie below /run/dbtoll-outside" in failed[0], (removed, failed)
"""
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))  # the journal of what is refused stays
    done = python(["-c", script], *installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cleaned = dbtoll("clean", paths=installed, cwd=tmp_path)
    assert cleaned.returncode != 0 and "it does not lie below /run/dbtoll-outside" in cleaned.stdout
    without = dbtoll("clean", paths=[ROOT / "src"], cwd=tmp_path)
    assert "this dbtoll does not know how to remove a jail_cell" in without.stdout


def test_an_engine_that_lacks_an_ability_is_refused_with_those_that_have_it(
    installed: list[Path], tmp_path: Path
) -> None:
    done = dbtoll("compare", "jail", "--engine", "echo", "--workload", "tpcc", paths=installed, cwd=tmp_path)
    assert done.returncode == 64
    assert "tpcc cannot be asked of echo, which does not offer: transactions" in done.stderr
    assert "engines that do: duckdb, hyper, mariadb, monetdb, noop, postgres" in done.stderr
