"""The command line as people expect it: help, names of runs, hints that lead somewhere, nothing left by a typo."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table

from dbtoll import cli, errors, registry, spec
from dbtoll.analysis.result import builder
from dbtoll.analysis.result.schema import to_json
from dbtoll.commands.runs import list_run
from dbtoll.errors import EXIT_CODES, DbtollError, RunFolderError
from dbtoll.help import epilog, summary
from dbtoll.images import debian
from dbtoll.images.cache import scratch
from dbtoll.model.experiment import FACTORS
from dbtoll.progress import Progress
from dbtoll.runner import run as runner
from dbtoll.runner.arms import machine_name
from dbtoll.runner.cleanup import journal
from dbtoll.runner.preparation import processors
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.spec.suites import servers_of_suites
from dbtoll.store.folders import LATEST, find_run, folder_name, name_in, point_latest, run_folders
from dbtoll.terminal import print_tables
from tests.support.make_run import experiment, make_run
from tests.support.program import ROOT, is_root, only_run

GROUP: Any = typer.main.get_command(cli.app)
COMMANDS: dict[str, Any] = GROUP.commands
NEEDS_AGENT = pytest.mark.skipif(not (ROOT / "agent/target").exists(), reason="no agent is built")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dbtoll(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The program, in this process and an empty directory: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dbtoll", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        assert "defect" not in err, err
        return int(left.value.code or 0), out, err

    return run


# --- help --------------------------------------------------------------------------------------------------------------------


def test_the_help_has_groups_and_whole_sentences(dbtoll: Run) -> None:
    code, out, _ = dbtoll("--help")
    assert code == 0
    assert re.findall(r"^(\S.*):$", out, re.MULTILINE) == [
        "Options", "Measure", "Look at results", "The machine", "The instrument",
    ]  # fmt: skip
    said = " ".join(out.split())
    for name, command in COMMANDS.items():
        assert f"{name} {summary(command)}" in said, name
        assert not summary(command).endswith("...")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_exit_codes_and_the_same_options(name: str, dbtoll: Run) -> None:
    code, out, _ = dbtoll(name, "--help")
    assert code == 0
    assert re.search(rf"Examples:\n    (\./)?dbtoll {name}", out)
    assert "Exit codes" in out and EXIT_CODES[0] in out
    given = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--yes", "--json", "--quiet"} <= given
    takes_runs = name not in {"plan", "doctor", "selfbench", "version", "setup", "test", "help"}
    assert ("--runs-dir" in given) == takes_runs
    assert dbtoll("help", name)[1].split() == out.split()


def test_examples_name_options_that_exist() -> None:
    for name, command in COMMANDS.items():
        given = {option for parameter in command.params for option in parameter.opts}
        for line in command.epilog.splitlines():
            if line.strip().startswith("dbtoll ") and not line.startswith("Exit"):
                assert {word for word in line.split() if re.fullmatch(r"--?[a-z-]+", word)} <= given, (name, line)


def test_values_are_those_that_there_are(dbtoll: Run) -> None:
    said = " ".join(dbtoll("compare", "--help")[1].split())
    for family in ("engines", "environments", "workloads"):
        assert ", ".join(registry.names(family)) in said
    profiles = registry.find("engines", "postgres").options["profile"].choices
    assert f"of postgres: {', '.join(profiles)}" in said
    assert f"of tpch: {', '.join(registry.find('workloads', 'tpch').options['indexes'].choices)}" in said
    bookworm = "bookworm (DuckDB 2.0, HyPer 9.1, MariaDB 10.11, MonetDB 11.41, PostgreSQL 15)"
    trixie = "trixie (DuckDB 2.0, HyPer 9.1, MariaDB 11.8, MonetDB 11.41, PostgreSQL 17)"
    assert f"{bookworm}, {trixie}" in said
    assert all(f"{name} ({', '.join(levels)}" in said for name, levels in FACTORS.items())
    assert "threads (1, 2, 4, …, doubling)" in said
    assert "<<" not in said


def test_every_suite_says_which_servers_come_with_it() -> None:
    told = servers_of_suites()
    for suite in debian.SUITES:
        assert re.search(rf"{suite} \([^)]*PostgreSQL \d+\)", told)


def test_a_topic_that_is_none(dbtoll: Run) -> None:
    code, _, err = dbtoll("help", "comprae")
    assert code == 64 and "did you mean compare?" in err
    code, out, _ = dbtoll("help", "exit-codes", "--json")
    assert {int(each): text for each, text in json.loads(out).items()} == EXIT_CODES


def test_help_needs_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "duckdb", "matplotlib", "docker", "jinja2")
    program = f"""
