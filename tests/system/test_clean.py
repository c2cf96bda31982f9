"""`dbtoll clean` obeys its own journals alone, and of these only what their kinds can have made.

Each test lays something that would be obeyed if anybody's word were taken, and looks that it was not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dbtoll.errors import AgentFailure, DbtollError, RunFolderError
from dbtoll.images import dataset
from dbtoll.images.cache import Cache, scratch
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.runner.cleanup import journal, removers
from dbtoll.runner.cleanup.beside_arms import workspace
from dbtoll.runner.cleanup.journal import FILE, SUFFIX, Foreign, StillAlive, leftovers, of_run, temporary_journal
from dbtoll.runner.cleanup.removers import Cleaned, clean_all
from tests.support.program import is_root

pytestmark = pytest.mark.usefixtures("local")

SETTING = "/proc/sys/vm/vfs_cache_pressure"
NOBODY = 65534

needs_root = pytest.mark.skipif(not is_root(), reason="only root can give files to others, and bind directories")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of its own, so that nothing of this user's is cleaned."""
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))
    Cache()
    scratch().mkdir()
    return tmp_path / "cache"


def victim(at: Path) -> Path:
    """A directory with a file that must stay."""
    at.mkdir(parents=True)
    (at / "file").write_text("mine")
    return at


def killed_with(name: str, *entries: dict[str, Any]) -> Path:
    """A run of that name that was killed when it had noted these entries: its journal."""
    child = os.fork()
    if child == 0:
        with of_run(Path(name)) as held:
            for entry in entries:
                held.create(**entry)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return journal.journals() / (name + SUFFIX)


def changed_first_line(file: Path, **fields: Any) -> None:
    """As another machine, or another place, would have written it."""
    first, *rest = file.read_text().splitlines()
    with file.open("r+") as content:  # the same file: a new one would be a copy
        content.write("\n".join([json.dumps(json.loads(first) | fields), *rest]) + "\n")
        content.truncate()


# --- where journals lie --------------------------------------------------------------------------------------------------


def test_what_lies_among_the_temporary_files_is_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = victim(tmp_path / "mine")
    laid = tmp_path / "dbtoll-run"
    laid.mkdir()
    (laid / FILE).write_text(json.dumps({"entry": 1, "kind": "directory", "path": str(mine)}) + "\n")
    assert clean_all(tmp_path / "runs") == Cleaned()
    assert (mine / "file").exists()


def test_a_run_folder_is_not_obeyed_but_said(tmp_path: Path, cache: Path) -> None:
    """One of an earlier dbtoll, which kept its journal there; or one that somebody sent."""
    mine = victim(scratch() / "mine")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    line = json.dumps({"entry": 1, "kind": "directory", "path": str(mine)}) + "\n"
    (tmp_path / "runs" / "x" / FILE).write_text(line)
    cleaned = clean_all(tmp_path / "runs")
    assert (mine / "file").exists()
    assert (cleaned.removed, cleaned.failed) == ([], [])
    assert "of an earlier dbtoll" in cleaned.left[0]
    (tmp_path / "runs" / "x" / FILE).write_text(line + '{"entry": 1, "done": true}\n')
    assert clean_all(tmp_path / "runs") == Cleaned()


def _of_another(place: Path) -> None:
    os.chown(place, NOBODY, NOBODY)


def _open_to_others(place: Path) -> None:
    place.chmod(0o777)


