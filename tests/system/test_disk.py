"""A directory as a guest's disk: made by the real e2fsprogs, checked by them, copied, and booted from."""

from __future__ import annotations

import filecmp
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbtoll.errors import ProgramFailed, Unavailable
from dbtoll.images import dataset, disk
from dbtoll.images.cache import Cache
from dbtoll.images.ext4 import opened
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact

MIB = 1 << 20
BOOT_DEADLINE_S = 120

pytestmark = [
    pytest.mark.skipif(bool(disk.missing_requirements()), reason="e2fsprogs is missing"),
    pytest.mark.skipif(os.geteuid() != 0, reason="files of several owners need root"),
]


def debugfs(image: Path, command: str) -> str:
    argv = ["debugfs", "-R", command, str(image)]
    env = {"PATH": disk.PATH, "DEBUGFS_PAGER": "cat"}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout


def made(source: Path, cache: Path, *, spare_bytes: int = MIB, key: str = "test") -> tuple[Path, Json]:
    artifact, facts = disk.disk_of(Cache(cache), Artifact(key, str(source)), spare_bytes=spare_bytes)
    assert (artifact.key, artifact.kind) == (key, "file")
    return Path(artifact.path), facts


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with all that a data directory or an image may hold."""
    root = tmp_path / "source"
    (root / "pg_wal").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "empty").chmod(0o1777)
    (root / "a name with 'quotes' and ü").write_text("text")
    (root / "nothing").touch()
    (root / "page").write_bytes(os.urandom(8192))
    os.chown(root / "page", 70000, 70001)
    (root / "setuid").write_bytes(b"#!/bin/sh\n")
    (root / "setuid").chmod(0o4751)
    os.setxattr(root / "page", "user.note", b"kept")
    (root / "another name").hardlink_to(root / "page")
    (root / "link").symlink_to("page")
    (root / "long link").symlink_to("x" * 200)
    os.mkfifo(root / "pipe")
    # What a server prepares for itself: zeros at the end, at the beginning, in the middle, nothing else; and a hole.
    (root / "pg_wal" / "used").write_bytes(b"w" * 5000 + bytes(MIB - 5000))
    (root / "pg_wal" / "late").write_bytes(bytes(100_000) + b"w" * 5000)
    (root / "pg_wal" / "torn").write_bytes((b"w" * 4096 + bytes(8192)) * 50 + b"w")
    (root / "pg_wal" / "new").write_bytes(bytes(MIB))
    with (root / "pg_wal" / "hole").open("wb") as file:
        file.truncate(3 * MIB)
    root.chmod(0o700)
    os.chown(root, 999, 998)
    for path in [*root.rglob("*"), root]:  # an access later than the change: reading does not move it (relatime)
        os.utime(path, (time.time(), 1_600_000_000), follow_symlinks=False)
    return root


def described(root: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        goal = str(path.readlink()) if path.is_symlink() else ""
        when = int(status.st_mtime) if not path.is_symlink() else 0
        mode = status.st_mode & ~0o7000  # debugfs does not read those bits back
        found[str(path.relative_to(root))] = (mode, status.st_uid, status.st_gid, when, goal, content)
    return found


def test_it_holds_what_the_directory_holds(source: Path, tmp_path: Path) -> None:
    image, facts = made(source, tmp_path / "cache")
    target = tmp_path / "read back"
    target.mkdir()
    subprocess.run(
        ["debugfs", "-R", f'rdump / "{target}"', image], check=True, capture_output=True, env={"PATH": disk.PATH}
    )
    expected, found = described(source), described(target)
    root, expected_root = found.pop("."), expected.pop(".")
    assert found.keys() | {"pipe"} == expected.keys()  # which debugfs does not read back
    assert "Mode:  04751" in debugfs(image, "stat setuid")
    assert "Mode:  01777" in debugfs(image, "stat empty")
    assert "Type: FIFO" in debugfs(image, "stat pipe")
    assert found == {name: it for name, it in expected.items() if name != "pipe"}
    assert root[:4] == expected_root[:4]
    assert 'user.note (4) = "kept"' in debugfs(image, "ea_get page user.note")
    inode = debugfs(image, "stat page").split()[1]
    assert debugfs(image, 'stat "another name"').split()[1] == inode
    assert (
        facts["content_bytes"]
        == sum(path.stat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())
        - (source / "page").stat().st_size
    )
    assert facts["mke2fs"].startswith("mke2fs 1.")


def test_nothing_is_left_to_be_done_in_measured_time(source: Path, tmp_path: Path) -> None:
    image, facts = made(source, tmp_path / "cache")
    assert facts["filled_files"] == 5
    assert image.stat().st_blocks * 512 >= image.stat().st_size == facts["size_bytes"]
    with opened(image) as file_system:
        files = list(file_system.regular_files())
    assert len(files) == 1 + sum(path.is_file() and not path.is_symlink() for path in source.rglob("*")) - 1
    for file in files:
        assert sum(extent.count for extent in file.extents if extent.written) == file.blocks
    checked = subprocess.run(["e2fsck", "-f", "-n", image], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    head = subprocess.run(["dumpe2fs", image], capture_output=True, text=True, check=True).stdout
    assert head.count("ITABLE_ZEROED") == len(re.findall("^Group [0-9]", head, re.MULTILINE))
    assert "lost+found" not in debugfs(image, "ls -p /")


def test_a_large_directory_has_an_index(tmp_path: Path) -> None:
    many = tmp_path / "source" / "many"
    many.mkdir(parents=True)
    for number in range(1000):
        (many / f"relation_{number}").touch()
    image, _ = made(tmp_path / "source", tmp_path / "cache")
    assert "Root node dump" in debugfs(image, "htree_dump many")


@pytest.mark.parametrize("shape", ["empty", "many small files", "long names", "one large file", "many directories"])
@pytest.mark.parametrize("spare_bytes", [0, 1, 300 * MIB])
def test_there_is_room_for_all_and_as_much_as_was_asked_for(shape: str, spare_bytes: int, tmp_path: Path) -> None:
    root = tmp_path / "source"
    root.mkdir()
    shapes: dict[str, Callable[[], None]] = {
        "empty": lambda: None,
        "many small files": lambda: [(root / str(number)).write_bytes(b"x") for number in range(4000)] and None,
        "long names": lambda: [(root / f"{number:0255}").touch() for number in range(2000)] and None,
        "one large file": lambda: (root / "large").write_bytes(b"x" * 200 * MIB) and None,
        "many directories": lambda: [(root / str(number)).mkdir() for number in range(2000)] and None,
    }
    shapes[shape]()
    image, facts = made(root, tmp_path / "cache", spare_bytes=spare_bytes)
    assert facts["free_bytes"] >= spare_bytes
    assert facts["size_bytes"] % MIB == 0
    taken = max(facts["content_bytes"] + disk.EXT4_JOURNAL_BYTES + spare_bytes, 2 * disk.EXT4_JOURNAL_BYTES)
    assert facts["size_bytes"] < taken * 1.1 + 40 * MIB
    with opened(image) as file_system:
        assert file_system.free_inodes >= spare_bytes // disk.BYTES_PER_SPARE_INODE


def test_it_is_made_once_for_each_directory_and_spare_room(source: Path, tmp_path: Path) -> None:
    image, facts = made(source, tmp_path / "cache")
    before = image.stat()
    again, same_facts = made(source, tmp_path / "cache")
    assert (again, again.stat().st_ino, again.stat().st_mtime_ns) == (image, before.st_ino, before.st_mtime_ns)
    assert same_facts == facts
    others = {
        made(source, tmp_path / "cache", spare_bytes=2 * MIB)[0],
        made(source, tmp_path / "cache", key="other")[0],
    }
    assert len(others - {image}) == 2


def test_equal_directories_make_equal_disks(source: Path, tmp_path: Path) -> None:
    first, _ = made(source, tmp_path / "first")
    second, _ = made(source, tmp_path / "second")
    assert filecmp.cmp(first, second, shallow=False)
    other, _ = made(source, tmp_path / "first", key="other")
    assert not filecmp.cmp(first, other, shallow=False), "another key, another identity"


def test_missing_programs_are_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="e2fsprogs is missing") as caught:
        made(source, tmp_path / "cache")
    assert caught.value.hint == "apt-get install e2fsprogs"


def test_a_tree_that_mke2fs_refuses_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than was measured, as if somebody wrote to the directory meanwhile."""
    root = tmp_path / "source"
    root.mkdir()
    for number in range(200):
        (root / str(number)).touch()
    monkeypatch.setattr(disk, "measured", lambda directory: disk.Tree(inodes=2, content_bytes=0, blocks=0))
    with pytest.raises(ProgramFailed, match="mke2fs ended with 1"):
        made(root, tmp_path / "cache", spare_bytes=0)
    assert [path.suffix for path in (tmp_path / "cache" / "disk").iterdir()] == [".lock"]


