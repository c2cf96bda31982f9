"""What is kept is on the disk, whole, and never written through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dbtoll.durable import move_durably, write_durably


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the kernel: each sync with the kind of what is synced, and each new name."""
    seen: list[str] = []
    sync, rename = os.fsync, os.rename

    def fsync(handle: int) -> None:
        seen.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"{os.fstat(handle).st_size} bytes")
        sync(handle)

    def renamed(*words: Any, **more: Any) -> None:
        seen.append("name")
        rename(*words, **more)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed)
    return seen


def test_its_bytes_reach_the_disk_before_its_name_and_its_name_before_the_return(
    tmp_path: Path, steps: list[str]
) -> None:
    write_durably(tmp_path / "kept", b"12345")
    assert steps == ["5 bytes", "name", "directory"]
    assert (tmp_path / "kept").read_bytes() == b"12345"
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o666 & ~_umask()


def test_so_does_a_file_that_was_made_elsewhere(tmp_path: Path, steps: list[str]) -> None:
    (tmp_path / "made").write_bytes(b"123")
    move_durably(tmp_path / "made", tmp_path / "kept")
    assert steps[0] == "3 bytes"
    assert steps[-1] == "directory"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_its_place_is_refused_and_what_it_names_stays_as_it_is(tmp_path: Path, dangling: bool) -> None:
    precious = tmp_path / "bashrc"
    if not dangling:
        precious.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").symlink_to(precious)
    (folder / "made").write_bytes(b"evil")
    with pytest.raises(OSError, match="symbolic links"):
        write_durably(folder / "result.json", b"evil")
    with pytest.raises(OSError, match="symbolic links"):
        move_durably(folder / "made", folder / "result.json")
    assert precious.exists() != dangling
    assert dangling or precious.read_text() == "precious"


def test_where_it_cannot_be_written_the_former_one_stays_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    write_durably(kept, b"former")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(kept, b"later")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_bytes() == b"former"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
