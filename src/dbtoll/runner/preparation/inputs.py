"""What is made once before the first round: image, dataset, reference answers, and the pilot that sizes the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dbtoll import defaults, facts, registry
from dbtoll.errors import UsageError
from dbtoll.images.cache import Cache, scratch
from dbtoll.interfaces.engine import DurabilityEngine, Engine, SettingIgnoringEngine
from dbtoll.interfaces.environment import RunScopedEnvironment
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine, RemoteMachine
from dbtoll.interfaces.workload import ProbeWorkload, TransactionWorkload, Workload
from dbtoll.model.description import Descriptions
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.plan import Plan
from dbtoll.runner.arms import HostContext, boots, environment_of, machine_name
from dbtoll.runner.hosts import RemoteHosts
from dbtoll.runner.preparation.answering import of_another_engine
from dbtoll.runner.preparation.data import Copies, for_guests, masters_of
from dbtoll.runner.preparation.driver_calibration import driver_alone
from dbtoll.runner.preparation.requirements import program_for, simulated
from dbtoll.runner.preparation.software import system_image
from dbtoll.runner.rounds import Inputs, Watch
from dbtoll.secretive import without_secrets

COLLECTORS = ("processes", "machine", "events", "blocks", "faults", "calls", "samples")
"""What is counted to explain."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything a round needs, and the facts of the run."""

    context: HostContext
    inputs: Inputs
    queries: tuple[str, ...]
    facts: Json


def prepare(
    experiment: Experiment,
    host: Machine,
    cpuset: tuple[int, ...],
    folder: Path,
    journal: Journal,
    watch: Watch,
    remotes: RemoteHosts,
) -> Prepared:
    """Image, dataset, references. Each is in the cache or is made now, and what is made is said."""
    engine: Engine = registry.find("engines", experiment.engine.name)(experiment.engine.options)
    workload: Workload = registry.find("workloads", experiment.workload.name)(experiment.workload.options)
    cache = Cache()
    run_facts: Json = {
        "host": facts.host(host),
        "agent": facts.agent(host),
        "code_sha256": facts.code_sha256(),
    }
    image: Artifact | None = None
    if not all(simulated(arm.stack[-1]) for arm in experiment.arms):
        if experiment.image.get("path"):
            watch.say(
                "the image's programs run here, in native arms with your rights: take images from people whom you trust"
            )
        image, image_facts = system_image(cache, experiment, engine, watch.say)
        run_facts["image"] = {"key": image.key, **image_facts}
    context = HostContext(
        host, image, cpuset, journal, folder.name, copies=str(scratch() / folder.name), remotes=remotes
    )
    if image is not None:
        context = replace(context, **for_guests(cache, experiment, image, run_facts, watch))
        steps = {repr(arm.stack[0]): arm.stack[0] for arm in experiment.arms}
        made = {key: program_for(cache, host, step, watch.say) for key, step in steps.items()}
        context = replace(context, programs={key: found[0] for key, found in made.items() if found})
    masters: dict[str, Artifact] = {}
    if engine.keeps_data and image is not None:  # a simulated arm has no files
        masters, run_facts["dataset"] = masters_of(cache, experiment, context, engine, workload, watch)
    settings = engine.settings(experiment.resources)
    run_facts |= {
        "engine": experiment.engine.name,
        "checked_by": engine.checked_by,
        "settings": dict(settings),
        "cpuset": list(cpuset),
    }
    run_facts |= {"descriptions": descriptions(experiment, engine, workload), "packages": packages(experiment)}
    if isinstance(workload, TransactionWorkload):
        _require_free(engine, settings)
        if image is not None:
            watch.say("what the driver costs by itself")
            run_facts["driver"] = driver_alone(context, experiment, workload)
    probing, probes = (
        (workload, workload.queries) if isinstance(workload, ProbeWorkload) else (None, experiment.explain)
    )
    if experiment.explain:
        probing = registry.find("workloads", defaults.PROBES)({"probes": list(dict.fromkeys(experiment.explain))})
    if probing is not None:
        run_facts["probes"] = {query: probing.about(query) for query in probes}
    if isinstance(engine, SettingIgnoringEngine) and engine.ignored_settings:
        watch.say(f"of your settings these are the arms' own to say: {', '.join(sorted(engine.ignored_settings))}")
        run_facts["ignored_settings"] = sorted(engine.ignored_settings)
    plan = Plan(experiment, workload.queries, 1, {})
    statements = [
        workload.statements(engine.sql, plan.parameter_seed(number)) for number in range(experiment.parameter_sets)
    ]
    answers: list[Mapping[str, AnswerReference]] = [{} for _ in statements]
    if engine.returns_rows and not isinstance(workload, TransactionWorkload):
        watch.say(f"reference answers of an independent engine for {len(statements)} sets of parameters")
        answers = (
            references(workload, engine.sql, host, statements, cache, watch.say)
            if engine.checked_by is None or image is None
            else of_another_engine(engine.checked_by, context, experiment, workload, plan, cache, watch)
        )
    fresh = Copies(masters, context) if masters else None
    if others := _sent(experiment, context, fresh, watch):
        run_facts["remote_hosts"] = others
    inputs = Inputs(
        experiment=experiment,
        engine=engine,
        workload=workload,
        settings=settings,
        statements=statements,
        answers=answers,
        fresh_data=fresh.make if fresh else None,
        drop_data=fresh.drop if fresh else lambda arm: None,
        collectors=[registry.find("collectors", name)() for name in COLLECTORS] if experiment.explain else (),
        probing=probing,
    )
    return Prepared(context, inputs, workload.queries, without_secrets(run_facts))


