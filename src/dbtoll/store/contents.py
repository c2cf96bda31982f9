"""What the readers of a run folder may rely on beyond the types of its records.

Whoever wrote a folder could have sealed anything into it. Here is what figures, tables and pages take for granted: which values a
number may have, what the parts hold that are open (facts, counts, windows), and that records, plan and one another agree.
A folder that passes is analysed without any further check.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dbtoll.model.description import Descriptions
from dbtoll.model.experiment import FACTORS, THREADS, TRANSACTION_FACTORS, Experiment
from dbtoll.model.json import Json
from dbtoll.model.layout import UNITS_MAX
from dbtoll.model.neighbours import COUNTED, LOADS, NEIGHBOUR
from dbtoll.model.sweep import PERIODS_S, Sweep, Value
from dbtoll.store.schema import (
    CheckRecord,
    Count,
    Counters,
    Fingerprint,
    Interrupted,
    PlanFile,
    Record,
    RoundBegin,
    RoundEnd,
    RunEnd,
    Start,
    UnitVisit,
    Visit,
    Whole,
)

Positive = Annotated[int, Meta(ge=1, le=2**62)]
Many = Annotated[int, Meta(ge=0, le=2**40)]
"""Of what happens in a window: a thousand windows of it can be added up, in 64 bits and in a float."""
Long = Annotated[int, Meta(ge=0, le=2**53)]
"""Times and sizes in a window, which a float holds whole: 104 days."""
RunScopedEnvironment = Annotated[int, Meta(ge=1, le=2**53)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Above0 = Annotated[float, Meta(gt=0, le=1e300)]
AtLeast0 = Annotated[float, Meta(ge=0, le=1e300)]

DEPTH_MAX = 16
"""Of what is in one another; facts have four."""

TEXT_MAX = 10_000
"""Letters of what an arm says of itself. A plan may be longer, and stands in no table."""
CAUSES_MAX = 1_000
"""For which transactions fail."""
INTERVALS_MAX = 10_000
"""Of a window, which has a hundred."""

MANY = 1_000_000
"""Blocks, sets of parameters: no run has a thousandth of it."""


# --- open parts, as far as something rests on them ----------------------------------------------------------------


class _Histogram(Struct):
    """Highest value of a bucket, and how many are in it."""

    buckets: tuple[tuple[Count, Many], ...]


Causes = Annotated[dict[Annotated[str, Meta(max_length=200)], Many], Meta(max_length=CAUSES_MAX)]


class _Transaction(Struct):
    committed: Many
    rolled_back: Many
    not_found: Many
    lost: Many
    unknown: Many
    failed: Causes
    retried: Causes
    response_ns: _Histogram


class _Window(Struct):
    length_ns: RunScopedEnvironment
    interval_ns: RunScopedEnvironment
    series: Annotated[tuple[Many, ...], Meta(max_length=INTERVALS_MAX)]
    transactions: dict[str, _Transaction]
    throughput_transaction: str | None
    driver_cpu_ns: Long
    round_trips: Many
    backlog_at_end: Many
    connections_lost: Many
    reconnects: Many
    statements: Many | None = None
    sent_bytes: Long | None = None
    received_bytes: Long | None = None

    def __post_init__(self) -> None:
        # The last interval may be cut by the end of the window.
        if self.interval_ns * (len(self.series) - 1) > self.length_ns:
            raise ValueError("its intervals are longer than the window")


class _Samples(Struct):
    samples: Count
    instructions: Above0 | None = None

    def __post_init__(self) -> None:
        if self.samples and self.instructions is None:
            raise ValueError("samples without instructions")


class _Processes(Struct):
    user_ns: Finite | None
    system_ns: Finite | None
    run_queue_wait_ns: Finite | None = None
    block_io_wait_ns: Finite | None = None
    minor_faults: Finite | None = None
    voluntary_switches: Finite | None = None
    involuntary_switches: Finite | None = None
    read_bytes: Finite | None = None


class _Call(Struct):
    count: AtLeast0
    background: AtLeast0 = 0
    alone: AtLeast0 = 0


class _Faults(Struct):
    """``alone`` and all else by the kinds of `items.FAULTS_BY_KIND`."""

    anonymous: AtLeast0 = 0
    shared: AtLeast0 = 0
    shared_read: AtLeast0 = 0
    file: AtLeast0 = 0
    copy: AtLeast0 = 0
    alone: dict[str, AtLeast0] = {}

    def __post_init__(self) -> None:
        if unknown := self.alone.keys() - set(self.__struct_fields__):
            raise ValueError(f"alone has {sorted(unknown)[0]!r}")


class _Requests(Struct):
    count: AtLeast0
    bytes: AtLeast0
    sequential: AtLeast0
    by_distance: dict[Annotated[str, Meta(pattern="^[1-9][0-9]{2,19}$")], AtLeast0] = {}


class _Device(Struct):
    reads: _Requests | None = None
    writes: _Requests | None = None


class _Blocks(Struct):
    inside: dict[str, _Device | str]
    around: dict[str, _Device | str] = {}

    def __post_init__(self) -> None:
        for name, level in (("inside", self.inside), ("around", self.around)):
            if "missing" not in level and not all(isinstance(each, _Device) for each in level.values()):
                raise ValueError(f"{name} is not of devices")


class _MachineLevel(Struct):
    steal_ns: Whole | None = None


class _MachineLevels(Struct):
    inside: _MachineLevel | None = None


class _Scheduled(Struct):
    elapsed_ns: Long
    run_ns: Whole | None = None
    run_queue_wait_ns: Whole | None = None


class _Engine(Struct):
    """Of transactions."""

    waiting: dict[str, Many] = {}
    processes: _Scheduled | None = None


_COUNTED: dict[str, Any] = {
    "processes": _Processes,
    "calls": dict[str, _Call],
    "faults": _Faults,
    "blocks": _Blocks,
    "machine": _MachineLevels,
    "samples": _Samples,
    "engine": _Engine,
}
"""What a collector counted, where something rests on it; all others are shown as they are."""


class _Told(Struct):
    executions: Count
    elapsed_ns: AtLeast0
    round_trips: Count
    counted: Json


class _Missing(Struct):
    missing: str


class _Environment(Struct):
    emulated: bool | None = None


class _StartFacts(Struct):
    boot_id: str | None = None
    kernel_boot: str | None = None
    environment: _Environment | None = None
    settings: dict[str, Any] | None = None
    cpus_allowed: Annotated[str, Meta(pattern=r"^[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*$|^$")] | None = (
        None
    )
    memory_bytes: Count | None = None
    memory_limit_bytes: Count | None = None
    memory_parts: Annotated[int, Meta(ge=1, le=UNITS_MAX)] = 1
    cpu_flags: tuple[str, ...] | None = None
    mitigations: dict[str, str] | None = None


class _Driver(Struct):
    null_us_per_transaction: dict[str, AtLeast0 | None] | None = None
    null_per_s: dict[str, AtLeast0 | None] | None = None


class _Probe(Struct):
    min_ns: Finite
    max_ns: Finite


class _Image(Struct):
    release: str | None = None
    packages: dict[str, str] | None = None


class _Configuration(Struct):
    arms: tuple[str, ...]
    image: _Image | None = None
    settings: dict[str, str | None] = {}
    driver: _Driver | None = None


class _ModelFigure(Struct):
    measured: AtLeast0
    modelled: AtLeast0
    published: AtLeast0
    late_us: AtLeast0


class _DiskModel(Struct):
    on: str
    device: str
    arms: tuple[str, ...]
    what: str
    source: str
    lacks: str
    figures: dict[str, _ModelFigure]


class _Facts(Struct):
    descriptions: Descriptions
    configurations: tuple[_Configuration, ...]
    probes: dict[str, _Probe] = {}
    disk_models: tuple[_DiskModel, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.descriptions.workload.throughput_unit.seconds <= 1e9:
            raise ValueError("a unit of throughput of no time")


class _Options(Struct):
    """Of a workload."""

    scale: AtLeast0 | None = None
    rate: AtLeast0 | None = None
    threads: Positive = 1
    terminals: Positive = 1
    ramp_up: Count | None = None


class _Pressure(Struct):
    cpu_some_ns: Whole | None = None
    memory_some_ns: Whole | None = None
    io_some_ns: Whole | None = None


class _Machine(Struct):
    pressure: _Pressure | None = None


# --- plan and facts --------------------------------------------------------------------------------------------------


def demand_plan(plan: PlanFile) -> None:
    """ValueError where no specification could have led to this plan."""
    experiment = plan.experiment
    names = [arm.name for arm in experiment.arms]
    precision, timing = experiment.precision, experiment.visit_timing
    for holds, wrong in (
        (all(names) and len(set(names)) == len(names), f"the arms {names} have not each a name of its own"),
        (all(arm.stack for arm in experiment.arms), "an arm has no stack"),
        (all(arm.layout.is_possible for arm in experiment.arms), "an arm has no units, or too many"),
        (all(to in names for to in experiment.held_against.values()), "an arm is held against, or a copy of, no arm"),
        (all(_leads_to(experiment, name) for name in names), "an arm is held against none that is held against the baseline"),
        (len({arm.configuration.workload.name for arm in experiment.arms}) <= 1, "the arms have not one workload"),
        (
            any((a.name, a.clock, a.copy_of) == (experiment.baseline, "time", None) for a in experiment.arms),
            f"the baseline {experiment.baseline!r} is no arm whose clock is time",
        ),
        (all(experiment.factors.values()), "a factor has no level"),
        (experiment.factors.keys() <= {*FACTORS, *TRANSACTION_FACTORS}, f"the factors {list(experiment.factors)}"),
        (_are_numbers(experiment.factors.get(THREADS, ())), f"{experiment.factors.get(THREADS)} threads"),
        (all(plan.queries) and len(set(plan.queries)) == len(plan.queries) > 0, "the queries have not each a name"),
        (set(plan.slow) <= set(names), "an arm that is slow is not in the experiment"),
        (1 <= plan.blocks <= MANY, f"{plan.blocks} blocks"),
        (1 <= experiment.parameter_sets <= MANY, f"{experiment.parameter_sets} sets of parameters"),
        (precision.budget_s >= 0, f"a budget of {precision.budget_s} s"),
        (0 <= precision.target <= 1e3, f"a target of {precision.target}"),
        (0 < precision.margin < 1, f"a margin of {precision.margin}"),
        (0.5 <= precision.confidence < 1, f"a confidence of {precision.confidence}"),
        (2 <= precision.rounds_min <= precision.rounds_max, f"{precision.rounds_min} to {precision.rounds_max} rounds"),
        (precision.blocks_max >= 1, f"at most {precision.blocks_max} blocks"),
        (precision.rounds_of_slow >= 2, f"{precision.rounds_of_slow} rounds of slow arms"),
        (precision.settled is None or 0 < precision.settled < 1, f"a loss of {precision.settled} that is settled"),
        (0 <= (experiment.max_overhead or 0) <= 1e6, f"a limit of {experiment.max_overhead}"),
        (experiment.sweep is None or _is_sweep(experiment.sweep), "it is no value of its sweep"),
        (min(timing.lead_in_ns, timing.measurement_time_ns, timing.statement_timeout_ns) >= 0, "a time of a visit below 0"),
    ):  # fmt: skip
        if not holds:
            raise ValueError(wrong)
    _demand_tree(msgspec.to_builtins(experiment))
    for arm in experiment.arms:
        own = arm.configuration
        if own.resources.cpus < 1:
            raise ValueError(f"{own.resources.cpus} processors")
        if min(own.resources.memory_bytes, own.resources.shm_bytes, own.resources.open_files) < 0:
            raise ValueError("resources below 0")
        if not own.engine.name or not own.workload.name:
            raise ValueError(f"the arm {arm.name!r} has no engine or no workload")
        _demand(own.workload.options, _Options, "workload.options")


def _is_sweep(sweep: Sweep) -> bool:
    """Whether a command line could have asked for it."""
    costs, limit = sweep.costs, sweep.limit
    return (
        sweep.value in sweep.values
        and len(set(sweep.values)) == len(sweep.values)
        and all(each.value in sweep.values for each in sweep.left_out)
        and (limit is None or (limit.quantile in ("p50", "p95", "p99") and limit.ns > 0 and _is_axis(sweep.values)))
        and (
            costs is None
            or (
                costs.period in PERIODS_S
                and min(costs.host, costs.processor, costs.memory_gib, costs.machine, costs.server) >= 0
                and all(each >= 0 for each in costs.devices.values())
            )
        )
    )


def _is_axis(values: Sequence[Value]) -> bool:
    return not any(isinstance(value, str | bool) for value in values)


def _demand_neighbour(visit: Visit, level: str | None) -> None:
    """ValueError where what is told of it is not what it does at that level."""
    told = visit.neighbour
    if level in LOADS:
        is_told = told is not None and told.unit is not None and told.unit.window is not None and not told.did
    elif level is not None and level in COUNTED:
        is_told = told is not None and told.unit is None and told.did.keys() == {*COUNTED[level]}
    else:
        is_told = told is None
    if not is_told:
        raise ValueError(f"what is told of the neighbour is not what it does as {level!r}")
    if told is not None:
        _demand_tree(told.cpu or {})
        _demand_tree(told.did)


def _leads_to(experiment: Experiment, name: str) -> bool:
    """Whether what an arm is held against is held against the baseline in the end."""
    held, seen = experiment.held_against, set[str]()
    while name in held and name not in seen:
        seen.add(name)
        name = held[name]
    return name == experiment.baseline


def _are_numbers(levels: Sequence[str]) -> bool:
    """Rising ones from 1 on, each written in one way only."""
    numbers = [int(level) for level in levels if re.fullmatch("[1-9][0-9]{0,5}", level)]
    return len(numbers) == len(levels) and numbers == sorted(set(numbers))


def demand_facts(facts: Json, experiment: Experiment) -> None:
    """ValueError where facts are not what their names say, or describe other environments than the experiment's."""
    _demand_tree(facts)
    _demand(facts, _Facts, "facts")
    if lacking := {step.environment for arm in experiment.arms for step in arm.stack} - {
        *facts["descriptions"]["environments"]
    }:
        raise ValueError(f"descriptions without {sorted(lacking)[0]!r}")
    names = {configuration.engine.name for configuration, _ in experiment.configurations}
    if without := names - {*facts["descriptions"]["engines"]}:
        raise ValueError(f"descriptions without {sorted(without)[0]!r}")
    if {name for told in facts["configurations"] for name in told["arms"]} != {arm.name for arm in experiment.arms}:
        raise ValueError("what was made for an arm is not told")


