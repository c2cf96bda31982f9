"""What arms, products, levels, metrics and checks are called."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from dbtoll.analysis.checks.catalog import CATALOG
from dbtoll.analysis.result.schema import EMULATED
from dbtoll.model.experiment import THREADS
from dbtoll.model.reply import TIME_PER_TRANSACTION, TIME_PER_TRANSACTION_LEAST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dbtoll.analysis.result.schema import ArmDifference, ArmResult, Result
    from dbtoll.model.json import Json
from dbtoll.report.text.numbers import count, is_throughput, plural


def arm_title(arm: str, result: Result) -> str:
    """An arm's name at the head of a sentence: ``docker:runsc`` is "Docker with runsc"; a name made up stays as it is.

    Everywhere else an arm goes by its own name, so that what a table calls it can be found in the specification.
    """
    name = arm.removesuffix(EMULATED)
    match = re.fullmatch(r"([a-z][a-z0-9_-]*)(?::([\w.-]+))?", name)
    described = _described(result, "environments", match[1] if match else "")
    if not match or not described:
        return arm
    return str(described["title"]) + (f" with {match[2]}" if match[2] else "") + arm[len(name) :]


def with_arm_labels(result: Result) -> Result:
    """The same with every arm called by its label (`arm_label`). Of a result that has been labelled already it changes nothing."""
    names = {arm.name: arm.label for arm in result.arms}
    if all(name == label for name, label in names.items()):
        return result

    def label(name: str) -> str:
        return names.get(name, name)

    return replace(
        result,
        arms=tuple(
            replace(
                each,
                name=label(each.name),
                against=each.against and label(each.against),
                copy_of=each.copy_of and label(each.copy_of),
            )
            for each in result.arms
        ),
        noise_floor=tuple(replace(each, arm=label(each.arm)) for each in result.noise_floor),
        comparisons=tuple(
            replace(each, arm=label(each.arm), baseline=label(each.baseline)) for each in result.comparisons
        ),
        warnings=tuple(replace(each, arm=each.arm and label(each.arm)) for each in result.warnings),
        contrasts=tuple(replace(each, arm=label(each.arm), baseline=label(each.baseline)) for each in result.contrasts),
        speed_ups=tuple(replace(each, arm=label(each.arm)) for each in result.speed_ups),
        interference=tuple(replace(each, arm=label(each.arm)) for each in result.interference),
        neighbours=tuple(replace(each, arm=label(each.arm)) for each in result.neighbours),
        series=tuple(replace(each, arm=label(each.arm)) for each in result.series),
        times=tuple(replace(each, arm=label(each.arm)) for each in result.times),
        windows=tuple(replace(each, arm=label(each.arm)) for each in result.windows),
        plans_changed=tuple(replace(each, arm=label(each.arm)) for each in result.plans_changed),
        ledgers=tuple(replace(each, arm=label(each.arm), baseline=label(each.baseline)) for each in result.ledgers),
        gate=result.gate
        and replace(
            result.gate,
            cells=tuple(
                replace(each, arm=label(each.arm), baseline=each.baseline and label(each.baseline))
                for each in result.gate.cells
            ),
        ),
    )


def baselines(result: Result) -> list[str]:
    """The arms that others, not their copies, are held against, in their order."""
    held = {arm.against for arm in result.arms}
    return [arm.name for arm in result.arms if arm.name in held]


def differences_text(arm: ArmResult, most: int | None = None) -> str:
    """``PostgreSQL 17.6 instead of PostgreSQL 15.14; jit on instead of off``; empty of an arm that differs in its environment
    alone. ``most``: so many of them, and how many more there are."""
    shown = arm.differences[:most]
    parts = [f"{_prefix(each)}{each.value or NOT_SET} instead of {each.baseline or NOT_SET}" for each in shown]
    if more := len(arm.differences) - len(shown):
        parts.append(f"and {more} more")
    return "; ".join(parts)


NOT_SET = "the default"


def _prefix(difference: ArmDifference) -> str:
    return "" if difference.part in ("server", "image") and difference.name != "C library" else f"{difference.title} "


def engine_title(result: Result) -> str:
    """The engine as it calls itself; of unlike engines all of them."""
    return ", ".join(str(each.get("title", "")) for each in _described(result, "engines").values())


def workload_title(result: Result) -> str:
    """What the workload is called."""
    return str(_described(result, "workload").get("title", ""))


def _described(result: Result, *path: str) -> Json:
    """A description in the facts of a run (`model.description`); {} of a result that holds none."""
    found = result.facts.get("descriptions", {})
    for name in path:
        found = found.get(name, {})
    return dict(found)


NEIGHBOURS = {
    "none": "at rest",
    "idle": "idles",
    "processor": "computes",
    "memory_bandwidth": "copies memory",
    "cache": "sweeps the cache",
    "fsync": "syncs small writes",
    "page_cache": "evicts pages",
    "connections": "opens sessions",
    "vacuum": "rewrites its tables",
    "load_x1": "under the others' load",
    "load_x2": "under twice the others' load",
    "load_x4": "under 4 times the others' load",
    "load_x8": "under 8 times the others' load",
    "server_killed": "loses its server",
    "machine_killed": "loses its machine",
    "disk_full": "fills its disk",
}
"""Level of the factor ``neighbour`` -> what that does."""

LEVELS = {
    **{("neighbour", level): f"the neighbour {text}" for level, text in NEIGHBOURS.items()},
    ("connection", "persistent"): "one connection",
    ("connection", "per_statement"): "a connection per statement",
    ("connection", "per_visit"): "a new connection for a few runs",
    ("cache", "warm"): "warm",
    ("cache", "cold"): "cold",
    ("placement", "inside"): "the driver inside",
    ("placement", "outside"): "the driver outside",
    ("foreign_keys", "no"): "no foreign keys",
    ("foreign_keys", "yes"): "foreign keys",
    ("interaction", "statement"): "a round trip per statement",
    ("interaction", "pipelined"): "pipelined",
    ("interaction", "procedure"): "procedures",
    ("isolation", "read_committed"): "read committed",
    ("isolation", "repeatable_read"): "repeatable read",
    ("isolation", "serializable"): "serializable",
    ("durability", "device"): "commits on the device",
    ("durability", "os_cache"): "commits in the system's memory",
    ("durability", "server_buffer"): "commits in the server's memory",
    ("query_protocol", "simple"): "simple protocol",
    ("query_protocol", "extended"): "extended protocol",
    ("query_protocol", "prepared"): "prepared statements",
}


def levels_text(levels: Mapping[str, str], varied: Iterable[str] | None = None) -> str:
    """``warm, one connection``; only the factors in ``varied`` (all if None). Empty if there are none."""
    return ", ".join(level_text(f, level) for f, level in levels.items() if varied is None or f in varied)


def level_text(factor: str, level: str) -> str:
    """``1 thread``, ``a connection per statement``; with the factor's name where the level says nothing by itself."""
    if factor == THREADS and level.isdecimal():
        return plural(int(level), "thread")
    return LEVELS.get((factor, level), f"{factor.replace('_', ' ')} {level.replace('_', ' ')}")


