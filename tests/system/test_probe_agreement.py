"""Probes beside the tools that the field knows: lmbench, sysbench and fio, where they are installed (docs/method/probes.md).

Both measure in turn; the median of their ratios must be near 1. Two sound alike and are not shared: lmbench takes what `kill`
costs off its signals, and its process that forks is linked dynamically, so that there is more of it to copy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from dbtoll.machines.agent.binary import find_agent

AGREE = 0.15
TURNS = 11
LMBENCH = Path("/usr/lib/lmbench/bin")
"""Debian's package lmbench (non-free) keeps its programs in a folder by machine below it."""
LMBENCH_TIMING = {"ENOUGH": "100000", "TIMING_O": "0", "LOOP_O": "0"}
"""How long it measures, us, and what it takes off for its clock and its loop: otherwise each of its programs looks for these
itself, on a noisy machine for half a minute."""

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Shared:
    """A probe, the tool's command, and the ns that its output tells. ``events``: of ours in one of theirs."""

    probe: str
    tool: str
    words: list[str]
    told_ns: Callable[[str], float]
    events: float = 1.0


def microseconds(text: str) -> float:
    """lmbench says ``Simple syscall: 0.0734 microseconds``."""
    found = re.search(r": *([\d.]+) microseconds", text)
    assert found, text
    return float(found[1]) * 1000


def sysbench_ns(text: str) -> float:
    found = re.search(r"events per second: *([\d.]+)", text)
    assert found, text
    return 1e9 / float(found[1])


def fio_ns(text: str) -> float:
    job = json.loads(text[text.index("{") :])["jobs"][0]
    return 1e9 / max(job["read"]["iops"], job["write"]["iops"])


def fio(mode: str, *, direct: bool) -> list[str]:
    """The same pages of a file that was written just before, at the same depth; no fsync in between."""
    return [
        *("--name=agreement", "--filename=FOLDER/fio", f"--rw={mode}", "--bs=8k", "--size=64m", "--ioengine=psync"),
        *(f"--direct={int(direct)}", "--time_based", "--runtime=1", "--norandommap", "--overwrite=1", "--unlink=1"),
        *("--output-format=json", "--invalidate=0", "--thread"),
    ]


SHARED = [
    Shared("primes", "sysbench", ["cpu", "--cpu-max-prime=10000", "--threads=1", "--time=2", "run"], sysbench_ns),
    Shared("read_random_direct", "fio", fio("randread", direct=True), fio_ns),
    Shared("read_sequential_direct", "fio", fio("read", direct=True), fio_ns),
    Shared("write_random_direct", "fio", fio("randwrite", direct=True), fio_ns),
    Shared("write_sequential_direct", "fio", fio("write", direct=True), fio_ns),
    Shared("system_call", "lat_syscall", ["-N", "3", "null"], microseconds),
    Shared("system_call_read", "lat_syscall", ["-N", "3", "read"], microseconds),
    Shared("system_call_write", "lat_syscall", ["-N", "3", "write"], microseconds),
    Shared("round_trip_unix", "lat_unix", ["-N", "3"], microseconds),
    # One of theirs is a round trip, two of our switches.
    Shared("switch_pipe", "lat_pipe", ["-N", "3"], microseconds, events=2),
]


def program(tool: str) -> str | None:
    """Where a tool is."""
    return shutil.which(tool) or next((str(path) for path in sorted(LMBENCH.glob(f"**/{tool}"))), None)


@pytest.mark.parametrize("shared", SHARED, ids=lambda shared: f"{shared.probe}-{shared.tool}")
def test_a_probe_agrees_with_the_tool_that_measures_the_same(shared: Shared) -> None:
    tool = program(shared.tool)
    if tool is None:
        package = "lmbench" if shared.tool.startswith("lat_") else shared.tool
        pytest.skip(f"no {shared.tool} is installed: apt-get install {package}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # a disk, where /tmp may be memory
        folder = Path(name)
        ratios = []
        for turn in range(TURNS):
            if turn % 2:
                ours, theirs = ours_ns(shared, folder), theirs_ns(tool, shared, folder)
            else:  # a device's speed hangs on what it did last
                theirs, ours = theirs_ns(tool, shared, folder), ours_ns(shared, folder)
            ratios.append(ours / theirs)
    assert abs(median(ratios) - 1) <= AGREE, ratios


def on_one_processor(words: list[str]) -> str:
    """What it prints; some tools print to their error output."""
    done = subprocess.run(
        ["taskset", "-c", "0", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | LMBENCH_TIMING,
    )
    return done.stdout + done.stderr


def ours_ns(shared: Shared, folder: Path) -> float:
    asked = {"probe": shared.probe, "folder": str(folder), "batches": 100, "batch_ns": 10_000_000}
    told = json.loads(on_one_processor([str(find_agent()), "probe", json.dumps(asked)]))
    return shared.events * median(batch["elapsed_ns"] / batch["events"] for batch in told["batches"])


def theirs_ns(tool: str, shared: Shared, folder: Path) -> float:
    return shared.told_ns(on_one_processor([tool, *(word.replace("FOLDER", str(folder)) for word in shared.words)]))
