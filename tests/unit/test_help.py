"""Help, version and mistyped words of the launcher in a checkout where nothing is set up: as the program itself has them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dbtoll import __version__
from dbtoll.cli import app
from dbtoll.errors import UsageError
from tests.support.documents import program
from tests.support.program import ROOT, dbtoll_forked

HINT = "make them anew: just help"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the launcher reads, and nothing that was set up."""
    for part in ("dbtoll", "docs/help", "src/dbtoll/__init__.py", "src/dbtoll/system_packages"):
        place = tmp_path / part
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy2)(ROOT / part, place)
    return tmp_path


def launch(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With a PATH on which there is no Python."""
    programs = checkout / "bin"
    if not programs.exists():
        programs.mkdir()
        for tool in ("bash", "cat", "dirname", "grep", "readlink", "sed"):
            (programs / tool).symlink_to(f"/usr/bin/{tool}")
    found = subprocess.run(
        [programs / "bash", checkout / "dbtoll", *words], env={"PATH": str(programs)}, capture_output=True, text=True,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert not (checkout / ".dbtoll").exists(), "it began to set up"
    return found


def test_the_kept_help_is_the_programs() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/help").iterdir()}
    assert kept == program("make_help").pages(), HINT


def test_the_kept_help_names_every_option() -> None:
    """Also hidden ones: the launcher refuses those that it does not find."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        text = (ROOT / f"docs/help/{name}.txt").read_text()
        for parameter in command.params:
            for option in [each for each in parameter.opts if each.startswith("--")]:
                assert re.search(rf"(^|[ ,/]){option}\b", text, re.MULTILINE), f"{name} {option}"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--help",),
        ("-h",),
        ("--version",),
        ("version",),
        ("version", "--json"),
        ("compare", "--help"),
        ("run", "-h"),
        ("test", "--help"),
        ("setup", "--help"),
        ("quick", "--yes", "--help"),
    ],
)
def test_help_and_version_need_no_set_up(checkout: Path, words: tuple[str, ...]) -> None:
    said = launch(checkout, *words)
    program = CliRunner().invoke(app, words, prog_name="dbtoll", env={"COLUMNS": "80"})
    assert (said.stdout, said.returncode, said.stderr) == (program.output, program.exit_code, "")


@pytest.mark.parametrize(
    "words", [("comparre", "uml"), ("compare", "--bugdet", "5m", "uml"), ("--verson",), ("-v",), ("quick", "--scale=3")]
)
def test_mistyped_words_are_refused_without_set_up_as_the_program_refuses_them(
    checkout: Path, words: tuple[str, ...]
) -> None:
    said, program = launch(checkout, *words), dbtoll_forked(*words)
    assert said.returncode == program.returncode == UsageError.exit_code
    wrong = next(word for word in words if word not in {"compare", "quick"}).partition("=")[0]
    assert wrong in said.stderr
    assert wrong in program.stderr
    hint = said.stderr.rpartition("hint: see ")[2].split()
    assert hint[0] == "./dbtoll"
    assert launch(checkout, *hint[1:]).returncode == 0


def test_what_somebody_else_calls_a_command_is_told_without_set_up_too(checkout: Path) -> None:
    for said in (launch(checkout, "list", "--json"), dbtoll_forked("list", "--json")):
        assert said.returncode == UsageError.exit_code
        assert "No such command 'list'. Did you mean 'runs'?" in said.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("compare", "gvisor"), "docker"),
        (("compare", "docker:runsc", "kvm//docker", "--yes"), "qemu"),
        (("probe", "linux.uml", "--yes"), "uml"),
        (("compare", "docker", "--engine", "mysql"), "mariadb"),
        (("compare", "docker", "--workload=pgbench:warehouses=2"), "tpcc"),
    ],
)
def test_a_name_that_is_none_is_told_without_set_up_as_the_program_tells_it(
    checkout: Path, words: tuple[str, ...], meant: str
) -> None:
    said, program = launch(checkout, *words), dbtoll_forked(*words)
    assert said.returncode == program.returncode == UsageError.exit_code
    for told in (said.stderr, program.stderr):
        assert re.search(
            rf"there is no (environment|engine|workload) named '.*'\n  hint: did you mean {meant}\? There is: ", told
        )


def test_every_command_takes_its_own_options(checkout: Path) -> None:
    """None of those that its help lists is refused; with ``--help`` beside it, help comes."""
    for page in sorted((ROOT / "docs/help").glob("*.txt")):
        for option in re.findall(r"^  (?:-\w, )?(--[a-z-]+)", page.read_text(), re.MULTILINE):
            words = [*([] if page.stem == "dbtoll" else [page.stem]), option]
            assert "No such" not in launch(checkout, *words, "--help").stderr


def test_the_version_is_the_packages(checkout: Path) -> None:
    assert launch(checkout, "--version").stdout == f"dbtoll {__version__}\n"
