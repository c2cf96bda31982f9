"""A dataset: loaded once on a native arm, copied, started from the copy."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dbtoll.engines.mariadb import Engine as MariaDb
from dbtoll.engines.postgres import Engine
from dbtoll.errors import AgentFailure, Unavailable
from dbtoll.images import dataset
from dbtoll.images.cache import Cache, CacheEntry, let_go_on
from dbtoll.interfaces.machine import Machine, Server
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Arm, Resources, Step
from dbtoll.model.json import Json
from dbtoll.model.layout import ONE_UNIT
from dbtoll.model.machine import DATA, Artifact, Provision, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.runner.arms import HostContext
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.preparation.data import Copies
from dbtoll.workloads.tpcc import Workload as Tpcc

OpenArm = Callable[..., Machine]
RESOURCES = Resources(memory_bytes=1 << 30)
ROWS = 100_003  # a prime


class Numbers:
    """The smallest workload that is one."""

    name = "numbers"
    options: Mapping[str, Option] = {}
    queries = ("count",)

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.loads = 0

    def key(self) -> str:
        return f"numbers {ROWS}"

    def load(self, machine: Machine, sql: Dialect, server: Server, progress: Callable[[str], None]) -> Json:
        self.loads += 1
        session = machine.serial(server.address, connection="persistent")
        try:
            session.query(f"CREATE TABLE numbers AS SELECT g AS n, md5(g::text) AS t FROM generate_series(1, {ROWS}) g")
        finally:
            session.close()
        return {"rows": {"numbers": ROWS}}

    def statements(self, sql: Dialect, seed: int) -> dict[str, Statement]:
        return {"count": Statement("count", "SELECT count(*) FROM numbers", "SELECT count(*) FROM numbers")}

    def references(
        self, statements: Mapping[str, Statement], cache: Cache, progress: Callable[[str], None]
    ) -> dict[str, Any]:
        return {}


Build = Callable[..., tuple[CacheEntry, Numbers]]


@pytest.fixture
def build(open_arm: OpenArm, system_image: Artifact, tmp_path: Path) -> Build:
    def build_it(**options: Any) -> tuple[CacheEntry, Numbers]:
        opened = iter(range(100))

        def opener(provisions: tuple[Provision, ...]) -> Machine:
            return open_arm(*provisions, name=f"load{next(opened)}", resources=RESOURCES)

        workload = Numbers({})
        entry = dataset.build(
            Cache(tmp_path / "cache"), opener, Engine(options), workload, image=system_image, resources=RESOURCES
        )
        return entry, workload

    return build_it


def tree_hash(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest.update(repr((str(path.relative_to(root)), status.st_mode, status.st_uid, status.st_mtime_ns)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cached_bytes(path: Path) -> int:
    done = subprocess.run(["fincore", "--bytes", "--noheadings", "--output=RES", path], capture_output=True, check=True)
    return int(done.stdout)


def test_loaded_once_copied_and_started(build: Build, open_arm: OpenArm, local: AgentMachine, tmp_path: Path) -> None:
    master, workload = build()
    assert workload.loads == 1
    assert master.facts["load"] == {"rows": {"numbers": ROWS}}
    assert master.facts["data_bytes"] > 10 << 20
    assert master.recipe["load_settings"]["fsync"] == "off"
    again, workload = build()
    assert (again.key, workload.loads) == (master.key, 0)
    before = tree_hash(master.content)

    for name in ("first", "second"):
        copy = tmp_path / "copies" / name
        dataset.fresh_copy(local, master.artifact(), str(copy))
        large = [path for path in copy.rglob("*") if path.is_file() and path.stat().st_size > 1 << 20]
        assert large
        for path in large:
            assert cached_bytes(path) == 0, f"{path} is still in the page cache"
            assert path.stat().st_blocks * 512 >= path.stat().st_size, f"{path} is sparse"

        arm = open_arm(
            Provision(Artifact(f"copy-{name}", str(copy)), DATA, writable=True), name=name, resources=RESOURCES
        )
        dataset.read_in(arm)
        for path in large:
            assert cached_bytes(path) >= path.stat().st_size
        assert tree_hash(copy) == before, "names, owners, modes, times and contents"
        engine = Engine({})
        server = engine.start(arm, ServerPlace(), engine.settings(RESOURCES))
        session = arm.serial(server.address, connection="persistent")
        assert session.query("SELECT count(*), sum(n) FROM numbers") == [[str(ROWS), str(ROWS * (ROWS + 1) // 2)]]
        session.query("DELETE FROM numbers")  # what one arm writes, no other sees
        session.close()
        engine.stop(arm, server)
    assert tree_hash(master.content) == before


def test_no_two_starts_have_a_copy_in_the_same_place(local: AgentMachine, tmp_path: Path) -> None:
    """ext4 would lay them side by side; and a copy whose removal failed is removed before the next is made."""
    (tmp_path / "master").mkdir()
    (tmp_path / "master/file").write_text("content")
    folder, arm = tmp_path / "copies", Arm("native", (Step("native", {}),))
    journal = Journal(tmp_path)
    context = HostContext(local, None, (0,), journal, "test", copies=str(folder))
    copies = Copies({(ONE_UNIT, "directory"): Artifact("master", str(tmp_path / "master"))}, context)

    def there() -> list[str]:
        return [str(path) for place in folder.iterdir() for path in place.iterdir()]

    seen = []
    for _ in range(3):
        seen.append(copies.make(arm)[0].path)
        assert there() == seen[-1:]
    assert len({Path(path).parent for path in seen}) == 3
    copies.drop(arm)
    copies.drop(arm)
    assert there() == [] and leftovers(tmp_path) == []
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()
    if kind == "ext2/ext3" and shutil.which("lsattr"):
        told = subprocess.run(["lsattr", "-d", folder], capture_output=True, text=True, check=True).stdout
        assert "T" in told.split()[0]
        # mke2fs(8): 8192 inodes in a block group, as a rule; side by side they would all be in one or two.
        assert len({place.stat().st_ino // 8192 for place in folder.iterdir()}) > 10


def test_no_room_for_a_copy_is_one_clear_error(build: Build, local: AgentMachine, tmp_path: Path) -> None:
    master, _ = build()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], check=True)
    try:
        with pytest.raises(Unavailable, match="no room for a copy of the dataset"):
            dataset.fresh_copy(local, master.artifact(), str(small / "copy"))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_disk_that_fills_up_while_copying(
    build: Build, local: AgentMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, _ = build()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], check=True)
    monkeypatch.setattr(dataset, "free_bytes", lambda machine, directory: 1 << 60)  # somebody else fills it meanwhile
    try:
        with pytest.raises(Unavailable, match="no room for a copy of the dataset"):
            dataset.fresh_copy(local, master.artifact(), str(small / "copy"))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_an_interrupted_copy_is_gone_and_its_removal_hides_nothing(
    local: AgentMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, copy = tmp_path / "master", tmp_path / "copy"
    master.mkdir()
    for number in range(2000):
        (master / str(number)).write_bytes(bytes(4096))
    artifact = Artifact("test", str(master))
    for _ in range(10):
        with interrupted_once(copy.exists), pytest.raises(KeyboardInterrupt):
            dataset.fresh_copy(local, artifact, str(copy))
        assert not copy.exists()

    def fails(*_: Any) -> None:
        raise AgentFailure("io", "Directory not empty")

    monkeypatch.setattr(dataset, "remove_copy", fails)
    with interrupted_once(copy.exists), pytest.raises(KeyboardInterrupt):
        dataset.fresh_copy(local, artifact, str(copy))


@contextmanager
def interrupted_once(begun: Callable[[], bool]) -> Iterator[None]:
    """By SIGINT, as control-C does it, as soon as it has ``begun``."""
    over = threading.Event()

    def interrupt() -> None:
        while not begun() and not over.wait(0.0005):
            pass
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()


def test_a_load_that_fails_leaves_nothing(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Json:
        raise RuntimeError("boom")

    monkeypatch.setattr(Numbers, "load", fails)
    with pytest.raises(RuntimeError, match="boom"):
        build()
    assert [path.suffix for path in (tmp_path / "cache" / "dataset").iterdir()] == [".lock"]


# --- a load that is interrupted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [Engine({}), MariaDb({})], ids=["postgres", "mariadb"])
@pytest.mark.parametrize("harm", [None, "its log is gone"])
def test_a_load_that_is_interrupted_goes_on(open_arm: OpenArm, tmp_path: Path, engine: Any, harm: str | None) -> None:
    """Interrupted between rows and indexes. What is left of it is of no use if somebody has harmed it: then it begins anew."""
    opened = iter(range(100))

    def opener(provisions: tuple[Provision, ...]) -> Machine:
        return open_arm(*provisions, name=f"load{next(opened)}", resources=RESOURCES, engine=engine)

    said: list[str] = []

    def build(interrupt: str | None) -> CacheEntry:
        def hear(text: str) -> None:
            said.append(text)
            if text == interrupt:
                raise KeyboardInterrupt

        cache, image = Cache(tmp_path / "cache"), Artifact("image", "/")
        return dataset.build(cache, opener, engine, Tpcc({}), image=image, resources=RESOURCES, progress=hear)

    with pytest.raises(KeyboardInterrupt):
        build("indexes")
    (building,) = (tmp_path / "cache" / "dataset").glob("*.building")
    if harm:
        for log in [*building.glob("content/pg_wal"), *building.glob("content/ibdata1")]:
            shutil.rmtree(log) if log.is_dir() else log.unlink()
    load = build(None).facts["load"]
    assert not building.exists()
    if harm:
        assert load["resumed_parts"] == 0
        assert load["rows"]["customer"] == 30_000
    else:
        assert load["resumed_parts"] > 9  # nine tables, and what was done of the scripts
        assert load["rows"] == {}
        assert "going on with tpcc in " + engine.name in said


def test_clean_removes_what_a_load_left(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")

    def interrupted(content: Path) -> Json:
        (content / "half").write_text("half")
        let_go_on(content)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.obtain("kind", {}, interrupted, estimate_bytes=0)
    (building,) = (tmp_path / "cache" / "kind").glob("*.building")
    cache.sweep()
    assert building.exists()
    cache.sweep(everything=True)
    assert not building.exists()
