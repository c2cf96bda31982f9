"""The cache: built once, whole or not there, whatever kills a build."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbtoll.errors import DbtollError, Unavailable, UsageError
from dbtoll.images import cache as cache_module
from dbtoll.images.cache import Cache, default_root, key_of, let_go_on, remove_tree
from dbtoll.model.json import Json
from tests.support.make_image import deep

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
    assert (manifest["recipe"], manifest["facts"]) == (RECIPE, {"made_of": "text"})


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
    assert "DBTOLL_CACHE" in caught.value.hint


def test_a_disk_that_fills_up_is_one_clear_error(tmp_path: Path) -> None:
    def fills_up(content: Path) -> Json:
        Path("/dev/full").write_bytes(b"x")
        return {}

    with pytest.raises(Unavailable, match="no room for the kind"):
        Cache(tmp_path).obtain("kind", RECIPE, fills_up, estimate_bytes=0)
    assert Cache(tmp_path).find("kind", RECIPE) is None


# --- what is not as it was built is built again ------------------------------------------------------------------------


def write_things(content: Path) -> Json:
    (content / "below").mkdir()
    (content / "below/one").write_bytes(bytes(range(256)) * 8)
    (content / "two").write_text("two")
    (content / "empty").touch()
    (content / "link").symlink_to("two")
    return {"made_of": ["bytes", "text"]}


def kept_files(root: Path) -> list[str]:
    scratch = Cache(root).obtain("kind", RECIPE, write_things, estimate_bytes=0)
    assert scratch.facts == {"made_of": ["bytes", "text"]}
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def changed(path: Path) -> None:
    """One bit, and nobody sees it by size or time."""
    content, status = bytearray(path.read_bytes() or b" "), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("harm", [emptied, cut, changed, Path.unlink])
@pytest.mark.parametrize("hashed_bytes", [cache_module.HASHED_BYTES, 0], ids=["hashed", "listed"])
def test_whatever_is_damaged_is_built_again(
    tmp_path: Path, harm: Callable[[Path], None], hashed_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that the cache keeps, one after the other."""
    monkeypatch.setattr(cache_module, "HASHED_BYTES", hashed_bytes)
    if harm is changed and not hashed_bytes:
        pytest.skip("what is not hashed is compared by size and time")
    names = kept_files(tmp_path / "untouched")
    assert {Path(name).name for name in names} >= {"manifest.json", "one", "two", "empty"}
    for name in names:
        root = tmp_path / name.replace("/", "-")
        kept_files(root)
        harm(root / name)
        built: list[str] = []

        def again(content: Path, built: list[str] = built) -> Json:
            built.append("again")
            return write_things(content)

        entry = Cache(root).obtain("kind", RECIPE, again, estimate_bytes=0)
        assert entry.facts == {"made_of": ["bytes", "text"]}
        assert (entry.content / "below/one").read_bytes() == bytes(range(256)) * 8
        assert (entry.content / "link").readlink() == Path("two")
        harmless = name == "CACHEDIR.TAG" or name.endswith(".lock")
        assert bool(built) != harmless, f"{harm.__name__} {name}"


@pytest.mark.parametrize("left", [b"", b"0000", b"\xff\xfe", None])
def test_a_build_that_lets_others_go_on_is_begun_anew_where_that_is_not_certain(
    tmp_path: Path, left: bytes | None
) -> None:
    def interrupted(content: Path) -> Json:
        (content / "half").write_text("half")
        content.chmod(0o700)  # as PostgreSQL asks for
        let_go_on(content)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).obtain("kind", RECIPE, interrupted, estimate_bytes=0)
    (said,) = tmp_path.glob("kind/*.building/resumable")
    if left is not None:
        said.write_bytes(left)
    seen: list[tuple[list[str], int]] = []

    def again(content: Path) -> Json:
        seen.append(([path.name for path in content.iterdir()], content.stat().st_mode & 0o777))
        return write_thing(content)

    Cache(tmp_path).obtain("kind", RECIPE, again, estimate_bytes=0)
    assert seen == [(["half"], 0o700) if left is None else ([], 0o755)]


