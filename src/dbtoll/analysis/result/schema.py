"""The shape of result.json as types; docs/result.schema.json is made from them and a test compares the two."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from dbtoll.analysis.effects.stats import Interval
from dbtoll.model.experiment import FEWEST_DRAWS, GateDecision, Outcome, Verdict
from dbtoll.model.json import Json

Levels = dict[str, str]
Fraction = Annotated[float, Meta(description="0.01 is 1 %")]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One honesty check of an arm. ``passed`` null: it could not be checked, ``finding`` says why.

    What it took out of every figure: the arm's ``void_rounds``, or ``void_visits`` single visits.
    """

    name: str
    passed: bool | None
    finding: str
    voids: bool
    rounds_failed: tuple[int, ...]
    void_rounds: tuple[int, ...]
    void_visits: int


@dataclass(frozen=True, slots=True)
class ArmDifference:
    """Something that an arm has and the arm that it is held against has not. ``part``: ``server``, ``image``, ``setting`` (of the
    server), ``engine`` (an option), ``resources``, ``workload`` or ``devices``. None: not set, or not known."""

    part: str
    name: str
    value: str | None
    baseline: str | None

    @property
    def title(self) -> str:
        """What it is, at the head of a row: ``server``, ``C library``, ``jit``."""
        return self.part if self.name in ("version", "system") else self.name


EMULATED = " (emulated)"


def arm_label(arm: str, *, emulated: bool) -> str:
    """What every table and picture calls an arm: ``qemu (emulated)`` for one whose times are those of an emulator."""
    return arm + EMULATED if emulated and not arm.endswith(EMULATED) else arm


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm; ``rounds`` that count, ``boots`` (of each of its machines) and ``blocks`` in them.

    ``stack``: with its layout, where it has several units. ``emulated``: its times are not those of hardware. ``against``: the arm
    that it is held against, None of the baseline; ``copy_of``: of an A/A copy its original. ``server``: its name and version.
    ``differences``: from the arm that it is held against, beside the environment. ``storage``: the kind that was
    asked for, and what was found there.
    """

    name: str
    stack: str
    outcome: Outcome
    reason: str | None
    rounds: int
    boots: int
    blocks: int
    checks: tuple[CheckResult, ...]
    emulated: bool
    units: int = 1
    against: str | None = None
    copy_of: str | None = None
    server: str = ""
    differences: tuple[ArmDifference, ...] = ()
    storage: str | None = None

    @property
    def label(self) -> str:
        """See `arm_label`."""
        return arm_label(self.name, emulated=self.emulated)


@dataclass(frozen=True, slots=True)
class EffectResult:
    """An effect without a verdict."""

    estimate: Fraction
    low: Fraction
    high: Fraction

    @classmethod
    def from_logs(cls, interval: Interval) -> EffectResult:
        """A bound beyond the range of a float becomes the largest one."""
        return cls(*(math.expm1(min(value, 700.0)) for value in (interval.estimate, interval.low, interval.high)))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What of an interval can be said, as fractions: all of it, its lower bound alone, or nothing."""

    estimate: Fraction | None = None
    low: Fraction | None = None
    high: Fraction | None = None

    @classmethod
    def of(cls, interval: Interval | None) -> Bounds:
        """From the log scale."""
        if interval is None:
            return cls()
        shown = EffectResult.from_logs(interval)
        return cls(low=shown.low) if interval.is_bound else cls(shown.estimate, shown.low, shown.high)


@dataclass(frozen=True, slots=True)
class ComponentsResult:
    """Variance components on the log scale; null where there are too few draws."""

    between_rounds: float | None
    within_rounds: float | None


