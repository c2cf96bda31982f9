"""The vocabulary (docs/GLOSSARY.md) as frozen types. Imports nothing of the project.

At rest times are integer nanoseconds and sizes integer bytes; a missing value is None with a reason, never 0.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Json = dict[str, Any]

AGENT = "/dbtoll/agent"
"""Where every arm finds its agent; the image builder makes this an empty file."""

FACTORS: dict[str, tuple[str, ...]] = {
    "temperature": ("warm", "cold"),
    "connection": ("one", "per_visit", "per_statement"),
    "protocol": ("simple", "extended", "prepared"),
}
"""Factor -> its levels; the first is the default. Later factors vary fastest; warm comes before cold, whose dropped
caches would undo it."""

TRANSACTION_FACTORS: dict[str, tuple[str, ...]] = {
    "foreign_keys": ("no", "yes"),
    "interaction": ("statement", "pipelined", "procedure"),
    "isolation": ("read_committed", "repeatable_read", "serializable"),
    "durability": ("device", "system", "server"),
    "placement": ("inside", "outside"),
}
"""The same for workloads of transactions; some levels a workload may not have (interfaces.Transacting.factors)."""

EXECUTOR_PROBES = ("rows", "decimals", "descents", "joins", "sorts", "code", "indirect_calls", "branches")
"""Probes that never enter the kernel and do what an executor does, each with its own mix of instructions and memory."""
CACHED = "_cached"
HUGE_PAGES = "_2m_pages"
"""Forms of those that need more memory than the caches hold: the same instructions without that, and with less translation."""

PARAMETER_SETS = 8
"""How many sets of substitution parameters a run draws, unless told otherwise (docs/adr/0008)."""


TIME_PER_TRANSACTION = "time_per_transaction"
"""The metric of throughput: its inverse, so that it is a cost, as every metric is (docs/METHOD.md, "Transactions")."""

MAIN_METRICS = ("run_time", TIME_PER_TRANSACTION, "event_time")
"""What an experiment is about: of statements, of transactions, of probes. A visit has one of them."""


class Outcome(StrEnum):
    """What became of a start (DESIGN §2)."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    INVALID = "invalid"


class Verdict(StrEnum):
    """What an interval allows to say."""

    LOSES = "loses"
    GAINS = "gains"
    NO_DIFFERENCE = "no difference"
    CANNOT_TELL = "cannot tell"


# --- what is asked -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One environment of a stack with the options that were given: ``docker:runsc,network=bridge``."""

    environment: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arm:
    """A stack of environments, outermost first, under the name that every table shows.

    ``copy_of`` names the baseline whose second copy (A/A) this arm is; None for all others. ``text``: the stack in its short
    form, as a user would write it. ``clock``: where it counts instructions, they are what this arm's agent takes for nanoseconds;
    it tells what a statement executes, and is compared with nothing (DESIGN §4).
    """

    name: str
    stack: tuple[Step, ...]
    copy_of: str | None = None
    text: str = ""
    clock: Literal["time", "instructions"] = "time"


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """An engine or a workload by name, with its validated options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resources:
    """What every arm gets, equally.

    ``cpus``: how many processors, given by cpuset. ``memory_bytes``: limit of the arm's memory cgroup, page cache
    included. ``shm_bytes``: size of /dev/shm. ``open_files``: RLIMIT_NOFILE.
    """

    cpus: int = 1
    memory_bytes: int = 4 << 30
    shm_bytes: int = 1 << 30
    open_files: int = 65536


@dataclass(frozen=True, slots=True)
class Precision:
    """When to stop and what counts as a difference; fractions (0.01 is 1 %), seconds."""

    budget_s: float = 300.0
    target: float = 0.01
    margin: float = 0.02
    confidence: float = 0.95
    rounds_min: int = 5
    rounds_max: int = 60


@dataclass(frozen=True, slots=True)
class VisitTiming:
    """How one visit goes: ``lead_in_ns`` untimed, then each statement until ``dwell_ns`` of execution have passed."""

    lead_in_ns: int = 5_000_000
    dwell_ns: int = 50_000_000
    statement_timeout_ns: int = 300_000_000_000


@dataclass(frozen=True, slots=True)
class Experiment:
    """A whole question, validated: what `spec` makes from TOML or the command line.

    ``factors``: factor name -> levels, varied inside every start in the order given (``temperature``: warm, cold;
    ``connection``: one, per_statement; of transactions ``interaction``: statement, pipelined, procedure). ``arms`` holds
    the baseline first and its A/A copy second. ``explain``: the probes whose costs
    are to explain the overheads, each as often in a round as it is named; where there are any, events are counted too.
    """

    question: str
    expected: str
    engine: ComponentSpec
    workload: ComponentSpec
    arms: tuple[Arm, ...]
    baseline: str
    factors: dict[str, tuple[str, ...]]
    resources: Resources = Resources()
    precision: Precision = Precision()
    pace: VisitTiming = VisitTiming()
    image: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    parameter_sets: int = PARAMETER_SETS
    max_overhead: float | None = None
    exclusive: bool = False
    explain: tuple[str, ...] = ()

    @property
    def combinations(self) -> list[dict[str, str]]:
        """Of the factors' levels, in the order in which their phases are planned."""
        return [dict(zip(self.factors, levels, strict=True)) for levels in itertools.product(*self.factors.values())]

    def arm(self, name: str) -> Arm:
        """The arm of that name; KeyError if there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


# --- what is planned ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visit:
    """One waking of an arm for one statement of the block."""

    arm: str
    query: str


@dataclass(frozen=True, slots=True)
class Block:
    """Each cell once: the visits in the order in which they are made.

    ``parameter_set``: number of the set of substitution parameters, the same for all arms.
    """

    index: int
    parameter_set: int
    visits: tuple[Visit, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """The blocks of one combination of levels, e.g. ``{"temperature": "warm", "connection": "one"}``.

    ``kind``: timing, counting what the same statements do, and probing what events cost are separate passes (docs/adr/0006).
    """

    levels: dict[str, str]
    blocks: tuple[Block, ...]
    kind: Literal["timed", "counted", "probed"] = "timed"


@dataclass(frozen=True, slots=True)
class Round:
    """One fresh start of every arm: in ``start_order``, then the phases."""

    index: int
    start_order: tuple[str, ...]
    phases: tuple[Phase, ...]


# --- what is run and measured ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerReference:
    """What a statement must answer. ``columns``: ``exact`` | ``trimmed`` | ``numeric`` for each; rows as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    relative_tolerance: float = 1e-9


