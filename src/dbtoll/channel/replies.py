"""What an agent's answers must look like (docs/PROTOCOL.md, "Methods").

An image is data, and what answers from an arm may be anything: what it says is checked once, here, before anybody uses it. Keys
that are not known are left alone, as elsewhere in the protocol.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec

from dbtoll.channel.frames import FrameError
from dbtoll.channel.output_buffer import said
from dbtoll.model.json import Json

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Process = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
Status = Annotated[int, msgspec.Meta(ge=0, le=255)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Counts = dict[Text, Count]


class Nothing(TypedDict):
    """An END without content."""


class Ping(TypedDict):
    """Of ``ping``."""

    at_ns: Count


class Ended(TypedDict):
    """Of ``run``."""

    exit_code: Status | None
    signal: Status | None
    wall_ns: Count
    user_ns: Count
    system_ns: Count
    max_rss_bytes: Count
    minor_faults: Count
    major_faults: Count


class Size(TypedDict):
    """Of ``put`` and ``get``."""

    size_bytes: Count


class DirectoryEntry(TypedDict):
    """Of a directory."""

    name: Text
    kind: Literal["file", "directory", "link", "socket", "other"]
    size_bytes: Count


class Listing(TypedDict):
    """Of ``list``."""

    entries: list[DirectoryEntry]


class Threads(TypedDict):
    """What a process waited for."""

    voluntary_switches: Count | None
    involuntary_switches: Count | None
    run_ns: Count | None
    run_queue_wait_ns: Count | None
    block_io_wait_ns: Count | None


class Thread(TypedDict):
    """One thread of a process."""

    state: Text
    run_ns: Count | None
    run_queue_wait_ns: Count | None
    time_slices: Count | None


class Processes(Threads):
    """Sums over processes."""

    count: Count
    user_ns: Count | None
    system_ns: Count | None
    minor_faults: Count | None
    major_faults: Count | None
    read_bytes: Count | None
    written_bytes: Count | None
    rss_bytes: Count | None
    each: NotRequired[dict[Text, Threads] | None]


class Disk(TypedDict):
    """A whole device."""

    reads: Count
    read_bytes: Count
    read_ns: Count
    writes: Count
    written_bytes: Count
    write_ns: Count
    flushes: Count | None
    flush_ns: Count | None
    io_ns: Count
    queue_ns: Count


class Pressure(TypedDict):
    """Pressure stall information."""

    cpu_some_ns: Count | None
    memory_some_ns: Count | None
    io_some_ns: Count | None


class MachineCounters(TypedDict):
    """Of a whole machine."""

    user_ns: Count | None
    nice_ns: Count | None
    system_ns: Count | None
    idle_ns: Count | None
    iowait_ns: Count | None
    irq_ns: Count | None
    softirq_ns: Count | None
    steal_ns: Count | None
    context_switches: Count | None
    forks: Count | None
    kvm_exits: Count | None
    pages_in_bytes: Count | None
    pages_out_bytes: Count | None
    minor_faults: Count | None
    major_faults: Count | None
    disk: dict[Text, Disk] | None
    pressure: Pressure


class Counters(TypedDict):
    """Of ``counters``."""

    at_ns: Count
    processes: Processes | None
    single_threads: NotRequired[dict[Text, Thread]]
    machine: MachineCounters | None


class Queued(TypedDict):
    """What a process asked of a device."""

    writes: Count
    written_bytes: Count
    flushes: Count


class TracedProcess(TypedDict):
    """A process in a trace."""

    pid: Count
    name: Text
    kernel: bool
    calls: Counts
    queued: dict[Text, Queued]


class TracedDevice(TypedDict):
    """A device in a trace."""

    name: Text | None
    whole: Text | None
    write_cache: Text | None
    writes_done: Count
    flushes_done: Count


class Traced(TypedDict):
    """Of ``trace_end``."""

    lost: Count
    calls_traced: bool
    processes: list[TracedProcess]
    devices: dict[Text, TracedDevice]


class Commits(TypedDict):
    """Of ``commit``."""

    commits: Count


class Loaded(TypedDict):
    """Of ``tpch_load`` and ``oltp_load``."""

    rows: Counts
    generate_ns: Count
    wall_ns: Count


class Rows(TypedDict):
    """Of ``tpch_table``."""

    rows: Count


class Progress(TypedDict):
    """A control message of a load."""

    table: Text
    rows: Count
    of_rows: Count


class Started(TypedDict):
    """The first control message of ``run``."""

    pid: Process
    at_ns: Count


class DriverError(TypedDict):
    """A driver's reply that is none."""

    message: str
    sqlstate: NotRequired[str | None]