@dataclass(frozen=True, slots=True)
class RoundEffect:
    """A comparison's effect in one round, or the median of ``rounds`` successive ones from ``round`` on, with the ``min`` and
    ``max`` of them. ``far_out``: it (or one of them) lies far from those of the other rounds, and is in the interval all the same.

    Rounds with an entry of their own between these are not among them.
    """

    round: int
    effect: Fraction
    far_out: bool = False
    rounds: int = 1
    min: Fraction | None = None
    max: Fraction | None = None

    @property
    def ends(self) -> tuple[Fraction, ...]:
        """The smallest and the largest effect; of one round its own."""
        return (self.effect,) if self.min is None or self.max is None else (self.min, self.max)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One estimand of one arm against the baseline: cost / baseline cost - 1; above 0: the arm takes longer.

    ``low`` alone: statements of the arm ran into the timeout, so it loses at least so much and nobody knows how much.
    """

    arm: str
    baseline: str
    is_aa: Annotated[bool, Meta(description="the arm is the baseline's second copy: what it shows is the noise floor")]
    levels: Annotated[Levels, Meta(description="level of every other factor")]
    metric: Annotated[
        str,
        Meta(
            description="run_time, connect_time, run_time_1 … of each run on a new connection; time_per_transaction, response_p50 …"
        ),
    ]
    estimand: Annotated[str, Meta(description="geomean, geomean_same_plans, ratio_of_totals or query:NAME")]
    estimate: Fraction | None
    low: Fraction | None
    high: Fraction | None
    p: Annotated[float | None, Meta(description="of: there is no effect; before any widening")]
    p_holm: Annotated[float | None, Meta(description="adjusted over all queries of the arm; null for aggregates")]
    low_decisive: Annotated[
        Fraction | None,
        Meta(description="of what the verdict rests on: starts may depend on each other, and queries are many"),
    ]
    high_decisive: Fraction | None
    verdict: Verdict
    rounds: int
    first_execution: Annotated[EffectResult | None, Meta(description="the same effect in first runs after a start")]
    reason: Annotated[str | None, Meta(description="why there is no estimate, no upper bound or no verdict")]
    left_out: Annotated[tuple[str, ...], Meta(description="queries that an aggregate had to do without, and why")]
    components: ComponentsResult
    widened_by: Annotated[Fraction, Meta(description="added on both sides because A/A excludes 0")]
    throughput_drop: Annotated[
        EffectResult | None,
        Meta(
            description="of time_per_transaction: how much less is done in the same time, 1 - throughput / baseline's; "
            "above 0: less; null of other metrics"
        ),
    ] = None
    by_round: Annotated[
        tuple[RoundEffect, ...],
        Meta(
            description="what the interval is formed from, successive rounds together where they are many; empty of a bound"
        ),
    ] = ()
    lengthened: Annotated[
        float | None,
        Meta(
            description="how many times as long as low … high what decides is, for starts that may depend on each other"
        ),
    ] = None
    dependence: Annotated[
        float | None, Meta(description="autocorrelation of neighbouring rounds, where some is much likelier than none")
    ] = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """How much more one level of a factor costs an arm than another does, beside what it costs the baseline:
    (1 + overhead at ``level``) / (1 + overhead at ``against``) - 1, of the geomean over the same queries.

    ``widened_by``: added on both sides, for what A/A shows at the two levels, or between them.
    """

    arm: str
    baseline: str
    is_aa: bool
    factor: str
    level: str
    against: str
    levels: Annotated[Levels, Meta(description="level of every other factor")]
    estimate: Fraction | None
    low: Fraction | None
    high: Fraction | None
    p: float | None
    verdict: Verdict
    rounds: int
    reason: Annotated[str | None, Meta(description="why there is no estimate or no verdict")] = None
    left_out: tuple[str, ...] = ()
    widened_by: Fraction = 0.0
    low_decisive: Fraction | None = None
    high_decisive: Fraction | None = None


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How many times as fast an arm answers with ``threads`` as with ``against``, the fewest that it was measured with: 2.0 is in
    half the time. Paired by fresh start. ``high`` alone: statements ran into the timeout, so it is at most so fast.
    """

    arm: str
    levels: Annotated[Levels, Meta(description="level of every other factor")]
    threads: int
    against: int
    estimand: Annotated[str, Meta(description="geomean or query:NAME")]
    estimate: float | None
    low: float | None
    high: float | None
    rounds: int
    reason: Annotated[str | None, Meta(description="why there is no estimate")] = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """A/A's own geomean interval; ``arm``: of which two copies were measured."""

    arm: str
    levels: Levels
    metric: str
    estimate: Fraction
    low: Fraction
    high: Fraction
    excludes_zero: bool


