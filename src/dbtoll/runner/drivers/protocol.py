"""What every driver of visits is asked for, and what a visit brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dbtoll.model.json import Json
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.arms import RunningArm
from dbtoll.store import schema


@dataclass(frozen=True, slots=True)
class VisitResult:
    """What a visit brought, as the history keeps it (`schema.Visit`)."""

    start_ns: int
    end_ns: int
    host_start_ns: int | None
    host_end_ns: int | None
    executions: tuple[schema.Timing, ...] = ()
    window: Json | None = None
    batches: tuple[schema.Batch, ...] | None = None
    counts: Json | None = None
    problem: str | None = None
    disk_read_bytes: int | None = None
    cpu: Json | None = None
    minor_faults: int | None = None
    samples: Json | None = None


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
        """What must hold of the data, ``initially`` or at the end of a round, and does not; None if nothing is known of them."""
        ...


PROBLEM_MAX = 2000
"""Letters of what a server or a probe says of what went wrong; it may quote a row of any length."""


def is_cold(phase: Phase) -> bool:
    """Whether the server is stopped and all caches are dropped before each statement."""
    return phase.levels.get("cache") == "cold"


def settle(running: RunningArm) -> None:
    """A checkpoint, say; it is not counted as work that the server did by itself."""
    engine, session = running.engine, running.session()
    before = Counter(engine.background_work(session))
    engine.settle(session)
    running.prepared_work.update(Counter(engine.background_work(session)) - before)


def work_done(driven: VisitResult) -> Json:
    """How many executions or transactions there were, what they took together, and how often they went there and back."""
    if driven.window is not None:
        ended = sum(ended(kind) for kind in driven.window["transactions"].values())
        trips = driven.window["round_trips"]
        return {"executions": ended, "round_trips": trips, "elapsed_ns": driven.window["length_ns"]}
    return {
        "executions": len(driven.executions),
        "round_trips": len(driven.executions),
        "elapsed_ns": sum(timing.end_ns - timing.start_ns for timing in driven.executions),
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