@dataclass(frozen=True, slots=True)
class Statement:
    """One query of a workload with its parameters drawn.

    ``text`` is complete SQL (mode ``simple``); ``template`` has $1… and ``parameters`` their text (modes ``extended``
    and ``prepared``); a workload without parameters leaves ``parameters`` empty and the two are the same.
    """

    query: str
    text: str
    template: str
    parameters: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """One timed execution as the agent reports it (docs/PROTOCOL.md, ``serial``); agent's clock."""

    statement: str
    start_ns: int
    connected_ns: int | None
    first_byte_ns: int | None
    end_ns: int
    rows: int | None
    result_bytes: int | None
    outcome: Literal["ok", "timeout", "error", "wrong_answer"]
    error: Json | None = None
    difference: str | None = None
    digest: str | None = None
    result: list[list[str | None]] | None = None


@dataclass(frozen=True, slots=True)
class VisitReply:
    """What came back from one visit, with the bracket that the outermost agent put around it (its own clock)."""

    start_ns: int
    end_ns: int
    executions: tuple[Execution, ...]
    lead_in: Json | None
    counters: Json | None
    host_start_ns: int | None
    host_end_ns: int | None


def ended_well(window: Json) -> int:
    """Transactions of a window's counts that ended well: committed, rolled back or missed as they were drawn to be."""
    return sum(kind["committed"] + kind["rolled_back"] + kind["missed"] for kind in window["transactions"].values())


@dataclass(frozen=True, slots=True)
class WindowReply:
    """What came back from one measurement window (docs/PROTOCOL.md, ``oltp``), bracketed as a visit is.

    Agent's clock: the terminals worked from ``start_ns``, what they did was counted from ``from_ns`` until ``until_ns``, the
    last of them was at rest at ``end_ns``. ``counts``: everything else of the report.
    """

    start_ns: int
    from_ns: int
    until_ns: int
    end_ns: int
    counts: Json
    host_start_ns: int | None
    host_end_ns: int | None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A content-addressed directory or file: ``path`` on the machine that holds it, ``key`` its address.

    A directory and the disk that was made of it (an ext4 file system in a file) have the same key and another kind.
    """

    key: str
    path: str
    kind: Literal["directory", "file"] = "directory"


@dataclass(frozen=True, slots=True)
class Provision:
    """An artifact that an arm shall find at ``at``."""

    artifact: Artifact
    at: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What an environment is asked to open: one arm of one run.

    ``cpuset``: processor numbers on the machine the environment is opened on. ``image``: the system image, as a directory
    or, for an environment that boots (`interfaces.BootingEnvironment`), as a disk, like all provisions; None keeps the machine's
    own root. ``kernel``: what `BootingEnvironment` asked for. ``name``: unique on that machine, made from run and arm, [a-z0-9-]+.
    """

    name: str
    run_id: str
    arm: str
    image: Artifact | None
    provisions: tuple[Provision, ...]
    resources: Resources
    cpuset: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    kernel: Artifact | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens inside its machine, and who may enter. ``wire`` names the protocol (``postgres``)."""

    wire: str
    user: str
    database: str
    unix: str | None = None
    tcp: tuple[str, int] | None = None
    password: str | None = None

    def parameters(self) -> Json:
        """Server and login as the agent's methods take them (docs/PROTOCOL.md, ``serial``)."""
        return {
            "wire": self.wire,
            "address": {"unix": self.unix} if self.unix is not None else {"tcp": list(self.tcp or ())},
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended."""

    argv: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    output: bytes
    error_output: bytes
    usage: Json


@dataclass(frozen=True, slots=True)
class MissingRequirement:
    """Something that this machine lacks: ``what``, ``why`` it is needed, ``hint``: the one command that brings it."""

    what: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Gate:
    """One honesty check of one arm (DESIGN §4). ``passed`` None: could not be checked here, ``finding`` says why."""

    name: str
    passed: bool | None
    finding: str
    voids: bool = True


# --- option tables: what a spec or a command line may say --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One option of an environment, engine or workload: its kind, default and one line of help.

    ``kind``: ``text``, ``integer``, ``number``, ``flag``, ``size`` (``2 GiB`` -> bytes), ``duration`` (``50ms`` -> ns),
    ``path`` (in a specification relative to its file), ``table`` or ``list``. ``choices`` limits text.
    """

    kind: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