def _through_a_link(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


@pytest.mark.parametrize("make", [pytest.param(_of_another, marks=needs_root), _open_to_others, _through_a_link])
@pytest.mark.parametrize("of", ["directory", "file"])
def test_a_journal_that_others_could_have_written_is_not_obeyed(tmp_path: Path, make: Any, of: str) -> None:
    mine = victim(scratch() / "mine")
    file = killed_with("x", {"kind": "directory", "path": str(mine)})
    make(file if of == "file" else file.parent)
    cleaned = clean_all(tmp_path / "runs")
    assert (mine / "file").exists()
    assert cleaned.removed == []
    (sentence,) = cleaned.failed
    assert "is not obeyed" in sentence
    with pytest.raises(RunFolderError, match="is not obeyed"), of_run(Path("x")):
        pass


def test_a_journal_with_a_second_name_and_one_that_is_no_file(tmp_path: Path) -> None:
    mine = victim(scratch() / "mine")
    file = killed_with("x", {"kind": "directory", "path": str(mine)})
    file.with_name("y.ndjson").hardlink_to(file)
    os.mkfifo(file.with_name("z.ndjson"))
    cleaned = clean_all(tmp_path / "runs")
    assert (mine / "file").exists()
    assert len(cleaned.failed) == 3


@pytest.mark.parametrize(
    "line",
    [
        "rubbish",
        "5",
        "[]",
        '"entry"',
        "{}",
        '{"entry": 2}',
        '{"entry": "2", "kind": "directory"}',
        '{"entry": true, "kind": "directory"}',
        '{"entry": 2, "kind": 3}',
        '{"entry": [], "done": true}',
        '{"journal": 2}',
        '{"journal": 99, "machine": null, "boot": "", "host": "", "path": "", "inode": 1, "folder": null}',
        "[" * 100_000,
        "\\ud800",
    ],
)
def test_one_bad_journal_is_said_and_the_others_are_cleaned(tmp_path: Path, line: str) -> None:
    first, second = (victim(scratch() / name) for name in ("first", "second"))
    kept = victim(scratch() / "kept")
    killed_with("a", {"kind": "directory", "path": str(first)})
    bad = killed_with("b", {"kind": "directory", "path": str(kept)})
    killed_with("c", {"kind": "directory", "path": str(second)})
    with bad.open("a") as content:
        content.write(line + "\n")
    cleaned = clean_all(tmp_path / "runs")
    assert len(cleaned.removed) == 2
    assert [f"{bad}:3: not a journal line"] == cleaned.failed
    assert (first.exists(), second.exists(), kept.exists()) == (False, False, True)
    assert journal.names() == [bad.name]


def test_a_journal_without_a_first_line_is_not_obeyed(tmp_path: Path) -> None:
    mine = victim(scratch() / "mine")
    file = killed_with("x", {"kind": "directory", "path": str(mine)})
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    cleaned = clean_all(tmp_path / "runs")
    assert mine.exists()
    assert "does not say where it was begun" in cleaned.failed[0]


# --- copies, other machines, deleted run folders ----------------------------------------------------------------------------


def test_a_copy_of_a_living_runs_journal_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is not on the copy. Copied within the cache, and with all of it."""
    with of_run(tmp_path / "run") as held:
        mine = victim(scratch() / "mine")
        held.create("directory", path=str(mine))
        shutil.copy(held.folder / held.name, held.folder / f"copy{SUFFIX}")
        cleaned = clean_all(tmp_path / "runs")
        assert cleaned.alive == [str(held.folder / held.name)]
        assert "is a copy of" in cleaned.left[0]
        shutil.copytree(tmp_path / "cache", tmp_path / "second")
        monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "second"))
        cleaned = clean_all(tmp_path / "runs")
        assert (len(cleaned.left), cleaned.removed, cleaned.failed) == (2, [], [])
        assert (mine / "file").exists()


def test_a_copy_of_a_living_runs_folder_ends_nothing(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    with of_run(run) as held:
        mine = victim(scratch() / "mine")
        held.create("directory", path=str(mine))
        shutil.copytree(run, tmp_path / "copies" / "x")
        cleaned = clean_all(tmp_path / "copies")
        assert (cleaned.removed, cleaned.failed, len(cleaned.alive)) == ([], [], 1)
        with pytest.raises(StillAlive), of_run(tmp_path / "copies" / "x"):
            pass
        assert (mine / "file").exists()


def test_a_cache_that_was_moved_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(tmp_path / "moved")
    mine = victim(tmp_path / "moved" / "scratch" / "mine")
    (file,) = [killed_with("x", {"kind": "directory", "path": str(mine)})]
    file.parent.rename(tmp_path / "moved" / "journals")
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "moved"))
    assert len(clean_all(tmp_path / "runs").removed) == 1
    assert not mine.exists()


def test_another_machines_journal_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On storage that machines share, by a machine's name; by its present life where it has none, as in containers."""
    mine = victim(scratch() / "mine")
    file = killed_with("x", {"kind": "directory", "path": str(mine)})
    own = json.loads(file.read_text().splitlines()[0])
    changed_first_line(file, machine="0" * 32, host="other")
    cleaned = clean_all(tmp_path / "runs")
    assert "begun on another machine" in cleaned.left[0]
    assert "on other" in cleaned.left[0]
    with pytest.raises(Foreign, match="begun on another machine"), of_run(Path("x")):
        pass
    monkeypatch.setattr(journal, "MACHINE_IDS", (str(tmp_path / "none"),))
    changed_first_line(file, machine=None, boot="another")
    assert "begun on another machine" in clean_all(tmp_path / "runs").left[0]
    assert (mine / "file").exists()
    changed_first_line(file, boot=own["boot"])
    assert len(clean_all(tmp_path / "runs").removed) == 1
    assert not mine.exists()


def test_what_a_run_left_is_found_when_its_folder_is_deleted(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    mine = victim(scratch() / "mine")
    child = os.fork()
    if child == 0:
        with of_run(run) as held:
            held.create("directory", path=str(mine))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert leftovers(run)  # for people to read
    shutil.rmtree(run)
    assert len(clean_all(tmp_path / "runs").removed) == 1
    assert not mine.exists()
    assert journal.names() == []


def test_a_journal_stays_while_something_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run, of a trial, and what `clean` itself finds."""
    del monkeypatch
    mine = victim(tmp_path / "no-scratch")
    with suppress(ZeroDivisionError), temporary_journal() as held:
        held.create("directory", path=str(mine))
        raise ZeroDivisionError
    (name,) = journal.names()
    for _ in range(2):
        cleaned = clean_all(tmp_path / "runs")
        assert len(cleaned.failed) == 1
        assert journal.names() == [name]
    assert (mine / "file").exists()


def test_a_killed_trials_directory_is_found(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with workspace("trial") as (folder, _):
            (folder / "data").write_text("data")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert list(scratch().glob("trial-*/data"))
    assert len(clean_all(tmp_path / "runs").removed) == 1
    assert list(scratch().iterdir()) == []
    with workspace("trial") as (folder, _):
        (folder / "data").write_text("data")
    assert list(scratch().iterdir()) == []
    assert journal.names() == []


# --- what an entry may name ----------------------------------------------------------------------------------------------


@contextmanager
def sleeping() -> Iterator[int]:
    """A process that must live."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        alive = process.poll() is None
        process.kill()
    assert alive


def refused(kind: str, **identity: Any) -> None:
    """The remover of that kind raises, or does nothing."""
    with removers.removers() as by_kind, suppress(DbtollError):
        assert by_kind[kind](identity) is None


@pytest.mark.parametrize(
    "path",
    ["{}/mine", "{}/cache/scratch/../../mine", "//{}/cache/scratch/x", "{}/cache/scratch/", "mine", 5, None, "/"],
)
@pytest.mark.parametrize("kind", ["directory", "stage", "mount"])
def test_only_what_lies_below_its_kinds_root_is_removed(tmp_path: Path, kind: str, path: Any) -> None:
    mine = victim(tmp_path / "mine")
    given = path.format(tmp_path) if isinstance(path, str) else path
    with removers.removers() as by_kind, pytest.raises(DbtollError, match="nothing was done"):
        by_kind[kind]({"path": given})
    assert (mine / "file").exists()
    assert scratch().exists()


@pytest.mark.parametrize(
    "path", ["/sys/fs/cgroup/dbtoll/../x", "{}/dbtoll/run/arm", "/sys/fs/cgroup/x", "sys/fs/cgroup", 5]
)
def test_no_process_of_another_group_is_killed(tmp_path: Path, path: Any) -> None:
    """Also not by a directory that only looks like a control group."""
    with sleeping() as pid:
        false = tmp_path / "dbtoll" / "run" / "arm"
        false.mkdir(parents=True)
        (false / "cgroup.procs").write_text(f"{pid}\n")
        given = path.format(tmp_path) if isinstance(path, str) else path
        for kind, more in (("cgroup", {}), ("process", {"data_root": "/nowhere/dbtoll"})):
            with removers.removers() as by_kind, pytest.raises(DbtollError, match="nothing was done"):
                by_kind[kind]({"paths": [given], **more})
        assert (false / "cgroup.procs").exists()


def test_no_process_is_killed_that_is_no_agent(local: AgentMachine) -> None:
    with sleeping() as pid:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        removers.end_agent(local, {"pid": pid, "started": int(stat[19]), "boot": boot})
        for bad in ({"pid": -1}, {"pid": "1"}, {"pid": 0}, {}):
            with pytest.raises(DbtollError, match="nothing was done"):
                removers.end_agent(local, {"started": 1, "boot": boot, **bad})


@pytest.mark.parametrize(
    "path",
    [
        "{}/file",
        "/proc/sys/../..{}/file",
        "/sys/../..{}/file",
        "/proc/sysrq-trigger",
        "/sys/fs/cgroup/cgroup.subtree_control",
        "/etc/passwd",
        "/proc/sys",
        7,
    ],
)
def test_only_settings_are_restored(tmp_path: Path, path: Any) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    given = path.format(tmp_path) if isinstance(path, str) else path
    with removers.removers() as by_kind, pytest.raises(DbtollError, match="nothing was done"):
        by_kind["setting"]({"path": given, "former": "theirs", "value": "x", "boot": boot})
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "identity"),
    [
        ("network", {"interface": "lo"}),
        ("network", {"interface": "../../../tmp"}),
        ("network", {"interface": "eth0"}),
        ("litter", {"path": "/opt"}),
        ("litter", {"path": "/opt/containerd/../x"}),
        ("container", {"socket": "docker.sock", "name": "x"}),
        ("container", {"socket": "/run/docker.sock", "name": "../x"}),
        ("container", {"socket": "/run/docker.sock"}),
        ("tracing", {"instance": "../x"}),
        ("tracing", {"instance": "others"}),
        ("process", {"data_root": "/var/lib/../x", "paths": []}),
        ("process", {}),
    ],
)
def test_other_kinds_take_no_other_names(kind: str, identity: dict[str, Any]) -> None:
    with removers.removers() as by_kind, pytest.raises(DbtollError, match="nothing was done"):
        by_kind[kind](identity)


