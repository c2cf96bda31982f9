"""How much of an arm's overhead the explained ledger explains, on real runs; and that it recovers what was planted.

What nothing explains is a figure of the instrument: it counted too little, or believes in wrong costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dbtoll import defaults
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import LedgerResult, Result
from dbtoll.errors import Invalid
from dbtoll.model.experiment import FEWEST_DRAWS
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.runner import run as runs
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.selfbench.support.quiet_run import Quiet

SUMMARY = "unexplained_fraction: of what arms lose that lose more than a tenth, how much no counted event explains"
OPTIONS = {
    "run": Option("text", None, "folder of an explained run that is there already; else one is measured"),
    "environments": Option("list", [], "stacks beside native, joined by +; by default all that are here"),
    "engine": Option("text", defaults.ENGINE, "of which"),
    "workload": Option("text", "tpch", "what is explained", ("tpch", "tpcc")),
    "scale": Option("number", 0.05, "scale factor of TPC-H"),
    "queries": Option("list", "all", "queries, joined by +"),
    "connection": Option("list", ["persistent", "per_statement"], "levels of that factor"),
    "budget": Option("duration", 40 * 60 * 10**9, "of measuring"),
    "runs": Option("text", "runs", "where the run folder is made"),
}

WORTH_EXPLAINING = 0.1
"""An overhead below it is within what two starts differ by."""

PLANTED = """
question = "Is what was planted recovered?"
baseline = "native"
explain = true
[engine]
name = "noop"
[workload]
name = "tpch"
[precision]
budget = "60s"
rounds_max = 8
[[arm]]
name = "native"
stack = "simulated:fault_ns=500,call_ns=100,round_trip_ns=6000"
[[arm]]
name = "planted"
stack = "simulated:fault_ns=5000,call_ns=1100,round_trip_ns=60000,slowdown=1.2"
"""
PLANTED_COSTS = {
    "page faults: new pages": (5000.0, 500.0),
    "page faults: shared memory written": (5000.0, 500.0),
    "other system calls": (1100.0, 100.0),
    "round trips": (60000.0, 6000.0),
    "user mode: instructions": (1.2, 1.0),
}
"""What one of each costs there, and in the baseline."""

BOUNDS = {
    "unexplained_fraction": Bound(max=0.2),
    "planted_error": Bound(max=0.05),
    "rounds_least": Bound(min=FEWEST_DRAWS),
}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """The worst arm's fraction, each arm's own with its interval, and the worst error of a planted item."""
    result = explained(options, say)
    planted = planted_errors(results.analyze(_measured(PLANTED, options, say)))
    ledgers = [each for each in result.ledgers if is_worth_explaining(each) and not is_copy(result, each.arm)]
    found = {named(each): each.unexplained_fraction for each in ledgers}
    worst = max((each.estimate for each in found.values() if each is not None), default=None)
    figures = {
        "unexplained_fraction": worst,
        "arms": {name: None if each is None else [each.low, each.estimate, each.high] for name, each in found.items()},
        "planted_error": max(planted.values()),
        "rounds_least": min((each.rounds for each in ledgers), default=None),
    }
    told: Json = {
        "run": result.run,
        "host": result.facts.get("host"),
        "overheads": {f"{each.arm} {each.levels}": relative(each) for each in result.ledgers},
        "planted": planted,
    }
    return Certificate("ledger", figures, BOUNDS, told)


def explained(options: Mapping[str, Any], say: Say) -> Result:
    """Of the run that was named, or of one that is measured now over the environments that are here."""
    if options["run"]:
        return results.analyze(Path(options["run"]))
    stacks, _ = available.present(options["environments"], say, variants=True)
    asked = [f'[[arm]]\nname = "{name}"\nstack = "{name}"\n' for name in stacks]
    queries = options["queries"]
    profile = PROFILES[options["workload"]]
    workload = WORKLOADS[options["workload"]].format(
        scale=options["scale"],
        queries="" if queries == "all" else f"queries = {[str(query) for query in queries]}",
        connection=[str(level) for level in options["connection"]],
    )
    engine = f'name = "{options["engine"]}"\n' + (
        f'profile = "{profile}"' if profile in available.profiles(options["engine"]) else ""
    )
    text = SPEC.format(engine=engine, workload=workload, budget=options["budget"] // 10**9, arms="\n".join(asked))
    return results.analyze(_measured(text, options, say))


SPEC = """
question = "Why does each arm lose?"
baseline = "native"
explain = true
[engine]
{engine}
{workload}
[resources]
cpus = 1
memory = "2 GiB"
[precision]
budget = "{budget}s"
{arms}
"""
PROFILES = {"tpch": "serial", "tpcc": "modern"}
"""Of the engine's settings, where it has any."""
WORKLOADS = {
    "tpch": """
[workload]
name = "tpch"
scale = {scale}
indexes = "dates"
{queries}
[factors]
connection = {connection}
""",
    # One terminal: what a transaction takes is what its events take, one after the other.
    "tpcc": """
[workload]
name = "tpcc"
warehouses = 1
terminals = 1
ramp_up = "1s"
window = "5s"
[factors]
interaction = ["statement"]
""",
}


def is_worth_explaining(ledger: LedgerResult) -> bool:
    """Whether a bound is asked of it: this is decided by what was measured."""
    return relative(ledger) > WORTH_EXPLAINING


def relative(ledger: LedgerResult) -> float:
    """What the arm loses over all queries, a fraction of the baseline's total."""
    totals = [query.overhead.ns / query.measured for query in ledger.queries if query.measured]
    return ledger.overhead.ns / sum(totals) if totals else 0.0


def named(ledger: LedgerResult) -> str:
    """The arm with the level that may vary."""
    level = ledger.levels.get("connection") or ledger.levels.get("interaction", "")
    return f"{ledger.arm} ({level})"


def planted_errors(result: Result) -> dict[str, float]:
    """Item -> how far what was booked lies from the truth, as a fraction of it."""
    ledger = next((each for each in result.ledgers if each.arm == "planted"), None)
    if ledger is None:
        raise Invalid("the simulated world was not explained", "report this as a defect")
    return dict(_errors(ledger))


def _errors(ledger: LedgerResult) -> Iterator[tuple[str, float]]:
    booked = {entry.amount.name: entry for entry in ledger.items}
    for name, (cost, baseline_cost) in PLANTED_COSTS.items():
        entry = booked[name]
        truth = entry.count * cost - entry.baseline_count * baseline_cost
        yield name, abs(entry.amount.ns / truth - 1)
    yield "unexplained", abs(ledger.unexplained.ns / ledger.overhead.ns)


def is_copy(result: Result, arm: str) -> bool:
    """Whether an arm is the baseline's second copy."""
    return any(each.is_aa and each.arm == arm for each in result.comparisons)


def _measured(text: str, options: Mapping[str, Any], say: Say) -> Path:
    return runs.begin_part(experiment(text), text, Path(options["runs"]), Quiet(say)).folder
