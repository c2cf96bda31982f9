"""What is asked: arms, engine, workload, resources, precision."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal

from dbtoll.model.devices import Devices
from dbtoll.model.layout import ONE_UNIT, Layout
from dbtoll.model.neighbours import LEVELS as NEIGHBOURS
from dbtoll.model.neighbours import NEIGHBOUR
from dbtoll.model.sweep import Sweep

THREADS = "threads"
"""The factor whose levels are numbers."""

THREADS_MAX = 1024
"""Of a query."""

DOUBLING = "doubling"
"""Stands for these of its levels: 1, 2, 4 … and the arm's processors."""

ABOVE_ONE = "above 1"
"""Stands for all of its levels but 1, where an engine says what it has not (`interfaces.Engine.unsupported`)."""

FACTORS: dict[str, tuple[str, ...]] = {
    "cache": ("warm", "cold"),
    THREADS: (),
    "connection": ("persistent", "per_visit", "per_statement"),
    "query_protocol": ("simple", "extended", "prepared"),
}
"""Factor -> its levels; the first is the default. Later factors vary fastest; warm comes before cold, whose dropped
caches would undo it. One without levels here has numbers for levels and no default: where it is not asked for it is no factor."""

TRANSACTION_FACTORS: dict[str, tuple[str, ...]] = {
    "foreign_keys": ("no", "yes"),
    "interaction": ("statement", "pipelined", "procedure"),
    "isolation": ("read_committed", "repeatable_read", "serializable"),
    "durability": ("device", "os_cache", "server_buffer"),
    "placement": ("inside", "outside"),
    NEIGHBOUR: NEIGHBOURS,
}
"""The same for workloads of transactions; some levels a workload may not have (interfaces.TransactionWorkload.factors). `NEIGHBOUR`
is none where it is not asked for."""

FACTOR_HELP: dict[str, str] = {
    "cache": "whether the data is in the caches; `cold` drops the host's, so it needs `exclusive`",
    THREADS: "of a query, at most; `doubling`: 1, 2, 4 … up to the arm's processors, more only with `oversubscribe`",
    "connection": "one for all statements of a start, a new one for each visit, or for each statement",
    "query_protocol": "of the wire: the statement as text, with its parameters apart, or prepared before",
    "foreign_keys": "added and dropped before a phase, untimed; `tatp` has them by default: they make some insertions fail",
    "interaction": "a round trip for each statement, for several at once, or for a whole transaction",
    "isolation": "dbtoll asks the server whether its sessions have it",
    "durability": "where an acknowledged commit is; settings of the server that control the same are refused",
    "placement": "where the terminals work: in the arm, at its server's socket; or on the machine around it, over a network",
    NEIGHBOUR: "of the others: what the last unit of an arm does while they work",
}
"""Factor -> one line about its levels."""

PARAMETER_SETS = 8
"""How many sets of substitution parameters a run draws, unless told otherwise (docs/adr/0008)."""


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


class GateDecision(StrEnum):
    """What the CI gate says: whether an arm keeps the limit, or all arms do."""

    WITHIN = "within"
    EXCEEDED = "exceeded"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Step:
    """One environment of a stack with the options that were given: ``docker:runsc,network=bridge``."""

    environment: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """An engine or a workload by name, with its validated options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


CPUS, MEMORY = "cpus", "memory"
SPLIT = (CPUS, MEMORY)
"""What the machines of an arm can have apart, each its part; else they share it."""


WEIGHT_LEAST = 0.01
"""Of a machine beside another one: a hundredth of what the kernel gives by default (Documentation/admin-guide/cgroup-v2.rst,
``cpu.weight``)."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What an arm gets, of several units as a whole; equal in all, unless an arm asks for others.

    ``cpus``: how many processors, given by cpuset. ``memory_bytes``: limit of the arm's memory cgroup, page cache
    included. ``shm_bytes``: size of /dev/shm. ``open_files``: RLIMIT_NOFILE. ``oversubscribe``: a query may have more
    threads than there are processors. ``buffer_pool_bytes``: of its servers, in all (`interfaces.engine.BufferedEngine`); None: as
    each server's settings say. ``sessions``: that each server admits at least. ``split``: of `SPLIT`, that of which each machine of
    an arm has its own part, so that none of them can take another's.

    Of each machine (machines/cgroups/hold.py), None where nothing holds it: ``read_rate`` and ``write_rate``, bytes a second of a
    device that holds its data or its log; ``read_requests`` and ``write_requests`` a second; ``memory_high_bytes``, above which the
    kernel takes its memory back and lets it wait. ``neighbour_weight``: how much processor time the last machine gets beside
    another one that competes with it, for each unit that that one gets.
    """

    cpus: int = 1
    memory_bytes: int = 4 << 30
    shm_bytes: int = 1 << 30
    open_files: int = 65536
    oversubscribe: bool = False
    buffer_pool_bytes: int | None = None
    sessions: int = 100
    split: tuple[str, ...] = ()
    read_rate: int | None = None
    write_rate: int | None = None
    read_requests: int | None = None
    write_requests: int | None = None
    memory_high_bytes: int | None = None
    neighbour_weight: float | None = None

    @property
    def has_rates(self) -> bool:
        """Whether a machine's requests to its devices are held back."""
        asked = (self.read_rate, self.write_rate, self.read_requests, self.write_requests)
        return any(each is not None for each in asked)

    @property
    def holds_machines(self) -> bool:
        """Whether each machine has limits of its own."""
        return self.has_rates or self.memory_high_bytes is not None or self.neighbour_weight is not None

    def shared_by(self, many: int) -> Resources:
        """The share of one of so many who have nothing in common but the processors."""
        pool = self.buffer_pool_bytes
        return replace(
            self,
            memory_bytes=self.memory_bytes // many,
            shm_bytes=self.shm_bytes // many,
            buffer_pool_bytes=None if pool is None else pool // many,
        )


