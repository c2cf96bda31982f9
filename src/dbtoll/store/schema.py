"""What a run folder holds, as types; docs/SCHEMA.md says what each key means.

Version history: 1, the first; 2, other names for the same things; 3, an arm has an engine, a workload, resources and an image of
its own, and the facts tell what was made for each configuration; each unit of an arm has what it brought (`store/upgrade.py`).

Readers ignore keys that they do not know, so a key with a default may be added without a new version; a key that
changes its meaning or goes away makes a new one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dbtoll.model.devices import Role
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json

SCHEMA_VERSION = 3

SPEC_FILE = "spec.toml"
PLAN_FILE = "plan.json"
FACTS_FILE = "facts.json"
HISTORY_FILE = "history.ndjson"

ANSWERS_FILE = "answers.json"
"""What the baseline answered where no independent engine can: all arms are checked against it, also after a resume."""
EXPERIMENT_FILE = "experiment.json"
"""What was asked for, validated: written first, so that a run that is killed before it has a plan can be resumed too."""
RESULT_FILE = "result.json"
REPORT_FILE = "report.html"
TABLES_FOLDER = "tables"

FIRST_CHAIN = "00000000"

STOPPED = "stopped by the user"
"""The reason of a `RunEnd` that its user asked for."""

Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
"""So that sums and differences of some of them are still whole numbers of 64 bits, wherever they are read."""
Count = Annotated[int, Meta(ge=0, le=2**62)]
"""Also a moment of a clock that began at 0, ns."""
Index = Annotated[int, Meta(ge=0, le=10**6)]
Place = Annotated[int, Meta(ge=-1, le=10**6)]
"""Of a round or a block; -1: before the first one."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """``plan.json``. ``blocks`` of each phase; ``slow``: arm -> levels of the phases of which it takes part in one block;
    ``transactions``: that a window has, of a workload that has any (not in plans from before it was kept); ``pilot``: round 0 sized
    the others and has one block (not in plans from before the pilot counted)."""

    schema_version: int = SCHEMA_VERSION
    experiment: Experiment
    queries: tuple[str, ...]
    blocks: int
    slow: dict[str, tuple[dict[str, str], ...]] = {}
    transactions: tuple[str, ...] = ()
    pilot: bool = False


class ExperimentFile(msgspec.Struct, frozen=True, kw_only=True):
    """``experiment.json``."""

    schema_version: int = SCHEMA_VERSION
    experiment: Experiment
    spec_sha256: str


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """One line of the history."""


class RunBegin(Record, frozen=True, kw_only=True, tag="run"):
    """The first line. ``started_at`` is for people and never computed with."""

    schema_version: int = SCHEMA_VERSION
    run: str
    dbtoll: str
    started_at: str
    plan_sha256: str
    spec_sha256: str
    facts_sha256: str


class RoundBegin(Record, frozen=True, kw_only=True, tag="round_begin"):
    """``elapsed_s`` of the budget when it began."""

    round: Index
    attempt: Index
    elapsed_s: Seconds


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """One arm's fresh start, or why it has none. ``servers``: what is found of each of its servers and of the machine that it is
    in, in the order of the arm's layout; none where it did not come up."""

    round: Place
    arm: str
    outcome: Literal["ok", "unsupported", "failed", "invalid"]
    reason: str | None = None
    servers: tuple[Json, ...] = ()

    @property
    def facts(self) -> Json:
        """Of the first server, for what is the same of all of them."""
        return self.servers[0] if self.servers else {}


class Fingerprint(Record, frozen=True, kw_only=True, tag="fingerprint"):
    """The plan that the server uses; ``plan`` only where this fingerprint is new in the run. ``levels``: of those factors on which
    plans can depend, where they are varied. ``unit``: its place in the arm's layout; each has data of its own."""

    round: Place
    arm: str
    query: str
    parameter_set: Index
    fingerprint: str
    plan: str | None = None
    levels: dict[str, str] = {}
    unit: Index = 0


class Timing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One execution; times of the arm's own agent."""

    start_ns: Count
    connected_ns: Count | None
    first_byte_ns: Count | None
    end_ns: Count
    rows: Count | None
    result_bytes: Count | None
    outcome: Literal["ok", "timeout", "error", "wrong_answer"]


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events that a probe timed as a whole, of a cold one less what the same took without them: noise may take ``elapsed_ns`` below
    zero. ``cpu_ns`` of the probing process alone."""

    events: Count
    elapsed_ns: Whole
    cpu_ns: Count


class UnitVisit(msgspec.Struct, frozen=True, kw_only=True):
    """What one unit of the arm brought: its ``executions``, the ``window`` of a transaction workload, or what a probe found:
    ``batches`` of events (none where the arm has no such thing: ``problem`` says why), and its ``samples`` where they were asked
    for. As its readers have it, ``executions`` are packed (`executions.Executions`).

    ``begin_ns``: of a window, when the ramp-up began, by the clock of ``start_ns``; None of older ones, which began when they were
    told to. ``held_ns``, ``host_held_ns``: of one that waited for others, when it said that it was ready, by the clock of
    ``start_ns``, and when that was read, by that of ``host_start_ns``; by which it had been asked at ``host_asked_ns``, if it was.
    """

    start_ns: Count
    end_ns: Count
    host_start_ns: Count | None
    host_end_ns: Count | None
    executions: Sequence[Timing] = ()
    window: Json | None = None
    batches: tuple[Batch, ...] | None = None
    problem: str | None = None
    disk_read_bytes: Whole | None = None
    cpu: Json | None = None
    minor_faults: Whole | None = None
    samples: Json | None = None
    begin_ns: Count | None = None
    held_ns: Count | None = None
    host_held_ns: Count | None = None
    host_asked_ns: Count | None = None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted of several units together, and cannot be told apart: of those of one server what its processes did, of those
    on one kernel what that read. ``units``: their places in the arm's layout. Else as of a unit that is alone there."""

    units: Annotated[tuple[Index, ...], Meta(min_length=2)]
    disk_read_bytes: Whole | None = None
    cpu: Json | None = None
    minor_faults: Whole | None = None


class DeviceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a block device did in some time. ``read_ns``, ``write_ns``, ``flush_ns``: from when each request was made until it was
    done, summed over them; ``io_ns``: while it had any; ``queue_ns``: the same times how many it had."""

    reads: Count
    read_bytes: Count
    read_ns: Count
    writes: Count
    written_bytes: Count
    write_ns: Count
    io_ns: Count
    queue_ns: Count
    flushes: Count | None = None
    flush_ns: Count | None = None


class ModelCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a disk model did in some time, by its own word: ``requests``, with which it was busy for ``busy_ns`` and which waited
    in its queue for ``waited_ns``; ``late_ns``: how much later than the model says they were answered, summed over them;
    ``cpu_ns``: of the program that serves it."""

    requests: Count
    busy_ns: Count
    waited_ns: Count
    late_ns: Count
    cpu_ns: Count


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The block devices that a kernel used around a measurement window, by name, in ``elapsed_ns`` of its own clock. ``kernel``:
    its number among those of the arm's machines; None: the host's, which all arms use that have none of their own. ``roles``: what
    of the arm lies on those that it was asked to lie on; ``models``: of those that are disk models."""

    kernel: Index | None
    elapsed_ns: Annotated[int, Meta(ge=1, le=2**53)]
    devices: dict[str, DeviceCounts]
    roles: dict[str, Role] = {}
    models: dict[str, ModelCounts] = {}


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """What the arm's last unit did while the others worked, of a run with the factor ``neighbour``.

    ``unit``: of one whose terminals worked, what they brought. Else an aggressor: ``did`` so much of each kind, in ``elapsed_ns``
    from before the ramp-up until after the window, by the clock of its machine, with ``cpu_ns`` of its own process; of a fault both
    are 0. ``cpu``: of its server, where nobody else's terminals use that. ``problem``: why it did not do what it was asked for.
    """

    unit: UnitVisit | None = None
    did: dict[str, Count] = {}
    elapsed_ns: Count | None = None
    cpu_ns: Count | None = None
    cpu: Json | None = None
    problem: str | None = None


class Visit(Record, frozen=True, kw_only=True, tag="visit"):
    """One waking of an arm for one query: what each of its ``units`` brought, in the order of the arm's layout; they worked at the
    same time. ``shared``: what several of them did together. ``devices``: of a window, what block devices did meanwhile.
    ``neighbour``: of a run with that factor; then the last unit of the layout is not among the ``units``. In a counting pass only
    ``counts``: collector -> ``counted`` in so many ``executions``, which took ``elapsed_ns``, or why it is ``missing``."""

    round: Place
    arm: str
    levels: dict[str, str]
    block: Place
    query: str
    order: Index
    first_execution: bool
    asleep_ok: bool | None
    units: Annotated[tuple[UnitVisit, ...], Meta(min_length=1)]
    shared: tuple[Shared, ...] = ()
    devices: tuple[Devices, ...] = ()
    counts: Json | None = None
    parameter_set: Index | None = None
    neighbour: Neighbour | None = None


class Counters(Record, frozen=True, kw_only=True, tag="counters"):
    """Cumulative counters around an arm's part of a phase."""

    round: Place
    arm: str
    levels: dict[str, str]
    when: Literal["begin", "end"]
    machine: Json | None = None
    processes: Json | None = None
    background: Json | None = None
    unattributed_cpu_ns: Whole | None = None
    driver_cpu_ns: Whole | None = None
    host_at_ns: Count | None = None


class CheckRecord(Record, frozen=True, kw_only=True, tag="check"):
    """A check that only the runner could make, for one start."""

    round: Place
    arm: str
    check: str
    passed: bool | None
    finding: str
    voids: bool = True


class RoundEnd(Record, frozen=True, kw_only=True, tag="round_end"):
    """Only a complete round counts."""

    round: Index
    attempt: Index
    complete: bool
    reason: str | None = None
    elapsed_s: Seconds


class Interrupted(Record, frozen=True, kw_only=True, tag="interrupted"):
    """Written on resume: this attempt's samples are kept and do not count."""

    round: Index
    attempt: Index


class RunEnd(Record, frozen=True, kw_only=True, tag="run_end"):
    """Why no further round was begun. A run that is resumed after its end has more than one; the last one holds, if no
    round began after it."""

    reason: str
    elapsed_s: Seconds


AnyRecord = (
    RunBegin | RoundBegin | Start | Fingerprint | Visit | Counters | CheckRecord | RoundEnd | Interrupted | RunEnd
)


def seal(record: Record, previous_chain: str) -> tuple[bytes, str]:
    """The line of a record, with its end, and its chain."""
    open_line = _encoder.encode(record)[:-1]
    chain = chain_of(open_line, previous_chain)
    return b'%s,"chain":"%s"}\n' % (open_line, chain.encode()), chain


def _unpacked(value: Any) -> Any:
    """Executions that a reader has packed, as they were written."""
    if isinstance(value, Sequence):
        return tuple(value)
    raise TypeError(f"a record holds no {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_unpacked)


def chain_of(open_line: bytes, previous_chain: str) -> str:
    """CRC-32 of the previous chain's digits and this line up to its own ``,"chain"``."""
    return f"{zlib.crc32(open_line, zlib.crc32(previous_chain.encode())):08x}"