import sys
sys.argv = ["dbtoll", "--help"]
from dbtoll import cli
try:
    cli.main()
finally:
    print(sorted(set({heavy}) & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def subclasses(kind: type[DbtollError]) -> list[type[DbtollError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in subclasses(sub))]


def test_every_exit_code_is_documented() -> None:
    assert {kind.exit_code for kind in subclasses(DbtollError)} <= set(EXIT_CODES)
    others = {errors.NO_OUTPUT, errors.NO_PERMISSION, errors.INTERRUPTED, errors.NOBODY_READS}
    assert others <= set(EXIT_CODES)
    with pytest.raises(KeyError):
        epilog("x", codes=(99,))


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("comp", ["compare"]),
        ("compare do", ["docker"]),
        ("compare docker:net", ["docker:network=none", "docker:network=host", "docker:network=bridge"]),
        ("compare qemu//do", ["qemu//docker"]),
        ("compare docker --engine post", ["postgres"]),
        ("compare docker --workload tp", ["tpcc", "tpch"]),
        ("compare docker --image tri", ["trixie"]),
        ("compare docker --settings-profile mod", ["modern"]),
        ("analyze night", ["nightly"]),
        ("analyze la", ["latest"]),
        ("help exit", ["exit-codes"]),
        ("selfbench ag", ["agent"]),
    ],
)
def test_a_shell_completes(typed: str, completed: list[str], tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "20260501-091500-nightly-3f9a2b", rounds=1)
    environment = os.environ | {
        "_DBTOLL_COMPLETE": "complete_bash", "COMP_WORDS": f"dbtoll {typed}", "COMP_CWORD": str(len(typed.split())),
    }  # fmt: skip
    done = subprocess.run(
        [Path(sys.executable).parent / "dbtoll"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.split() == completed, done.stderr


# --- runs and their names ----------------------------------------------------------------------------------------------------

SIMULATED = ("simulated", "simulated:effect=0.1", "--baseline", "simulated", "--engine", "noop", "--queries", "Q1+Q6")


@NEEDS_AGENT
def test_a_named_run_is_found_listed_and_resumed(dbtoll: Run, tmp_path: Path) -> None:
    words = ("compare", *SIMULATED, "--budget", "1s", "--target", "0.001%", "--name", "nightly", "--yes")
    code, out, err = dbtoll(*words, "--json")
    assert code == 0, err
    folder = only_run(tmp_path / "runs")
    assert re.fullmatch(r"[0-9]{8}-[0-9]{6}-nightly-[0-9a-f]{6}", folder.name)
    assert json.loads(out)["run"] == folder.name
    assert json.loads((folder / "plan.json").read_text())["experiment"]["name"] == "nightly"
    assert err.startswith("run folder: runs/") and re.search(r"^round \d+ at .* left$", err, re.MULTILINE)
    assert (tmp_path / "runs" / LATEST).readlink() == Path(folder.name)

    for word in (LATEST, "nightly", folder.name, folder.name[:12], "night", f"runs/{LATEST}"):
        code, out, _ = dbtoll("analyze", word, "--json")
        assert (code, json.loads(out)["run"]) == (0, folder.name), word
    assert dbtoll("analyze", "nobody")[0] == 66

    (listed,) = json.loads(dbtoll("runs", "--json")[1])
    assert (listed["run"], listed["name"], listed["workload"], listed["engine"]) == (
        folder.name,
        "nightly",
        "tpch",
        "noop",
    )
    assert listed["arms"] == ["simulated", "simulated:effect=0.1"]
    assert listed["state"] and set(listed["verdicts"]) == {"simulated:effect=0.1"}
    assert folder.name in dbtoll("runs")[1]

    code, _, err = dbtoll("run", LATEST, "--resume", "--budget", "2s", "--quiet")
    assert (code, err) == (0, "")
    assert dbtoll("run", LATEST, "--resume", "--name", "other")[0] == 64


@NEEDS_AGENT
def test_quiet_says_nothing_but_the_result(dbtoll: Run) -> None:
    code, out, err = dbtoll("compare", *SIMULATED, "--budget", "1s", "--quiet")
    assert (code, err) == (0, "")
    assert "Noise floor" in out


def test_the_quick_run_has_a_name_too(dbtoll: Run, tmp_path: Path) -> None:
    code, _, err = dbtoll("quick", "--name", "a b")
    assert (code, list(tmp_path.iterdir())) == (64, []) and "cannot be a run's name" in err


def test_names_of_folders() -> None:
    assert name_in(folder_name("20260501-091500", "a-b.c")) == "a-b.c"
    assert name_in(folder_name("20260501-091500", "")) == ""
    assert name_in("other") == ""


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "x" * 41, "é"])
def test_what_cannot_be_a_name(name: str, dbtoll: Run, tmp_path: Path) -> None:
    code, _, err = dbtoll("compare", *SIMULATED, "--name", name)
    assert (code, list(tmp_path.iterdir())) == (64, []), err
    assert "cannot be a run's name" in err


