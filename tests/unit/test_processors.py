"""One dbtoll at a time measures on a processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dbtoll.runner.preparation import processors
from dbtoll.runner.preparation.processors import Reserved, reserved

CPU = min(os.sched_getaffinity(0))

HOLDER = """
import sys
from dbtoll.runner.preparation.processors import reserved
with reserved([int(sys.argv[1])]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors that no other test or run of this machine holds."""
    if not (processors.DIRECTORIES / f"cpu{CPU}").is_dir():
        pytest.skip("the kernel shows no directory of its processors")
    (tmp_path / f"cpu{CPU}").mkdir()
    (tmp_path / f"cpu{CPU + 1}").mkdir()
    monkeypatch.setattr(processors, "DIRECTORIES", tmp_path)


def test_the_second_waits_and_says_for_whom() -> None:
    said: list[str] = []
    got = threading.Event()

    def second() -> None:
        with reserved([CPU, CPU + 1], said.append):
            got.set()

    waiting = threading.Thread(target=second)
    with reserved([CPU]):
        waiting.start()
        while not said:
            pass
        assert not got.is_set()
    waiting.join(60)
    assert got.is_set()
    assert said == [f"waiting: another dbtoll (process {os.getpid()}) measures on processor {CPU}"]


def test_who_does_not_wait_is_told() -> None:
    with reserved([CPU]):
        with pytest.raises(Reserved, match=f"measures on processor {CPU}"), reserved([CPU]):
            pass
        with reserved([CPU + 1]):
            pass
    with reserved([CPU]):
        pass


def test_the_kernels_own_directory_is_held_across_processes_and_let_go_of_by_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(CPU)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            reader = threading.Timer(20, holder.kill)  # a run of this machine may hold it for minutes
            reader.start()
            assert holder.stdout is not None
            if holder.stdout.readline() != b"held\n":
                pytest.skip("another dbtoll measures there now")
            reader.cancel()
            with pytest.raises(Reserved, match=rf"process {holder.pid}\)"), reserved([CPU]):
                pass
        finally:
            holder.kill()
    with reserved([CPU]):
        pass


def test_a_kernel_that_shows_no_processors_locks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "DIRECTORIES", Path("/nowhere"))
    with reserved([CPU]), reserved([CPU]):
        pass
