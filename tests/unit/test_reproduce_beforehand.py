"""`reproduce` says of all parts what they take before it measures any."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from dbtoll.commands import sweep
from dbtoll.commands.reproduce import reproduce
from dbtoll.errors import Unavailable
from dbtoll.runner import run as runs

Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been measured."""
    begun: list[str] = []

    def begin(*asked: object, **more: object) -> None:
        begun.append(str(asked[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "measure", begin)
    monkeypatch.setattr(runs, "begin_part", begin)
    return begun


def asked(folder: Path, *parts: str) -> int:
    nothing = {
        "rounds": None,
        "budget": None,
        "exclusive": False,
        "use": (),
        "as_json": False,
        "quiet": False,
        "yes": True,
    }
    return reproduce("zhang2014", None, variables=(), only=parts, runs_dir=folder / "runs", **nothing)


@pytest.mark.parametrize("part", ["disks", "size"])
def test_a_part_that_has_no_room_is_told_before_another_one_is_measured(
    part: str, measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 << 30, 63 << 30, 1 << 30))
    with pytest.raises(Unavailable, match=rf"^{part}: \w+ = \d: .* that does not fit") as caught:
        asked(tmp_path, "probes", part)
    assert "--part 'probes'" in str(caught.value.hint)
    assert not measured
    assert not (tmp_path / "runs").exists()


def test_all_parts_are_announced_before_the_first_is_measured(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9 << 40, 0, 9 << 40))
    with pytest.raises(KeyboardInterrupt):
        asked(tmp_path, "tenants", "probes", "disks")
    assert len(measured) == 1
    said = capsys.readouterr().err
    assert "tenants: sweep over tenants = 4, 16" in said
    assert "probes:   its author says: 5 min" in said
    assert "disks:   its author says: 9 min" in said
    assert "size: left out: it was not asked for" in said