# --- records ---------------------------------------------------------------------------------------------------------


_OF_AN_ARM = (Start, Fingerprint, Visit, Counters, CheckRecord)


class Expected:
    """What a run of that plan can write, record after record: asked by the writer before, and by the reader again."""

    def __init__(self, plan: PlanFile) -> None:
        self._plan: Experiment = plan.experiment
        self._units = {arm.name: len(arm.layout.units) for arm in plan.experiment.arms}
        self._queries = {*plan.queries, *plan.experiment.explain}
        self._round: int | None = None
        self._orders: set[int] = set()
        self._levels: list[dict[str, str]] = []
        """Those that were seen and are of the plan: few, and each stands in thousands of records."""
        self._transactions = set(plan.transactions)
        """Empty where the plan does not tell: then the first window does."""

    def demand(self, record: Record) -> None:
        """ValueError where it cannot come next in this run."""
        match record:
            case RoundBegin():
                self._round = record.round
                self._orders.clear()
            case RoundEnd() | Interrupted() | RunEnd():
                self._round = None
        number = self._round
        if not isinstance(record, _OF_AN_ARM):
            return
        if record.arm not in self._units:
            raise ValueError(f"the plan has no arm {record.arm!r}")
        if number is None and not isinstance(record, (Start, CheckRecord)):
            raise ValueError("it stands outside of all rounds")
        if number is not None and record.round != number:
            raise ValueError(f"it says round {record.round} and stands in round {number}")
        if isinstance(record, (Visit, Fingerprint)):
            self._demand_asked(record)
        if isinstance(record, (Visit, Counters, Fingerprint)):
            self._demand_levels(record.levels, all_factors=not isinstance(record, Fingerprint))
        _demand_short(record)
        match record:
            case Start():
                _demand_start(record)
            case Counters():
                for name in ("machine", "processes", "background"):
                    _demand_tree(getattr(record, name) or {})
                _demand(record.machine or {}, _Machine, "machine")
            case Visit():
                self._demand_visit(record)

    def _demand_asked(self, record: Visit | Fingerprint) -> None:
        if record.query not in self._queries:
            raise ValueError(f"the plan has no query {record.query!r}")
        if isinstance(record, Fingerprint) and record.unit >= self._units[record.arm]:
            raise ValueError(f"{record.arm!r} has no unit {record.unit}")

    def _demand_levels(self, levels: dict[str, str], *, all_factors: bool) -> None:
        if not all_factors:  # plans depend on some of them
            levels = {name: self._plan.factors[name][0] for name in self._plan.factors} | levels if levels else {}
        if levels in self._levels:
            return
        factors = self._plan.factors
        # Probes are made once in a round, at no level.
        if levels and (levels.keys() != factors.keys() or any(levels[name] not in factors[name] for name in levels)):
            raise ValueError(f"the plan has no levels {levels}")
        self._levels.append(levels)

    def _demand_visit(self, visit: Visit) -> None:
        if visit.order in self._orders:
            raise ValueError(f"a second visit is number {visit.order} of its round")
        self._orders.add(visit.order)
        is_probe = any(unit.batches is not None for unit in visit.units)
        found, units = len(visit.units), 1 if is_probe else self._units[visit.arm]
        beside = visit.levels.get(NEIGHBOUR)
        neighbours = int(beside is not None)
        _demand_neighbour(visit, beside)
        if found + neighbours != units:
            raise ValueError(f"{visit.arm!r} has {units} units, and {found + neighbours} of them brought something")
        if len({unit.window is None for unit in visit.units}) > 1:
            raise ValueError("some of its units had a window and some had none")
        for each in visit.shared:
            if len({*each.units}) < len(each.units) or max(each.units) >= units:
                raise ValueError(f"what units {each.units} did together is told of a visit of {units}")
            _demand_tree(each.cpu or {})
        if any(each.kernel is not None and each.kernel >= units for each in visit.devices):
            raise ValueError("devices of a kernel that the arm does not have")
        _demand_tree(visit.counts or {})
        for name, told in (visit.counts or {}).items():
            self._demand_told(name, told)
        of_neighbour = visit.neighbour.unit if visit.neighbour is not None else None
        for unit in (*visit.units, *([of_neighbour] if of_neighbour is not None else [])):
            _demand_times(unit)
            for open_part in (unit.cpu, unit.window, unit.samples):
                if open_part is not None:
                    _demand_tree(open_part)
            if unit.samples is not None:
                _demand(unit.samples, _Samples, "samples")
            if unit.window is not None:
                self._demand_window(unit.window)

    def _demand_told(self, collector: str, told: Any) -> None:
        if isinstance(told, dict) and "missing" in told:
            _demand(told, _Missing, f"counts.{collector}")
            return
        _demand(told, _Told, f"counts.{collector}")
        _demand(told["counted"], _COUNTED.get(collector, Json), f"counts.{collector}.counted")
        _demand_numbers(told["counted"])

    def _demand_window(self, window: Json) -> None:
        _demand(window, _Window, "window")
        names = window["transactions"].keys()
        if window["throughput_transaction"] not in (None, *names):
            raise ValueError(f"its window counts {window['throughput_transaction']!r}, which it has not")
        if self._transactions and set(names) != self._transactions:
            raise ValueError("its window has other transactions than the workload, or than those before it")
        self._transactions = set(names)


