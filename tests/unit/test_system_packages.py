"""The programs of the system and their installation: what is said, and what goes on side by side. Nothing is installed here."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbtoll import system_packages
from dbtoll.errors import Unavailable
from tests.support.program import is_root

SIDE_BY_SIDE = """
. {script}; state={state}
step 'the first' '' bash -c 'until [ -e {state}/second ]; do sleep 0.05; done'
step 'the second' '' touch {state}/second
steps_end
"""

ONE_FAILS = """
. {script}; state={state}
step 'the long one' '' bash -c 'echo $$ >{state}/pid; sleep 1000'
until [ -s {state}/pid ]; do sleep 0.05; done
step 'the broken one' 'mend it' bash -c 'echo no such thing; exit 3'
steps_end
"""

ONE_IS_LONG = """
. {script}; state={state}
step 'the long one' '' bash -c 'echo half way; sleep 11'
steps_end
"""


def bash(script: str, state: Path) -> subprocess.CompletedProcess[str]:
    words = script.format(script=system_packages.INSTALL, state=state)
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False, timeout=60)


def test_steps_go_on_side_by_side_and_say_how_long_they_took(tmp_path: Path) -> None:
    done = bash(SIDE_BY_SIDE, tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("the first", "the second"):
        assert f"dbtoll: {name}: begins\n" in done.stderr
        assert re.search(rf"dbtoll: {name}: done, \d+ s\n", done.stderr)


def test_a_step_that_fails_ends_the_others_and_says_what_to_do(tmp_path: Path) -> None:
    done = bash(ONE_FAILS, tmp_path)
    assert done.returncode == Unavailable.exit_code
    assert "no such thing\ndbtoll: the broken one: failed" in done.stderr
    assert "hint: mend it" in done.stderr
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_long_step_is_not_silent(tmp_path: Path) -> None:
    assert re.search(r"dbtoll: the long one: 1\d s, half way\n", bash(ONE_IS_LONG, tmp_path).stderr)


# --- what is missing ---


def install(folder: Path, *words: str, apt: bool, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """On a machine that lacks mmdebstrap and perhaps apt: the programs are those of /usr/bin."""
    programs, state = folder / "bin", folder / "state"
    programs.mkdir()
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    for path in Path("/usr/bin").iterdir():
        if path.name != "mmdebstrap" and (apt or not path.name.startswith("apt")):
            (programs / path.name).symlink_to(path)
    yes, groups = [word for word in words if word == "--yes"], [word for word in words if word != "--yes"]
    return subprocess.run(
        [*before, "/bin/bash", system_packages.INSTALL, *yes, state, *groups], env={"PATH": str(programs)},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everybody may enter."""
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_without_apt_programs_are_named_and_it_goes_on(tmp_path: Path) -> None:
    done = install(tmp_path, "--yes", "dbtoll", apt=False)
    assert done.returncode == 0
    assert "missing here: mmdebstrap" in done.stderr
    assert "apt-get" not in done.stderr
    assert "package manager" in done.stderr


needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get here")


@needs_apt
@pytest.mark.skipif(not is_root(), reason="becomes somebody else")
def test_without_root_it_says_what_root_would_do_and_goes_on(reachable: Path) -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    done = install(reachable, "--yes", "dbtoll", apt=True, before=(*nobody, *read))
    assert done.returncode == 0, done.stderr
    assert "not root: goes on without mmdebstrap" in done.stderr
    assert "hint: root adds them with: apt-get install -y --no-install-recommends mmdebstrap" in done.stderr


@needs_apt
@pytest.mark.skipif(not is_root(), reason="only root is asked")
@pytest.mark.skipif(not any(Path("/var/lib/apt/lists").glob("*_Packages*")), reason="apt has read no lists here")
def test_who_cannot_be_asked_is_told_how_to_agree(tmp_path: Path) -> None:
    done = install(tmp_path, "dbtoll", apt=True)
    assert done.returncode == Unavailable.exit_code
    assert "will install these Debian packages: mmdebstrap" in done.stderr
    assert "add --yes" in done.stderr


def test_nothing_is_asked_where_nobody_can_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And with what was agreed to, a failure is an error."""
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(system_packages, "INSTALL", tmp_path / "install.sh")
    (tmp_path / "install.sh").write_text(f'echo "$@" >{tmp_path}/asked; exit 69\n')
    system_packages.install_missing(["docker"], yes=False)
    assert not (tmp_path / "asked").exists()
    with pytest.raises(Unavailable):
        system_packages.install_missing(["docker", "native"], yes=True)
    assert (tmp_path / "asked").read_text().split() == ["--yes", f"{tmp_path}/set-up", "dbtoll", "docker", "native"]


def test_what_is_there_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`true` stands for every program."""
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in system_packages.programs():
        (programs / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    begin = time.monotonic()
    system_packages.install_missing(["docker", "uml", "qemu"], yes=True)
    assert capfd.readouterr() == ("", "")
    assert time.monotonic() - begin < 60
