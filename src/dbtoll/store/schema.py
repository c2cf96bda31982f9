"""What a run folder holds, as types; docs/SCHEMA.md says what each key means.

Version history: 1, the first.

Readers ignore keys that they do not know, so a key with a default may be added without a new version; a key that
changes its meaning or goes away makes a new one.
"""

from __future__ import annotations

import zlib
from typing import Literal

import msgspec

from dbtoll.model import Experiment, Json

SCHEMA_VERSION = 1

SPEC_FILE = "spec.toml"
PLAN_FILE = "plan.json"
FACTS_FILE = "facts.json"
HISTORY_FILE = "history.ndjson"

FIRST_CHAIN = "00000000"


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """``plan.json``. ``blocks`` of each phase; ``slow``: arm -> levels of the phases of which it takes part in one block."""

    schema_version: int = SCHEMA_VERSION
    experiment: Experiment
    queries: tuple[str, ...]
    blocks: int
    slow: dict[str, tuple[dict[str, str], ...]] = {}


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

    round: int
    attempt: int
    elapsed_s: float


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """One arm's fresh start, or why it has none."""

    round: int
    arm: str
    outcome: Literal["ok", "unsupported", "failed", "invalid"]
    reason: str | None = None
    facts: Json = {}


class Fingerprint(Record, frozen=True, kw_only=True, tag="fingerprint"):
    """The plan that the server uses; ``plan`` only where this fingerprint is new in the run."""

    round: int
    arm: str
    query: str
    parameter_set: int
    fingerprint: str
    plan: str | None = None


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """One execution; times of the arm's own agent."""

    start_ns: int
    connected_ns: int | None
    first_byte_ns: int | None
    end_ns: int
    rows: int | None
    result_bytes: int | None
    outcome: Literal["ok", "timeout", "error", "wrong_answer"]


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Events that a probe timed as a whole; ``cpu_ns`` of the probing process alone."""

    events: int
    elapsed_ns: int
    cpu_ns: int


class Visit(Record, frozen=True, kw_only=True, tag="visit"):
    """One waking of an arm for one query: its ``executions``, the ``window`` of a transaction workload, or what a probe found:
    ``batches`` of events (none where the arm has no such thing: ``problem`` says why), and its ``samples`` where they were asked
    for. In a counting pass only ``counts``: collector -> ``counted`` in so many ``executions``, which took ``elapsed_ns``, or why
    it is ``missing``."""

    round: int
    arm: str
    levels: dict[str, str]
    block: int
    query: str
    order: int
    first_touch: bool
    asleep_ok: bool | None
    host_start_ns: int | None
    host_end_ns: int | None
    start_ns: int
    end_ns: int
    executions: tuple[Timing, ...] = ()
    window: Json | None = None
    batches: tuple[Batch, ...] | None = None
    counts: Json | None = None
    problem: str | None = None
    parameter_set: int | None = None
    disk_read_bytes: int | None = None
    cpu: Json | None = None
    minor_faults: int | None = None
    samples: Json | None = None


class Counters(Record, frozen=True, kw_only=True, tag="counters"):
    """Cumulative counters around an arm's part of a phase."""

    round: int
    arm: str
    levels: dict[str, str]
    when: Literal["begin", "end"]
    machine: Json | None = None
    processes: Json | None = None
    background: Json | None = None
    outside_cpu_ns: int | None = None
    driver_cpu_ns: int | None = None
    host_at_ns: int | None = None


class GateRecord(Record, frozen=True, kw_only=True, tag="gate"):
    """A check that only the runner could make, for one start."""

    round: int
    arm: str
    gate: str
    passed: bool | None
    finding: str
    voids: bool = True


class RoundEnd(Record, frozen=True, kw_only=True, tag="round_end"):
    """Only a complete round counts."""

    round: int
    attempt: int
    complete: bool
    reason: str | None = None
    elapsed_s: float


class Interrupted(Record, frozen=True, kw_only=True, tag="interrupted"):
    """Written on resume: this attempt's samples are kept and do not count."""

    round: int
    attempt: int


class RunEnd(Record, frozen=True, kw_only=True, tag="run_end"):
    """Why no further round was begun. A run that is resumed after its end has more than one; the last one holds."""

    reason: str
    elapsed_s: float


AnyRecord = (
    RunBegin | RoundBegin | Start | Fingerprint | Visit | Counters | GateRecord | RoundEnd | Interrupted | RunEnd
)


def seal(record: Record, previous_chain: str) -> tuple[bytes, str]:
    """The line of a record, with its end, and its chain."""
    open_line = msgspec.json.encode(record)[:-1]
    chain = chain_of(open_line, previous_chain)
    return b'%s,"chain":"%s"}\n' % (open_line, chain.encode()), chain


def chain_of(open_line: bytes, previous_chain: str) -> str:
    """CRC-32 of the previous chain's digits and this line up to its own ``,"chain"``."""
    return f"{zlib.crc32(open_line, zlib.crc32(previous_chain.encode())):08x}"