def test_a_machines_name_stays_short_enough_for_a_socket_whatever_the_run_is_called() -> None:
    plain, named = "20260501-091500-3f9a2b", folder_name("20260501-091500", "N" * 40)
    assert machine_name(plain, "docker", 0).startswith(plain)
    found = machine_name(named, "docker:runsc,network=host", 1)
    assert re.fullmatch(r"[a-z0-9-]{1,60}", found)
    assert found != machine_name(folder_name("20260501-091500", "N" * 40), "docker:runsc,network=host", 1)


def folders_of(runs: Path, *names: str) -> None:
    for name in names:
        (runs / name).mkdir(parents=True)
        (runs / name / "experiment.json").write_text("{}")


def test_which_run_is_meant(tmp_path: Path) -> None:
    folders_of(tmp_path, "20260501-000000-aaaaaa", "20260502-000000-day-bbbbbb", "20260503-000000-day-cccccc")
    (tmp_path / "notes").mkdir()
    assert [path.name[6:8] for path in run_folders(tmp_path)] == ["03", "02", "01"]
    assert find_run(Path("day"), tmp_path).name == "20260503-000000-day-cccccc"  # the newest of that name
    assert find_run(Path("20260501"), tmp_path).name == "20260501-000000-aaaaaa"
    assert find_run(Path(LATEST), tmp_path).name == "20260503-000000-day-cccccc"  # without a link, too
    with pytest.raises(RunFolderError, match=r"3 runs in .* begin so"):
        find_run(Path("2026"), tmp_path)
    with pytest.raises(RunFolderError, match="no run of that name") as caught:
        find_run(Path("week"), tmp_path)
    assert "`dbtoll runs`" in caught.value.hint


def test_latest_is_a_relative_link_and_never_what_somebody_else_put_there(tmp_path: Path) -> None:
    folders_of(tmp_path, "a", "b")
    assert point_latest(tmp_path, "a") is None
    assert point_latest(tmp_path, "b") == "a"
    assert (tmp_path / LATEST).readlink() == Path("b")
    assert find_run(Path(LATEST), tmp_path) == tmp_path / "b"
    point_latest(tmp_path, None)
    (tmp_path / LATEST).mkdir()
    assert point_latest(tmp_path, "a") is None
    assert (tmp_path / LATEST).is_dir() and not (tmp_path / LATEST).is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", LATEST]


