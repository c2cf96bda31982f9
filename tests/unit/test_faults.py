"""Faults that strike an arm's last unit: what is killed, and what is no full disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dbtoll.errors import Unavailable
from dbtoll.model.neighbours import DISK_FULL, MACHINE_KILLED
from dbtoll.model.reply import Completed
from dbtoll.runner.drivers import faults
from dbtoll.runner.rounds import RoundRun

MIB = 1 << 20
WHOLE = b"dd: error writing '/dbtoll/data/dbtoll-filler': No space left on device\n"


class Machine:
    """One that only tells what it was asked to run, and stands on ``parent``."""

    def __init__(self, name: str, parent: Machine | None = None, pids: Sequence[int] = ()) -> None:
        self.name, self._pids = name, set(pids)
        if parent is not None:
            self.parent = parent
        self.asked: list[list[str]] = []
        self.answer: Callable[[list[str]], Completed] = lambda words: Completed(
            tuple(words), 0, None, b"4096\n", b"", {}
        )

    def run(self, words: list[str], **_: Any) -> Completed:
        self.asked.append(words)
        return self.answer(words)

    def processes(self) -> set[int]:
        return self._pids

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def asleep(self) -> bool:
        return False

    def cpu_ns(self) -> int:
        return 0


def unit(machine: Machine) -> Any:
    return SimpleNamespace(machine=machine, server=SimpleNamespace(place=SimpleNamespace(data="/dbtoll/data")))


def test_a_machine_within_another_is_killed_there_and_its_neighbours_are_not() -> None:
    host = Machine("host")
    container = Machine("container", host, pids=[10, 11, 12, 13])
    faults._kill_machine(Machine("tenant", container, pids=[3, 4]))  # type: ignore[arg-type]
    assert host.asked == []
    ((*_, first, second),) = container.asked
    assert (first, second) == ("3", "4"), "as the machine around it numbers them"


@pytest.mark.parametrize(
    ("exit_code", "signal", "told", "why"),
    [(1, None, WHOLE, None), (None, 9, b"", "ended by 9"), (0, None, b"", "ended by 0")],
)
def test_a_disk_is_full_when_it_said_so(
    exit_code: int | None, signal: int | None, told: bytes, why: str | None
) -> None:
    machine = Machine("arm")
    machine.answer = lambda words: (
        Completed(tuple(words), exit_code, signal, b"", told, {})
        if words[0] == "sh"
        else Completed(tuple(words), 0, None, b"4096\n", b"", {})
    )
    if why is None:
        assert faults._fill(unit(machine)) == 4096
    else:
        with pytest.raises(Unavailable, match=f"was not filled: dd {why}"):
            faults._fill(unit(machine))


def test_a_disk_that_was_full_before_the_fault_struck_was_not_filled_by_it() -> None:
    """The window is one with a full disk from a moment that nobody knows."""
    machine = Machine("arm")
    machine.answer = lambda words: Completed(tuple(words), 1, None, b"0\n", WHOLE, {})
    with pytest.raises(Unavailable, match="full before the fault struck"):
        faults._fill(unit(machine))


def reserve(filler: Path, left_bytes: int) -> int:
    told = subprocess.run(
        ["sh", "-c", faults.RESERVE, "sh", str(filler), str(left_bytes)], capture_output=True, text=True, check=False
    )
    return int(told.stdout)


def free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def test_all_but_so_much_is_reserved_and_then_more_of_it(tmp_path: Path) -> None:
    """By far less than there is, as others have this file system too."""
    filler = tmp_path / "filler"
    told = reserve(filler, free(tmp_path) - 64 * MIB)
    assert abs(told - free(tmp_path) - filler.stat().st_size) < 32 * MIB
    first = filler.stat().st_size
    assert abs(first - 64 * MIB) < 32 * MIB
    reserve(filler, free(tmp_path) - 64 * MIB)
    assert abs(filler.stat().st_size - first - 64 * MIB) < 32 * MIB


def test_where_less_is_free_nothing_is_reserved(tmp_path: Path) -> None:
    filler = tmp_path / "filler"
    assert reserve(filler, free(tmp_path) + 1024 * MIB) > 0
    assert not filler.exists()


def struck(level: str, strike_s: float, window_s: float) -> str | None:
    """The problem of a fault that takes so long, in a window of such a length."""
    machine = Machine("arm")

    def slow(words: list[str]) -> Completed:
        time.sleep(strike_s if words[0] == "sh" else 0.0)
        return Completed(tuple(words), 1, None, b"4096\n", WHOLE, {})

    machine.answer = slow
    running: Any = SimpleNamespace(units=[unit(machine)])
    with faults.striking(running, level, 0.01) as fault:
        time.sleep(window_s)
    return fault.told().problem


def test_a_fault_that_is_not_over_within_the_window_is_none() -> None:
    assert struck(DISK_FULL, strike_s=0.0, window_s=0.5) is None
    assert "not over when the window was" in str(struck(DISK_FULL, strike_s=1.0, window_s=0.3))
    assert struck(MACHINE_KILLED, strike_s=0.0, window_s=0.2) is not None, "its processes are not known"


def test_an_arm_that_failed_after_a_fault_is_awake_when_it_ends() -> None:
    """Agents of its units end before their machine does: one that sleeps is waited for in vain."""
    did: list[str] = []
    running = SimpleNamespace(
        failure="the data of a survivor do not hold",
        lost=("a server",),
        wake=lambda: did.append("awake"),
        stop_servers=lambda: did.append("stopped"),
    )
    inputs = SimpleNamespace(by_arm={"a": SimpleNamespace(drop_data=lambda arm: did.append("without data"))})
    run = SimpleNamespace(
        inputs=inputs,
        spending=lambda name: nullcontext(),
        keep_logs=lambda running: did.append("logs"),
        watch=SimpleNamespace(say=did.append),
    )
    closing = SimpleNamespace(close=lambda: did.append("closed"))
    RoundRun.undo(run, SimpleNamespace(name="a"), running, closing)  # type: ignore[arg-type]
    assert did == ["awake", "logs", "closed", "without data"]