def _sent(experiment: Experiment, context: HostContext, fresh: Copies | None, watch: Watch) -> Json:
    """What is dear to send is sent once, before any start waits for it. By arm: what its host is, where that is another one."""
    found: Json = {}
    for arm in experiment.arms:
        there = context.at(arm).host
        if there is context.host:
            continue
        watch.say(f"image and data for {arm.name} are sent to {there.name}, unless they are there")
        if context.image is not None and not any(boots(step) for step in arm.stack):
            there.provide(context.image)
        if fresh is not None:
            there.provide(fresh.master(arm))
        told = there.told if isinstance(there, RemoteMachine) else {}
        found[arm.name] = {**facts.host(there), **told}
    return found


def descriptions(experiment: Experiment, engine: Engine, workload: Workload) -> Json:
    """`model.description.Descriptions` of an experiment, as its facts hold them."""
    steps = {step.environment: step for arm in experiment.arms for step in arm.stack}
    environments = {name: environment_of(step).description for name, step in sorted(steps.items())}
    described = Descriptions(engine.description, workload.description, environments)
    return dict(msgspec.json.decode(msgspec.json.encode(described)))


def packages(experiment: Experiment) -> Json:
    """What of an experiment other packages bring: ``environments NAME`` and so on -> package and version."""
    used = {("environments", step.environment) for arm in experiment.arms for step in arm.stack}
    used |= {("engines", experiment.engine.name), ("workloads", experiment.workload.name)}
    brought = {f"{family} {name}": registry.package_of(family, name) for family, name in sorted(used)}
    return {what: package for what, package in brought.items() if package}


def _require_free(engine: Engine, settings: Mapping[str, str]) -> None:
    """UsageError if a setting says what the factors of transactions are to say."""
    if isinstance(engine, DurabilityEngine) and (taken := sorted(engine.decided & settings.keys())):
        raise UsageError(
            f"with transactions the factors decide on {', '.join(taken)}",
            'leave the setting out and say it so: durability = ["device"], ["os_cache"] or ["server_buffer"] under [factors]',
        )


@contextmanager
def run_scoped_resources(prepared: Prepared) -> Iterator[None]:
    """What the arms' outermost environments share for the whole run (`interfaces.environment.RunScopedEnvironment`)."""
    context, experiment = prepared.context, prepared.inputs.experiment
    with ExitStack() as stack:
        for arm in experiment.arms:
            environment = environment_of(arm.stack[0])
            if isinstance(environment, RunScopedEnvironment) and arm.copy_of is None:
                machine_spec = MachineSpec(
                    name=machine_name(context.run_id, arm.name, 0),
                    run_id=context.run_id,
                    arm=arm.name,
                    image=context.image,
                    provisions=(),
                    resources=experiment.resources,
                    cpuset=context.cpuset,
                    options=dict(arm.stack[0].options),
                    program=context.program_of(arm.stack[0]),
                )
                stack.enter_context(environment.for_run(context.host, machine_spec, context.journal))
        yield


def references(
    workload: Workload,
    sql: Dialect,
    host: Machine,
    statements: Sequence[Mapping[str, Statement]],
    cache: Cache,
    say: Callable[[str], None],
) -> list[Mapping[str, AnswerReference]]:
    """By parameter set and query; asked in one go, so that the independent engine opens its data once. As exact as ``sql`` can
    answer: one unit of the last digit of a quotient."""
    asked = {f"{number} {query}": each for number, one in enumerate(statements) for query, each in one.items()}
    found = workload.references(host, asked, cache, say)
    if sql.quotient_places is not None:
        found = {name: replace(each, absolute_tolerance=10.0**-sql.quotient_places) for name, each in found.items()}
    return [
        {query: found[f"{number} {query}"] for query in one if f"{number} {query}" in found}
        for number, one in enumerate(statements)
    ]
