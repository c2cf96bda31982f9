"""The journal: what was made and not removed is known after any death of its writer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dbtoll.errors import DbtollError, RunFolderError
from dbtoll.runner.journal import FILE, Journal, clean, leftovers


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


def test_a_living_run_is_not_cleaned(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.create("mount", path="/m")
        with pytest.raises(RunFolderError, match="another dbtoll"):
            clean(tmp_path, {})


def test_cleaning_goes_newest_first_and_says_what_it_could_not_remove(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for name in ("/a", "/b", "/c"):
            journal.create("mount", path=name)
    seen = []

    def remove(identity: dict[str, str]) -> None:
        seen.append(identity["path"])
        if identity["path"] == "/b":
            raise DbtollError("busy")

    removed, failed = clean(tmp_path, {"mount": remove})  # type: ignore[dict-item]
    assert seen == ["/c", "/b", "/a"]
    assert len(removed) == 2
    assert failed == ["mount path=/b: busy"]
    assert [line["path"] for line in leftovers(tmp_path)] == ["/b"]


def test_a_damaged_journal_names_its_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"entry": 1, "kind": "mount"}\nrubbish\n')
    with pytest.raises(RunFolderError, match=rf"{FILE}:2: "):
        leftovers(tmp_path)