class ToldExecution(TypedDict):
    """One of ``serial``'s executions."""

    statement: str
    start_ns: Count
    connected_ns: Count | None
    first_byte_ns: Count | None
    end_ns: Count
    rows: Count | None
    result_bytes: Count | None
    outcome: Literal["ok", "timeout", "error", "wrong_answer"]
    error: NotRequired[DriverError | None]
    difference: NotRequired[str | None]
    digest: NotRequired[Text | None]
    result: NotRequired[list[list[str | None]] | None]


class LeadIn(TypedDict):
    """What a visit's lead-in was."""

    executions: Count
    elapsed_ns: Count


class Bracketing(TypedDict):
    """Counters around a visit."""

    before: Counters
    after: Counters


class Visit(TypedDict):
    """``serial``'s reply to a visit."""

    start_ns: Count
    end_ns: Count
    lead_in: LeadIn | None
    executions: list[ToldExecution]
    counters: Bracketing | None


class Held(TypedDict):
    """A driver that waits for ``go``."""

    held: Literal[True]
    at_ns: Count


class Queried(TypedDict):
    """``serial``'s reply to a query."""

    rows: list[list[str | None]]


class Times(TypedDict):
    """A histogram."""

    min: Count
    max: Count
    sum: Count
    buckets: list[tuple[Count, Count]]


class Transactions(TypedDict):
    """Those of one kind."""

    committed: Count
    rolled_back: Count
    not_found: Count
    failed: Counts
    retried: Counts
    lost: Count
    unknown: Count
    response_ns: Times
    service_ns: Times


class Ledger(TypedDict):
    """What one thread's terminals were acknowledged; empty where the workload has none."""

    new_orders: NotRequired[Counts]
    payments: NotRequired[dict[Text, tuple[Count, int]]]
    unknown_new_orders: NotRequired[Counts]
    unknown_payments: NotRequired[dict[Text, tuple[Count, int]]]


class Disturbed(TypedDict):
    """What the program ``neighbour`` has done so far."""

    at_ns: Count
    cpu_ns: Count
    done: Counts


class Window(TypedDict):
    """``oltp``'s reply to a window."""

    start_ns: Count
    begin_ns: Count
    from_ns: Count
    until_ns: Count
    end_ns: Count
    interval_ns: Count
    transactions: dict[Text, Transactions]
    series: list[Count]
    round_trips: Count
    statements: Count
    sent_bytes: Count
    received_bytes: Count
    driver_cpu_ns: Count
    backlog_at_end: Count
    connections_lost: Count
    reconnects: Count
    refusal: str | None
    acknowledged: list[Ledger]


RESULTS: Final[dict[str, Any]] = {
    "commit": Commits,
    "counters": Counters,
    "get": Size,
    "list": Listing,
    "oltp_load": Loaded,
    "ping": Ping,
    "put": Size,
    "run": Ended,
    "tpch_load": Loaded,
    "tpch_table": Rows,
    "trace_end": Traced,
}
"""By method, where an END holds anything."""


def check(value: Json, shape: Any, what: str) -> None:
    """Raises FrameError where ``value`` is not of ``shape``."""
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise FrameError("protocol", f"{what} is not what the protocol says: {said(str(error))}") from None
