"""The cache: built once, whole or not there, whatever kills a build."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images.cache import Cache, default_root, key_of, remove_tree
from dbtoll.model import Json

RECIPE: Json = {"version": 1, "what": "a thing"}
FORK = multiprocessing.get_context("fork")


def write_thing(content: Path) -> Json:
    (content / "thing").write_text("whole")
    return {"made_of": "text"}


def never(content: Path) -> Json:
    raise AssertionError("it was built again")


def test_built_once_then_found(tmp_path: Path) -> None:
    built = Cache(tmp_path).obtain("kind", RECIPE, write_thing, estimate_bytes=0)
    assert (built.content / "thing").read_text() == "whole"
    assert built.facts == {"made_of": "text"}
    assert built.recipe == RECIPE

    again = Cache(tmp_path).obtain("kind", RECIPE, never, estimate_bytes=0)
    assert again == built
    assert again.artifact().key == key_of("kind", RECIPE)
    manifest = json.loads((built.content.parent / "manifest.json").read_bytes())
    assert manifest == {"recipe": RECIPE, "facts": {"made_of": "text"}}


def test_the_address_is_the_recipe() -> None:
    assert key_of("kind", {"a": 1, "b": 2}) == key_of("kind", {"b": 2, "a": 1})
    assert len({key_of("kind", {"a": 1}), key_of("kind", {"a": 2}), key_of("other", {"a": 1})}) == 3


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fails(content: Path) -> Json:
        (content / "half").write_text("half")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        Cache(tmp_path).obtain("kind", RECIPE, fails, estimate_bytes=0)
    assert Cache(tmp_path).find("kind", RECIPE) is None
    assert [path.suffix for path in (tmp_path / "kind").iterdir()] == [".lock"]


def build_and_hang(root: Path, started: Path) -> None:
    def hangs(content: Path) -> Json:
        (content / "half").write_text("half")
        started.touch()
        time.sleep(60)
        return {}

    Cache(root).obtain("kind", RECIPE, hangs, estimate_bytes=0)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} has not appeared"
        time.sleep(0.01)


def test_a_killed_build_is_removed_by_the_next_use(tmp_path: Path) -> None:
    cache, started = tmp_path / "cache", tmp_path / "started"
    builder = FORK.Process(target=build_and_hang, args=(cache, started))
    builder.start()
    wait_for(started)
    building = cache / "kind" / f"{key_of('kind', RECIPE)}.building"

    Cache(cache).sweep()
    assert building.exists(), "what is being built was removed"

    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join()
    assert building.exists()
    Cache(cache).obtain("kind", {"another": "thing"}, write_thing, estimate_bytes=0)
    assert not building.exists()
    assert Cache(cache).obtain("kind", RECIPE, write_thing, estimate_bytes=0).facts == {"made_of": "text"}


def build_counted(root: Path, log: Path, gate: Path) -> None:
    def counted(content: Path) -> Json:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.2)
        return write_thing(content)

    wait_for(gate)
    Cache(root).obtain("kind", RECIPE, counted, estimate_bytes=0)


def test_two_runs_do_not_build_the_same_thing_twice(tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    builders = [FORK.Process(target=build_counted, args=(tmp_path / "cache", log, gate)) for _ in range(5)]
    for builder in builders:
        builder.start()
    gate.touch()
    for builder in builders:
        builder.join(30)
        assert builder.exitcode == 0
    assert len(log.read_text().splitlines()) == 1


def test_who_waits_says_so(tmp_path: Path) -> None:
    cache, started = tmp_path / "cache", tmp_path / "started"
    builder = FORK.Process(target=build_and_hang, args=(cache, started))
    builder.start()
    wait_for(started)
    said: list[str] = []

    def heard(line: str) -> None:
        said.append(line)
        assert builder.pid is not None
        os.kill(builder.pid, signal.SIGKILL)  # the lock of the dead is free

    Cache(cache).obtain("kind", RECIPE, write_thing, estimate_bytes=0, progress=heard)
    builder.join()
    assert said == ["waiting for another run that builds the same kind"]


def test_a_program_that_outlives_its_builder_keeps_the_lock(tmp_path: Path) -> None:
    """Else the next use would remove a directory that is still being written to."""
    cache, started = tmp_path / "cache", tmp_path / "started"

    def spawns(content: Path) -> Json:
        program = subprocess.Popen(["sleep", "60"], close_fds=False)  # as images/system.py does
        started.write_text(str(program.pid))
        time.sleep(60)
        return {}

    builder = FORK.Process(target=lambda: Cache(cache).obtain("kind", RECIPE, spawns, estimate_bytes=0))
    builder.start()
    wait_for(started)
    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join()
    building = cache / "kind" / f"{key_of('kind', RECIPE)}.building"
    try:
        Cache(cache).sweep()
        assert building.exists()
    finally:
        os.kill(int(started.read_text()), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while building.exists() and time.monotonic() < deadline:
        Cache(cache).sweep()
    assert not building.exists()


def test_no_room_is_said_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no room for the kind") as caught:
        Cache(tmp_path).obtain("kind", RECIPE, never, estimate_bytes=1 << 60)
    assert "DBTOLL_CACHE" in caught.value.mend


def test_a_disk_that_fills_up_is_one_clear_error(tmp_path: Path) -> None:
    def fills_up(content: Path) -> Json:
        Path("/dev/full").write_bytes(b"x")
        return {}

    with pytest.raises(Unavailable, match="no room for the kind"):
        Cache(tmp_path).obtain("kind", RECIPE, fills_up, estimate_bytes=0)
    assert Cache(tmp_path).find("kind", RECIPE) is None


def test_a_damaged_manifest_names_the_directory_to_remove(tmp_path: Path) -> None:
    entry = Cache(tmp_path).obtain("kind", RECIPE, write_thing, estimate_bytes=0)
    (entry.content.parent / "manifest.json").write_text("{")
    with pytest.raises(DbtollError, match="damaged") as caught:
        Cache(tmp_path).find("kind", RECIPE)
    assert str(entry.content.parent) in caught.value.mend


def test_what_a_build_left_is_removed_however_deep(tmp_path: Path) -> None:
    left = tmp_path / "kind/key.building"
    left.mkdir(parents=True)
    handle = os.open(left, os.O_RDONLY)
    for _ in range(1700):
        os.mkdir("d", dir_fd=handle)
        handle = (os.open("d", os.O_RDONLY, dir_fd=handle), os.close(handle))[0]
    os.close(handle)
    Cache(tmp_path).sweep()
    assert not left.exists()


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/data").write_text("data")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to(tmp_path / "precious")
    remove_tree(tmp_path / "tree")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    remove_tree(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]
    assert (tmp_path / "precious/data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_nothing_is_removed_through_a_mount(tmp_path: Path) -> None:
    precious, tree = tmp_path / "precious", tmp_path / "tree with a space"
    (tree / "mounted").mkdir(parents=True)
    (precious / "nested").mkdir(parents=True)
    (precious / "data").write_text("data")
    subprocess.run(["mount", "--bind", precious, tree / "mounted"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", tree / "mounted/nested"], check=True)
    remove_tree(tree)
    assert not tree.exists()
    assert (precious / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_cannot_be_unmounted_is_not_emptied(tmp_path: Path) -> None:
    precious, tree = tmp_path / "precious", tmp_path / "tree"
    (tree / "mounted").mkdir(parents=True)
    precious.mkdir()
    (precious / "data").write_text("data")
    subprocess.run(["mount", "--bind", precious, tree / "mounted"], check=True)
    try:
        with (tree / "mounted/data").open(), pytest.raises(DbtollError, match="is mounted"):
            remove_tree(tree)
        assert (precious / "data").exists()
    finally:
        subprocess.run(["umount", tree / "mounted"], check=False)


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("DBTOLL_CACHE", raising=False)
    assert default_root() == tmp_path / "xdg" / "dbtoll"
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"
