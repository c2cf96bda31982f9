"""`dbtoll clean --cache`: what is kept from run to run goes, but for what somebody uses."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dbtoll.doctor import availability
from dbtoll.errors import UsageError
from dbtoll.images.cache import Cache, key_of
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.json import Json

FORK = multiprocessing.get_context("fork")
DAY_S = 24 * 3600
MIB = 1 << 20


def keep(root: Path, number: int, started: Path | None = None) -> None:
    def build(content: Path) -> Json:
        (content / "bytes").write_bytes(bytes(MIB))
        return {}

    Cache(root).obtain("thing", {"number": number}, build, estimate_bytes=MIB)
    if started:
        started.touch()
        time.sleep(600)


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four entries of 1 MiB, unused for 10, 20, 30 and 40 days."""
    root = tmp_path / "cache"
    monkeypatch.setenv("DBTOLL_CACHE", str(root))
    found = []
    for number in range(4):
        maker = FORK.Process(target=keep, args=(root, number))
        maker.start()
        maker.join()
        found.append(root / "thing" / key_of("thing", {"number": number}))
        used_at = time.time() - 10 * (number + 1) * DAY_S
        os.utime(found[-1] / "manifest.json", (used_at, used_at))
    return found


APART = """
from dbtoll import registry
from dbtoll.cli import main
for environment in registry.members("environments"):
    if hasattr(environment, "stores"):
        environment.stores = lambda self: ()
main()
"""
"""dbtoll, blind to the images that environments keep: they are not the tests' (test_docker.py has its own)."""


def dbtoll(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", APART, *words], capture_output=True, text=True, timeout=300, check=False
    )


def cleaned(*words: str) -> dict[str, Any]:
    done = dbtoll("clean", "--cache", "--json", *words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["failed"] == []
    return told


def there(things: list[Path]) -> list[bool]:
    return [thing.exists() for thing in things]


def test_only_what_has_been_unused_for_long(things: list[Path]) -> None:
    told = cleaned("--older", "25")
    assert there(things) == [True, True, False, False]
    assert [line.split(",")[0] for line in told["removed"]] == [f"thing {things[n].name}" for n in (3, 2)]
    assert "1.0 MiB, unused for 40.0 days" in told["removed"][0]


def test_only_until_no_more_is_left(things: list[Path]) -> None:
    told = cleaned("--keep", "3 MiB")
    assert there(things) == [True, True, True, False]
    assert told["left_bytes"] == 3 * MIB
    assert cleaned("--keep", "1 MiB", "--older", "25")["left_bytes"] >= 2 * MIB
    assert there(things) == [True, True, False, False]


def test_everything_but_what_is_in_use(things: list[Path], tmp_path: Path) -> None:
    started = tmp_path / "started"
    user = FORK.Process(target=keep, args=(tmp_path / "cache", 3, started))
    user.start()
    try:
        while not started.exists():
            time.sleep(0.01)
        told = cleaned()
        assert there(things) == [False, False, False, True]
        assert any(things[3].name in line for line in told["left_alone"])
    finally:
        user.kill()
        user.join()
    cleaned()
    assert there(things) == [False] * 4


def test_doctor_tells_how_much_it_is(things: list[Path], local: AgentMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBTOLL_CACHE_LIMIT", "2 GiB")
    found = availability.cache(local)
    agent_bytes = sum(kept.size_bytes for kept in Cache().kept() if kept.kind == "agent")
    assert found.state == "ready"
    assert found.told["size_bytes"] == len(things) * MIB + agent_bytes
    assert found.told["limit_bytes"] == 2 << 30
    assert "of at most 2.0 in" in found.note


def test_the_words(things: list[Path]) -> None:
    done = dbtoll("clean", "--cache", "--keep", "3MiB")
    assert f"removed: thing {things[3].name}, 1.0 MiB, unused for 40.0 days" in done.stdout
    assert "hold 0.0 GiB" in done.stdout
    for words in (["--older", "3"], ["--keep", "1GiB"], ["--cache", "--keep", "much"], ["--cache", "--older", "-1"]):
        done = dbtoll("clean", *words)
        assert done.returncode == UsageError.exit_code, words
        assert "hint" in done.stderr
    assert there(things) == [True, True, True, False]