# --- the remover -----------------------------------------------------------------------------------------------------------


@needs_root
def test_nothing_is_removed_across_a_mount_of_the_same_file_system(tmp_path: Path, local: AgentMachine) -> None:
    mine = victim(tmp_path / "mine")
    copy = scratch() / "run" / "arm"
    (copy / "deep" / "bound").mkdir(parents=True)
    subprocess.run(["mount", "--bind", mine, copy / "deep" / "bound"], check=True)
    try:
        with pytest.raises(AgentFailure, match="is a mount point"):
            dataset.remove_copy(local, str(copy))
        assert (mine / "file").read_text() == "mine"
    finally:
        subprocess.run(["umount", copy / "deep" / "bound"], check=True)
    dataset.remove_copy(local, str(copy))
    dataset.remove_copy(local, str(copy))
    assert not copy.exists()


def test_a_tree_of_any_depth_and_any_names_is_removed(tmp_path: Path, local: AgentMachine) -> None:
    top = tmp_path / "top"
    outside = victim(tmp_path / "outside")
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / os.fsdecode(b"not-\xff-utf8")).mkdir()
    (top / "other" / "more").mkdir(parents=True)
    here = os.open(top, os.O_RDONLY)
    for level in range(1700):
        name = f"d{level % 7}"
        os.mkdir(name, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    local.remove(str(top), recursive=True)
    assert not top.exists()
    assert (outside / "file").read_text() == "mine"
    assert sys.getrecursionlimit() < 1700