@dataclass(frozen=True, slots=True)
class SeriesBin:
    """Successive steady visits of one arm at one combination of levels, for the run-order plot: quantiles of the deviations, each
    the log of a visit's time over the arm's median for that query and parameters.

    Over the median of the query alone where these parameters came up fewer than three times: a visit is its own median.
    ``from_s`` … ``to_s``: when the first and the last of these visits began; ``round``: of the first.
    """

    arm: str
    levels: Levels
    from_s: float
    to_s: float
    round: int
    visits: int
    min: float
    q1: float
    median: float
    q3: float
    max: float


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """Times of one arm and query. Counts are of steady executions; ``censored`` ones ran into the timeout."""

    arm: str
    levels: Levels
    query: str
    median_ns: float | None
    executions: int
    first_execution_median_ns: float | None
    censored: int
    failed: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Of throughput: the geometric mean over rounds; no bounds where there are fewer than two."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Mean:
    """Of what has a value in each round and is never below 0: the mean over rounds; no bounds where there are fewer than two."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Interference:
    """What a neighbour costs the other tenants of an arm: their figure at ``level`` of the factor ``neighbour`` against theirs at
    ``against``, ``cost / cost - 1``, paired by fresh start (docs/method/neighbours.md).

    ``metric``: ``time_per_transaction`` or ``response_p99``, of the others alone. ``throughput_drop``: the same of their
    throughput, and ``throughput_drop_decisive`` of the interval that decides. ``unserved``: in an open loop the share of the
    others' arrivals that were not served when their window ended; then the percentile is too small. ``windows``: pairs of them.
    ``widened_by``: for what an idle neighbour is found to cost.
    """

    arm: str
    level: str
    against: str
    levels: Annotated[Levels, Meta(description="level of every other factor")]
    metric: str
    estimate: Fraction | None
    low: Fraction | None
    high: Fraction | None
    p: float | None
    p_holm: Annotated[
        float | None, Meta(description="adjusted over all cells of the metric; null of an idle neighbour")
    ]
    low_decisive: Fraction | None
    high_decisive: Fraction | None
    verdict: Verdict
    rounds: int
    windows: int
    reason: Annotated[str | None, Meta(description="why there is no estimate or no verdict")] = None
    throughput_drop: EffectResult | None = None
    throughput_drop_decisive: EffectResult | None = None
    unserved: Fraction | None = None
    widened_by: Fraction = 0.0


@dataclass(frozen=True, slots=True)
class NeighbourResult:
    """What the neighbour of an arm did itself in its windows; means over rounds.

    ``did_per_s``: of an aggressor, how often in a second it did each thing that is counted of it. ``processors``: how many its own
    process had. ``throughput``, ``p99_ns``: of a neighbour whose load is varied, in the workload's unit of throughput.
    """

    arm: str
    level: str
    levels: Annotated[Levels, Meta(description="level of every other factor")]
    windows: int
    did_per_s: dict[str, Mean] = field(default_factory=dict)
    processors: Mean | None = None
    throughput: Mean | None = None
    p99_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Quantile:
    """``fraction`` of the transactions took no longer than ``value_ns``."""

    fraction: float
    value_ns: int


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """One kind of transaction in all steady windows of an arm. Response times are from the scheduled start, merged over windows.

    ``not_found``: found nothing or something in its way, as its input is drawn to do; ``rolled_back``: as its input asks for.
    ``failed`` and ``retried`` by cause; ``unknown``: the connection was lost while the commit was under way.
    ``quantiles``: as far into the tail as ten transactions lie beyond.
    """

    name: str
    committed: int
    rolled_back: int
    not_found: int
    failed: dict[str, int]
    retried: dict[str, int]
    lost: int
    unknown: int
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    quantiles: tuple[Quantile, ...]


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Whether throughput kept its level within its ``windows``: means over rounds, which are the unit of the intervals.

    ``trend``: its rise from the start of a window to its end, of the window's mean; ``beginning``: how much more is done in the
    first tenth than in the rest. ``steady`` null: it cannot be told, ``reason`` says why; false: ``reason`` says what would help.
    """

    steady: bool | None
    windows: int
    trend: EffectResult | None
    beginning: EffectResult | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class DriverResult:
    """What the driver took, by CPU time of its threads in the windows; medians over windows.

    ``share``: of the windows' time, where 1 is a processor that did nothing else; ``share_of_threads``: of what its threads could
    have had. ``null_us_per_transaction`` and ``share_of_null_rate``: beside a server that costs nothing (null: not calibrated).
    ``bound``: how much of the arm's overhead can be the driver's. ``bottleneck``: why the driver held the arm up; null: it did not.
    """

    us_per_transaction: float | None
    share: float
    share_of_threads: float
    null_us_per_transaction: float | None
    share_of_null_rate: float | None
    bound: Fraction | None
    bottleneck: str | None


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What one unit of an arm did. ``by_round``: its throughput in each round, or the mean of successive ones where they are many.
    ``p50_ns``, ``p99_ns``: response times of the transaction that is the throughput, or of all where they all are, over all
    windows; null without any."""

    by_round: tuple[float, ...]
    p50_ns: int | None
    p99_ns: int | None


@dataclass(frozen=True, slots=True)
class UnitsResult:
    """What the units of an arm did at the same time, each in the workload's unit of throughput; means over windows.

    ``throughput``: of each unit, in the order of the arm's layout. ``least``, ``most``: of the unit that did least, and most, in a
    window. ``fairness``: Jain's index of a window's units: 1 where all did the same, 1/k where one of k did everything; with its
    bounds by the means of rounds, null of fewer than two. ``start_spread_ns``: the most that may lie between the starts of two
    units' windows; null: not known. ``each``: more of each unit, in the same order.
    """

    throughput: tuple[float, ...]
    least: float
    most: float
    fairness: float
    start_spread_ns: int | None
    fairness_low: float | None = None
    fairness_high: float | None = None
    each: tuple[UnitResult, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """What a block device did around the windows of an arm, as the kernel counts it (docs/method/devices.md).

    ``where``: ``host``, or ``inside`` of an arm whose machine has a kernel of its own; of several guests the mean of one.
    ``transfers``: reads and writes. ``service_ns``: the time in which it was busy over the transfers; ``wait_ns``: from when a
    transfer was asked for until it was done; both null where there were none. ``utilisation``: the share of the time in which it
    was busy. ``queue_length``: requests that it had, on the mean of the time. ``flushes_per_s``: null where they are not counted.
    ``holds``: what of the arm lies there, if it was asked to (``data``, ``log``, ``data and log``); ``device`` then is what was
    asked for, on the host. ``late_ns``: of a disk model, how much later than it says a request was answered.
    """

    where: str
    device: str
    transfers_per_s: Mean
    read_bytes_per_s: Mean
    written_bytes_per_s: Mean
    flushes_per_s: Mean | None
    service_ns: Mean | None
    wait_ns: Mean | None
    utilisation: Mean
    queue_length: Mean
    holds: str | None = None
    late_ns: Mean | None = None


@dataclass(frozen=True, slots=True)
class DiskModelFigure:
    """Requests of one kind, one at a time on an empty disk, ms: ``measured`` by who asks, what the disk did of it by its model
    (``modelled``), and what was ``published`` of the disk. ``late_us``: how much later than the model says they were answered."""

    kind: str
    measured: float
    modelled: float
    published: float
    late_us: float


@dataclass(frozen=True, slots=True)
class DiskModelResult:
    """A disk model, as it was found before the run: ``what`` disk it is like, by which ``source``, and what it ``lacks`` of one.
    ``on``: the host where it was; ``device``: as its ``arms`` were asked for it."""

    on: str
    device: str
    arms: tuple[str, ...]
    what: str
    source: str
    lacks: str
    figures: tuple[DiskModelFigure, ...]


@dataclass(frozen=True, slots=True)
class Distance:
    """``share`` of the writes began no farther than ``blocks`` of 512 bytes from the end of the one before."""

    blocks: int
    share: Fraction


@dataclass(frozen=True, slots=True)
class WritesResult:
    """Requests to write of a device in the windows of an arm's counting passes, in the order in which they were issued
    (docs/method/devices.md).

    ``where``: ``host``; of an arm whose machine has a kernel of its own ``inside``, and ``around`` of the machine that this stands
    on. ``device``, ``holds``: as `DeviceResult`. ``count``: in all windows; ``mean_bytes`` of each. ``sequential``: the share that
    began where the one before had ended; ``near``: at most 16 blocks of 512 bytes (8 KiB) from there, as writes of a log do that
    writes its last page again. ``distances``: of all, rising; the last share is 1.
    """

    where: str
    device: str
    count: int
    mean_bytes: float
    sequential: Mean
    near: Mean
    distances: tuple[Distance, ...]
    holds: str | None = None

    def within(self, blocks: int) -> float:
        """The share of the writes that began no farther than that from the end of the one before."""
        return max((each.share for each in self.distances if each.blocks <= blocks), default=0.0)


@dataclass(frozen=True, slots=True)
class TimeShare:
    """Of the time of the server's sessions that serve terminals: ``name`` is a state, or what is waited for."""

    name: str
    share: Mean


