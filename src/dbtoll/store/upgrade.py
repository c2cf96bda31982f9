"""The one step from schema version 1 to version 2, on decoded JSON before it is checked: names alone changed.

Everything behind the reader knows version 2 only. What is not of the expected shape is left as it is, for the check that follows.
"""

from __future__ import annotations

from typing import Any

from dbtoll.model.json import Json

FACTORS = {"temperature": "cache", "protocol": "query_protocol"}
LEVELS = {
    "connection": {"one": "persistent"},
    "durability": {"system": "os_cache", "server": "server_buffer"},
}
"""Factor -> level in version 1 -> level in version 2."""
OPTIONS = {"patience": "response_timeout", "think": "think_time", "population": "data_seed"}
"""Of transaction workloads."""
ENGINES = {"null": "noop", "none": "no_server"}
ENVIRONMENTS = {"fake": "simulated"}
RECORDS: dict[str, dict[str, str]] = {
    "visit": {"first_touch": "first_execution"},
    "counters": {"outside_cpu_ns": "unattributed_cpu_ns"},
    "gate": {"gate": "check"},
}
WINDOW = {"unserved": "backlog_at_end", "counted": "throughput_transaction"}
EXTREMES = {"least": "min", "most": "max"}
COST_BOUNDS = {"least_ns": "min_ns", "most_ns": "max_ns"}


def record(raw: Json) -> Json:
    """A line of the history."""
    kind = raw.get("record")
    upgraded: Json = _renamed(raw, RECORDS.get(kind, {}) if isinstance(kind, str) else {})
    if kind == "gate":
        upgraded["record"] = "check"
    if "levels" in upgraded:
        upgraded["levels"] = _levels(upgraded["levels"])
    if "window" in upgraded:
        upgraded["window"] = _window(upgraded["window"])
    if kind == "start":
        upgraded["facts"] = facts(upgraded.get("facts", {}))
    return upgraded


def plan(raw: Json) -> Json:
    """``plan.json``, or what was asked for before there was a plan."""
    upgraded = dict(raw)
    if isinstance(asked := raw.get("experiment"), dict):
        upgraded["experiment"] = _experiment(asked)
    if isinstance(slow := raw.get("slow"), dict):
        upgraded["slow"] = {arm: [_levels(each) for each in _list(levels)] for arm, levels in slow.items()}
    return upgraded


def facts(raw: Any) -> Any:
    """``facts.json``, or the facts of a start."""
    upgraded = _renamed(raw, {"settings_set_aside": "ignored_settings"})
    if isinstance(upgraded, dict) and isinstance(probes := upgraded.get("probes"), dict):
        upgraded["probes"] = {name: _renamed(about, COST_BOUNDS) for name, about in probes.items()}
    return upgraded


def _experiment(raw: Json) -> Json:
    upgraded: Json = _renamed(raw, {"pace": "visit_timing"})
    upgraded["visit_timing"] = _renamed(upgraded.get("visit_timing", {}), {"dwell_ns": "measurement_time_ns"})
    if isinstance(factors := raw.get("factors"), dict):
        upgraded["factors"] = {
            FACTORS.get(name, name): [LEVELS.get(name, {}).get(level, level) for level in _list(levels)]
            for name, levels in factors.items()
        }
    if isinstance(workload := raw.get("workload"), dict):
        upgraded["workload"] = {**workload, "options": _renamed(workload.get("options", {}), OPTIONS)}
    if isinstance(engine := raw.get("engine"), dict):
        upgraded["engine"] = _with_name(engine, "name", ENGINES)
    upgraded["arms"] = [
        {**arm, "stack": [_with_name(step, "environment", ENVIRONMENTS) for step in _list(arm.get("stack"))]}
        if isinstance(arm, dict)
        else arm
        for arm in _list(raw.get("arms"))
    ]
    return upgraded


def _levels(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    return {
        FACTORS.get(name, name): LEVELS.get(name, {}).get(level, level) if isinstance(level, str) else level
        for name, level in raw.items()
    }


def _window(raw: Any) -> Any:
    upgraded = _renamed(raw, WINDOW)
    if isinstance(upgraded, dict) and isinstance(kinds := upgraded.get("transactions"), dict):
        upgraded["transactions"] = {name: _transactions(kind) for name, kind in kinds.items()}
    return upgraded


def _transactions(raw: Any) -> Any:
    upgraded = _renamed(raw, {"missed": "not_found"})
    if isinstance(upgraded, dict):
        for times in ("response_ns", "service_ns"):
            if times in upgraded:
                upgraded[times] = _renamed(upgraded[times], EXTREMES)
    return upgraded


def _renamed(raw: Any, names: dict[str, str]) -> Any:
    """A copy with other names for the same keys, in the same order."""
    return {names.get(name, name): value for name, value in raw.items()} if isinstance(raw, dict) else raw


def _with_name(raw: Any, key: str, names: dict[str, str]) -> Any:
    if not isinstance(raw, dict):
        return raw
    name = raw.get(key)
    return {**raw, key: names.get(name, name) if isinstance(name, str) else name}


def _list(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []
