"""Whatever a user gets wrong is one clear sentence with its hint; never a trace, and the exit code of its kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.make_run import make_run
from tests.support.program import dbtoll_forked, is_root

SPEC = """
[engine]
name = "noop"
[[arm]]
name = "a"
stack = "simulated"
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 64, []),
        (("compar",), 64, ["compar"]),
        (("compare",), 64, ["ENV"]),
        (("compare", "dokcer"), 64, ["dokcer", "docker"]),
        (("compare", "docker:speed=3"), 64, ["speed"]),
        (("compare", "simulated", "--engine", "oracle"), 64, ["oracle", "postgres"]),
        (("compare", "simulated", "--workload", "tpcz"), 64, ["tpcz", "tpch"]),
        (("compare", "simulated", "--scale", "0.000001"), 64, ["scale"]),
        (("compare", "simulated", "--budget", "soon"), 64, ["soon", "duration"]),
        (("compare", "simulated", "--factor", "cache=cold"), 64, ["exclusive"]),
        (("compare", "simulated", "--factor", "cache"), 64, ["FACTOR=LEVEL"]),
        (("compare", "simulated", "--engine", "mariadb"), 64, ["no server of mariadb starts in it", "--engine noop"]),
        (("compare", "native", "--engine", "no_server"), 64, ["tpch cannot be asked of no_server"]),
        (("compare", "simulated", "--workload", "tatp:5"), 64, ["subscribers is 5", "from 1000"]),
        (
            ("compare", "simulated", "--workload", "tpcc", "-f", "interaction=slow"),
            64,
            ["statement, pipelined, procedure"],
        ),
        (("compare", "simulated", "--max-overhead", "lots"), 64, ["lots"]),
        (("run", "nowhere.toml"), 65, ["nowhere.toml", "cannot be read"]),
        (("run", "nowhere", "--resume"), 66, ["nowhere"]),
        (("analyze", "nowhere"), 66, ["nowhere"]),
        (("report", "nowhere"), 66, ["nowhere"]),
        (("selfbench", "nothing"), 64, ["nothing", "agent"]),
        (("test",), 64, ["./dbtoll test"]),
    ],
)
def test_one_sentence_and_the_mend(tmp_path: Path, words: tuple[str, ...], code: int, said: list[str]) -> None:
    done = dbtoll_forked(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    if words:
        assert "hint: " in done.stderr
    for word in said:
        assert word in done.stderr
    assert not list(tmp_path.iterdir()), "something was left behind"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "sample")


def test_a_truncated_folder_is_read_up_to_its_last_whole_line(run_folder: Path) -> None:
    history = run_folder / "history.ndjson"
    history.write_bytes(history.read_bytes()[:-40])
    assert dbtoll_forked("analyze", str(run_folder), "--json").returncode == 0


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: [*lines[:10], *lines[11:]], "history.ndjson:11"),
        (lambda lines: [*lines[:4], lines[4][:40] + b"7" + lines[4][41:], *lines[5:]], "history.ndjson:5"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "history.ndjson:2"),
        (lambda lines: [], "history.ndjson:1"),
    ],
)  # fmt: skip
def test_an_edited_history_names_its_line(run_folder: Path, damage: object, said: str) -> None:
    history = run_folder / "history.ndjson"
    lines = history.read_bytes().splitlines(keepends=True)
    history.write_bytes(b"".join(damage(lines)))  # type: ignore[operator]
    for command in ("analyze", "report"):
        done = dbtoll_forked(command, str(run_folder))
        assert done.returncode == 66, done.stderr
        assert said in done.stderr
        assert "hint: " in done.stderr


@pytest.mark.parametrize("name", ["plan.json", "facts.json", "spec.toml"])
def test_an_edited_or_missing_companion_is_named(run_folder: Path, name: str) -> None:
    file = run_folder / name
    kept = file.read_bytes()
    file.write_bytes(kept + b" ")
    assert name in dbtoll_forked("analyze", str(run_folder)).stderr
    file.unlink()
    done = dbtoll_forked("analyze", str(run_folder))
    assert done.returncode == 66
    assert name in done.stderr