def _demand_start(start: Start) -> None:
    for facts in start.servers:
        _demand_tree(facts)
        _demand(facts, _StartFacts, "servers")


def _demand_times(unit: UnitVisit) -> None:
    backwards = unit.end_ns < unit.start_ns
    if unit.host_start_ns is not None and unit.host_end_ns is not None:
        backwards = backwards or unit.host_end_ns < unit.host_start_ns
    if unit.begin_ns is not None:
        backwards = backwards or not unit.start_ns <= unit.begin_ns <= unit.end_ns
    if unit.held_ns is not None:
        backwards = backwards or unit.start_ns < unit.held_ns
    if unit.host_asked_ns is not None and unit.host_held_ns is not None:
        backwards = backwards or unit.host_held_ns < unit.host_asked_ns
    at_once = False
    for timing in unit.executions:  # millions of them: plain comparisons
        start_ns, connected_ns, first_byte_ns = timing.start_ns, timing.connected_ns, timing.first_byte_ns
        if timing.end_ns <= start_ns:
            backwards = backwards or timing.end_ns < start_ns
            at_once = True
        if connected_ns is not None and connected_ns < start_ns:
            backwards = True
        if first_byte_ns is not None and first_byte_ns < start_ns:
            backwards = True
    if backwards:
        raise ValueError("something ends before it begins")
    if at_once:
        raise ValueError("an execution takes no time at all")