def test_the_list_has_every_folder_as_a_line(tmp_path: Path, dbtoll: Run) -> None:
    whole = make_run(tmp_path / "runs" / "20260501-000000-aaaaaa")
    (whole / "result.json").write_text(to_json(builder.analyze(whole)))
    killed = make_run(tmp_path / "runs" / "20260502-000000-bbbbbb", rounds=2)
    history = killed / "history.ndjson"
    history.write_bytes(history.read_bytes()[:-40])
    broken = tmp_path / "runs" / "20260503-000000-cccccc"
    broken.mkdir()
    (broken / "history.ndjson").write_text("{}\n")
    (broken / "plan.json").write_text('{"experiment": 1}')
    hostile = tmp_path / "runs" / "20260504-000000-dddddd"
    hostile.mkdir()
    (hostile / "experiment.json").symlink_to("/etc/passwd")
    assert "docker" in list_run(whole).verdicts
    assert re.match(r"loses \(|cannot tell \(", list_run(whole).verdicts["docker"])
    assert list_run(killed).state == "not finished"
    code, out, _ = dbtoll("runs", "--json")
    assert code == 0
    states = {each["run"]: each["state"] for each in json.loads(out)}
    assert [run[6:8] for run in states] == ["04", "03", "02", "01"]
    assert "cannot be read" in states[broken.name] and "it is a link" in states[hostile.name]
    lines = dbtoll("runs")[1].splitlines()
    assert all(any(line.strip().startswith(name) for line in lines) for name in states)
    assert not any(line.endswith(" ") for line in lines)


def test_no_runs_is_a_sentence(dbtoll: Run) -> None:
    assert dbtoll("runs", "--json")[:2] == (0, "[]\n")
    assert "dbtoll quick" in dbtoll("runs")[1]


# --- nothing left by a typo --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--cpus", "4000"), 69),
        (("--image", "./nowhere"), 69),
        (("--image", "postgres:16"), 64),
        (("--budget", "5"), 64),
        (("--workload", "sql:nowhere"), 65),
    ],
)
def test_what_can_be_told_beforehand_leaves_nothing(
    words: tuple[str, ...], code: int, dbtoll: Run, tmp_path: Path
) -> None:
    left, _, err = dbtoll("compare", *SIMULATED[:-2], *words)
    assert (left, list(tmp_path.iterdir())) == (code, []), err
    assert "run folder" not in err


@NEEDS_AGENT
def test_a_run_that_cannot_be_prepared_leaves_no_folder(
    dbtoll: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        processors, "reserved", lambda *_: nullcontext()
    )  # it measures nothing, and waits for nobody who does
    spec_file = tmp_path / "x.toml"
    spec_file.write_text(
        '[engine]\nname = "noop"\n[[arm]]\nstack = "simulated"\n[[arm]]\nstack = "docker:socket=/nowhere"\n'
    )
    words = ("run", spec_file)
    code, _, err = dbtoll(*words)
    assert code == 69 and "run folder: " in err and "/nowhere" in err
    assert list(tmp_path.iterdir()) == [spec_file]
    folders_of(tmp_path / "runs", "20260501-000000-aaaaaa")
    point_latest(tmp_path / "runs", "20260501-000000-aaaaaa")
    assert dbtoll(*words)[0] == 69
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["20260501-000000-aaaaaa", LATEST]
    assert (tmp_path / "runs" / LATEST).readlink() == Path("20260501-000000-aaaaaa")