def test_what_cannot_be_gone_on_with_is_begun_anew(tmp_path: Path) -> None:
    """A file that an interrupted load left was cut: whoever goes on with it fails, and then does it all."""

    def interrupted(content: Path) -> Json:
        (content / "half").write_text("half")
        let_go_on(content)
        raise KeyboardInterrupt

    def goes_on(content: Path) -> Json:
        if (content / "half").exists():
            raise DbtollError("half is damaged")
        return write_thing(content)

    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).obtain("kind", RECIPE, interrupted, estimate_bytes=0)
    assert Cache(tmp_path).obtain("kind", RECIPE, goes_on, estimate_bytes=0).facts == {"made_of": "text"}


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: (content / "two").chmod(0o600),
        lambda content: (content / "more").touch(),
        lambda content: (content / "link").unlink() or (content / "link").symlink_to("elsewhere"),
        lambda content: (content / "two").unlink() or (content / "two").mkdir(),
        lambda content: content.rename(content.with_name("gone")),
        lambda content: (content.parent / "manifest.json").write_text("[" * 100_000),
        lambda content: (content.parent / "manifest.json").write_text('{"recipe": {}, "facts": {}}'),
    ],
)
def test_whatever_is_changed_is_built_again(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    harm(Cache(tmp_path).obtain("kind", RECIPE, write_things, estimate_bytes=0).content)
    assert Cache(tmp_path).find("kind", RECIPE) is None
    assert Cache(tmp_path).obtain("kind", RECIPE, write_thing, estimate_bytes=0).facts == {"made_of": "text"}


def test_facts_that_were_changed_are_not_believed(tmp_path: Path) -> None:
    manifest = Cache(tmp_path).obtain("kind", RECIPE, write_things, estimate_bytes=0).content.parent / "manifest.json"
    manifest.write_text(manifest.read_text().replace("bytes", "bites"))
    assert Cache(tmp_path).find("kind", RECIPE) is None


def test_an_entry_under_anothers_address_is_none(tmp_path: Path) -> None:
    entry = Cache(tmp_path).obtain("kind", RECIPE, write_things, estimate_bytes=0)
    other: Json = {"another": "recipe"}
    entry.content.parent.rename(tmp_path / "kind" / key_of("kind", other))
    assert Cache(tmp_path).find("kind", other) is None


def test_what_is_damaged_and_in_use_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "DISCARD_S", 0.2)
    with used_by_another(tmp_path) as entry:
        (entry / "content/thing").write_text("damaged")
        with pytest.raises(DbtollError, match="another run uses it"):
            Cache(tmp_path).obtain("kind", RECIPE, write_thing, estimate_bytes=0)
    assert Cache(tmp_path).obtain("kind", RECIPE, write_thing, estimate_bytes=0).facts == {"made_of": "text"}


def test_several_that_find_it_damaged_build_it_once(tmp_path: Path) -> None:
    log, gate, cache = tmp_path / "log", tmp_path / "gate", tmp_path / "cache"
    made = FORK.Process(target=lambda: Cache(cache).obtain("kind", RECIPE, write_thing, estimate_bytes=0))
    made.start()
    made.join()
    (cache / "kind" / key_of("kind", RECIPE) / "content/thing").write_text("damaged")
    builders = [FORK.Process(target=build_counted, args=(cache, log, gate)) for _ in range(5)]
    for builder in builders:
        builder.start()
    gate.touch()
    for builder in builders:
        builder.join(30)
        assert builder.exitcode == 0
    assert len(log.read_text().splitlines()) == 1


# --- where it ends ------------------------------------------------------------------------------------------------------


def use_and_hang(root: Path, recipe: Json, started: Path) -> None:
    Cache(root).obtain("kind", recipe, write_thing, estimate_bytes=0)
    started.touch()
    time.sleep(60)


@contextmanager
def used_by_another(root: Path, recipe: Json = RECIPE) -> Iterator[Path]:
    """The directory of the entry, in use by a process that is killed in the end."""
    started = root.with_name(f"{root.name}-{key_of('kind', recipe)}")
    user = FORK.Process(target=use_and_hang, args=(root, recipe, started))
    user.start()
    try:
        wait_for(started)
        yield root / "kind" / key_of("kind", recipe)
    finally:
        user.kill()
        user.join()


def made_by_another(root: Path, number: int, used_at: float) -> Path:
    """An entry of a hundred bytes that was last used then."""

    def hundred(content: Path) -> Json:
        (content / "bytes").write_bytes(bytes(100))
        return {}

    recipe: Json = {"number": number}
    maker = FORK.Process(target=lambda: Cache(root).obtain("kind", recipe, hundred, estimate_bytes=0))
    maker.start()
    maker.join()
    whole = root / "kind" / key_of("kind", recipe)
    os.utime(whole / "manifest.json", (used_at, used_at))
    return whole


def test_what_is_unused_for_longest_goes_first(tmp_path: Path) -> None:
    entries = [made_by_another(tmp_path, number, used_at) for number, used_at in enumerate([300.0, 100.0, 200.0])]
    cache, said = Cache(tmp_path), list[str]()
    assert [kept.path for kept in cache.kept()] == [entries[1], entries[2], entries[0]]
    assert {kept.size_bytes for kept in cache.kept()} == {100}
    cache.trim(300, said.append)
    assert all(map(Path.exists, entries))
    cache.trim(250, said.append)
    assert [entry.exists() for entry in entries] == [True, False, True]
    assert said == [f"removed from the cache, as unused for longest: kind {entries[1].name}"]
    cache.trim(0)
    assert cache.kept() == []
    assert [path.suffix for path in (tmp_path / "kind").iterdir()] == [".lock"] * 3


