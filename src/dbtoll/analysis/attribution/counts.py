"""What was counted beside a query, as events of the items' kinds, and what states its processes were in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dbtoll.analysis.attribution.items import (
    DEVICE_READS,
    FAULTS,
    FAULTS_BY_KIND,
    KINDS_OF_CALLS,
    MAPPED_AROUND,
    OPEN_CALLS,
    OTHER_CALLS,
    PAGE_BYTES,
    ROUND_TRIPS,
    SWITCHES,
)
from dbtoll.analysis.visits.metrics import time_per_ended_ns
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.description import ROUND_TRIP_CALLS
from dbtoll.model.json import Json


def ended_time(visits: Sequence[VisitTotals]) -> Iterator[tuple[VisitTotals, str, float]]:
    """As `metrics.METRICS` are."""
    for visit in visits:
        if (value := time_per_ended_ns(visit)) is not None:
            yield visit, visit.query, value


@dataclass(frozen=True, slots=True)
class Events:
    """Of one execution, by item. ``counts``: how many; ``per_ns``: how many more in each ns that it takes, for some come by the
    clock; what was counted nowhere is in neither. ``alone``: which share of them come alone and not in a row, where that was
    looked at."""

    counts: Mapping[str, float]
    per_ns: Mapping[str, float]
    alone: Mapping[str, float]

    def of(self, item: str) -> tuple[float, float, float]:
        """The three of one item."""
        return self.counts.get(item, 0.0), self.per_ns.get(item, 0.0), self.alone.get(item, 0.5)

    @classmethod
    def counted(
        cls,
        counts: Json,
        otherwise: Json | None = None,
        faults: float | None = None,
        *,
        round_trip_calls: Sequence[str] = ROUND_TRIP_CALLS,
    ) -> Events:
        """By the collectors. ``round_trip_calls``: of the engine (`EngineDescription`).

        ``otherwise``: what the baseline's counted, taken for what could not be counted here: it is the same
        program. ``faults``: of a timed execution, where that is known."""
        otherwise = otherwise or {}
        found: dict[str, float] = {}
        processes = {**_of_one(otherwise.get("processes", {})), **_of_one(counts.get("processes", {}))}
        if (faults := processes.get("minor_faults") if faults is None else faults) is not None:
            found |= fault_kinds(faults, counts, otherwise)
        alone = _faults_alone(counts) or _faults_alone(otherwise)
        if (trips := processes.get("round_trips")) is not None:
            found[ROUND_TRIPS.name] = trips
            # The server sleeps once for each round trip, whose probe holds that switch.
            if {"voluntary_switches", "involuntary_switches"} <= processes.keys():
                switches = processes["voluntary_switches"] + processes["involuntary_switches"]
                found[SWITCHES.name] = max(0.0, switches - trips)
        if (read_bytes := processes.get("read_bytes")) is not None:
            found[DEVICE_READS.name] = read_bytes / PAGE_BYTES
            known = [_places_read(told.get("blocks", {})) for told in (counts, otherwise)]
            places = next((each for each in known if each is not None), None)
            if read_bytes and places is not None:
                alone[DEVICE_READS.name] = min(1.0, places / found[DEVICE_READS.name])
        if not (calls := _first_calls(counts, otherwise)):
            return cls(found, {}, alone)
        asked, by_clock = _calls(calls, round_trip_calls)
        # Looking on delays calls, in the baseline the least: in a guest all of them would come alone.
        least_delayed = _first_calls(otherwise, counts)
        return cls(found | asked, by_clock, alone | _calls_alone(least_delayed))


def _first_calls(*counts: Json) -> Json:
    """Of the first of them that counted system calls; empty where none did."""
    return next((told["calls"] for told in counts if told.get("calls", {}).get("executions")), {})


def _faults_alone(counts: Json) -> dict[str, float]:
    """Item -> which share of its page faults come alone; none where nobody told."""
    told = counts.get("faults", {}).get("counted", {})
    alone = told.get("alone", {})
    return {
        FAULTS_BY_KIND[name].name: alone[name] / told[name] for name in FAULTS_BY_KIND if name in alone and told[name]
    }


def _places_read(told: Json) -> float | None:
    """How often, in an execution, a read does not go on where the last one ended, on the device of which most was read; None where
    nobody looked."""
    inside = told.get("counted", {}).get("inside", {"missing": ""})
    if not told.get("executions") or "missing" in inside:
        return None
    reads = [device["reads"] for device in inside.values() if "reads" in device]
    most = max(reads, key=lambda each: int(each["bytes"]), default={"count": 0, "sequential": 0})
    return float(most["count"] - most["sequential"]) / float(told["executions"])


def _calls(told: Json, round_trip_calls: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Item -> how many system calls of an execution are of it, and how many come by the clock in each ns, whoever is served."""
    asked, by_clock = {}, {}
    for name, call in told["counted"].items():
        background = call.get("background", 0)  # not in a history from before that was told apart
        asked[name] = (call["count"] - background) / told["executions"]
        by_clock[name] = background / told["elapsed_ns"] if told["elapsed_ns"] else 0.0
    for name in round_trip_calls:  # the probe of round trips holds them
        asked[name] = max(0.0, asked.get(name, 0.0) - told["round_trips"] / told["executions"])
    return _by_kind(asked), _by_kind(by_clock)