@NEEDS_AGENT
def test_a_run_that_is_stopped_while_it_is_prepared_says_how_to_go_on(tmp_path: Path) -> None:
    text = '[engine]\nname = "noop"\n[[arm]]\nstack = "simulated"\n'

    def impatient(text: str) -> None:
        if text.startswith("pilot"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        runner.begin(spec.parse(text, "x"), text, tmp_path, Quiet(impatient))
    folder = only_run(tmp_path)
    assert stopped.value.__notes__ == [f"then go on: dbtoll run {folder} --resume"]


# --- faults and hints --------------------------------------------------------------------------------------------------------


def test_all_faults_of_a_specification_are_told_at_once(dbtoll: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        'margin = "2%"\nscale = 1\n[precision]\nbudget = "5"\nbudjet = 3\n[resources]\ncpus = 0\n[workload]\nscala = 1\n'
        '[[arm]]\nstack = "dokcer"\n[[arm]]\nstack = "native"\nnom = "x"\n[image]\nsuite = "postgres:16"\n'
    )
    code, _, err = dbtoll("plan", "x.toml")
    assert code == 65
    assert re.findall(r"^x\.toml:(\d+): ", err, re.MULTILINE) == ["1", "2", "4", "5", "7", "9", "11", "14", "16"]
    assert err.startswith("dbtoll: 9 faults:\n") and err.count("  hint: ") == 9
    for hint in (
        "margin is known under [precision]",
        "scale is known under [workload]",
        'budget = "5m"',
        "did you mean budget?",
        "did you mean scale?",
        "did you mean docker?",
        "docker save -o postgres-16.tar postgres:16",
    ):
        assert f"  hint: {hint}" in err or hint in err.partition("  hint: ")[2], hint


def test_all_faults_of_a_directory_are_told_at_once(dbtoll: Run, tmp_path: Path) -> None:
    for name, text in {
        "statements/a.sql": "delete from t",
        "statements/b.sql": "select 1; select 2",
        "statements/c.sql": "-- parameter $1 number 1..2\n-- parameter $2 integer 2..1\nselect $1, $2",
        "index.sql": "",
        "load/t.csv": "a,b\n1\n",
    }.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    code, _, err = dbtoll("compare", "docker", "--workload", "sql:mine")
    assert code == 65
    assert err.startswith("dbtoll: 6 faults:\n")
    for where in ("index.sql: ", "load/t.csv:2: ", "a.sql:1: ", "b.sql:1: ", "c.sql:1: ", "c.sql:2: "):
        assert re.search(rf"^/.*{re.escape(where)}", err, re.MULTILINE), where


@pytest.mark.parametrize(
    ("words", "said", "hints"),
    [
        (("--engine", "postgres:16"), "there is no PostgreSQL 16", ["15 (bookworm), 17 (trixie)"]),
        (("--engine", "postgresql"), "no engine named", ["did you mean postgres?"]),
        (
            ("--image", "postgres:16"),
            "no image is defined for 'postgres:16'",
            ["PostgreSQL 17", "docker save"],
        ),
        (("--image", "docker://postgres:16"), "for 'postgres:16'", ["docker save -o postgres-16.tar postgres:16"]),
        (("docker:image=postgres:16",), "no option 'image'", ["--image", "engine=postgres:17"]),
        (("postgres://localhost:5432/db",), "'postgres://localhost:5432/db' is no environment", ["server of its own"]),
        (("runs/a", "runs/b"), "no environment named 'runs/a'", ["dbtoll analyze"]),
        (("postgres",), "no environment named 'postgres'", ["postgres is one of the engines"]),
        (("kvm",), "no environment named 'kvm'", ["did you mean qemu?"]),
        (("--budget", "5"), "'5' is not a duration", ["--budget 5m"]),
        (("--target", "1"), "'1' is not a percentage", ["--target 1%"]),
        (("--memory", "4"), "'4' is not a size", ["--memory 4GiB"]),
        (("--settings-profile", "fast"), "'fast' is not one of default, serial, modern", []),
    ],
)
def test_hints_lead_somewhere(words: tuple[str, ...], said: str, hints: list[str], dbtoll: Run) -> None:
    code, _, err = dbtoll("compare", "docker", *words)
    assert code == 64, err
    assert said in err
    for hint in hints:
        assert hint in err.partition("hint: ")[2], err


def test_a_tar_that_is_no_image_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    import tarfile

    from dbtoll.errors import ImageError
    from dbtoll.images import oci

    (tmp_path / "etc").mkdir()
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.add(tmp_path / "etc", "etc")
    with pytest.raises(ImageError, match=r"neither index\.json nor manifest\.json") as caught:
        oci.image_digest(tmp_path / "root.tar")
    assert "docker save" in caught.value.hint


# --- plan, progress, tables, clean -------------------------------------------------------------------------------------------

PLANNED = """
running_time = "a minute"
[workload]
name = "tpch"
scale = 1
[precision]
budget = "{budget}"
[[arm]]
name = "native"
stack = "native"
[[arm]]
stack = "qemu:path=/nowhere/qemu"
"""


def test_a_plan_says_time_disk_and_what_is_missing(dbtoll: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(PLANNED.format(budget="10s"))
    code, out, _ = dbtoll("plan", "x.toml", "--json")
    needs = json.loads(out)["needs"]
    assert code == 0
    assert needs["visits"] == 3 * 22
    assert needs["round_s_min"] == pytest.approx(3 * 22 * 0.05)
    assert needs["copies_bytes"] == 3 * needs["data_bytes"] > 3e9
    assert any(each.startswith("/nowhere/qemu") for each in needs["missing"])
    _, out, _ = dbtoll("plan", "x.toml")
    assert "its author says: a minute" in out
    assert "5 rounds do not fit" in out
    assert re.search(r"disk: about [0-9.]+ GiB .*a copy for each arm", out)
    assert "/nowhere/qemu: " in out and "block 0, parameter set" not in out
    (tmp_path / "x.toml").write_text(PLANNED.format(budget="10m"))
    _, out, _ = dbtoll("plan", "x.toml", "--visits", "--rounds", "2")
    assert "do not fit" not in out
    assert out.count("block 0, parameter set") == 2


SWEPT = """
[variables]
place = {{ kind = "text", default = "own", help = "Where." }}
tenants = {{ kind = "integer", default = 2, help = "How many." }}
[workload]
name = "tpcc"
warehouses = 1000
[precision]
budget = "1s"
{arms}
"""
DESIGNED = """
[[arm]]
stack = "native"
design = "{design}"
tenants = "$tenants"
data_device = "$place"
"""


def test_a_plan_of_a_sweep_says_what_stands_in_the_way(dbtoll: Run, tmp_path: Path) -> None:
    arms = "".join(DESIGNED.format(design=design) for design in ("shared", "dedicated"))
    (tmp_path / "x.toml").write_text(SWEPT.format(arms=arms))
    code, out, _ = dbtoll("plan", "x.toml", "--over", "place=memory,/nowhere")
    assert code == 0
    assert re.search(r"place = memory: memory: about [0-9.]+ GiB, [0-9.]+ GiB are free: that does not fit", out)
    assert "place = /nowhere: /nowhere: no directory on a device" in out
    assert "place = memory, /nowhere: 5 rounds do not fit" in out
    _, out, _ = dbtoll("plan", "x.toml", "--set", "place=memory")
    assert re.search(r"devices: memory: about .* that does not fit", out)
    _, out, _ = dbtoll("plan", "x.toml", "--over", "tenants=1:20", "--limit", "p99=20ms", "--budget", "30m")
    assert "of 1 … 20 (20 values)" in out and out.count("buffer pools") == 2
    (tmp_path / "x.toml").write_text(SWEPT.format(arms=DESIGNED.format(design="shared")))
    _, out, _ = dbtoll("plan", "x.toml", "--over", "tenants=1,2")
    assert "tenants = 1, 2: one design is left, so nothing is compared" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--over", "tenants=1,2", "--over", "place=own,memory"], "a sweep goes over one variable"),
        (["--over", "tenants=1,2", "--visits"], "of a sweep each value has its own"),
        (["--limit", "p99=20ms"], "--limit, --costs and --budget are of a sweep"),
    ],
)
def test_what_only_one_of_run_and_sweep_has(dbtoll: Run, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "x.toml").write_text(SWEPT.format(arms=DESIGNED.format(design="shared")))
    code, _, err = dbtoll("plan", "x.toml", *words)
    assert code == 64 and said in err


