"""What the neighbour of an arm's other tenants does while they work (docs/method/neighbours.md).

It is a program of the agent in the machine of the arm's last unit, within the arm's control group: what it takes is taken of what
the arm has as a whole.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from dbtoll.channel.frames import json_object
from dbtoll.channel.replies import Disturbed, check
from dbtoll.errors import EngineError, Unavailable
from dbtoll.interfaces.engine import RewritingEngine
from dbtoll.interfaces.machine import Process
from dbtoll.machines.page_cache import read_again
from dbtoll.model.json import AGENT, Json
from dbtoll.model.neighbours import AGGRESSORS, CONNECTIONS, COUNTED, IDLE, PAGE_CACHE, VACUUM
from dbtoll.runner.arms import RunningArm, RunningUnit
from dbtoll.runner.drivers.protocol import PROBLEM_MAX
from dbtoll.store import schema

ACTING_DEADLINE_S = 600.0
"""Until an aggressor has done something for the first time, and until it has ended what it was at: a table that is written anew."""
POLL_S = 0.01

MEMORY_SHARE = 8
"""An aggressor has one of so many parts of what a unit has of the arm's memory, the same in every design."""
MEMORY_MAX_BYTES = 256 << 20
THREADS = {IDLE: 1, "fsync": 4, PAGE_CACHE: 1, CONNECTIONS: 4, VACUUM: 1}
"""Aggressor -> how many do it at once; all others as many as the arm has processors, in every design."""


def request_of(running: RunningArm, unit: RunningUnit, level: str, length_ns: int) -> Json:
    """What `dbtoll-agent neighbour` is asked. ``length_ns``: of a window with its ramp-up."""
    resources = running.arm.configuration.resources
    own = resources.memory_bytes // (MEMORY_SHARE * len(running.units))
    place = unit.server.place
    asked: Json = {
        "kind": "statements" if level == VACUUM else level,
        "threads": THREADS.get(level, resources.cpus),
        "memory_bytes": min(own, MEMORY_MAX_BYTES),
        # A storm of commits is where commits are waited for.
        "folder": place.log if level == "fsync" and place.log else place.data,
        # As much as the arm has for everything, so more than it can have in its page cache.
        "file_bytes": resources.memory_bytes if level == PAGE_CACHE else 0,
        "deadline_ns": length_ns + round(ACTING_DEADLINE_S * 1e9),
    }
    if level in (CONNECTIONS, VACUUM):
        asked["server"] = unit.address().parameters()
    if level == VACUUM:
        if not isinstance(unit.engine, RewritingEngine):
            raise EngineError(f"{unit.engine.name} cannot be asked to write a table anew", "leave vacuum out")
        asked["statements"] = unit.engine.rewriting(unit.session())
    return asked


@contextmanager
def acting(running: RunningArm, level: str, length_ns: int) -> Iterator[Callable[[], schema.Neighbour]]:
    """The arm's last unit does that from before the body until after it; what is yielded says how much, afterwards.

    EngineError where it does not begin.
    """
    unit = running.units[-1]
    what = f"{running.arm.name}: the neighbour that {AGGRESSORS[level]}"
    process = unit.machine.spawn([AGENT, "neighbour", json.dumps(request_of(running, unit, level, length_ns))])
    told: list[schema.Neighbour] = []
    try:
        first = _first_report(process, what)
        yield lambda: told[0]
        still = process.running()
    finally:
        if process.running():
            process.signal(signal.SIGTERM)
        ended = process.wait(ACTING_DEADLINE_S)
    last = reports(ended.output)[-1]
    told.append(did_between(level, first, last, ended_early=None if still else _said(ended.output)))
    if level == PAGE_CACHE:
        # BIAS: what it evicted would be read again in the next window, whose level has nothing to do with it.
        running.in_parallel(
            [partial(read_again, running.first_unit_of(each).machine, each.place.data) for each in running.servers]
        )


@dataclass(frozen=True, slots=True)
class Report:
    """One line of the program: so much of each kind by then."""

    at_ns: int
    cpu_ns: int
    done: dict[str, int]


def reports(output: bytes) -> list[Report]:
    """All whole lines of it that are reports, the first one first. FrameError where one is not what the protocol says."""
    found = []
    for line in output.splitlines(keepends=True):
        if line.startswith(b'{"at_ns"') and line.endswith(b"\n"):
            told = json_object(line, "what a neighbour did")
            check(told, Disturbed, "what a neighbour did")
            found.append(Report(told["at_ns"], told["cpu_ns"], told["done"]))
    return found


def did_between(level: str, first: Report, last: Report, ended_early: str | None) -> schema.Neighbour:
    """``ended_early``: what it said at last, if it ended before it was told to. EngineError where a count falls."""
    did = {name: last.done.get(name, 0) - first.done.get(name, 0) for name in COUNTED[level]}
    elapsed_ns, cpu_ns = last.at_ns - first.at_ns, last.cpu_ns - first.cpu_ns
    if min(elapsed_ns, cpu_ns, *did.values()) < 0:
        raise EngineError("what the neighbour counts of itself falls", "run again; if it repeats, it is a defect")
    problem = None
    if ended_early is not None:
        problem = f"the neighbour ended by itself: {ended_early}"[:PROBLEM_MAX]
    elif not did[COUNTED[level][0]]:
        problem = f"the neighbour did nothing: no {COUNTED[level][0].replace('_', ' ')}"
    return schema.Neighbour(did=did, elapsed_ns=elapsed_ns, cpu_ns=cpu_ns, problem=problem)


def _first_report(process: Process, what: str) -> Report:
    deadline = time.monotonic() + ACTING_DEADLINE_S
    while not (found := reports(process.output())):
        if not process.running() or time.monotonic() > deadline:
            raise Unavailable(f"{what} did not begin: {_said(process.output())}")
        time.sleep(POLL_S)
    return found[0]


def _said(output: bytes) -> str:
    """The last of it that is no report."""
    lines = [line for line in output.decode(errors="replace").splitlines() if not line.startswith('{"at_ns"')]
    return " ".join(lines)[-400:].strip() or "it says nothing"