def _by_kind(calls: dict[str, float]) -> dict[str, float]:
    """Item -> how many of the system calls, which are told by their names, are of it."""
    left = dict(calls)
    found = {kind.name: sum(left.pop(name, 0.0) for name in names) for kind, names in KINDS_OF_CALLS.items()}
    # The probe of an opened file closes it.
    left["close"] = max(0.0, left.get("close", 0.0) - found[OPEN_CALLS.name])
    return {**found, OTHER_CALLS.name: sum(left.values())}


def _calls_alone(told: Json) -> dict[str, float]:
    """Item -> which share of its system calls come alone; none of a history from before that was counted."""
    kind_of = {name: kind for kind, names in KINDS_OF_CALLS.items() for name in names}
    made, alone = Counter[str](), Counter[str]()
    for name, call in told["counted"].items():
        item = kind_of.get(name, OTHER_CALLS).name
        if "alone" in call:
            made[item] += call["count"]
            alone[item] += call["alone"]
    return {item: alone[item] / count for item, count in made.items() if count}


def _of_one(told: Json) -> dict[str, float]:
    """Of one execution, what a collector counted of whole numbers; what it could not count is not there."""
    if not told.get("executions"):
        return {}
    counted = {**told["counted"], "round_trips": told["round_trips"]}
    return {name: count / told["executions"] for name, count in counted.items() if isinstance(count, int)}


def fault_kinds(faults: float, counts: Json, otherwise: Json) -> dict[str, float]:
    """Item -> how many of so many page faults; the kernel's own count of all of them is of another pass, and knows no kinds.

    Where nobody told them apart in this arm but in the other one, those that map one page each are as many as there: it is the same
    program. All others map what is there already, as many pages at once as this kernel likes.
    """
    told = _of_one(counts.get("faults", {})) or _of_one(otherwise.get("faults", {}))
    kinds = {name: told[name] for name in FAULTS_BY_KIND if told.get(name)}
    around = sum(kinds.get(name, 0.0) for name in MAPPED_AROUND)
    single = sum(kinds.values()) - around
    if around and faults > single:
        scale = {name: (faults - single) / around if name in MAPPED_AROUND else 1.0 for name in kinds}
    else:
        scale = dict.fromkeys(kinds, faults / single if single else 0.0)
    if not any(scale.values()):
        return {FAULTS.name: faults}
    return {FAULTS_BY_KIND[name].name: count * scale[name] for name, count in kinds.items()}


STOLEN, ASLEEP = "stolen by the host", "asleep"

COUNTED_STATES = {
    "user mode": "user_ns",
    "in the kernel": "system_ns",
    "waiting for a processor": "run_queue_wait_ns",
    "waiting for a device": "block_io_wait_ns",
}
"""Of the server's processes, with the counter of each."""

STATES = (*COUNTED_STATES, STOLEN, ASLEEP)
"""What is left of an execution's time they slept: it was the client's turn, say."""


def states(counts: Json) -> dict[str, float] | None:
    """Time of one execution in each state, ns; None where it was not counted. What a kernel does not tell counts as asleep."""
    told = counts.get("processes", {})
    if not told.get("executions") or None in (told["counted"]["user_ns"], told["counted"]["system_ns"]):
        return None
    executions = told["executions"]
    found = {name: (told["counted"].get(counter) or 0) / executions for name, counter in COUNTED_STATES.items()}
    # BIAS: of all processors of the machine, on which nothing else is awake.
    inside = counts.get("machine", {}).get("counted", {}).get("inside") or {}
    found[STOLEN] = (inside.get("steal_ns") or 0) / executions
    return {**found, ASLEEP: told["elapsed_ns"] / executions - sum(found.values())}