_ESTIMANDS = {
    "geomean": "geometric mean of all queries",
    "geomean_same_plans": "geometric mean of the queries with the same plans",
    "ratio_of_totals": "total of all queries",
}


def estimand_text(estimand: str, metric: str = "run_time") -> str:
    """``query:Q9`` is "Q9", ``geomean`` is "geometric mean of all queries"; of transactions all of them together."""
    if estimand == "geomean" and is_throughput(metric):
        return "all transactions"
    text = _ESTIMANDS.get(estimand) or estimand.removeprefix("query:")
    asked = "transactions" if metric.startswith("response_p") else "probes" if metric == "event_time" else "queries"
    return text.replace("queries", asked)


def query_of(estimand: str) -> str | None:
    """The query of a per-query estimand, None for those over all queries."""
    return estimand.removeprefix("query:") if estimand.startswith("query:") else None


def metric_text(metric: str) -> str:
    """What is shown of a metric: ``run_time`` is "run time", of ``time_per_transaction`` it is "throughput" (`Effect`)."""
    if metric.startswith("run_time_"):
        return f"run {metric.removeprefix('run_time_')} on a new connection"
    if metric.startswith("response_p"):
        percentile = metric.removeprefix("response_p")
        return "median response time" if percentile == "50" else f"response time, {percentile}th percentile"
    names = {
        "run_time": "run time", "connect_time": "time to connect", "event_time": "cost of an event",
        TIME_PER_TRANSACTION: "throughput",
        TIME_PER_TRANSACTION_LEAST: "throughput of its least unit",
    }  # fmt: skip
    return names.get(metric, metric.replace("_", " "))


def check_text(check: str) -> str:
    """A check's name for people."""
    described = CATALOG.get(check)
    return described.title if described else check.replace("_", " ")


def transaction_text(name: str) -> str:
    """``new_order`` is "new order"."""
    return name.replace("_", " ")


def causes(counts: Mapping[str, int]) -> str:
    """``29 (conflict 27, deadlock 2)``, the most frequent first; ``0`` if there are none."""
    named = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{cause.replace('_', ' ')} {count(many)}" for cause, many in named)
    return f"{count(sum(counts.values()))} ({listed})" if listed else "0"


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts Q2 before Q10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]


def family(item: str) -> str:
    """Items of a ledger that are of one kind have one beginning: ``page faults: new pages``."""
    return item.partition(":")[0]
