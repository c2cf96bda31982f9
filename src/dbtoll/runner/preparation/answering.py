"""What a server answers to statements, every row kept: to check the answers of all arms against."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dbtoll import registry
from dbtoll.defaults import BASELINE
from dbtoll.errors import EngineError
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.workload import Workload
from dbtoll.model.experiment import Arm, ComponentSpec, Configuration, Experiment, Step
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, ServerPlace
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.plan import Plan
from dbtoll.runner.arms import HostContext, open_stack
from dbtoll.runner.preparation.data import Copies, masters_of
from dbtoll.runner.rounds import Watch, understood

FILE = "answers.json"

Rows = tuple[tuple[str | None, ...], ...]


def answered(
    context: HostContext,
    experiment: Experiment,
    engine: Engine,
    arm: Arm,
    fresh_data: Callable[[Arm], tuple[Artifact, ...]] | None,
    drop_data: Callable[[Arm], None],
    statements: Sequence[Mapping[str, Statement]],
) -> list[dict[str, Rows]]:
    """One start of ``arm`` that answers every statement once. EngineError for one that it does not answer."""
    answers: list[dict[str, Rows]] = []
    with ExitStack() as stack:
        alone = replace(arm, layout=arm.layout.in_server)
        data = fresh_data(alone)[0] if fresh_data else None
        stack.callback(drop_data, alone)
        machine = open_stack(context, alone, data, stack)
        server = engine.start(machine, ServerPlace(), engine.settings(arm.configuration.resources))
        stack.callback(engine.stop, machine, server)
        session = machine.serial(server.address, connection="persistent")
        stack.callback(session.close)
        for some in statements:
            answers.append({})
            for query, statement in some.items():
                reply = session.visit(
                    [statement],
                    query_protocol=experiment.factors["query_protocol"][0],
                    timing=experiment.visit_timing,
                    answers={},
                    lead_in=False,
                    repeat=False,
                    keep_rows=True,
                ).result()
                if not reply.executions:
                    raise EngineError(f"{query}: {arm.name} answers nothing", "see whether its server works")
                execution = reply.executions[0]
                if execution.outcome != "ok" or execution.result is None:
                    said = (execution.error or {}).get("message", execution.outcome)
                    raise EngineError(f"{query} fails in {arm.name}: {said}", "fix the statement, then run again")
                answers[-1][query] = tuple(tuple(row) for row in execution.result)
    return answers


def of_another_engine(
    name: str,
    context: HostContext,
    experiment: Experiment,
    configuration: Configuration,
    workload: Workload,
    plan: Plan,
    cache: Cache,
    watch: Watch,
) -> list[Mapping[str, AnswerReference]]:
    """What the engine ``name`` answers to the same questions, in its own words, in an arm of the baseline's environment; by
    parameter set. None where the workload's questions have no answer of another engine. Kept in the cache, as its data are."""
    columns = {query: workload.answer_columns(query) for query in workload.queries}
    if None in columns.values():
        return [{} for _ in range(experiment.parameter_sets)]
    other: Engine = registry.find("engines", name)({})
    asked = replace(experiment, factors={**experiment.factors, "query_protocol": ("simple",)})
    arm = Arm(f"answers of {name}", (Step(BASELINE),), configuration=replace(configuration, engine=ComponentSpec(name)))
    masters, _, dataset = masters_of(cache, [arm], context, other, workload, watch)
    statements = [
        workload.statements(other.sql, plan.parameter_seed(number)) for number in range(experiment.parameter_sets)
    ]

    def ask(content: Path) -> Json:
        copies = Copies(masters, context)
        watch.say(f"answers of {other.description.title} to {len(statements)} sets of parameters")
        with understood(f"the {other.description.title} that answers"):
            found = answered(context, asked, other, arm, copies.make, copies.drop, statements)
        (content / FILE).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        return {}

    texts = [{query: each.text for query, each in some.items()} for some in statements]
    recipe: Json = {"dataset": dataset["key"], "engine": name, "statements": texts}
    entry = cache.obtain("answers", recipe, ask, estimate_bytes=1 << 20, progress=watch.say)
    kept = json.loads((entry.content / FILE).read_bytes())
    return [
        {
            query: AnswerReference(columns[query] or (), tuple(tuple(row) for row in rows))
            for query, rows in some.items()
        }
        for some in kept
    ]