@contextmanager
def small_file_system(at: Path) -> Iterator[Path]:
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def test_no_room_for_it_is_one_clear_error(source: Path, tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small") as small, pytest.raises(Unavailable, match="no room for the disk"):
        made(source, small / "cache")


def test_a_disk_that_fills_up_meanwhile_is_the_same_error(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = shutil.disk_usage(tmp_path)
    with small_file_system(tmp_path / "small") as small:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: plenty)
        with pytest.raises(Unavailable, match="no room for the disk"):
            made(source, small / "cache")
        assert [path.suffix for path in (small / "cache/disk").iterdir()] == [".lock"]


# --- copies of it ---------------------------------------------------------------------------------------------------------


def test_a_fresh_copy_is_the_same_bytes_in_another_place(source: Path, local: AgentMachine, tmp_path: Path) -> None:
    image, _ = made(source, tmp_path / "cache")
    copy = tmp_path / "copies" / "a"
    dataset.fresh_copy(local, Artifact("test", str(image), "file"), str(copy))
    resident = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output=RES", copy], capture_output=True, check=True
    )
    assert int(resident.stdout) == 0, "pages of it are in the page cache"
    assert stat.S_ISREG(copy.stat().st_mode)
    assert copy.stat().st_blocks * 512 >= copy.stat().st_size
    assert filecmp.cmp(image, copy, shallow=False)
    dataset.remove_copy(local, str(copy))
    assert not copy.exists()


