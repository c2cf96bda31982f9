"""The paths from a transaction workload's terminals to the server: which, proved by the server, and how long a round trip takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from dbtoll.errors import EngineError
from dbtoll.interfaces.engine import ListeningEngine
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.model.reply import Statement
from dbtoll.runner.arms import RunningUnit
from dbtoll.store.schema import CheckRecord

NAME = "path"

ROUND_TRIPS = 200
"""Some 10 ms on a socket, some 100 ms to an emulated guest."""

SHORTEST = Statement("round_trip", "SELECT 1", "SELECT 1")

PACE = VisitTiming(statement_timeout_ns=10_000_000_000)


def measured(unit: RunningUnit, placements: Sequence[str]) -> Json:
    """By placement: ``address``, ``peer`` (the network address from which the server sees the driver come, None: by none)
    and ``round_trip_ns``: the median of ROUND_TRIPS of the shortest statement, by the clock of the agent that drives.
    """
    return {placement: _path(unit, placement) for placement in placements}


def _path(unit: RunningUnit, placement: str) -> Json:
    address = unit.address(placement)
    session = unit.new_session(placement)
    try:
        engine = unit.engine
        peer = engine.peer(session) if isinstance(engine, ListeningEngine) else None
        reply = session.visit(
            [SHORTEST],
            query_protocol="simple",
            timing=PACE,
            answers={},
            lead_in=False,
            repeat=False,
            min_executions=ROUND_TRIPS,
        ).result()
    finally:
        session.close()
    if wrong := next((each for each in reply.executions if each.outcome != "ok"), None):
        said = (wrong.error or {}).get("message", wrong.outcome)
        raise EngineError(f"{unit.machine.name}: no round trip {placement}: {said}", "look at the server's log")
    taken = median(each.end_ns - each.start_ns for each in reply.executions)
    return {"address": _text(address), "peer": peer, "round_trip_ns": round(taken)}


def check(round_index: int, arm: str, found: Sequence[Mapping[str, Json]]) -> CheckRecord:
    """Whether terminals outside come by a network, as each server sees it; passed where none of them works outside."""
    passed = [
        all(path["peer"] is not None for placement, path in its.items() if placement == "outside") for its in found
    ]
    shown = found[passed.index(False)] if False in passed else found[0]
    told = [
        f"{placement} by {path['address']}"
        + (f", where the server sees {path['peer']}" if path["peer"] else "")
        + f": {path['round_trip_ns'] / 1000:.0f} us for the shortest statement"
        for placement, path in shown.items()
    ]
    return CheckRecord(round=round_index, arm=arm, check=NAME, passed=all(passed), finding="; ".join(told))


def _text(address: Address) -> str:
    return address.unix if address.unix is not None else "{}:{}".format(*(address.tcp or ("", "")))
