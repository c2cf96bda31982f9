"""What every driver of visits is asked for, and what a visit brings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from dbtoll.errors import DbtollError
from dbtoll.interfaces.machine import Begun
from dbtoll.model.json import Json
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.arms import RunningArm, RunningServer
from dbtoll.store import schema

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class VisitResult:
    """What a visit brought, as the history keeps it (`schema.Visit`). ``is_last``: a fault has struck the arm, so nothing more
    can be measured in it."""

    units: tuple[schema.UnitVisit, ...]
    counts: Json | None = None
    shared: tuple[schema.Shared, ...] = ()
    devices: tuple[schema.Devices, ...] = ()
    is_last: bool = False
    neighbour: schema.Neighbour | None = None


class VisitDriver(Protocol):
    """How the arms of an experiment are driven. Every arm is awake when it is asked to do something."""

    def begin_phase(self, running: RunningArm, phase: Phase) -> None:
        """Untimed: what the levels of the phase ask of the server."""
        ...

    def make_ready(self, running: RunningArm, phase: Phase, *, first_execution: bool) -> None:
        """Untimed, before each visit."""
        ...

    def drive(
        self, running: RunningArm, phase: Phase, block: Block, query: str, *, first_execution: bool
    ) -> VisitResult: ...

    def violations(self, running: RunningArm, *, initially: bool) -> list[str] | None:
        """What must hold of the data of each unit, ``initially`` or at the end of a round, and does not; None: unknown."""
        ...


AHEAD_NS = 10_000_000
AHEAD_OF_EACH_NS = 1_000_000
"""How long before drivers begin together they are told, and so much longer for each of them. Each has then read its line before the
first one begins to work and takes the processors."""


def together(begin: Sequence[Callable[[bool], Begun[R]]], *, may_lose: int = 0) -> list[R]:
    """What several drivers bring that begin at one moment. ``begin``: asks one of them, and holds it if told to. Of the last
    ``may_lose`` there is nothing where they are lost meanwhile.

    Each is ready before the first is told to go, by one line each, which says how long it is until that moment, from when it was
    sent. So none begins later because others work already; who is alone begins at once.
    """
    hold = len(begin) > 1
    begun = [ask(hold) for ask in begin]
    if hold:
        for each in begun:
            each.ready()
        moment_ns = time.monotonic_ns() + AHEAD_NS + len(begun) * AHEAD_OF_EACH_NS
        for each in begun:
            each.go(max(moment_ns - time.monotonic_ns(), 0))
    kept = len(begun) - may_lose
    results = [each.result() for each in begun[:kept]]
    for each in begun[kept:]:
        with suppress(DbtollError):
            results.append(each.result())
    return results


PROBLEM_MAX = 2000
"""Letters of what a server or a probe says of what went wrong; it may quote a row of any length."""


def is_cold(phase: Phase) -> bool:
    """Whether the server is stopped and all caches are dropped before each statement."""
    return phase.levels.get("cache") == "cold"


def settle(running: RunningArm) -> None:
    """A checkpoint, say, of each server; it is not counted as work that it did by itself."""
    engine = running.engine

    def checkpoint(server: RunningServer) -> None:
        session = running.first_unit_of(server).session()
        before = Counter(engine.background_work(session))
        engine.settle(session)
        server.prepared_work.update(Counter(engine.background_work(session)) - before)

    running.in_parallel([partial(checkpoint, server) for server in running.servers])


Wanted = Mapping[str, tuple[str, tuple[str, ...]]]
"""Figure of a visit -> the part of the counters that it is made of, ``processes`` or ``machine``, and their names there."""

CPU: Wanted = {"cpu": ("processes", ("user_ns", "system_ns"))}


@dataclass(frozen=True, slots=True)
class Counted:
    """Figures of a visit: each unit's ``own``, in the order of the layout, and those that several ``shared``."""

    own: Sequence[Json]
    shared: tuple[schema.Shared, ...]


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Of each server, before and after a visit."""

    running: RunningArm
    before: Mapping[int, Json]
    after: Mapping[int, Json]

    @classmethod
    def around(cls, running: RunningArm, work: Callable[[], R], *, brief: bool = False) -> tuple[ServerCounters, R]:
        """What ``work`` brought, and the counters around it."""
        before = _counters(running, brief=brief)
        result = work()
        return cls(running, before, _counters(running, brief=brief)), result

    @property
    def by_kernel(self) -> list[tuple[Json, Json]]:
        """Of each kernel, before and after: any of its servers tells of all of it."""
        firsts = [id(servers[0]) for servers in self.running.servers_by_kernel()]
        return [(self.before[first], self.after[first]) for first in firsts]

    def of(self, wanted: Wanted) -> Counted:
        """Processes are of one server, a machine's counters of one kernel. What that did is a unit's own if it works there alone,
        and cannot be told apart if several do."""
        own: list[Json] = [{} for _ in self.running.units]
        shared: dict[tuple[int, ...], Json] = {}
        by_server = [(server,) for server in self.running.servers]
        for figure, (part, names) in wanted.items():
            for servers in by_server if part == "processes" else self.running.servers_by_kernel():
                first = id(servers[0])
                if (risen := difference(self.before[first], self.after[first], part, names)) is None:
                    continue
                units = tuple(unit.unit.number for server in servers for unit in self.running.units_of(server))
                its = own[units[0]] if len(units) == 1 else shared.setdefault(units, {})
                its[figure] = risen if len(names) > 1 else risen[names[0]]
        return Counted(own, tuple(schema.Shared(units=units, **figures) for units, figures in shared.items()))


def _counters(running: RunningArm, *, brief: bool) -> dict[int, Json]:
    return {id(server): server.counters(brief=brief) for server in running.servers}


def work_done(units: Sequence[schema.UnitVisit]) -> Json:
    """How many executions or transactions there were, what they took together, and how often they went there and back."""
    windows = [unit.window for unit in units if unit.window is not None]
    if windows:
        ends = sum(ended(kind) for window in windows for kind in window["transactions"].values())
        trips = sum(window["round_trips"] for window in windows)
        return {"executions": ends, "round_trips": trips, "elapsed_ns": windows[0]["length_ns"]}
    executions = [timing for unit in units for timing in unit.executions]
    return {
        "executions": len(executions),
        "round_trips": len(executions),
        "elapsed_ns": sum(timing.end_ns - timing.start_ns for timing in executions),
    }


def ended(kind: Json) -> int:
    """How many transactions of the kind ended in a window, well or not."""
    counts = [kind[name] for name in ("committed", "rolled_back", "not_found", "lost", "unknown")]
    return sum([*counts, *kind["failed"].values()])


def difference(
    before: Mapping[str, object], after: Mapping[str, object], part: str, names: Sequence[str]
) -> dict[str, int] | None:
    """``after - before`` of some counters; None where one of them is not known."""
    old, new = before.get(part), after.get(part)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None
    if any(old.get(name) is None or new.get(name) is None for name in names):
        return None
    return {name: int(new[name]) - int(old[name]) for name in names}
