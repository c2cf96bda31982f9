"""One file or folder adds an environment, an engine or a workload: dropped into a copy of the source, it is known everywhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.copied import contract_tests, copy_of_source, dbtoll, python
from tests.support.program import ROOT, is_root

TOYS = ROOT / "tests/fixtures/toys"


@dataclass(frozen=True, slots=True)
class Toy:
    """``lines``: of a specification with it; ``arms``: stacks of the baseline and of another arm."""

    family: str
    name: str
    title: str
    lines: str
    arms: tuple[str, str]
    contract: str


ENVIRONMENT = Toy(
    "environments", "toy_box", "Toy box", '[engine]\nname = "noop"\n[workload]\nname = "tpch"\nqueries = ["Q6"]\n',
    ("native", "toy_box:colour=blue"), "tests/contract/test_environments.py",
)  # fmt: skip
ENGINE = Toy(
    "engines", "toy_parrot", "Toy parrot", '[engine]\nname = "toy_parrot"\n[workload]\nname = "sql"\ndirectory = "asked"\n',
    ("simulated", "simulated:effect=0.1"), "tests/contract/test_engines.py",
)  # fmt: skip
WORKLOAD = Toy(
    "workloads", "toy_counting", "Toy counting",
    '[engine]\nname = "noop"\n[workload]\nname = "toy_counting"\n[factors]\nconnection = ["persistent", "per_statement"]\n',
    ("simulated", "simulated:effect=0.1"), "tests/contract/test_workloads.py",
)  # fmt: skip

PRECISION = (
    '[precision]\nbudget = "20s"\nrounds_min = 2\nrounds_max = 2\n[visit]\nlead_in = "1ms"\nmeasurement_time = "5ms"\n'
)

PROBE = """
import json
from dbtoll import registry
from dbtoll.doctor import availability
from dbtoll.machines.agent.local import open_local
with open_local() as machine:
    found = availability.environment("toy_box", machine)
    engine = availability.environments()
print(json.dumps({"state": found.state, "note": found.note, "known": engine}))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return copy_of_source(tmp_path / "copy")


def dropped(source: Path, toy: Toy) -> None:
    """The fixture is one file or one folder, and that is all that changes."""
    (fixture,) = (TOYS / toy.family.removesuffix("s")).iterdir()
    target = source / "dbtoll" / toy.family / fixture.name
    assert not target.exists()
    shutil.copytree(fixture, target) if fixture.is_dir() else shutil.copy(fixture, target)


@pytest.mark.parametrize("toy", [ENVIRONMENT, ENGINE, WORKLOAD], ids=lambda toy: toy.name)
def test_one_file_or_folder_is_all(toy: Toy, source: Path, tmp_path: Path) -> None:
    if toy is ENVIRONMENT and not is_root():
        pytest.skip("its machines need root")
    dropped(source, toy)
    asked = tmp_path / "asked/statements"
    asked.mkdir(parents=True)
    (asked / "one.sql").write_text("select 1\n")
    spec = toy.lines + PRECISION + "".join(
        f'[[arm]]\nname = "{name}"\nstack = "{stack}"\n' for name, stack in zip(("base", "other"), toy.arms, strict=True)
    )  # fmt: skip
    (tmp_path / "spec.toml").write_text(spec)
    paths = [source]

    listed = python(["-c", f"from dbtoll import registry; print(registry.names('{toy.family}'))"], *paths, cwd=tmp_path)
    assert toy.name in listed.stdout

    planned = dbtoll("plan", "spec.toml", paths=paths, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr

    ran = dbtoll("run", "spec.toml", "--runs-dir", "runs", "--json", paths=paths, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (folder,) = (
        each for each in (tmp_path / "runs").iterdir() if not each.is_symlink() and (each / "result.json").exists()
    )
    result = json.loads((folder / "result.json").read_text())
    assert {arm["outcome"] for arm in result["arms"]} == {"ok"}
    described = result["facts"]["descriptions"]
    titles = [described["workload"]["title"]]
    titles += [each["title"] for kind in ("engines", "environments") for each in described[kind].values()]
    assert toy.title in titles

    # The report is made by a dbtoll that has never heard of it.
    (folder / "report.html").unlink()
    reported = dbtoll("report", str(folder), paths=[ROOT / "src"], cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    page = (folder / "report.html").read_text()
    if toy is not ENVIRONMENT:
        assert toy.title in page
    if toy is WORKLOAD:
        assert "Toys are not to be compared." in page and "Toy counting up to two" in page

    words = ["-k", toy.name, "--rootdir", str(ROOT)]
    assert "passed" in contract_tests(ROOT / toy.contract, *words, paths=[*paths, ROOT], cwd=ROOT)


def test_doctor_tries_a_new_environment_as_it_says(source: Path, tmp_path: Path) -> None:
    if not is_root():
        pytest.skip("its machines need root")
    dropped(source, ENVIRONMENT)
    done = python(["-c", PROBE], source, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["note"]) == ("ready", "a box for toys")
    assert "toy_box" in found["known"]


def test_a_name_that_people_type_instead_is_answered_with_it(source: Path, tmp_path: Path) -> None:
    dropped(source, ENGINE)
    done = dbtoll("compare", "simulated", "--engine", "parrot", paths=[source], cwd=tmp_path)
    assert done.returncode == 64
    assert "did you mean toy_parrot?" in done.stderr
