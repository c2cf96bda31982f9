"""dbtoll where letters or temporary files cannot be had: what it says is plainer, and it does its work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.make_run import make_run
from tests.support.program import is_root

PROGRAM = str(Path(sys.executable).parent / "dbtoll")

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""The C locale as it is, without Python's own remedies (PEP 538, PEP 540): all is ASCII."""
LATIN_1 = {"PYTHONIOENCODING": "latin-1"}


def dbtoll(*words: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    argv = [PROGRAM, *map(str, words)]
    return subprocess.run(argv, capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize("environment", [ASCII, LATIN_1], ids=["ascii", "latin-1"])
def test_a_terminal_of_another_character_set(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = make_run(tmp_path / "run", rounds=6, cold=True)
    encoding = environment.get("PYTHONIOENCODING", "ascii")
    shown = ""
    for words in (("report", folder), ("doctor", "--help"), ("run", tmp_path / "n…wh±re")):
        done = dbtoll(*words, **environment)
        text = (done.stdout + done.stderr).decode(encoding)
        assert done.returncode == (65 if words[0] == "run" else 0), text
        assert "defect" not in text
        assert "Traceback" not in text
        shown += text
    assert "native" in shown
    assert "..." in shown


@pytest.mark.parametrize("environment", [ASCII, LATIN_1], ids=["ascii", "latin-1"])
def test_what_programs_read_is_utf_8_whatever_the_terminal_is(tmp_path: Path, environment: dict[str, str]) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'question = "±…→ é 雪"\n[engine]\nname = "noop"\n[[arm]]\nname = "a"\nstack = "simulated"\n', encoding="utf-8"
    )
    done = dbtoll("plan", spec, "--json", **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("utf-8"))["experiment"]["question"] == "±…→ é 雪"


def test_a_defect_is_said_where_no_file_can_be_made_for_it(tmp_path: Path) -> None:
    """In a directory that cannot be written to, without any for temporary files, and without a cache."""
    program = """
import os, sys, tempfile
from dbtoll import cli
tempfile._candidate_tempdir_list = lambda: ["/nowhere"]
sys.argv = ["dbtoll", "version"]
cli.app = lambda **options: 1 / 0
cli.main()
"""
    nowhere = {"DBTOLL_CACHE": "/proc/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | nowhere, check=False
    )
    assert done.returncode == 70
    assert "a defect of dbtoll: ZeroDivisionError" in done.stderr
    assert "written above" in done.stderr
    assert "1 / 0" not in done.stderr.partition("Traceback")[0]


@pytest.mark.skipif(not is_root(), reason="what root may not write to takes root to make")
def test_it_works_without_a_place_for_temporary_files(tmp_path: Path) -> None:
    """A small run of the simulated environment and its report: its temporary files lie in the cache."""
    spec = tmp_path / "spec.toml"
    spec.write_text(
        '[engine]\nname = "noop"\n[precision]\nbudget = "5s"\nrounds_min = 3\nrounds_max = 3\n'
        '[[arm]]\nname = "a"\nstack = "simulated"\n[[arm]]\nname = "b"\nstack = "simulated:effect=0.1"\n'
    )
    program = f"""
import sys, tempfile
from dbtoll import cli
tempfile._candidate_tempdir_list = lambda: ["/nowhere"]
sys.argv = ["dbtoll", "run", {str(spec)!r}, "--runs-dir", {str(tmp_path / "runs")!r}]
cli.main()
"""
    environment = os.environ | {"DBTOLL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert (next((tmp_path / "runs").iterdir()) / "report.html").exists()
    assert list((tmp_path / "cache" / "scratch").iterdir()) == []
