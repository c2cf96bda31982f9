"""`dbtoll reproduce` on the simulated world: every table and every claim has its line, on the page and in files."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_part

from dbtoll import registry, spec
from dbtoll.analysis.reproduction.paper import Paper, PartFile, Reproduction
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.commands import reproduce
from dbtoll.errors import UsageError
from dbtoll.model.experiment import ComponentSpec, Experiment, Precision
from dbtoll.report import reproduction as reports
from dbtoll.runner import run as runs
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.spec.stack import parse_stack, write_stack
from dbtoll.store.reader import Run, read_run
from tests.support.program import dbtoll

TOY = Path(__file__).parents[1] / "fixtures/toys/paper/toy2020"
COSTS = "fault_ns={},call_ns={},round_trip_ns={}"


def minhas2008() -> Paper:
    return registry.find("papers", "minhas2008")()


def parsed(role: str, *, exclusive: bool = False, **variables: str) -> tuple[Experiment, str]:
    """That part of minhas2008."""
    (part,) = (part for part in minhas2008().about.parts if part.role == role)
    return spec.read(minhas2008().folder / part.file, exclusive=exclusive, variables=variables)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    own = f"simulated:{COSTS.format(5000, 971, 60000)},slowdown=1.1"
    asked, text = parsed("warm", environment=own)
    native = parse_stack(f"simulated:{COSTS.format(500, 100, 6000)}")
    # As many as its claims need, on a machine of any speed.
    experiment = replace(
        asked,
        arms=tuple(
            replace(arm, stack=native, text=write_stack(native)) if "native" in arm.name else replace(arm, name="guest")
            for arm in (
                replace(each, configuration=replace(each.configuration, engine=ComponentSpec("noop")))
                for each in asked.arms
            )
        ),
        precision=replace(asked.precision, budget_s=60, rounds_max=12),
    )
    return read_run(runs.begin(experiment, text, tmp_path_factory.mktemp("warm"), Quiet(lambda _: None)))


@pytest.fixture(scope="module")
def found(warm: Run) -> Reproduction:
    return minhas2008().reproduce({"warm": [warm]})


def test_every_claim_of_the_paper_has_its_verdict(found: Reproduction) -> None:
    told = {each.checked.claim.id: each for each in found.claims}
    assert list(told) == [claim.id for claim in minhas2008().claims]
    found_of = {
        name: [each and each.outcome for each in (c.judged.direction, c.judged.size)] for name, c in told.items()
    }
    assert [found_of[name][0] for name in ("M01", "M03", "M06")] == ["reproduced"] * 3
    # A hundred nanoseconds become 971, as in the paper: +871 %; of a fault it is +900 % where the paper has +110 %.
    assert found_of["M03"][1] == "reproduced" and found_of["M06"][1] == "differs"
    # On both kinds of connection a statement has as many faults there.
    assert found_of["M08"] == ["cannot tell", "differs"]
    for identity in ("M09", "M10", "M11", "M12", "M13"):
        for judged in filter(None, (told[identity].judged.direction, told[identity].judged.size)):
            assert (judged.outcome, judged.why) == ("not measured", "the time of cold statements was not measured")
    assert found_of["M14"] == ["not possible here", None]


def test_every_table_of_a_warm_run_is_there(found: Reproduction) -> None:
    assert [each.name for each in found.tables] == ["Table 1", "Table 2", "Table 3", "Table 4", "Figure 1", "Figure 2"]
    for each in found.tables:
        assert len(each.rows) == 22
        assert {len(row) for row in each.rows} == {1 + len(each.columns)}
    faults = next(each for each in found.tables if each.name == "Table 3")
    first = dict(zip([column.name for column in faults.columns if column.ours], faults.rows[0][-4:], strict=True))
    assert first["native"] == first["guest"]


def test_the_page_and_the_files(found: Reproduction, warm: Run, tmp_path: Path) -> None:
    written = reports.write(tmp_path / "minhas2008", minhas2008().about, found, [analyze_run(warm)], [warm])
    assert [path.name for path in written] == [
        "minhas2008.html", "claims.csv", "table1.csv", "table2.csv", "table3.csv", "table4.csv", "figure1.csv", "figure2.csv",
    ]  # fmt: skip
    page = written[0].read_text()
    for each in found.claims:
        assert f'<th scope="row">{each.checked.claim.id}</th>' in page
    with written[2].open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:2] == ["query", "published: base [s]"]
    assert rows[1][:2] == ["Q1", "14.19"]
    assert "direction reproduced" in reports.sentences(found)[0] and "size differs" in reports.sentences(found)[0]
    with written[1].open(newline="") as file:
        (first, *_) = csv.DictReader(file)
    assert first["direction"] == "reproduced" and first["direction: rule"].startswith("every query loses")
    assert first["size"] == "differs" and "published +60.0" in first["size: measured"]


@pytest.mark.parametrize(
    ("environment", "role", "options"),
    [
        ("docker:runsc", "warm", {"runtime": "runsc"}),
        ("qemu", "cold without read-ahead", {"read_ahead": 0}),
        ("uml:sync=true", "cold without read-ahead", {"sync": True, "read_ahead": 0}),
    ],
)
def test_another_environment_takes_the_papers_place(environment: str, role: str, options: dict[str, object]) -> None:
    experiment, _ = parsed(role, exclusive=True, environment=environment, scale="0.5")
    arm = experiment.arm(environment)
    assert arm.stack[0].environment == environment.partition(":")[0] and arm.stack[0].options == options
    assert experiment.configuration.workload.options["scale"] == 0.5
    assert experiment.variables == {"environment": environment, "scale": 0.5}


def test_a_part_is_left_out_where_it_cannot_be_measured() -> None:
    warm, cold, unread = minhas2008().about.parts

    def left_out(part: PartFile, environment: str, *, exclusive: bool, only: Sequence[str] = (), **values: str) -> str:
        roles = only or (part.role,)
        return str(reproduce._left_out(part, environment, exclusive=exclusive, values=values, only=roles))

    assert left_out(warm, "docker", exclusive=False) == "None"
    assert "--exclusive" in left_out(cold, "docker", exclusive=False)
    assert left_out(cold, "docker", exclusive=True) == "None"
    assert left_out(cold, "docker", exclusive=True, only=["warm"]) == "it was not asked for"
    assert left_out(unread, "docker:runsc", exclusive=True) == "docker has no option read_ahead"
    assert left_out(unread, "qemu:tcg", exclusive=True) == "None"
    remote = replace_part(warm, needs=("host",))
    assert left_out(remote, "uml", exclusive=False) == "it needs a host: --set host=VALUE"
    assert left_out(remote, "uml", exclusive=False, host="ssh:there") == "None"


def test_parts_are_chosen_by_name() -> None:
    paper = minhas2008()
    assert reproduce._chosen(paper, []) == ["warm", "cold", "cold without read-ahead"]
    assert reproduce._chosen(paper, ["cold"]) == ["cold"]
    with pytest.raises(UsageError, match="--part hot: minhas2008 has no such part"):
        reproduce._chosen(paper, ["hot"])
    with pytest.raises(UsageError, match="without the part 'warm' nothing can be said: it was not asked for"):
        reproduce._require_enough(paper, {"warm": "it was not asked for"})
    reproduce._require_enough(paper, {"cold": "it was not asked for"})
    other: Paper = registry.find("papers", "muehlbauer2015")()
    with pytest.raises(UsageError, match="no part of muehlbauer2015 can be measured: it was not asked for"):
        reproduce._require_enough(other, {part.role: "it was not asked for" for part in other.about.parts})


def test_rounds_that_are_asked_for_are_the_rounds_that_are_measured() -> None:
    experiment, _ = parsed("warm")
    assert reproduce._of_rounds(experiment, None).precision == experiment.precision
    asked = reproduce._of_rounds(experiment, 7).precision
    assert (asked.rounds_min, asked.rounds_max) == (7, 7) and asked.margin == Precision().margin
    with pytest.raises(UsageError, match="at least two rounds"):
        reproduce._of_rounds(experiment, 1)


# --- another paper, by two of its parts ----------------------------------------------------------------------------------


def simulated(paper: Paper, part: PartFile, place: str, folder: Path, **variables: str) -> Run:
    """The part as it is, on a server that does nothing; ``place`` is the arm whose cost is simulated, all others are alike."""
    asked, text = spec.read(paper.folder / part.file, variables=variables)
    native = parse_stack("simulated")
    noop = [
        replace(each, configuration=replace(each.configuration, engine=ComponentSpec("noop"))) for each in asked.arms
    ]
    experiment = replace(
        asked,
        arms=tuple(arm if arm.name == place else replace(arm, stack=native, text=write_stack(native)) for arm in noop),
        precision=replace(asked.precision, budget_s=20, rounds_max=5),
    )
    return read_run(runs.begin(experiment, text, folder, Quiet(lambda _: None)))


def test_two_systems_by_threads_in_a_guest_that_is_slower(tmp_path: Path) -> None:
    """The parts as they are, in a simulated world: one system takes a tenth longer in the guest, the other half as long again."""
    paper: Paper = registry.find("papers", "muehlbauer2015")()
    found = {}
    for role, slowdown in (("hyper", 1.1), ("monetdb", 1.5)):
        (part,) = (part for part in paper.about.parts if part.role == role)
        environment = f"simulated:slowdown={slowdown}"
        variables = {"environment": environment, "scale": "0.01"}
        found[role] = simulated(paper, part, environment, tmp_path / role, **variables)
    made = paper.reproduce({role: [run] for role, run in found.items()})
    told = {each.checked.claim.id: each.judged for each in made.claims}
    assert list(told) == [claim.id for claim in paper.claims]
    outcome = {
        name: tuple(each and each.outcome for each in (judged.direction, judged.size)) for name, judged in told.items()
    }
    assert outcome["H01"] == outcome["H03"] == ("reproduced", "not possible here")
    assert outcome["H02"] == outcome["H04"] == ("not possible here", "not possible here")
    # Both gaps are as wide: none is nearer.
    assert outcome["H06"][0] != "reproduced"
    assert outcome["H07"] == outcome["H10"] == ("not measured", "not measured")
    assert [each.name for each in made.tables] == [
        "Figure 2", "Figure 2 HyPer", "Figure 2 MonetDB", "Changed plans", "Figure 3"
    ]  # fmt: skip
    measured = list(found.values())
    written = reports.write(tmp_path / paper.name, paper.about, made, [analyze_run(run) for run in measured], measured)
    page = written[0].read_text()
    assert page.count('class="forest wide beside"') == 4 and page.count('class="curves beside"') == 1
    with (tmp_path / paper.name / "figure2.csv").open(newline="") as file:
        rows = {row[0]: row for row in csv.reader(file)}
    assert float(rows["HyPer, KVM"][3]) == pytest.approx(0.175, abs=0.001)
    assert float(rows["MonetDB, simulated:slowdown=1.5"][7]) == pytest.approx(0.5, abs=0.1)


def test_transactions_on_another_host(tmp_path: Path) -> None:
    """The parts as they are, in a simulated world: that host takes half as long again for both benchmarks."""
    paper: Paper = registry.find("papers", "muehlbauer2015")()
    found = {}
    for part in paper.about.parts:
        if part.role not in ("remote tpcc", "remote tatp"):
            continue
        assert str(reproduce._left_out(part, "qemu", exclusive=False, values={}, only=(part.role,))).startswith(
            "it needs a host"
        )
        host = "simulated:slowdown=1.5"
        found[part.role] = simulated(paper, part, host, tmp_path / part.role, host=host)
    made = paper.reproduce({role: [run] for role, run in found.items()})
    (judged,) = (each.judged.size for each in made.claims if each.checked.claim.id == "H11")
    assert judged and judged.outcome == "not measured" and "HyPer on TPC-H, MonetDB on TPC-H" in judged.why
    (table,) = made.tables
    assert (table.name, [row[4] for row in table.rows[:3]]) == ("Table 2", [host, host, "not measured in this run"])


# --- a paper that somebody adds -----------------------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper of another package: one folder, and the entry point that names it. Returns where its runs go."""
    site = tmp_path / "site"
    shutil.copytree(TOY, site / TOY.name, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "toy2020-1.0.dist-info").mkdir()
    (site / "toy2020-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: toy2020\nVersion: 1.0\n")
    (site / "toy2020-1.0.dist-info/entry_points.txt").write_text("[dbtoll.papers]\ntoy2020 = toy2020:Paper\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
    return tmp_path / "runs"


def test_a_paper_in_one_folder_is_listed_and_reproduced(toy: Path) -> None:
    listed = dbtoll("reproduce", "--json")
    assert json.loads(listed.stdout)["toy2020"]["parts"] == ["only", "with a kernel of its own"], listed.stderr
    done = dbtoll("reproduce", "toy2020", "--set", "seed=3", "--rounds", "5", "--runs-dir", str(toy))
    assert done.returncode == 0, done.stderr
    assert "with a kernel of its own: left out: simulated has no option kernel_args" in done.stderr
    assert "T1 direction reproduced: " in done.stdout and "T2 direction differs: " in done.stdout
    (folder,) = (path for path in toy.iterdir() if path.is_dir() and not path.is_symlink())
    run = read_run(folder)
    asked = run.plan.experiment
    assert (asked.paper, asked.role) == ("toy2020", "only") and asked.seed == 3
    assert asked.variables == {"environment": "simulated:slowdown=1.5", "seed": 3}
    assert len(run.complete_rounds) == 5
    page = (folder / "toy2020/toy2020.html").read_text()
    for words in ("How Slow Is a Slow World?", "Nobody and Somebody, Tests 2020", "The paper compared nothing with nothing.",
                  "Nothing is behind these figures.", "<td>2.00\u202fs</td>", "supported"):  # fmt: skip
        assert words in page, words
    with (folder / "toy2020/claims.csv").open(newline="") as file:
        assert [(row["id"], row["direction"]) for row in csv.DictReader(file)] == [
            ("T1", "reproduced"), ("T2", "differs")
        ]  # fmt: skip
    # Its run is not measured again, and is refused as a part of another paper.
    again = dbtoll("reproduce", "toy2020", "--reuse", str(folder), "--runs-dir", str(toy))
    assert again.returncode == 0 and again.stdout == done.stdout, again.stderr
    other = dbtoll("reproduce", "minhas2008", "--reuse", str(folder), "--runs-dir", str(toy))
    assert other.returncode == UsageError.exit_code and "no run of a part of minhas2008" in other.stderr
    published = dbtoll("reproduce", "toy2020", "--samples", str(toy), "--reuse", str(folder), "--runs-dir", str(toy))
    assert published.returncode == UsageError.exit_code
    assert "--samples: the authors of toy2020 published none" in published.stderr
    # Any run has figures beside it, and how to repeat it with the values that it had.
    assert dbtoll("report", str(folder)).returncode == 0
    report = (folder / "report.html").read_text()
    assert "measured a world that does not exist." in report and "--set=seed=3" in report


def test_what_no_part_declares_is_refused(toy: Path) -> None:
    for words, message in (
        (["--set", "sclae=1"], "--set sclae: no part of toy2020 has such a variable"),
        (["--set", "environment=native"], "--set environment: it is named after the paper"),
        (["native"], "native is what the environment is held against"),
        (["--rounds", "1"], "--rounds: an interval needs at least two rounds"),
    ):
        refused = dbtoll("reproduce", "toy2020", *words, "--runs-dir", str(toy))
        assert refused.returncode == UsageError.exit_code and message in refused.stderr
    assert not toy.exists()