def test_no_room_for_a_copy_leaves_nothing(
    source: Path, local: AgentMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = made(source, tmp_path / "cache")
    master = Artifact("test", str(image), "file")
    with small_file_system(tmp_path / "small") as small:
        for _ in range(2):
            with pytest.raises(Unavailable, match="no room for a copy of the dataset"):
                dataset.fresh_copy(local, master, str(small / "copy"))
            assert list(small.iterdir()) == []
            monkeypatch.setattr(dataset, "free_bytes", lambda machine, directory: 1 << 60)  # it fills up meanwhile


# --- a kernel that is not the host's ----------------------------------------------------------------------------------------


def test_a_guest_kernel_boots_from_it(system_image: Artifact, tmp_path: Path) -> None:
    """User Mode Linux takes it for its root, reads it, and writes to it."""
    kernel = shutil.which("linux.uml")
    if kernel is None:
        pytest.skip("linux.uml: apt-get install user-mode-linux")
    root = tmp_path / "source"
    for name in ("bin", "lib64", "lib/x86_64-linux-gnu", "dev", "proc"):
        (root / name).mkdir(parents=True)
    image = Path(system_image.path)
    shutil.copy(image / "usr/bin/dash", root / "bin/sh")
    shutil.copy(image / "usr/lib/x86_64-linux-gnu/libc.so.6", root / "lib/x86_64-linux-gnu")
    # Not through usr/lib64: its absolute link leads to the loader of this machine, which fits no other C library.
    shutil.copy(image / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", root / "lib64")
    (root / "words").write_text("from-the-disk\n")
    (root / "init").write_text(
        "#!/bin/sh\nread words < /words\necho written > /new\nread more < /new\n"
        'echo "seen: $words $more"\nwhile :; do :; done\n'
    )
    (root / "init").chmod(0o755)
    master, _ = made(root, tmp_path / "cache", spare_bytes=4 * MIB)
    copy = shutil.copy(master, tmp_path / "disk.ext4")
    argv = [
        str(find_agent()),
        "uml",
        kernel,
        "mem=128M",
        f"ubd0={copy}",
        "root=/dev/ubda",
        "rw",
        "init=/init",
        "con=null",
        "con0=fd:0,fd:1",
    ]
    with subprocess.Popen(
        [*argv, f"uml_dir={tmp_path}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as guest:  # fmt: skip
        try:
            said = until(guest, b"seen: from-the-disk written")
        finally:
            os.killpg(guest.pid, signal.SIGKILL)
    assert b"seen: from-the-disk written" in said, said[-3000:].decode(errors="replace")
    assert b"EXT4-fs error" not in said


def until(guest: subprocess.Popen[bytes], words: bytes) -> bytes:
    """What it says until ``words`` come, or it ends, or the deadline passes."""
    assert guest.stdout is not None
    said, deadline = b"", time.monotonic() + BOOT_DEADLINE_S
    while words not in said and time.monotonic() < deadline:
        if select.select([guest.stdout], [], [], 1.0)[0]:
            data = os.read(guest.stdout.fileno(), 65536)
            if not data:
                break
            said += data
    return said
