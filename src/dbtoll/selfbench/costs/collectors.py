"""Whether each collector counts a known number of events right, and what it costs what it looks at.

The known number is a prime, which nothing makes by chance (as bcc's tools are checked).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbtoll import registry
from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats
from dbtoll.errors import Invalid, Unavailable
from dbtoll.interfaces.collector import Collector
from dbtoll.interfaces.machine import Machine, Process
from dbtoll.model.experiment import Resources
from dbtoll.model.json import AGENT, Json
from dbtoll.model.machine import DATA
from dbtoll.model.options import Option
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.native_setup import native_arm

SUMMARY = "collectors: wrong (how many miss a known number of events), overhead of each on what it looks at"
OPTIONS = {"pairs": Option("integer", 20, "of measurements with and without each collector", least=1)}

PRIME = 7919
FREE = 0.01
"""A collector whose overhead's interval lies within that may run beside timed statements; every other one is barred from there."""
WORK = {"probe": "switch_pipe", "events": 4_000, "batches": 25}
"""What the overhead is measured on: system calls and switches of two processes, as a server's are, but on one processor: how fast
another one wakes up hangs on what it did last, and varies more than any collector costs."""
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Known:
    """A probe whose events a collector counts: ``count`` finds them in what it tells. ``more``: how many others a program has
    of its own at most; ``why``: of that bound. ``every_ns``: it does not count events, but looks so often while they last."""

    probe: str
    count: Callable[[Json], int]
    more: int = 0
    why: str = ""
    every_ns: int = 0

    def expected(self, cpu_ns: int) -> tuple[int, int]:
        """How many at least and at most, in so much CPU time of the probe's."""
        if not self.every_ns:
            return PRIME, PRIME + self.more
        looks = cpu_ns // self.every_ns
        return looks // 2, looks + looks // 20 + self.more

    def missed(self, counted: CollectorCount) -> bool:
        least, most = self.expected(counted.cpu_ns)
        return not least <= self.count(counted.told) <= most


@dataclass(frozen=True, slots=True)
class CollectorCount:
    """What a collector told, and how much CPU time the probe had."""

    told: Json
    cpu_ns: int


def _reads(told: Json) -> int:
    """Of all devices, at the level that shows them."""
    levels = [level for level in told.values() if level is not None and "missing" not in level]
    return max(sum(int(device.get("reads", {}).get("count", 0)) for device in level.values()) for level in levels)


OWN_PAGES = "a program maps its own pages when it starts"

