"""Run folders that an earlier dbtoll wrote, as this one writes them.

A step from each schema version to the next on decoded JSON, before it is checked; and what was not written down once is supplied.
Everything behind the reader knows this version only. What is not of the expected shape is left as it is, for the check.
The tables hold what was so then. They do not follow what has been added or renamed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dbtoll.model.description import (
    Descriptions,
    EngineDescription,
    EnvironmentDescription,
    ThroughputUnit,
    WorkloadDescription,
)
from dbtoll.model.experiment import Experiment
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


UNIT = (
    *(
        "start_ns",
        "end_ns",
        "host_start_ns",
        "host_end_ns",
        "executions",
        "window",
        "batches",
        "problem",
        "disk_read_bytes",
    ),
    *("cpu", "minor_faults", "samples"),
)
"""Keys of a visit in version 2 that are its only unit's in version 3."""


def record(raw: Json, version: int) -> Json:
    """A line of the history that was written in that version."""
    raw = _record_to_2(raw) if version < 2 else raw
    return _record_to_3(raw) if version < 3 else raw


def _record_to_2(raw: Json) -> Json:
    kind = raw.get("record")
    upgraded: Json = _renamed(raw, RECORDS.get(kind, {}) if isinstance(kind, str) else {})
    if kind == "gate":
        upgraded["record"] = "check"
    if "levels" in upgraded:
        upgraded["levels"] = _levels(upgraded["levels"])
    if "window" in upgraded:
        upgraded["window"] = _window(upgraded["window"])
    if kind == "start":
        upgraded["facts"] = _facts_to_2(upgraded.get("facts", {}))
    return upgraded


def _record_to_3(raw: Json) -> Json:
    """Every arm was a set of one unit."""
    match raw.get("record"):
        case "visit":
            of_visit = {name: value for name, value in raw.items() if name not in UNIT}
            return {**of_visit, "units": [{name: raw[name] for name in UNIT if name in raw}]}
        case "start":
            of_start = {name: value for name, value in raw.items() if name != "facts"}
            return {**of_start, "servers": [raw["facts"]] if raw.get("facts") else []}
    return raw


def plan(raw: Json, version: int) -> Json:
    """``plan.json`` that was written in that version."""
    raw = _plan_to_2(raw) if version < 2 else raw
    if version < 3 and isinstance(asked := raw.get("experiment"), dict):
        return {**raw, "experiment": _experiment_to_3(asked)}
    return raw


def _plan_to_2(raw: Json) -> Json:
    upgraded = dict(raw)
    if isinstance(asked := raw.get("experiment"), dict):
        upgraded["experiment"] = _experiment_to_2(asked)
    if isinstance(slow := raw.get("slow"), dict):
        upgraded["slow"] = {arm: [_levels(each) for each in _list(levels)] for arm, levels in slow.items()}
    return upgraded


def facts(raw: Json, version: int) -> Any:
    """``facts.json`` that was written in that version; what only its plan can tell is supplied by `completed`."""
    return _facts_to_2(raw) if version < 2 else raw


def _facts_to_2(raw: Any) -> Any:
    upgraded = _renamed(raw, {"settings_set_aside": "ignored_settings"})
    if isinstance(upgraded, dict) and isinstance(probes := upgraded.get("probes"), dict):
        upgraded["probes"] = {name: _renamed(about, COST_BOUNDS) for name, about in probes.items()}
    return upgraded


def _experiment_to_2(raw: Json) -> Json:
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


