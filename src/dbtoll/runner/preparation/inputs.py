"""What is made once before the first round: image, dataset, reference answers, and the pilot that sizes the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dbtoll import defaults, facts, registry
from dbtoll.images import debian
from dbtoll.images.cache import Cache, scratch
from dbtoll.interfaces.engine import Engine, SettingIgnoringEngine, ThreadedEngine
from dbtoll.interfaces.environment import RunScopedEnvironment
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine, RemoteMachine
from dbtoll.interfaces.workload import ProbeWorkload, TransactionWorkload, Workload
from dbtoll.machines.arm_device import mounts_for_all
from dbtoll.machines.control_group import through_agent
from dbtoll.model.description import Descriptions
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import Arm, Configuration, Experiment
from dbtoll.model.json import Json
from dbtoll.model.machine import MachineSpec
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.plan import Plan
from dbtoll.runner.arm_devices import ArmDevices, Room
from dbtoll.runner.arms import HostContext, boots, environment_of, machine_name
from dbtoll.runner.hosts import RemoteHosts
from dbtoll.runner.preparation.answering import of_another_engine
from dbtoll.runner.preparation.data import (
    Copies,
    Masters,
    Sizes,
    demand_devices,
    demand_directories,
    demand_room,
    for_guests,
    masters_of,
)
from dbtoll.runner.preparation.disk_models import probed_models
from dbtoll.runner.preparation.driver_calibration import driver_alone
from dbtoll.runner.preparation.requirements import program_for, simulated
from dbtoll.runner.preparation.software import system_image
from dbtoll.runner.rounds import ArmInputs, Inputs, Watch
from dbtoll.secretive import without_secrets

COLLECTORS = ("processes", "machine", "events", "blocks", "faults", "calls", "samples")
BESIDE_SESSIONS = ("blocks",)
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
    """Image, dataset, references, for each configuration. Each is in the cache or is made now, and what is made is said."""
    run_facts: Json = {
        "host": facts.host(host),
        "agent": facts.agent(host),
        "code_sha256": facts.code_sha256(),
        "cpuset": list(cpuset),
    }
    context = HostContext(
        host, None, cpuset, journal, folder.name, copies=str(scratch() / folder.name), remotes=remotes
    )
    demand_devices(experiment.arms, context)
    demand_directories(experiment.arms, context)
    steps = {repr(arm.stack[0]): arm.stack[0] for arm in experiment.arms if not simulated(arm.stack[-1])}
    made = {key: program_for(Cache(), host, step, watch.say) for key, step in steps.items()}
    context = replace(context, programs={key: found[0] for key, found in made.items() if found})
    by_arm: dict[str, ArmInputs] = {}
    told: list[Json] = []
    rooms: list[tuple[Arm, Room]] = []
    for configuration, names in experiment.configurations:
        made_of = _Configured(experiment, configuration, [experiment.arm(name) for name in names], context, watch)
        own = made_of.inputs(run_facts)
        by_arm |= dict.fromkeys(names, own)
        told.append({"arms": list(names), **made_of.facts})
        rooms += made_of.rooms
    demand_room(rooms, context)
    if models := probed_models([arm for arm, _ in rooms], context, watch):
        run_facts["disk_models"] = models
    workload = by_arm[experiment.baseline].workload
    run_facts |= {
        "configurations": told,
        "descriptions": descriptions(experiment, [own.engine for own in by_arm.values()], workload),
        "packages": packages(experiment),
    }
    probing, probes = (
        (workload, workload.queries) if isinstance(workload, ProbeWorkload) else (None, experiment.explain)
    )
    if experiment.explain:
        probing = registry.find("workloads", defaults.PROBES)({"probes": list(dict.fromkeys(experiment.explain))})
    if probing is not None:
        run_facts["probes"] = {query: probing.about(query) for query in probes}
    collected = COLLECTORS if experiment.explain else BESIDE_SESSIONS if experiment.sessions else ()
    inputs = Inputs(
        experiment=experiment,
        by_arm=by_arm,
        collectors=[registry.find("collectors", name)() for name in collected],
        probing=probing,
    )
    return Prepared(context, inputs, workload.queries, without_secrets(run_facts))


class _Configured:
    """What is made for the ``arms`` of one configuration; ``facts``: what is to be known of it; ``rooms``: what its arms' devices
    need."""

    def __init__(
        self,
        experiment: Experiment,
        configuration: Configuration,
        arms: Sequence[Arm],
        context: HostContext,
        watch: Watch,
    ) -> None:
        self.experiment, self.configuration, self.arms, self.watch = experiment, configuration, arms, watch
        self.context = context
        self.engine: Engine = registry.find("engines", configuration.engine.name)(configuration.engine.options)
        self.workload: Workload = registry.find("workloads", configuration.workload.name)(
            configuration.workload.options
        )
        self.rooms: list[tuple[Arm, Room]] = []
        self.settings = self.engine.settings(configuration.resources)
        if experiment.fewest_threads is not None and isinstance(self.engine, ThreadedEngine):
            self.settings |= self.engine.settings_of_threads(experiment.fewest_threads)
        self.facts: Json = {
            "engine": configuration.engine.name,
            "checked_by": self.engine.checked_by,
            "settings": dict(self.settings),
        }

    def inputs(self, run_facts: Json) -> ArmInputs:
        """All of it. ``run_facts`` get the kernel, and the other hosts, if there are any."""
        engine, workload, watch, cache = self.engine, self.workload, self.watch, Cache()
        if isinstance(engine, SettingIgnoringEngine) and engine.ignored_settings:
            watch.say(f"of your settings these are the arms' own to say: {', '.join(sorted(engine.ignored_settings))}")
            self.facts["ignored_settings"] = sorted(engine.ignored_settings)
        masters: Masters = {}
        sizes: Sizes = {}
        if not all(simulated(arm.stack[-1]) for arm in self.arms):
            self._make_image(cache, run_facts)
            if engine.keeps_data:  # a simulated arm has no files
                masters, sizes, self.facts["dataset"] = masters_of(
                    cache, self.arms, self.context, engine, workload, watch
                )
            if isinstance(workload, TransactionWorkload):
                watch.say("what the driver costs by itself")
                resources = self.configuration.resources
                self.facts["driver"] = driver_alone(self.context, self.experiment, resources, workload)
        statements, answers = self._questions(cache)
        fresh = Copies(masters, self.context, sizes) if masters else None
        if fresh is not None and self.configuration.devices.all:
            self.rooms = [(arm, fresh.room(arm)) for arm in self.arms]
        if others := _sent(self.arms, self.context, fresh, watch):
            run_facts["remote_hosts"] = {**run_facts.get("remote_hosts", {}), **others}
        return ArmInputs(
            context=self.context,
            engine=engine,
            workload=workload,
            settings=self.settings,
            statements=statements,
            answers=answers,
            fresh_data=fresh.make if fresh else None,
            drop_data=fresh.drop if fresh else lambda arm: None,
            devices=fresh.devices if fresh else lambda arm, closing: ArmDevices(),
        )

    def _make_image(self, cache: Cache, run_facts: Json) -> None:
        """The system image, and what it becomes for guests."""
        chosen = self.configuration.image
        if chosen.get("path"):
            self.watch.say(
                "the image's programs run here, in native arms with your rights: take images from people whom you trust"
            )
        image, image_facts = system_image(cache, self.configuration, self.engine, self.watch.say)
        self.facts["image"] = {"key": image.key, **image_facts}
        suite = chosen.get("suite", debian.SUITE)
        guests = for_guests(cache, self.arms, image, suite, run_facts, self.watch)
        self.context = replace(self.context, image=image, **guests)

    def _questions(self, cache: Cache) -> tuple[list[dict[str, Statement]], Sequence[Mapping[str, AnswerReference]]]:
        """Statements and their answers, by parameter set."""
        engine, workload, experiment = self.engine, self.workload, self.experiment
        plan = Plan(experiment, workload.queries, 1, {})
        statements = [
            workload.statements(engine.sql, plan.parameter_seed(number)) for number in range(experiment.parameter_sets)
        ]
        if not engine.returns_rows or isinstance(workload, TransactionWorkload):
            return statements, [{} for _ in statements]
        self.watch.say(f"reference answers of an independent engine for {len(statements)} sets of parameters")
        if engine.checked_by is None or self.context.image is None:
            host = self.context.host
            return statements, references(workload, engine.sql, host, statements, cache, self.watch.say)
        return statements, of_another_engine(
            engine.checked_by, self.context, experiment, self.configuration, workload, plan, cache, self.watch
        )


def _sent(arms: Sequence[Arm], context: HostContext, fresh: Copies | None, watch: Watch) -> Json:
    """What is dear to send is sent once, before any start waits for it. By arm: what its host is, where that is another one."""
    found: Json = {}
    for arm in arms:
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


def descriptions(experiment: Experiment, engines: Sequence[Engine], workload: Workload) -> Json:
    """`model.description.Descriptions` of an experiment, as its facts hold them."""
    steps = {step.environment: step for arm in experiment.arms for step in arm.stack}
    environments = {name: environment_of(step).description for name, step in sorted(steps.items())}
    described = Descriptions({each.name: each.description for each in engines}, workload.description, environments)
    return dict(msgspec.json.decode(msgspec.json.encode(described)))


def packages(experiment: Experiment) -> Json:
    """What of an experiment other packages bring: ``environments NAME`` and so on -> package and version."""
    used = {("environments", step.environment) for arm in experiment.arms for step in arm.stack}
    used |= {("engines", each.engine.name) for each, _ in experiment.configurations}
    used.add(("workloads", experiment.configuration.workload.name))
    brought = {f"{family} {name}": registry.package_of(family, name) for family, name in sorted(used)}
    return {what: package for what, package in brought.items() if package}


@contextmanager
def run_scoped_resources(prepared: Prepared) -> Iterator[None]:
    """What the arms' outermost environments share for the whole run (`interfaces.environment.RunScopedEnvironment`)."""
    experiment = prepared.inputs.experiment
    with ExitStack() as stack:
        hosts: dict[str, HostContext] = {}
        for arm in experiment.arms:
            if arm.configuration.devices.all:
                context = prepared.context.at(arm)
                hosts.setdefault(context.host.name, context)
        for context in hosts.values():  # before any daemon begins that is to see them
            stack.enter_context(mounts_for_all(through_agent(context.host), context.copies, context.journal))
        for arm in experiment.arms:
            context = prepared.inputs.by_arm[arm.name].context
            environment = environment_of(arm.stack[0])
            if isinstance(environment, RunScopedEnvironment) and arm.copy_of is None:
                machine_spec = MachineSpec(
                    name=machine_name(context.run_id, arm.name, 0),
                    run_id=context.run_id,
                    arm=arm.name,
                    image=context.image,
                    provisions=(),
                    resources=arm.configuration.resources,
                    cpuset=context.cpuset[-arm.configuration.resources.cpus :],
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