KNOWN: Mapping[str, Known] = {
    "blocks": Known("read_random_direct", _reads, 200, "everybody's requests are counted"),
    "calls": Known("system_call", lambda told: told["getppid"]["count"]),
    "events": Known("fault_anonymous", lambda told: told["events"]["minor_faults"], 600, OWN_PAGES),
    "faults": Known("fault_anonymous", lambda told: told["anonymous"], 600, OWN_PAGES),
    "machine": Known("fork", lambda told: told["inside"]["forks"], 1000, "everybody on the machine is counted"),
    "processes": Known("fault_anonymous", lambda told: told["minor_faults"], 600, OWN_PAGES),
    # Looks that come due while the last one is still served, or while the processor is taken away, fall out: one in five was
    # missing on a busy virtual machine, and that run chose the bound of half. Which instructions are met does not hang on it.
    "samples": Known(
        "primes", lambda told: told["samples"], 2000, "a program starts in user mode too", every_ns=20_000
    ),
    "tracepoints": Known("system_call", lambda told: told["calls"]["getppid"]),
}
BOUNDS = {"wrong": Bound(max=0), "collectors": Bound(min=1)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """On a native arm."""
    counted: dict[str, CollectorCount] = {}
    overhead: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    with native_arm(Resources(memory_bytes=1 << 30), say) as (_, arm, _):
        for name in registry.names("collectors"):
            collector: Collector = registry.find("collectors", name)()
            try:
                counted[name] = known_number(arm, collector)
            except Unavailable as error:
                reasons[name] = error.message
                continue
            overhead[name] = _overhead(arm, collector, options["pairs"])
            found = counted[name]
            least, _ = KNOWN[name].expected(found.cpu_ns)
            say(f"{name}: {KNOWN[name].count(found.told)}, at least {least} expected; {overhead[name][1]:+.2%}")
    wrong = [name for name, found in counted.items() if KNOWN[name].missed(found)]
    figures = {
        "wrong": len(wrong),
        "collectors": len(counted),
        "overhead": overhead,
        "barred_from_timed_passes": [
            name for name, (low, _, high) in overhead.items() if not -FREE <= low <= high <= FREE
        ],
    }
    told = {
        "counted": {name: KNOWN[name].count(each.told) for name, each in counted.items()},
        "expected": {name: KNOWN[name].expected(each.cpu_ns) for name, each in counted.items()},
        "missing": reasons,
    }
    return Certificate("collectors", figures, BOUNDS, told)


def known_number(machine: Machine, collector: Collector) -> CollectorCount:
    """What the collector tells of a process whose child has PRIME events."""
    process = start_held(machine, {"probe": KNOWN[collector.name].probe, "events": PRIME, "batches": 1, "folder": DATA})
    try:
        with collector.around(machine, process.pid) as told:
            release(machine, process)
        batches = json.loads(process.output())["batches"]
        return CollectorCount(told(), sum(batch["cpu_ns"] for batch in batches))
    finally:
        process.signal(9)
        process.wait(DEADLINE_S)


def _overhead(machine: Machine, collector: Collector, pairs: int) -> list[float]:
    """How much longer what is looked at takes: lower bound, estimate, upper bound; in pairs whose order alternates."""
    ratios = []
    for pair in range(pairs):
        found = {}
        for looked_at in (True, False) if pair % 2 else (False, True):
            process = start_held(machine, WORK)
            try:
                with collector.around(machine, process.pid) if looked_at else nullcontext():
                    release(machine, process)
                found[looked_at] = _elapsed_ns(process)
            finally:
                process.signal(9)
                process.wait(DEADLINE_S)
        ratios.append(np.log(found[True] / found[False]))
    values: Floats = np.array(ratios)
    interval = stats.independent_interval(values, 0.05)
    if interval is None:
        raise Invalid("an overhead needs two pairs", "-o pairs=20")
    return [float(np.expm1(each)) for each in (interval.low, interval.estimate, interval.high)]


def start_held(machine: Machine, asked: Json) -> Process:
    """A shell that lives on, so that what its child did can be told of it, and that waits until it is let.

    It waits already: what a shell does while it starts (dash asks for its parent's number) would be counted, too.
    """
    probing = f"{AGENT} probe '{json.dumps(asked)}'"
    script = f": > {_ready('$$')}; while [ ! -e {_go('$$')} ]; do sleep 0.02; done; {probing}; sleep 600"
    process = machine.spawn(["sh", "-c", script])
    machine.run(["sh", "-c", f"while [ ! -e {_ready(process.pid)} ]; do sleep 0.02; done"], timeout_s=DEADLINE_S)
    return process


def _ready(pid: int | str) -> str:
    return f"/tmp/ready-{pid}"


def _go(pid: int | str) -> str:
    return f"/tmp/go-{pid}"


def release(machine: Machine, process: Process) -> None:
    """Returns when the probe has ended and the shell has waited for it."""
    machine.put(_go(process.pid), b"")
    deadline = time.monotonic() + DEADLINE_S
    while b"\n" not in process.output():
        if time.monotonic() > deadline or not process.running():
            raise Invalid("the probe that was to be counted told nothing", process.output().decode(errors="replace"))
        time.sleep(0.02)
    time.sleep(0.1)


def _elapsed_ns(process: Process) -> float:
    batches = json.loads(process.output())["batches"]
    return float(np.median([batch["elapsed_ns"] / batch["events"] for batch in batches]))