def _experiment_to_3(raw: Json) -> Json:
    """What was one for all arms is each arm's own."""
    names = ("engine", "workload", "resources", "image")
    configuration = {name: raw[name] for name in names if name in raw}
    upgraded = {name: value for name, value in raw.items() if name not in names}
    upgraded["arms"] = [
        {
            **arm,
            "configuration": configuration,
            "against": None if raw.get("baseline") in (arm.get("name"), arm.get("copy_of")) else raw.get("baseline"),
        }
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


_ENVIRONMENTS: Mapping[str, EnvironmentDescription] = {
    "native": EnvironmentDescription("Native", {"cpu_quota": "cpu_quota"}),
    "docker": EnvironmentDescription("Docker", {"cpu_quota": "cpu_quota"}),
    "qemu": EnvironmentDescription("QEMU", {"vcpus": "processors"}),
    "uml": EnvironmentDescription("User Mode Linux"),
    "simulated": EnvironmentDescription("Simulated"),
}

_DRAWN = "drawn for each start, so that no two arms on one network meet"
_PATH = "a path, and an arm may have its data elsewhere"

_ENGINES: Mapping[str, EngineDescription] = {
    "postgres": EngineDescription(
        "PostgreSQL",
        location_settings={
            "port": _DRAWN,
            **dict.fromkeys(
                (
                    *("data_directory", "config_file", "hba_file", "ident_file", "external_pid_file"),
                    "unix_socket_directories",
                ),
                _PATH,
            ),
        },
    ),
    "mariadb": EngineDescription(
        "MariaDB",
        location_settings={"port": _DRAWN, "report_port": _DRAWN, "socket": _PATH, "innodb_log_group_home_dir": _PATH},
        auto_tuned_settings={
            "innodb_log_write_ahead_size": "MariaDB takes it from the physical block size of the device that holds its log"
        },
    ),
    "no_server": EngineDescription("no server"),
}

_TPC = "The workload is derived from {}. Its results are not comparable with published TPC results."

_WORKLOADS: Mapping[str, WorkloadDescription] = {
    "tpch": WorkloadDescription("TPC-H", disclaimer=_TPC.format("TPC-H")),
    "tpcc": WorkloadDescription("TPC-C", disclaimer=_TPC.format("TPC-C"), throughput_unit=ThroughputUnit("tpmC", 60.0)),
    "tatp": WorkloadDescription("TATP"),
    "sql": WorkloadDescription("own queries"),
    "probes": WorkloadDescription("micro-probes"),
}


_OF_A_CONFIGURATION = ("checked_by", "settings", "image", "dataset", "driver", "ignored_settings")
"""Facts that were told once, when all arms had one configuration."""


def completed(facts: Json, experiment: Experiment) -> Json:
    """Facts with what was not written down once, or otherwise: ``descriptions``, and ``configurations``."""
    described = facts.get("descriptions")
    if described is None:
        facts = {**facts, "descriptions": msgspec.json.decode(msgspec.json.encode(_descriptions(experiment)))}
    elif isinstance(described, dict) and "engine" in described:
        one = {experiment.configuration.engine.name: described["engine"]}
        others = {name: each for name, each in described.items() if name != "engine"}
        facts = {**facts, "descriptions": {"engines": one, **others}}
    if "configurations" in facts:
        return facts
    told = {name: facts[name] for name in _OF_A_CONFIGURATION if name in facts}
    first = {"arms": [arm.name for arm in experiment.arms], "engine": experiment.configuration.engine.name, **told}
    rest = {name: each for name, each in facts.items() if name not in (*_OF_A_CONFIGURATION, "engine")}
    return {**rest, "configurations": [first]}


def _descriptions(experiment: Experiment) -> Descriptions:
    engine, workload = experiment.configuration.engine.name, experiment.configuration.workload
    described = _WORKLOADS.get(workload.name, WorkloadDescription(workload.name))
    if (scale := workload.options.get("scale")) is not None:
        described = replace(described, size=f"at scale factor {scale}")
    names = {step.environment for arm in experiment.arms for step in arm.stack}
    return Descriptions(
        engines={engine: _ENGINES.get(engine, EngineDescription(engine))},
        workload=described,
        environments={name: _ENVIRONMENTS.get(name, EnvironmentDescription(name)) for name in sorted(names)},
    )