def test_using_an_entry_is_noted(tmp_path: Path) -> None:
    old = made_by_another(tmp_path, 1, 100.0)
    made_by_another(tmp_path, 2, 200.0)
    user = FORK.Process(target=lambda: Cache(tmp_path).find("kind", {"number": 1}))
    user.start()
    user.join()
    assert Cache(tmp_path).kept()[-1].path == old


def test_what_a_living_run_uses_is_never_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with used_by_another(tmp_path) as entry:
        assert not cache.remove(entry)
        cache.trim(0)
        assert (entry / "content/thing").read_text() == "whole"
    cache.trim(0)
    assert not entry.exists()


def test_what_this_process_uses_is_never_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = cache.obtain("kind", RECIPE, write_thing, estimate_bytes=0)
    cache.trim(0)
    assert (entry.content / "thing").exists()


def test_what_was_half_removed_goes_with_the_next_use(tmp_path: Path) -> None:
    whole = made_by_another(tmp_path, 1, 100.0)
    whole.rename(whole.with_name(f"{whole.name}.00000000.removing"))
    Cache(tmp_path).sweep()
    assert [path.suffix for path in (tmp_path / "kind").iterdir()] == [".lock"]


def test_building_makes_room_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [made_by_another(tmp_path, number, 100.0 + number) for number in range(3)]
    monkeypatch.setenv("DBTOLL_CACHE_LIMIT", "350 B")
    Cache(tmp_path).obtain("kind", RECIPE, write_thing, estimate_bytes=100)
    assert [entry.exists() for entry in entries] == [False, True, True]
    monkeypatch.setenv("DBTOLL_CACHE_LIMIT", "a lot")
    with pytest.raises(DbtollError, match="DBTOLL_CACHE_LIMIT"):
        Cache(tmp_path).obtain("kind", {"new": 1}, write_thing, estimate_bytes=0)


def test_what_is_no_whole_entry_can_be_removed_too(tmp_path: Path) -> None:
    """A directory of an earlier version, for one."""
    (tmp_path / "agent" / ("0" * 32)).mkdir(parents=True)
    (tmp_path / "agent" / ("0" * 32) / "dbtoll-agent").write_bytes(bytes(50))
    (tmp_path / "scratch/run").mkdir(parents=True)
    cache = Cache(tmp_path)
    assert [(kept.kind, kept.size_bytes) for kept in cache.kept()] == [("agent", 50)]
    cache.trim(0)
    assert [path.name for path in tmp_path.glob("*/*")] == ["run"]


# --- whose it is --------------------------------------------------------------------------------------------------------


def test_the_cache_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        Cache(tmp_path / "new/cache")
    finally:
        os.umask(before)
    assert (tmp_path / "new/cache").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new/cache/CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DBTOLL_CACHE", raising=False)
    for chosen in (None, tmp_path / "empty"):  # the usual place, as earlier versions made it; an empty one
        place = chosen or default_root()
        place.mkdir(mode=0o755)
        if chosen is None:
            (place / "image").mkdir()
        assert Cache(chosen).root.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_serves_others_is_not_taken_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DBTOLL_CACHE", raising=False)
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home/letters").touch()
    (tmp_path / "dbtoll").symlink_to("home")
    for chosen in (tmp_path / "home", None):
        with pytest.raises(DbtollError, match="others may read") as caught:
            Cache(chosen)
        assert (tmp_path / "home").stat().st_mode & 0o777 == 0o755
    assert os.system(caught.value.hint.split(",")[0]) == 0
    Cache(tmp_path / "home")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_cache_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(DbtollError, match="others may write"):
        Cache(tmp_path / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving directories away needs root")
def test_a_cache_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 65534, 65534)
    with pytest.raises(DbtollError, match="others may write"):
        Cache(tmp_path / "cache")


def test_what_a_build_left_is_removed_however_deep(tmp_path: Path) -> None:
    left = tmp_path / "kind/key.building"
    left.mkdir(parents=True)
    deep(left, 1700)
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


@pytest.mark.parametrize("by_link", [False, True])
def test_a_cache_that_others_could_put_something_in_the_place_of_is_refused(tmp_path: Path, by_link: bool) -> None:
    public = tmp_path / "public"
    (public / "mine").mkdir(parents=True)
    public.chmod(0o777)
    if by_link:
        (tmp_path / "link").symlink_to(public / "mine")
    with pytest.raises(Unavailable, match="others may write to"):
        Cache((tmp_path / "link" if by_link else public / "mine") / "cache")
    public.chmod(0o1777)  # as /tmp is: nobody can rename what is another's
    Cache(public / "mine" / "cache")


def test_where_there_is_no_place_for_the_cache_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobodys_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DBTOLL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobodys_home)
    with pytest.raises(UsageError, match="no place for the cache"):
        default_root()
