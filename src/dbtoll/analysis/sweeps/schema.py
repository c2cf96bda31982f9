"""The shape of sweep.json as types; docs/sweep.schema.json is made from them and a test compares the two."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from dbtoll.analysis.result.schema import Fraction, Levels
from dbtoll.model.experiment import Verdict
from dbtoll.model.sweep import Costs, LeftOut, Limit, Value

SWEEP_SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class ValueRun:
    """The run of one value: its folder's name, complete rounds, and why no further round was begun."""

    value: Value
    run: str
    rounds: int
    stopped: str


@dataclass(frozen=True, slots=True)
class DesignAt:
    """What an arm is at one value. ``tenants``: its units; ``servers``: in all of its machines; ``pool_bytes``: the buffer pool of
    each server, null where the engine has none or its settings say how large it is. Processors and memory are the arm's as a whole.
    """

    value: Value
    design: str
    arm: str
    tenants: int
    machines: int
    servers: int
    cpus: int
    memory_bytes: int
    pool_bytes: int | None
    emulated: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A measure at one value, over rounds: the geometric mean with its interval. ``reason``: why there is none."""

    value: Value
    estimate: float | None
    low: float | None
    high: float | None
    rounds: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure of one design over the values."""

    measure: str
    levels: Levels
    design: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class RatioPoint:
    """What a design costs at one value, over what the other costs there, minus 1; above 0: it costs more (time per transaction,
    response time, time). Paired by round and block, as the arms of a run are.

    ``low_decisive`` … ``high_decisive``: the band that crossovers rest on, adjusted for the number of values; null where nothing is
    decided. ``verdict``: on the design, adjusted for the number of values. ``widened_by``: for what A/A showed.
    """

    value: Value
    estimate: Fraction | None
    low: Fraction | None
    high: Fraction | None
    low_decisive: Fraction | None
    high_decisive: Fraction | None
    verdict: Verdict
    rounds: int
    widened_by: Fraction = 0.0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Between two places on the axis: ``better``, the design that is, or null where it cannot be told."""

    low: float
    high: float
    better: str | None


@dataclass(frozen=True, slots=True)
class Crossover:
    """Up to it one design is ``better_before``, beyond it the other. ``low`` … ``high``: everywhere there the band holds 0."""

    low: float
    estimate: float
    high: float
    better_before: str
    better_after: str


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two designs over the values. ``stretches``: from the first number to the last; empty of values that are no numbers."""

    measure: str
    levels: Levels
    design: str
    against: str
    points: tuple[RatioPoint, ...]
    stretches: tuple[Stretch, ...]
    crossovers: tuple[Crossover, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """The designs at one value that no other is better than by its verdict. ``certain``: there is one, or they are all alike
    (``no difference``); else it cannot be told which of them."""

    measure: str
    levels: Levels
    value: Value
    designs: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class LimitPoint:
    """Whether every unit of a design keeps the limit at one value: true, false, or null where that cannot be told.

    ``slowest``: the number of the unit whose quantile is the longest over rounds, from 1, and ``slowest_ns`` that quantile: the
    geometric mean over rounds, each of all its windows together. Null where a unit has none."""

    value: Value
    keeps: bool | None
    slowest: int | None = None
    slowest_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Bracket:
    """Up to which value every unit of a design keeps the limit. ``holds``: the largest that does, with all below it that were
    measured; ``breaks``: the smallest beyond that does not, or does not fit (``does_not_fit``). Null: none was found. Between the
    two it cannot be told or was not measured."""

    levels: Levels
    design: str
    points: tuple[LimitPoint, ...]
    holds: Value | None
    breaks: Value | None
    does_not_fit: bool


@dataclass(frozen=True, slots=True)
class Price:
    """Of a design at one value. ``cost``: for the period; ``per_money``: what is done for one unit of money (transactions that
    count, or queries by their geometric mean); ``per_gib_s``: what is done in a second for each GiB of memory."""

    levels: Levels
    value: Value
    design: str
    cost: float
    per_money: Point
    per_gib_s: Point


@dataclass(frozen=True, slots=True)
class TenantPrice:
    """What a tenant costs where its arm has as many as keep the limit.

    ``tenants``: of the largest value that does (null: none was found), at ``cost_most`` each; ``tenants_most``: of the largest that
    may, at ``cost_least`` each (null: not known; 0: it is broken at the smallest value)
    """

    levels: Levels
    design: str
    tenants: int | None
    tenants_most: int | None
    cost_most: float | None
    cost_least: float | None


@dataclass(frozen=True, slots=True)
class CheapestTenant:
    """The designs in which a tenant may cost the least: one where that is decided."""

    levels: Levels
    designs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All that is said about a sweep. ``scale``: of the axis between values, ``log``, or ``linear`` where one is not above 0; null
    where they are no numbers. ``main_measure``: ``throughput``, or ``time`` of statements. ``units``: of each measure."""

    sweep: str
    schema_version: int
    question: str
    variable: str
    asked: tuple[Value, ...]
    scale: str | None
    confidence: float
    margin: Fraction
    values: tuple[ValueRun, ...]
    designs: tuple[str, ...]
    parts: tuple[DesignAt, ...]
    left_out: tuple[LeftOut, ...]
    main_measure: str
    units: dict[str, str]
    curves: tuple[Curve, ...]
    contrasts: tuple[Contrast, ...]
    best: tuple[Best, ...]
    limit: Limit | None
    brackets: Annotated[tuple[Bracket, ...], Meta(description="where a limit was asked for; else empty")]
    costs: Costs | None
    prices: Annotated[tuple[Price, ...], Meta(description="where a table of costs was given; else empty")]
    cheapest: Annotated[tuple[Best, ...], Meta(description="by what is done for the money; where costs were given")]
    tenant_prices: Annotated[tuple[TenantPrice, ...], Meta(description="where both were given")]
    cheapest_tenant: Annotated[tuple[CheapestTenant, ...], Meta(description="where both were given")]


def to_json(result: SweepResult) -> str:
    """One line, keys in the order of the schema."""
    return msgspec.json.encode(result).decode()


def json_schema() -> str:
    """What docs/sweep.schema.json holds."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dbtoll sweep, schema version 2"}
    schema = msgspec.json.schema(SweepResult)
    for described in schema["$defs"].values():
        if "description" in described:
            described["description"] = inspect.cleandoc(described["description"])
    return msgspec.json.format(msgspec.json.encode({**head, **schema})).decode() + "\n"