@dataclass(frozen=True, slots=True)
class Configuration:
    """What runs in an arm's stack, and with what: arms of equal configuration differ in their environment alone.

    ``image``: the system image, ``{"suite": …}`` or ``{"path": …}``. ``devices``: on which its data and its log lie.
    """

    engine: ComponentSpec = ComponentSpec("")
    workload: ComponentSpec = ComponentSpec("")
    resources: Resources = Resources()
    image: dict[str, Any] = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)

    def differences(self, other: Configuration) -> tuple[Difference, ...]:
        """What is not as in ``other``, value by value; options that only another engine has are not told."""
        pairs: dict[tuple[str, str], tuple[Any, Any]] = {("engine", "name"): (self.engine.name, other.engine.name)}
        parts: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
            ("image", self.image, other.image),
            ("resources", _values(self.resources), _values(other.resources)),
            ("workload", self.workload.options, other.workload.options),
            ("devices", dict(self.devices.told), dict(other.devices.told)),
        ]
        if self.engine.name == other.engine.name:
            parts.insert(1, ("engine", self.engine.options, other.engine.options))
        for part, own, theirs in parts:
            for name in dict.fromkeys((*own, *theirs)):
                mine, its = own.get(name), theirs.get(name)
                if isinstance(mine, dict) or isinstance(its, dict):
                    mine, its = mine or {}, its or {}
                    pairs |= {(part, each): (mine.get(each), its.get(each)) for each in dict.fromkeys((*mine, *its))}
                else:
                    pairs[part, name] = (mine, its)
        return tuple(Difference(*key, *pair) for key, pair in pairs.items() if pair[0] != pair[1])


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that two configurations do not share. ``part``: ``engine``, ``image``, ``resources``, ``workload`` or ``devices``;
    ``name``: of an option, or of a setting of the server. None: not given there."""

    part: str
    name: str
    value: Any
    other: Any


def _values(resources: Resources) -> dict[str, Any]:
    return {each.name: getattr(resources, each.name) for each in fields(resources)}


@dataclass(frozen=True, slots=True)
class Arm:
    """A stack of environments, outermost first, and what runs in it, under the name that every table shows.

    ``against`` names the baseline that it is held against; None of the arm that is held against none. ``copy_of`` names the arm
    whose second copy (A/A) this is; None for all others. ``text``: the stack in its short form, as a user would write it.
    ``clock``: where it counts instructions, they are what this arm's agent takes for nanoseconds; it tells what a statement
    executes, and is compared with nothing (DESIGN §4). ``layout``: of how many units it is a set. ``design``: what these are as
    tenants (`model.tenancy.DESIGNS`); empty where only a layout was asked for.
    """

    name: str
    stack: tuple[Step, ...]
    copy_of: str | None = None
    text: str = ""
    clock: Literal["time", "instructions"] = "time"
    configuration: Configuration = Configuration()
    against: str | None = None
    layout: Layout = ONE_UNIT
    design: str = ""

    def memory_parts(self, *, are_guests: bool) -> int:
        """Of how many equal parts of its memory each of its machines has one. ``are_guests``: each has a kernel of its own."""
        return self.layout.machines if are_guests or MEMORY in self.configuration.resources.split else 1


FEWEST_DRAWS = 5
"""Independent draws that a level of the hierarchy needs before a verdict may rest on it (DESIGN §5)."""


SETTLED_LEAST = 5
"""What is settled lies beyond so many times the margin, so that no verdict depends on when an arm left (docs/adr/0028)."""


@dataclass(frozen=True, slots=True)
class Precision:
    """When to stop and what counts as a difference; fractions (0.01 is 1 %), seconds.

    ``blocks_max``: blocks in each phase of a round, at most. ``rounds_slow``: in how many rounds an arm takes part that is many
    times slower than the baseline (docs/adr/0026); None: in as many as a verdict needs. ``settled``: an arm whose loss or gain lies
    beyond it sits out what follows (docs/adr/0028); None: all take part to the end.
    """

    budget_s: float = 300.0
    target: float = 0.01
    margin: float = 0.02
    confidence: float = 0.95
    rounds_min: int = FEWEST_DRAWS
    rounds_max: int = 60
    blocks_max: int = 10
    rounds_slow: int | None = None
    settled: float | None = None

    @property
    def rounds_of_slow(self) -> int:
        """``rounds_slow``, whatever it is."""
        return self.rounds_to_decide if self.rounds_slow is None else self.rounds_slow

    @property
    def rounds_of_slow_most(self) -> int:
        """In how many such an arm takes part at most, where some of them were without an effect: a visit was void."""
        return 2 * self.rounds_of_slow

    @property
    def rounds_to_decide(self) -> int:
        """From how many rounds on anything is decided: verdict, limit, contrast, claim (docs/method/rounds-and-intervals.md)."""
        return max(FEWEST_DRAWS, self.rounds_min)


@dataclass(frozen=True, slots=True)
class VisitTiming:
    """How one visit goes: ``lead_in_ns`` untimed, then each statement until ``measurement_time_ns`` of execution have passed."""

    lead_in_ns: int = 5_000_000
    measurement_time_ns: int = 50_000_000
    statement_timeout_ns: int = 300_000_000_000


@dataclass(frozen=True, slots=True)
class Experiment:
    """A whole question, validated: what `spec` makes from TOML or the command line.

    ``factors``: factor name -> levels, varied inside every start in the order given (``cache``: warm, cold;
    ``connection``: one, per_statement; of transactions ``interaction``: statement, pipelined, procedure). ``arms`` holds
    the baseline first and its A/A copy second. Each arm names the baseline that it is held against: this one, or another arm that
    is held against it in its turn. All workloads are of one name and have the same queries. ``explain``: the probes whose costs
    are to explain the overheads, each as often in a round as it is named; where there are any, events are counted too.
    ``sessions``: where transactions' sessions spend their time is sampled, and requests to devices are counted, without these.
    ``unsupported``: factor -> level that was asked for, or is the usual one, and the engine has not -> why.
    ``paper``, ``role``: which part of which paper's reproduction this is; empty: of none. ``variables``: the values that the
    specification's variables had; they are in their places already.
    ``sweep``: which value of which sweep this is; None: of none.
    ``name``: of the run, as its user calls it; "" if it has none. ``running_time``: how long it takes, as its author says.
    """

    question: str
    expected: str
    arms: tuple[Arm, ...]
    baseline: str
    factors: dict[str, tuple[str, ...]]
    unsupported: dict[str, dict[str, str]] = field(default_factory=dict)
    precision: Precision = Precision()
    visit_timing: VisitTiming = VisitTiming()
    seed: int = 1
    parameter_sets: int = PARAMETER_SETS
    max_overhead: float | None = None
    exclusive: bool = False
    explain: tuple[str, ...] = ()
    sessions: bool = False
    paper: str = ""
    role: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    sweep: Sweep | None = None
    name: str = ""
    running_time: str = ""

    @property
    def counts(self) -> bool:
        """Whether each round has counting passes."""
        return self.sessions or bool(self.explain)

    @property
    def combinations(self) -> list[dict[str, str]]:
        """Of the factors' levels, in the order in which their phases are planned."""
        return [dict(zip(self.factors, levels, strict=True)) for levels in itertools.product(*self.factors.values())]

    @property
    def configuration(self) -> Configuration:
        """The baseline's: what all arms have, but for those that differ."""
        return self.arm(self.baseline).configuration

    @property
    def configurations(self) -> list[tuple[Configuration, tuple[str, ...]]]:
        """Those that differ, the baseline's first, each with the names of its arms."""
        found: list[tuple[Configuration, list[str]]] = [(self.configuration, [])]
        for arm in self.arms:
            names = next((names for known, names in found if known == arm.configuration), None)
            if names is None:
                found.append((arm.configuration, names := []))
            names.append(arm.name)
        return [(configuration, tuple(names)) for configuration, names in found]

    @property
    def cpus(self) -> int:
        """The most processors that any arm gets."""
        return max(arm.configuration.resources.cpus for arm in self.arms)

    @property
    def baselines(self) -> frozenset[str]:
        """Arms that others, not their copies, are held against; and the baseline."""
        return frozenset({self.baseline, *(arm.against for arm in self.arms if arm.against is not None)})

    @property
    def held_against(self) -> dict[str, str]:
        """Arm -> the arm that its figures are held against: its baseline, or of an A/A copy its original."""
        return {arm.name: to for arm in self.arms if (to := arm.copy_of or arm.against) is not None}

    @property
    def copies(self) -> dict[str, str]:
        """A/A copy -> its original."""
        return {arm.name: arm.copy_of for arm in self.arms if arm.copy_of is not None}

    def same_engine(self, arm: str, other: str) -> bool:
        """Whether both arms have the same engine, whatever its version and settings."""
        return self.arm(arm).configuration.engine.name == self.arm(other).configuration.engine.name

    @property
    def fewest_threads(self) -> int | None:
        """The lowest level of `THREADS`, with which every server of a round first starts; None where it is no factor."""
        return int(self.factors[THREADS][0]) if THREADS in self.factors else None

    def arm(self, name: str) -> Arm:
        """The arm of that name; KeyError if there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)
