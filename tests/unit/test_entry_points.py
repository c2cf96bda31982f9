"""Members from other packages: found by their entry points, loaded when asked for; one that is broken stops nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dbtoll import facts, registry, spec
from dbtoll.commands.experiments import experiments
from dbtoll.commands.measure import QUICK, with_further_environments
from dbtoll.errors import DbtollError, RunFolderError, Unavailable, UsageError
from dbtoll.interfaces.machine import Machine
from dbtoll.runner.cleanup.removers import with_environments

ENGINE = """
from dbtoll.engines import noop


class Engine(noop.Engine):
    name = {name!r}
"""


class NoMachine(Machine):
    """Nothing is removed from it."""

    name = "none"


def install(site: Path, package: str, code: str, *points: str) -> None:
    """As an installer leaves a package there: a module, and what is said of it."""
    site.mkdir(exist_ok=True)
    (site / f"{package}.py").write_text(code)
    about = site / f"{package}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[dbtoll.engines]\n" + "\n".join(points) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "_said", set())
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def test_an_entry_point_is_a_member(site: Path) -> None:
    install(site, "brings_one", ENGINE.format(name="brought"), "brought = brings_one:Engine")
    assert "brought" in registry.names("engines")
    assert registry.find("engines", "brought").name == "brought"
    assert registry.package_of("engines", "brought") == "brings_one 1.2"
    assert registry.package_of("engines", "postgres") is None
    assert "brings_one" in sys.modules


def test_names_are_known_before_anything_is_loaded(site: Path) -> None:
    install(site, "never_loaded", "raise RuntimeError('loaded')", "idle = never_loaded:Engine")
    assert "idle" in registry.names("engines")
    assert "never_loaded" not in sys.modules
    assert registry.find("engines", "postgres").name == "postgres"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("Engine = 7", "TypeError: broken_{n}:Engine is not a class"),
        ("class Engine:\n    name = 'other'", "TypeError: broken_{n}:Engine calls itself 'other'"),
        ("", "AttributeError: module 'broken_{n}' has no attribute 'Engine'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_one_is_said_with_its_package_and_stops_nothing(
    site: Path, capsys: pytest.CaptureFixture[str], code: str, why: str
) -> None:
    number = abs(hash(code))
    package = f"broken_{number}"
    install(site, package, code, f"wrong = {package}:Engine")
    with pytest.raises(Unavailable) as caught:
        registry.find("engines", "wrong")
    said = f"the engine wrong of the package {package} 1.2 cannot be loaded: {why.format(n=number)}"
    assert caught.value.message == said
    assert caught.value.hint == f"repair that package or remove it: pip uninstall {package}"
    for _ in range(2):
        own = ["duckdb", "hyper", "mariadb", "monetdb", "no_server", "noop", "postgres"]
        assert [each.name for each in registry.members("engines")] == own
    assert capsys.readouterr().err == f"dbtoll: {said}\n  hint: {caught.value.hint}\n"
    with pytest.raises(UsageError, match="named 'postgers'"):
        registry.find("engines", "postgers")


def test_one_name_for_two_is_an_error(site: Path) -> None:
    install(site, "takes_a_name", ENGINE.format(name="postgres"), "postgres = takes_a_name:Engine")
    with pytest.raises(UsageError) as caught:
        registry.names("engines")
    assert caught.value.message == (
        "the engine postgres is there twice: in dbtoll itself and in the package takes_a_name 1.2"
    )
    assert "pip uninstall" in caught.value.hint
    assert registry.names("environments")


def test_two_packages_may_not_share_one_either(site: Path) -> None:
    for package in ("first_of_two", "second_of_two"):
        install(site, package, ENGINE.format(name="shared"), f"shared = {package}:Engine")
    with pytest.raises(UsageError, match=r"in the package first_of_two 1\.2 and in the package second_of_two"):
        registry.find("engines", "shared")


def test_help_loads_no_member(site: Path, tmp_path: Path) -> None:
    """A command line that says how it is used shall not wait for other people's code."""
    install(site, "slow", "import time; time.sleep(60)", "slow = slow:Engine")
    script = (
        "import sys; sys.argv = ['dbtoll', '--help']\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "from dbtoll.cli import main\n"
        "try:\n    main()\nexcept SystemExit as leaving:\n    assert not leaving.code\n"
        "assert not {'slow', 'dbtoll.engines.postgres', 'dbtoll.environments.docker', 'pytest'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


ENVIRONMENT = """
from dbtoll.environments import native


class Environment(native.Environment):
    name = "brought_box"
    default_stacks = ("brought_box", "brought_box:image")

    def removers(self):
        return {KIND: lambda machine, identity: None}
"""


def install_environment(site: Path, package: str, kind: str) -> None:
    install(site, package, f"KIND = {kind!r}{ENVIRONMENT}", f"unused_{package} = {package}:Environment")
    (site / f"{package}-1.2.dist-info/entry_points.txt").write_text(
        f"[dbtoll.environments]\nbrought_box = {package}:Environment\n"
    )


def test_quick_takes_an_environment_of_another_package(site: Path) -> None:
    install_environment(site, "brings_an_environment", "brought")
    text = (experiments() / QUICK).read_text()
    further = spec.parse(with_further_environments(text), QUICK)
    before = spec.parse(text, QUICK)
    assert [arm.name for arm in further.arms] == [*(arm.name for arm in before.arms), "brought_box"]


def test_quick_is_as_it_is_written_where_there_is_none() -> None:
    text = (experiments() / QUICK).read_text()
    assert with_further_environments(text) == text


def test_two_environments_may_not_remove_one_kind(site: Path) -> None:
    install_environment(site, "takes_containers", "container")
    with pytest.raises(DbtollError, match=r"both the environment .* remove what a journal calls container") as caught:
        with_environments(NoMachine(), {})
    assert "docker" in caught.value.message and "brought_box" in caught.value.message


def test_nor_one_of_dbtoll_s_own(site: Path) -> None:
    install_environment(site, "takes_groups", "cgroup")
    with pytest.raises(DbtollError, match="both dbtoll itself and the environment brought_box"):
        with_environments(NoMachine(), {"cgroup": lambda identity: None})


def test_a_run_is_not_continued_with_another_version_of_a_package() -> None:
    before = {"packages": {"engines echo": "dbtoll-outside 0.1"}}
    with pytest.raises(RunFolderError, match=r"packages was .*0\.1.* and is .*0\.2"):
        facts.compare(before, {"packages": {"engines echo": "dbtoll-outside 0.2"}}, "run")
    facts.compare(before, before, "run")
    facts.compare({}, {"packages": {}}, "run")  # of before it was noted