def test_a_newer_schema_asks_for_a_newer_dbtoll(run_folder: Path) -> None:
    history = run_folder / "history.ndjson"
    text = history.read_bytes()
    first, _, rest = text.partition(b"\n")
    from dbtoll.store.schema import FIRST_CHAIN, SCHEMA_VERSION, chain_of

    newer = first.replace(f'"schema_version":{SCHEMA_VERSION}'.encode(), b'"schema_version":99')
    open_line = newer.rpartition(b',"chain"')[0]
    history.write_bytes(open_line + b',"chain":"%s"}\n' % chain_of(open_line, FIRST_CHAIN).encode() + rest)
    done = dbtoll_forked("analyze", str(run_folder))
    assert done.returncode == 66
    assert "99" in done.stderr
    assert "newer dbtoll" in done.stderr


def test_a_folder_that_cannot_be_written_is_analysed_all_the_same(run_folder: Path) -> None:
    (run_folder / "result.json").unlink(missing_ok=True)
    (run_folder / "result.json").mkdir()  # root may write everywhere, but not into this
    done = dbtoll_forked("analyze", str(run_folder), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["run"]
    assert "result.json was not written" in done.stderr
    (run_folder / "report.html").mkdir()
    done = dbtoll_forked("report", str(run_folder))
    assert done.returncode == 66
    assert "the report cannot be written" in done.stderr
    assert "hint: " in done.stderr


def test_what_may_not_be_read_is_one_sentence(run_folder: Path) -> None:
    if is_root():
        pytest.skip("root may read everything")
    run_folder.parent.chmod(0)
    try:
        for command in ("analyze", "report"):
            done = dbtoll_forked(command, str(run_folder))
            assert done.returncode == 77, done.stderr
            assert "Permission denied" in done.stderr
            assert "hint: " in done.stderr
    finally:
        run_folder.parent.chmod(0o755)


def test_a_file_where_run_folders_should_go_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.write_text("a file where the run folders should go")
    file = tmp_path / "spec.toml"
    file.write_text(SPEC)
    done = dbtoll_forked("run", str(file), "--runs-dir", str(folder))
    assert done.returncode == 66
    assert "cannot be made" in done.stderr


def test_what_cannot_be_printed_is_said(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    program = Path(sys.executable).parent / "dbtoll"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([program, "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (74, "dbtoll: what is printed: No space left on device")


@pytest.mark.parametrize("words", [("analyze",), ("report",), ("run", "--resume")])
def test_a_name_that_no_file_can_have_is_one_error(words: tuple[str, ...]) -> None:
    done = dbtoll_forked(words[0], "x" * 300, *words[1:])
    assert done.returncode not in (0, 70), done.stderr
    assert "hint: " in done.stderr and "defect" not in done.stderr


def test_a_history_that_is_a_pipe_does_not_hold_a_resumed_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.json").write_text("{}")
    os.mkfifo(tmp_path / "run" / "history.ndjson")
    done = dbtoll_forked("run", str(tmp_path / "run"), "--resume", timeout_s=60)
    assert done.returncode == 66 and "it is no file" in done.stderr


def test_the_name_of_a_run_folder_is_text(tmp_path: Path) -> None:
    """Else its journal could not be told to anybody, and so never be cleaned."""
    done = dbtoll_forked(
        "compare", "simulated", "--engine", "noop", "--runs-dir", os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    )
    assert done.returncode == 64 and "its name is no UTF-8" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_that_clean_tells_are_made_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "runs" / "x\x1b]0;hello\x07"
    folder.mkdir(parents=True)
    (folder / "journal.ndjson").write_text('{"entry": 1, "kind": "directory", "path": "/x"}\n')
    done = dbtoll_forked("clean", "--runs-dir", str(tmp_path / "runs"))
    assert "of an earlier dbtoll" in done.stdout and "\x1b" not in done.stdout + done.stderr
