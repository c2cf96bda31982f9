"""Whether every engine answers every question rightly in every environment: one pass over TPC-H in a fresh start of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll import registry
from dbtoll.errors import UsageError
from dbtoll.interfaces.engine import BULK_ROWS
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.model.plan import Phase, Round
from dbtoll.plan import Plan
from dbtoll.runner.budget import Budget
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.schema import CheckRecord, Record, Start, Timing, Visit

SUMMARY = "answers: of TPC-H's 22 queries by every engine in every environment, `unlike` those of an engine that is not itself"
OPTIONS = {
    "scale": Option("number", 0.1, "scale factor"),
    "engines": Option("list", "all", "which, joined by +; `all` takes every one that holds TPC-H's rows"),
    "environments": available.ENVIRONMENTS,
    "queries": Option("list", "all", "queries, joined by +"),
    "drawn": Option(
        "integer",
        0,
        "how many sets of drawn parameters; 0: the set with which the specification prints its answers",
        least=0,
    ),
    "profile": Option("text", "default", "server settings to begin with, of engines that have profiles of that name"),
    "memory": Option("size", 3 << 30, "of each arm"),
    "timeout": Option("duration", 3600 * 10**9, "of one query"),
}

BOUNDS = {"unlike": Bound(max=0), "unanswered": Bound(max=0), "unchecked": Bound(max=0), "answers": Bound(min=1)}


class OnePass(RoundRun):
    """A round in which every statement is answered once in each arm: no pass goes before that which counts."""

    def warm_up(self, phase: Phase) -> None:
        """Nothing."""
        del phase


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Figures: ``answers`` that were compared; ``unlike`` the reference's; ``unanswered``, because a start or a statement failed or
    took too long; ``unchecked``, for want of a reference; ``without_rows``, of which to be right says little; ``engines``: how many
    were right, by engine and environment.

    Each engine is held against what its runs are held against (`Engine.checked_by`, or DuckDB on the same rows), as exactly: 1e-9
    of a number or, where its quotients are rounded, one unit of their last digit; some texts are trimmed
    (`model.reply.AnswerReference`, `Dialect.quotient_places`).
    """
    engines = answering() if options["engines"] == "all" else list(options["engines"])
    if options["profile"] not in (known := {"default"}.union(*map(available.profiles, engines))):
        raise UsageError(
            f"no engine here has a profile {options['profile']!r}", f"choose from {', '.join(sorted(known))}"
        )
    stacks, missing = available.present(options["environments"], say)
    totals = Counter[str]()
    right: dict[str, dict[str, int]] = {}
    told: Json = {"scale": options["scale"], "missing": missing, "wrong": {}, "servers": {}}
    for name in engines:
        asked = _experiment(name, stacks, options)
        queries, records = _one_pass(asked, say, told)
        right[name] = {}
        totals["without_rows"] += sum(each.rows == 0 for each in executions(records))
        told["servers"][name] = sorted({str(server.get("version")) for server in servers(records)})
        for stack in stacks:
            found = outcomes(queries, asked.parameter_sets, records, stack)
            totals.update(found.values())
            right[name][stack] = Counter(found.values())["ok"]
            say(f"{name} in {stack}: {right[name][stack]} of {len(found)} answers are right")
            if bad := {
                f"{query}, set {number}": outcome for (query, number), outcome in found.items() if outcome != "ok"
            }:
                told["wrong"][f"{name} in {stack}"] = bad
    figures = {
        "answers": totals["ok"] + totals["wrong_answer"],
        "unlike": totals["wrong_answer"],
        "unanswered": totals["unanswered"],
        "unchecked": totals["unchecked"],
        "without_rows": totals["without_rows"],
        "engines": right,
    }
    return Certificate("answers", figures, BOUNDS, told)


def answering() -> list[str]:
    """Names of the engines that can hold TPC-H's rows."""
    return [each.name for each in registry.members("engines") if each.returns_rows and BULK_ROWS in each.offers]


def _experiment(engine: str, stacks: list[str], options: Mapping[str, Any]) -> Experiment:
    sets = options["drawn"]
    workload = {"name": "tpch", "scale": options["scale"], "parameters": "drawn" if sets else "validation"}
    if options["queries"] != "all":
        workload["queries"] = list(options["queries"])
    asked = available.over(
        stacks,
        {"name": engine}
        | ({"profile": options["profile"]} if options["profile"] in available.profiles(engine) else {}),
        workload,
        resources={"cpus": 1, "memory": f"{options['memory']} B"},
        visit={"lead_in": "0s", "measurement_time": "0s", "statement_timeout": f"{options['timeout']}ns"},
    )
    return replace(asked, parameter_sets=max(1, sets))


def _one_pass(asked: Experiment, say: Say, told: Json) -> tuple[tuple[str, ...], list[Record]]:
    """The queries, and what one start of each arm brought."""
    records: list[Record] = []
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), Quiet(say)) as prepared:
        told["host"] = prepared.facts["host"]
        run = OnePass(
            prepared.context,
            prepared.inputs,
            each_set_once(Plan(asked, prepared.queries, asked.parameter_sets, {}).round(0)),
            records.append,
            Quiet(say),
            Budget(inf),
            None,
            seen_plans=set(),
            left_out=frozenset(arm.name for arm in asked.arms if arm.copy_of is not None),
        )
        run.measure()
    return prepared.queries, records


def each_set_once(planned: Round) -> Round:
    """With a block for each set of parameters, in place of a drawn one."""
    return replace(
        planned,
        phases=tuple(
            replace(phase, blocks=tuple(replace(block, parameter_set=block.index) for block in phase.blocks))
            for phase in planned.phases
        ),
    )


def executions(records: Sequence[Record]) -> Iterator[Timing]:
    """Of all arms."""
    for record in records:
        if isinstance(record, Visit):
            yield from (each for unit in record.units for each in unit.executions)


def servers(records: Sequence[Record]) -> Iterator[Json]:
    """What each server that started told."""
    for record in records:
        if isinstance(record, Start):
            yield from record.servers


def outcomes(queries: Sequence[str], sets: int, records: Sequence[Record], arm: str) -> dict[tuple[str, int], str]:
    """(query, number of its set of parameters) -> ok, wrong_answer, unanswered or unchecked."""
    found = dict.fromkeys(product(queries, range(sets)), "unanswered")
    for record in records:
        if isinstance(record, Visit) and record.arm == arm and record.parameter_set is not None:
            seen = {each.outcome for each in executions([record])}
            if "wrong_answer" in seen:
                found[record.query, record.parameter_set] = "wrong_answer"
            elif seen == {"ok"}:
                found[record.query, record.parameter_set] = "ok"
    gates = [
        each.passed
        for each in records
        if isinstance(each, CheckRecord) and each.check == "answers_known" and each.arm == arm
    ]
    if gates != [True]:
        found = {asked: "unchecked" if outcome == "ok" else outcome for asked, outcome in found.items()}
    return found
