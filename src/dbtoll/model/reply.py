"""What is run in a visit, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dbtoll.model.json import Json

TIME_PER_TRANSACTION = "time_per_transaction"
"""The metric of throughput: its inverse, so that it is a cost, as every metric is (docs/method/transactions.md)."""

TIME_PER_TRANSACTION_LEAST = "time_per_transaction_least"
"""The same of the unit that did least, of an arm with several: what TPC-VMS reports of the three machines of a system (its
specification, version 1.2)."""

THROUGHPUTS = (TIME_PER_TRANSACTION, TIME_PER_TRANSACTION_LEAST)
"""Metrics that are the inverse of one."""

MAIN_METRICS = ("run_time", TIME_PER_TRANSACTION, "event_time")
"""What an experiment is about: of statements, of transactions, of probes. A visit has one of them."""


@dataclass(frozen=True, slots=True)
class AnswerReference:
    """What a statement must answer. ``columns``: ``exact`` | ``trimmed`` | ``numeric`` for each; rows as text. Numbers agree that
    differ by no more than one of the tolerances."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    relative_tolerance: float = 1e-9
    absolute_tolerance: float = 1e-12


@dataclass(frozen=True, slots=True)
class Statement:
    """One query of a workload with its parameters drawn.

    ``text`` is complete SQL (query protocol ``simple``); ``template`` has $1… and ``parameters`` their text (``extended``
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
    """What came back from one visit, with the bracket that the outermost agent put around it (its own clock).

    ``held_ns``, ``host_held_ns``: of one that was held, when it said so and when that was read, by the same two clocks;
    ``host_asked_ns``: when it was asked for it, None where it was not.
    """

    start_ns: int
    end_ns: int
    executions: tuple[Execution, ...]
    lead_in: Json | None
    counters: Json | None
    host_start_ns: int | None
    host_end_ns: int | None
    held_ns: int | None = None
    host_held_ns: int | None = None
    host_asked_ns: int | None = None


def ended_well(window: Json) -> int:
    """Transactions of a window's counts that ended well: committed, rolled back or without a find, as they were drawn to be."""
    return sum(kind["committed"] + kind["rolled_back"] + kind["not_found"] for kind in window["transactions"].values())


@dataclass(frozen=True, slots=True)
class WindowReply:
    """What came back from one measurement window (docs/PROTOCOL.md, ``oltp``), bracketed as a visit is.

    Agent's clock: the terminals were told to work at ``start_ns``, and to begin at ``begin_ns``; what they did was counted from
    ``from_ns`` until ``until_ns``, the last of them was at rest at ``end_ns``. ``counts``: everything else of the report.
    """

    start_ns: int
    begin_ns: int
    from_ns: int
    until_ns: int
    end_ns: int
    counts: Json
    host_start_ns: int | None
    host_end_ns: int | None
    held_ns: int | None = None
    host_held_ns: int | None = None
    host_asked_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended."""

    argv: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    output: bytes
    error_output: bytes
    usage: Json