def _demand_short(record: Record) -> None:
    """What an arm says of itself stands in tables and sentences."""
    match record:
        case Visit():
            told = {f"problem of unit {number}": unit.problem for number, unit in enumerate(record.units)}
            told["problem of the neighbour"] = record.neighbour.problem if record.neighbour is not None else None
        case Start():
            told = {"reason": record.reason}
        case CheckRecord():
            told = {"finding": record.finding}
        case _:
            return
    for name, text in told.items():
        if text is not None and len(text) > TEXT_MAX:
            raise ValueError(f"its {name} is too long")


def _demand(value: Any, kind: Any, name: str) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None


_HOLDS_OTHERS = frozenset({dict, list, tuple})


def _demand_tree(value: Any, depth: int = 0) -> None:
    """What can be shown: numbers that others can read too, and no more depth than a person can follow."""
    if depth >= DEPTH_MAX:
        raise ValueError("too many things are in one another")
    # A record holds a hundred of them: plain comparisons, and a call only for what holds others.
    for each in value.values() if isinstance(value, dict) else value:
        kind = type(each)
        if kind in _HOLDS_OTHERS:
            _demand_tree(each, depth + 1)
        elif (kind is int and not abs(each) <= 2**63) or (kind is float and not abs(each) <= 1e300):
            raise ValueError("a number is too large")


def _demand_numbers(counted: Json) -> None:
    """Counters in counters: no lists, of which a table could hold none."""
    for name, value in counted.items():
        if isinstance(value, dict):
            _demand_numbers(value)
        elif isinstance(value, list):
            raise ValueError(f"{name} is a list")  # noqa: TRY004 - what is wrong is what a folder says