@dataclass(frozen=True, slots=True)
class SessionsResult:
    """Where the sessions' time goes that serve terminals, of all servers of an arm together, in the windows of its counting passes
    (docs/method/transactions.md). ``shares`` add up to 1 in each round, and so do their means.

    ``samples``: how often the sessions of a server were sampled. ``reason``: why nothing is known of their waits; then no shares.
    """

    samples: int
    shares: tuple[TimeShare, ...]
    reason: str | None


@dataclass(frozen=True, slots=True)
class WindowsResult:
    """The measurement windows of one arm at one combination of levels: sums of counts over windows.

    ``per_s``: committed transactions that count for throughput; ``throughput``: the same in the workload's ``unit``. ``rate``:
    arrivals a second that were scheduled, null in a closed loop; ``backlog_at_end``: those not served when their window ended.
    ``series``: transactions a second in each interval, the mean over windows; ``first_series``: of the first windows after a start,
    which do not count. ``units``: of an arm with several; everything else is of all of them together. ``devices``:
    that did something; empty of older runs. ``sessions``,
    ``writes``: of runs that explain.
    """

    arm: str
    levels: Levels
    windows: int
    length_ns: int
    interval_ns: int
    per_s: Rate | None
    throughput: Rate | None
    unit: str
    rate: float | None
    backlog_at_end: int
    round_trips_per_transaction: float | None
    connections_lost: int
    reconnects: int
    driver: DriverResult
    steadiness: Steadiness
    series: tuple[float, ...]
    first_series: tuple[float, ...]
    transactions: tuple[TransactionResult, ...]
    units: UnitsResult | None = None
    devices: tuple[DeviceResult, ...] = ()
    sessions: SessionsResult | None = None
    writes: tuple[WritesResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Amount:
    """A part of an arm's extra time in an execution; no bounds where there are fewer than two rounds."""

    name: str
    ns: float
    low_ns: float | None
    high_ns: float | None


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """An item of a ledger: ``amount`` is ``count`` events at ``cost_ns`` in the arm, less those of the baseline.

    Of user mode the baseline's count is its time in ns, at 1; the arm's that too, at its slowdown.
    """

    amount: Amount
    count: float
    cost_ns: float
    baseline_count: float
    baseline_cost_ns: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """An overhead that was predicted; no bounds where there are fewer than two rounds."""

    estimate: Fraction
    low: Fraction | None
    high: Fraction | None


@dataclass(frozen=True, slots=True)
class QueryLedger:
    """Of one query: ``items`` and ``unexplained`` add up to ``overhead`` (docs/method/ledgers.md).

    ``accounted``: the same time by the state of the server's processes, which adds up too, and is never mixed with the items.
    ``predicted``: its overhead by the baseline's counts and the arm's probes alone; ``measured``: the same as it was timed.
    """

    query: str
    accounted: tuple[Amount, ...]
    overhead: Amount
    items: tuple[LedgerItem, ...]
    unexplained: Amount
    predicted: Forecast | None
    measured: Fraction | None


@dataclass(frozen=True, slots=True)
class Unbooked:
    """A query without a ledger, since the arm's server has another plan than the baseline's; as `QueryLedger`."""

    query: str
    predicted: Forecast | None
    measured: Fraction


@dataclass(frozen=True, slots=True)
class LedgerResult:
    """The explained ledger of one arm at one combination of levels. ``items``, ``overhead``, ``unexplained``: sums over queries.

    ``unexplained_fraction``: the sum over queries of the absolute unexplained over that of the absolute overhead. ``cpu_ratio``:
    how many times as long a search of primes takes there, which is what a benchmark of the processor would tell. ``verdict``: on
    ``overhead``, as of a comparison; where it is not ``loses``, nothing is said of what the arm loses by.
    """

    arm: str
    baseline: str
    levels: Levels
    rounds: int
    overhead: Amount
    items: tuple[LedgerItem, ...]
    unexplained: Amount
    unexplained_fraction: EffectResult | None
    cpu_ratio: float | None
    accounted: tuple[Amount, ...]
    assumed: Annotated[tuple[str, ...], Meta(description="what was taken for what could not be counted or probed")]
    queries: tuple[QueryLedger, ...]
    verdict: Verdict = Verdict.CANNOT_TELL
    unbooked: tuple[Unbooked, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A query for which the server in this arm uses another plan than in the baseline.

    ``levels``: of those factors on which plans can depend.
    """

    arm: str
    query: str
    baseline_fingerprint: str
    fingerprint: str
    levels: Levels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateCell:
    """What the CI gate says of an arm at one combination of levels. ``baseline``: what it is held against, None of the baseline.

    ``low`` and ``high``: the decisive interval, which the decision rests on. Of an arm that is not compared itself (the baseline,
    its copy) there is a cell only where something of it failed; it has no levels and no figures.
    """

    arm: str
    baseline: str | None
    levels: Levels
    decision: GateDecision
    estimate: Fraction | None
    low: Fraction | None
    high: Fraction | None
    rounds: int
    reason: Annotated[str | None, Meta(description="why it is undecided, else null")]


@dataclass(frozen=True, slots=True)
class OverheadGate:
    """The CI gate: whether every arm keeps the limit (docs/CI.md). ``reason``: why no cell can be decided, else null."""

    limit: Annotated[
        Fraction, Meta(description="of the metric, which is a cost: 0.05 is 5 % more than in the baseline")
    ]
    decision: GateDecision
    metric: str
    estimand: str
    reason: str | None
    cells: tuple[GateCell, ...]


class WarningKind(StrEnum):
    """What a warning is about; the report has a consequence and a hint for each."""

    NO_END = "no_end"
    UNFINISHED_LINE = "unfinished_line"
    INCOMPLETE_ROUNDS = "incomplete_rounds"
    NO_ROUND = "no_round"
    FEW_ROUNDS = "few_rounds"
    UNSUPPORTED = "unsupported"
    QUERIES_LEFT_OUT = "queries_left_out"
    FAR_OUT_STARTS = "far_out_starts"
    DEPENDENT_STARTS = "dependent_starts"
    COPIES_DIFFER = "copies_differ"
    OPEN_LOOP = "open_loop"
    NOT_STEADY = "not_steady"
    DRIVER_BOTTLENECK = "driver_bottleneck"
    WITHOUT_ROOT = "without_root"


@dataclass(frozen=True, slots=True)
class RunWarning:
    """What a reader of the figures has to know and no arm's outcome, reason or check already says.

    ``text`` names neither the arm nor the levels and the metric that it is about. ``arm`` null: it is about all.
    """

    kind: WarningKind
    text: str
    arm: str | None = None
    levels: Levels = field(default_factory=dict)
    metric: str | None = None


NOT_FINISHED = "not finished"
"""Why no further round was begun, of a run that goes on or was killed."""


@dataclass(frozen=True, slots=True)
class Result:
    """All that is said about a run."""

    run: str
    schema_version: int
    confidence: float
    margin: Fraction
    target: Fraction
    question: str
    expected: str
    stopped: Annotated[str, Meta(description="why no further round was begun")]
    warnings: tuple[RunWarning, ...]
    arms: tuple[ArmResult, ...]
    comparisons: tuple[Comparison, ...]
    contrasts: tuple[Contrast, ...]
    noise_floor: tuple[NoiseFloor, ...]
    not_inside_the_interval: tuple[str, ...]
    series: tuple[SeriesBin, ...]
    times: tuple[QueryTimes, ...]
    windows: Annotated[tuple[WindowsResult, ...], Meta(description="of transaction workloads; else empty")]
    plans_changed: tuple[PlanChange, ...]
    facts: Json
    ledgers: Annotated[tuple[LedgerResult, ...], Meta(description="of experiments that explain; else empty")] = ()
    main_metric: Annotated[str, Meta(description="the metric that headlines and contrasts are about")] = "run_time"
    rounds_to_decide: Annotated[int, Meta(description="on fewer rounds nothing is decided")] = FEWEST_DRAWS
    gate: Annotated[OverheadGate | None, Meta(description="null where no limit was asked for")] = None
    speed_ups: Annotated[
        tuple[SpeedUp, ...], Meta(description="of experiments that vary the number of threads; else empty")
    ] = ()
    disk_models: Annotated[
        tuple[DiskModelResult, ...], Meta(description="those that data or logs of arms lay on; else empty")
    ] = ()
    interference: Annotated[
        tuple[Interference, ...],
        Meta(description="of experiments that vary the neighbour of other tenants; else empty"),
    ] = ()
    neighbours: Annotated[tuple[NeighbourResult, ...], Meta(description="of the same experiments; else empty")] = ()

    def to_json(self) -> Json:
        """As plain dicts and lists."""
        return cast(Json, msgspec.json.decode(msgspec.json.encode(self)))  # tuples become lists


def varied_factors(all_levels: Iterable[Mapping[str, str]]) -> list[str]:
    """The factors that have more than one level: only these need to be said beside a figure."""
    seen: dict[str, set[str]] = {}
    for levels in all_levels:
        for factor, level in levels.items():
            seen.setdefault(factor, set()).add(level)
    return [factor for factor, values in seen.items() if len(values) > 1]


def fractions(interval: Interval | None) -> EffectResult | None:
    """From the log scale."""
    return None if interval is None else EffectResult.from_logs(interval)


def drop(interval: Interval | None) -> EffectResult | None:
    """From the log scale of the overhead in throughput: the drop that papers print, 1 - value / baseline."""
    if interval is None:
        return None
    return EffectResult(
        *(-math.expm1(min(-value, 700.0)) for value in (interval.estimate, interval.low, interval.high))
    )


def to_json(result: Result) -> str:
    """One line, keys in the order of the schema."""
    return msgspec.json.encode(result).decode()


def from_json(text: str | bytes) -> Result:
    """A result that was written earlier."""
    return msgspec.json.decode(text, type=Result)


def json_schema() -> str:
    """What docs/result.schema.json holds."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dbtoll result, schema version 2"}
    schema = msgspec.json.schema(Result)
    for described in schema[
        "$defs"
    ].values():  # from version 3.13 on Python itself takes the indentation off a docstring
        if "description" in described:
            described["description"] = inspect.cleandoc(described["description"])
    return msgspec.json.format(msgspec.json.encode({**head, **schema})).decode() + "\n"