def test_a_plan_says_of_designs_with_other_numbers_of_tenants_what_throughput_is(dbtoll: Run, tmp_path: Path) -> None:
    arms = DESIGNED.format(design="shared") + DESIGNED.format(design="dedicated").replace('tenants = "$tenants"\n', "")
    (tmp_path / "x.toml").write_text(SWEPT.format(arms=arms))
    _, out, _ = dbtoll("plan", "x.toml")
    assert "arms have 1 and 2 units: throughput is of all that an arm has together" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('think_time = "specified"', "a new order is keyed in for 18s, and ramp-up and window together are 2s"),
        ('think_time = "specified"\nrate = 10\nwindow = "60s"', "nobody thinks"),
        ('window = "0s"', "window is 0ns hint: choose from 1ms to 24h"),
    ],
)
def test_windows_in_which_nothing_could_happen(dbtoll: Run, tmp_path: Path, options: str, said: str) -> None:
    (tmp_path / "x.toml").write_text(f'[workload]\nname = "tpcc"\n{options}\n[[arm]]\nstack = "native"\n')
    code, _, err = dbtoll("plan", "x.toml")
    assert code == 65 and said in " ".join(err.split())


def test_a_plan_of_what_is_simulated_needs_no_disk(dbtoll: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[engine]\nname = "noop"\n[[arm]]\nstack = "simulated"\n')
    code, out, _ = dbtoll("plan", "x.toml")
    assert code == 0 and "disk: only the run folder" in out and "missing: nothing" in out


def test_progress_in_a_log_is_a_line_a_minute_and_none_is_folded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("dbtoll.progress.time.monotonic", lambda: now)
    with Progress(experiment()) as progress:
        progress.say("x" * 300)
        for now in range(0, 181, 10):
            progress.at(0, "docker Q1", now // 10, 36, float("inf"))
        progress.at(0, "docker Q2", 1, 36, 290.0)
        now = 400.0
        progress.at(0, "docker Q2", 2, 36, 290.0)
    lines = capfd.readouterr().err.splitlines()
    budget = 300
    assert lines == [
        "x" * 300,
        f"pilot  6/36  docker Q1  {(300 + budget) // 60}:00 left",
        f"pilot  12/36  docker Q1  {(240 + budget) // 60}:00 left",
        f"pilot  18/36  docker Q1  {(180 + budget) // 60}:00 left",
        "round 1  2/36  docker Q2  4:50 left",
    ]
    with Progress(experiment(), quiet=True) as progress:
        progress.say("nothing")
    assert capfd.readouterr().err == ""


def test_a_selfbench_that_takes_long_says_each_minute_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dbtoll.selfbench.support.quiet_run.time.monotonic", lambda: now)
    said: list[str] = []
    quiet = Quiet(said.append)
    for now in range(0, 181, 10):
        quiet.at(0, "qemu Q1", now // 10, 36, float("inf"))
    assert said == ["round 1  6/36  qemu Q1", "round 1  12/36  qemu Q1", "round 1  18/36  qemu Q1"]


def test_a_table_in_a_pipe_is_neither_folded_nor_padded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # as readline sets it
    table = Table("a", "b")
    table.add_row("word " * 40, "short")
    print_tables(table)
    out = capfd.readouterr().out
    assert "word " * 39 + "word" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


@NEEDS_AGENT
@pytest.mark.skipif(not is_root(), reason="what is left is root's")
def test_clean_says_in_words_what_it_did_and_with_dry_run_what_it_would(
    dbtoll: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "runs" / "20260501-000000-aaaaaa"
    folder.mkdir(parents=True)
    left = scratch() / folder.name
    with journal.of_run(folder) as held:
        held.create("directory", path=str(left))
    left.mkdir(parents=True)
    code, out, _ = dbtoll("clean", "--dry-run")
    assert code == 0 and left.exists()
    assert out.splitlines()[:3] == [
        f"would be removed: directory {left}",
        "1 thing of 1 run would be removed",
        f"go on with: dbtoll run {folder} --resume",
    ]
    assert json.loads(dbtoll("clean", "--dry-run", "--json")[1])["runs"] == [str(folder)]
    code, out, _ = dbtoll("clean")
    assert code == 0 and not left.exists()
    assert out.splitlines()[:2] == [f"removed: directory {left}", "1 thing of 1 run was removed"]
    assert "the cache holds " in out and "dbtoll clean --cache" in out
    assert "nothing was left behind" in dbtoll("clean")[1]


def test_a_run_that_is_going_on_is_told_from_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "runs" / "20260501-000000-aaaaaa"
    folder.mkdir(parents=True)
    with journal.of_run(folder):
        assert journal.is_held(folder.name)
    assert not journal.is_held(folder.name)


def test_who_stops_a_command_is_told_how_to_go_on(dbtoll: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the parser of the command line has made another error of it."""

    def stop(*_: Any, **__: Any) -> int:
        stopped = KeyboardInterrupt()
        stopped.add_note("then go on: dbtoll run nightly --resume")
        raise stopped

    monkeypatch.setattr("dbtoll.commands.runs.show_runs", stop)
    code, _, error = dbtoll("runs")
    assert code == errors.INTERRUPTED
    assert "stopped" in error and "go on: dbtoll run nightly --resume" in error
