"""The journal: what was made and not removed is known after any death of its writer, and removed in the right order."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dbtoll.errors import DbtollError, RunFolderError
from dbtoll.machines.null_journal import NullJournal
from dbtoll.runner.cleanup.journal import FILE, Journal, StillAlive, leftovers, of_run


def test_what_is_done_is_no_leftover(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        first = journal.create("cgroup", path="/a")
        journal.create("directory", path="/b")
        first.done()
    assert [(line["kind"], line["path"]) for line in leftovers(tmp_path)] == [("directory", "/b")]


def test_it_survives_its_writer_being_killed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Journal(tmp_path).create("mount", path="/m")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"entry": 2, "kind": "direc')  # cut in the middle of a line
    assert [line["kind"] for line in leftovers(tmp_path)] == ["mount"]


def test_a_run_that_goes_on_after_a_cut_line_writes_whole_ones(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.create("mount", path="/m")
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"entry": 2, "kind": "direc')
    with Journal(tmp_path) as journal:
        journal.create("directory", path="/d")
    assert [(line["entry"], line["kind"]) for line in leftovers(tmp_path)] == [(2, "directory"), (1, "mount")]


def test_the_run_folders_copy_has_every_line_whole(tmp_path: Path) -> None:
    """Also after its writer was killed in the middle of one, and after a clean: then what was open in it is forgotten."""
    run = tmp_path / "run"
    run.mkdir()
    with Journal(tmp_path, record=run) as journal:
        journal.create("mount", path="/m").done()
        journal.create("directory", path="/d")
    assert (run / FILE).read_bytes() == (tmp_path / FILE).read_bytes()
    with (run / FILE).open("ab") as file:
        file.write(b'{"entry": 2, "ki')
    with Journal(tmp_path, record=run) as journal:
        journal.create("directory", path="/e")
    assert (run / FILE).read_bytes() == (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).unlink()
    with Journal(tmp_path, record=run) as journal:
        journal.create("directory", path="/f")
    assert [line["path"] for line in leftovers(run)] == ["/f"]
    (run / FILE).unlink()
    run.rmdir()
    with Journal(tmp_path, record=run) as journal:  # nothing hangs on it
        journal.create("directory", path="/g")


def test_a_living_run_is_not_cleaned(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.create("mount", path="/m")
        with pytest.raises(StillAlive, match="another dbtoll"):
            Journal(tmp_path)


def test_the_living_run_of_the_same_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))
    mine, other = tmp_path / "mine" / "run", tmp_path / "other" / "run"
    for folder in (mine, other):
        folder.mkdir(parents=True)
    with of_run(other):
        with pytest.raises(StillAlive, match=f"{mine}: another dbtoll is working on a run of the same name, {other}\n"):
            of_run(mine).__enter__()
        with pytest.raises(StillAlive, match=f"{other}: another dbtoll is working on this run\n"):
            of_run(other).__enter__()


def test_sweeping_goes_newest_first_and_says_what_it_could_not_remove(tmp_path: Path) -> None:
    seen = []

    def remove(identity: Mapping[str, Any]) -> str | None:
        seen.append(identity["path"])
        if identity["path"] == "/b":
            raise DbtollError("busy")
        return "it was empty" if identity["path"] == "/c" else None

    with Journal(tmp_path) as journal:
        for name in ("/a", "/b", "/c"):
            journal.create("mount", path=name)
        removed, failed = journal.sweep({"mount": remove})
    assert seen == ["/c", "/b", "/a"]
    assert removed == ["mount /c: it was empty", "mount /a"]
    assert failed == ["mount /b: busy"]
    assert [line["path"] for line in leftovers(tmp_path)] == ["/b"]


def test_what_still_acts_goes_first(tmp_path: Path) -> None:
    seen = []
    with Journal(tmp_path) as journal:
        journal.create("agent", pid=1)
        journal.create("directory", path="/d")
        journal.sweep(
            {"agent": lambda identity: seen.append("agent"), "directory": lambda identity: seen.append("directory")}
        )
    assert seen == ["agent", "directory"]


def test_a_kind_that_nobody_knows_is_kept_and_said(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.create("spell", path="/s")
        removed, failed = journal.sweep({})
    assert removed == []
    assert "does not know how to remove a spell" in failed[0]
    assert [line["kind"] for line in leftovers(tmp_path)] == ["spell"]


def test_a_damaged_journal_names_its_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"entry": 1, "kind": "mount"}\nrubbish\n')
    with pytest.raises(RunFolderError, match=rf"{FILE}:2: "):
        leftovers(tmp_path)


def test_what_is_made_inside_a_guest_is_not_noted(tmp_path: Path) -> None:
    journal = NullJournal()
    journal.create("cgroup", paths=["/sys/fs/cgroup/dbtoll/x"]).done()
    assert leftovers(tmp_path) == []


def test_a_disk_that_is_full_cuts_no_line(tmp_path: Path) -> None:
    """In a process of its own whose files may not grow: writing a line fails in its middle."""
    with Journal(tmp_path) as journal:
        journal.create("mount", path="/m")
    size_bytes = (tmp_path / FILE).stat().st_size
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 10, size_bytes + 10))
        full = Journal(tmp_path)
        try:
            full.create("directory", path="/a-long-name" * 9)
        except RunFolderError as error:
            os._exit(0 if "make room" in error.hint and "--resume" in error.hint else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / FILE).stat().st_size == size_bytes
    with Journal(tmp_path) as journal:
        journal.create("directory", path="/d").done()
    assert [line["kind"] for line in leftovers(tmp_path)] == ["mount"]
