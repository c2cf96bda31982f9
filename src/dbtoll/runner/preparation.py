"""What is made once before the first round: image, dataset, reference answers, and the pilot that sizes the rounds."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from dbtoll import facts, registry
from dbtoll.channel.local import open_local
from dbtoll.durable import write_durably
from dbtoll.errors import EngineError, Unavailable, UsageError
from dbtoll.images import dataset, disk, kernel, system
from dbtoll.images.cache import Cache, scratch
from dbtoll.interfaces import (
    Booting,
    Durable,
    Engine,
    Entry,
    Journal,
    Lasting,
    Machine,
    Probing,
    SettingAside,
    Transacting,
    Workload,
)
from dbtoll.model import AnswerReference, Arm, Artifact, Experiment, Json, Lack, Place, Provision, Statement, Step
from dbtoll.plan import Plan
from dbtoll.runner import processors
from dbtoll.runner.arms import DATA, Ground, boots, environment_of, open_stack, packages_inside, place_name
from dbtoll.runner.calibration import driver_alone
from dbtoll.runner.journal import passing
from dbtoll.runner.rounds import Budget, Inputs, RoundRun, Watch, understood
from dbtoll.runner.stop import Stop
from dbtoll.secretive import without_secrets
from dbtoll.store import schema
from dbtoll.store.reader import HISTORY_BYTES_MAX, read_file

ROUNDS_WANTED = 10
"""How many rounds the budget is dealt to, by choosing the blocks of a round: the start is the unit of replication, and
beyond ten the t quantile falls too little to pay for more starts."""

BLOCKS_MAX = 10

SLOW_FACTOR = 3.0
"""An arm that takes so many times the baseline's time for a block of a phase takes part in one block of it: it would take most
of the budget, and where a loss is that large a few per cent more or less of it matter to nobody."""

COLLECTORS = ("processes", "machine", "events", "blocks", "faults", "calls", "samples")
"""What is counted to explain."""

IMAGE_SPARE_BYTES = 64 << 20
"""Nobody writes to the image."""

DATA_SPARE_BYTES = 256 << 20
"""For a write-ahead log and temporary files, at least; else as much as the data."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything a round needs, and the facts of the run."""

    ground: Ground
    inputs: Inputs
    queries: tuple[str, ...]
    facts: Json


@contextmanager
def host_machine(
    experiment: Experiment, say: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Machine, tuple[int, ...]]]:
    """The local host, its agent and this process kept off the arms' processors; and those processors, reserved unless all
    is simulated.

    BIAS: with as many arms' processors as the host has, the rig's own work runs beside the arm; the counters of CPU spent
    outside the arms show how much.
    """
    mine = sorted(os.sched_getaffinity(0))
    wanted = experiment.resources.cpus
    if wanted > len(mine):
        raise Unavailable(
            f"each arm shall have {wanted} processors and there are {len(mine)}",
            f"cpus = {len(mine)} under [resources]",
        )
    arms, rest = tuple(mine[-wanted:]), mine[:-wanted] or mine
    measured = not all(simulated(arm.stack[-1]) for arm in experiment.arms)
    with processors.reserved(arms if measured else (), say):
        os.sched_setaffinity(0, rest)
        try:
            with open_local(cpus=rest) as host:
                yield host, arms
        finally:
            os.sched_setaffinity(0, mine)


def simulated(step: Step) -> bool:
    """Whether that environment only simulates (``fake``): it needs no image and no data."""
    return bool(getattr(registry.find("environments", step.environment), "simulated", False))


def lacks(
    host: Machine,
    arms: Sequence[Arm],
    say: Callable[[str], None] = lambda text: None,
    journal: Journal | None = None,
) -> dict[str, list[Lack]]:
    """Arm name -> what is missing for it; only the outermost environment can be probed from here.

    ``journal``: where the trials note what they make; by default one of their own.
    """
    found: dict[str, list[Lack]] = {}
    probed: dict[str, list[Lack]] = {}
    with passing() if journal is None else nullcontext(journal) as noted:
        for arm in arms:
            key = repr(arm.stack[0])
            if key not in probed:
                step = arm.stack[0]
                probed[key] = environment_of(step).lacks(host, step.options, partial(_probe_kernel, step, say), noted)
            if probed[key]:
                found[arm.name] = probed[key]
    return found


def _probe_kernel(step: Step, say: Callable[[str], None]) -> Artifact | None:
    """Any kernel will do to see whether a guest boots."""
    found = kernel_for(Cache(), step, "bookworm", say)
    return found[0] if found else None


def kernel_for(cache: Cache, step: Step, suite: str, say: Callable[[str], None]) -> tuple[Artifact, Json] | None:
    """The kernel that the step's guests boot, from the cache or made now, and its facts; None where it needs none, or
    brings its own."""
    environment = environment_of(step)
    if not isinstance(environment, Booting) or environment.kernel(step.options) is None:
        return None
    return kernel.debian_kernel(cache, suite, progress=say)


def demand_all(host: Machine, experiment: Experiment, journal: Journal) -> None:
    """Unavailable, naming everything that is missing at once, unless every arm can be opened."""
    missing = lacks(host, experiment.arms, journal=journal)
    if missing:
        unique = {lack.what: lack for arm_lacks in missing.values() for lack in arm_lacks}
        what = "; ".join(f"{lack.what} ({lack.why})" for lack in unique.values())
        raise Unavailable(
            f"this machine cannot run {', '.join(sorted(missing))}: {what}",
            "; ".join(dict.fromkeys(lack.mend for lack in unique.values())),
        )


def prepare(
    experiment: Experiment, host: Machine, cpuset: tuple[int, ...], folder: Path, journal: Journal, watch: Watch
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
        chosen = experiment.image
        if chosen.get("path"):
            watch.say(
                "the image's programs run here, in native arms with your rights: take images from people whom you trust"
            )
        image, image_facts = system.obtain_image(
            cache,
            choice=chosen.get("path"),
            suite=chosen.get("suite", "bookworm"),
            progress=watch.say,
            extra=engine.packages,
        )
        run_facts["image"] = {"key": image.key, **image_facts}
    ground = Ground(host, image, cpuset, journal, folder.name)
    if image is not None:
        ground = replace(ground, **_for_guests(cache, experiment, image, run_facts, watch))
    masters: dict[str, Artifact] = {}
    if engine.keeps_data and image is not None:  # a simulated arm has no files
        masters, run_facts["dataset"] = _dataset(cache, experiment, ground, engine, workload, watch)
    settings = engine.settings(experiment.resources)
    run_facts |= {"engine": experiment.engine.name, "settings": dict(settings), "cpuset": list(cpuset)}
    if isinstance(workload, Transacting):
        _demand_free(engine, settings)
        if image is not None:
            watch.say("what the driver costs by itself")
            run_facts["driver"] = driver_alone(ground, experiment, workload)
    probing, probes = (workload, workload.queries) if isinstance(workload, Probing) else (None, experiment.explain)
    if experiment.explain:
        probing = registry.find("workloads", "probes")({"probes": list(dict.fromkeys(experiment.explain))})
    if probing is not None:
        run_facts["probes"] = {query: probing.about(query) for query in probes}
    if isinstance(engine, SettingAside) and engine.set_aside:
        watch.say(f"of your settings these are the arms' own to say: {', '.join(sorted(engine.set_aside))}")
        run_facts["settings_set_aside"] = sorted(engine.set_aside)
    plan = Plan(experiment, workload.queries, 1, {})
    statements = [
        workload.statements(experiment.engine.name, plan.parameter_seed(number))
        for number in range(experiment.parameter_sets)
    ]
    answers: list[Mapping[str, AnswerReference]] = [{} for _ in statements]
    if engine.answers and not isinstance(workload, Transacting):
        watch.say(f"reference answers of an independent engine for {len(statements)} sets of parameters")
        answers = _references(workload, host, statements, cache, watch)
    fresh = _Copies(scratch() / folder.name, masters, ground, journal) if masters else None
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
    return Prepared(ground, inputs, workload.queries, without_secrets(run_facts))


def _demand_free(engine: Engine, settings: Mapping[str, str]) -> None:
    """UsageError if a setting says what the factors of transactions are to say."""
    if isinstance(engine, Durable) and (taken := sorted(engine.decided & settings.keys())):
        raise UsageError(
            f"with transactions the factors decide on {', '.join(taken)}",
            'leave the setting out and say it so: durability = ["device"], ["system"] or ["server"] under [factors]',
        )


@contextmanager
def kept_up(prepared: Prepared) -> Iterator[None]:
    """What the arms' outermost environments share for the whole run (`interfaces.Lasting`)."""
    ground, experiment = prepared.ground, prepared.inputs.experiment
    with ExitStack() as stack:
        for arm in experiment.arms:
            environment = environment_of(arm.stack[0])
            if isinstance(environment, Lasting) and arm.copy_of is None:
                place = Place(
                    name=place_name(ground.run_id, arm.name, 0),
                    run_id=ground.run_id,
                    arm=arm.name,
                    image=ground.image,
                    provisions=(),
                    resources=experiment.resources,
                    cpuset=ground.cpuset,
                    options=dict(arm.stack[0].options),
                )
                stack.enter_context(environment.for_run(ground.host, place, ground.journal))
        yield


def _references(
    workload: Workload, host: Machine, statements: Sequence[Mapping[str, Statement]], cache: Cache, watch: Watch
) -> list[Mapping[str, AnswerReference]]:
    """By parameter set and query; asked in one go, so that the independent engine opens its data once."""
    asked = {f"{number} {query}": each for number, one in enumerate(statements) for query, each in one.items()}
    found = workload.references(host, asked, cache, watch.say)
    return [
        {query: found[f"{number} {query}"] for query in one if f"{number} {query}" in found}
        for number, one in enumerate(statements)
    ]


def _for_guests(cache: Cache, experiment: Experiment, image: Artifact, run_facts: Json, watch: Watch) -> Json:
    """What those of the arms need that boot: `Ground.disks` and `Ground.kernels`."""
    suite = experiment.image.get("suite", "bookworm")
    disks: dict[tuple[str, ...], Artifact] = {}
    kernels: dict[str, Artifact] = {}
    for arm in experiment.arms:
        for depth, step in enumerate(arm.stack):
            environment = environment_of(step)
            if not isinstance(environment, Booting):
                continue
            for packages in {(), packages_inside(arm, depth)} - set(disks):
                held = image if not packages else system.obtain_image(cache, suite=suite, extra=packages)[0]
                disks[packages], _ = disk.disk_of(cache, held, spare_bytes=IMAGE_SPARE_BYTES, progress=watch.say)
            if (made := kernel_for(cache, step, suite, watch.say)) is not None:
                artifact, kernel_facts = made
                kernels[environment.kernel(step.options) or ""] = artifact
                run_facts["kernel"] = {"key": artifact.key, **kernel_facts}
    return {"disks": disks, "kernels": kernels}


def _dataset(
    cache: Cache, experiment: Experiment, ground: Ground, engine: Engine, workload: Workload, watch: Watch
) -> tuple[dict[str, Artifact], Json]:
    """The masters: the data directory, loaded once in a native arm with every processor that the rig has (`images.dataset`),
    and where an arm needs it the disk that was made of it; by kind of artifact.
    """
    image = ground.image
    assert image is not None
    native = registry.find("environments", "native")()
    cpus = tuple(sorted({*ground.cpuset, *os.sched_getaffinity(0)}))

    def open_machine(provisions: tuple[Provision, ...]) -> Machine:
        name = place_name(ground.run_id, "loader", 0)
        place = Place(name, ground.run_id, "loader", image, provisions, experiment.resources, cpus)
        machine: Machine = native.open(ground.host, place, ground.journal)
        return machine

    with understood("the server that loads the data"):
        entry = dataset.build(
            cache,
            open_machine,
            engine,
            workload,
            image=image,
            resources=experiment.resources,
            estimate_bytes=workload.estimate_bytes(),
            progress=watch.say,
        )
    facts: Json = {"key": entry.key, "workload": workload.key(), **entry.facts}
    masters = {"directory": entry.artifact()}
    if any(boots(step) for arm in experiment.arms for step in arm.stack):
        spare_bytes = max(DATA_SPARE_BYTES, entry.facts["data_bytes"])
        masters["file"], facts["disk"] = disk.disk_of(
            cache, masters["directory"], spare_bytes=spare_bytes, progress=watch.say
        )
    return masters, facts


class _Copies:
    """Fresh copies of the masters, one for each start; written to the journal, removed after the round."""

    def __init__(self, folder: Path, masters: Mapping[str, Artifact], ground: Ground, journal: Journal) -> None:
        self.folder, self.masters, self.ground, self.journal = folder, masters, ground, journal
        self.entries: dict[str, Entry] = {}

    def make(self, arm: Arm) -> Artifact:
        target = self.path(arm)
        master = self.masters["file" if any(boots(step) for step in arm.stack) else "directory"]
        self.entries[arm.name] = self.journal.create("directory", path=str(target))
        dataset.remove_copy(self.ground.host, str(target))  # of a start whose removal failed: a copy mixes with it
        dataset.fresh_copy(self.ground.host, master, str(target))
        return Artifact(f"{master.key}-copy", str(target), master.kind)

    def drop(self, arm: Arm) -> None:
        entry = self.entries.pop(arm.name, None)
        if entry is not None:
            dataset.remove_copy(self.ground.host, str(self.path(arm)))
            entry.done()

    def path(self, arm: Arm) -> Path:
        return self.folder / place_name(self.ground.run_id, arm.name, 0)


# --- answers that the baseline gives, where no independent engine can --------------------------------------------------


def baseline_answers(prepared: Prepared, folder: Path, watch: Watch) -> Prepared:
    """For statements without an independent reference: what the baseline answers in an untimed pass holds for all arms.

    Kept in the run folder, so that a resumed run checks against the same. Where the file is damaged the baseline is asked once
    more, and the run's facts tell whether it answers the same (`facts.compare`).
    """
    inputs = prepared.inputs
    missing = [
        {query: statement for query, statement in each.items() if query not in known}
        for each, known in zip(inputs.statements, inputs.answers, strict=True)
    ]
    if not inputs.engine.answers or not any(missing):
        return prepared
    kept = folder / schema.ANSWERS_FILE
    answers = _kept_answers(kept, missing)
    if answers is None:
        watch.say("answers of the baseline, to check those of all arms against")
        with understood(inputs.experiment.baseline):
            answers = _asked(prepared, missing)
        write_durably(kept, msgspec.json.encode(answers), mode=0o600)  # they are the user's data
    merged = [{**known, **more} for known, more in zip(inputs.answers, answers, strict=True)]
    digest = hashlib.sha256(msgspec.json.encode(answers)).hexdigest()
    return replace(prepared, inputs=replace(inputs, answers=merged), facts={**prepared.facts, "answers_sha256": digest})


def _kept_answers(kept: Path, missing: Sequence[Mapping[str, Statement]]) -> list[dict[str, AnswerReference]] | None:
    """None where there are none, or not of just these statements."""
    if not kept.exists():
        return None
    try:
        answers = msgspec.json.decode(read_file(kept, HISTORY_BYTES_MAX), type=list[dict[str, AnswerReference]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answers if [each.keys() for each in answers] == [each.keys() for each in missing] else None


def _asked(prepared: Prepared, missing: Sequence[Mapping[str, Statement]]) -> list[dict[str, AnswerReference]]:
    """One start of the baseline that answers every statement once, rows kept."""
    inputs = prepared.inputs
    experiment = inputs.experiment
    arm = experiment.arm(experiment.baseline)
    answers: list[dict[str, AnswerReference]] = []
    with ExitStack() as stack:
        data = inputs.fresh_data(arm) if inputs.fresh_data else None
        stack.callback(inputs.drop_data, arm)
        machine = open_stack(prepared.ground, experiment, arm, data, stack)
        server = inputs.engine.start(machine, DATA, inputs.settings)
        stack.callback(inputs.engine.stop, machine, server)
        session = machine.serial(server.address, connection="one")
        stack.callback(session.close)
        for statements in missing:
            answers.append({})
            for query, statement in statements.items():
                reply = session.visit(
                    [statement],
                    mode=experiment.factors["protocol"][0],
                    pace=experiment.pace,
                    answers={},
                    lead_in=False,
                    dwell=False,
                    keep_rows=True,
                )
                if not reply.executions:
                    raise EngineError(f"{query}: the baseline answers nothing", "see whether its server works")
                execution = reply.executions[0]
                if execution.outcome != "ok" or execution.result is None:
                    said = (execution.error or {}).get("message", execution.outcome)
                    raise EngineError(f"{query} fails in the baseline: {said}", "mend the statement, then run again")
                answers[-1][query] = _reference(execution.result)
    return answers


def _reference(rows: Sequence[Sequence[str | None]]) -> AnswerReference:
    """Columns that hold a fraction or an exponent somewhere are compared as numbers, all others to the letter. ValueError for
    rows of unlike width."""
    width = len(rows[0]) if rows else 0
    if any(len(row) != width for row in rows):
        raise ValueError("its rows are not all of one width")
    columns = tuple("numeric" if _is_fractional(rows, column) else "exact" for column in range(width))
    return AnswerReference(columns, tuple(tuple(row) for row in rows))


def _is_fractional(rows: Sequence[Sequence[str | None]], column: int) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    number = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
    return all(number.fullmatch(value or "") for value in values) and any(
        set(value or "") & set(".eE") for value in values
    )


# --- the pilot -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a round was seen to cost (seconds): the fixed part, each block of all its timed phases, and the only block of the slow.

    ``slow``: arm -> levels of the phases in which it takes so long that it takes part in one block, however many there are.
    """

    fixed_s: float
    block_s: float
    slow_s: float = 0.0
    slow: dict[str, tuple[dict[str, str], ...]] = field(default_factory=dict)

    def round_s(self, blocks: int) -> float:
        return self.fixed_s + self.slow_s + blocks * self.block_s

    def blocks(self, budget_s: float, rounds_min: int) -> int:
        """As many as let ROUNDS_WANTED rounds fit. Where starts are dear, so many that they pay, if ``rounds_min`` rounds fit.

        With a cost of ``fixed`` for a start and ``block`` for each of its blocks, and starts that differ about as much as blocks
        do, the square root of ``fixed / block`` blocks in each make the interval shortest (Cochran: Sampling Techniques, 1977,
        §10.6).
        """
        if self.block_s <= 0:
            return BLOCKS_MAX
        start_s = self.fixed_s + self.slow_s
        wanted, possible = (int((budget_s / rounds - start_s) / self.block_s) for rounds in (ROUNDS_WANTED, rounds_min))
        paying = round(math.sqrt(start_s / self.block_s))
        return max(1, min(BLOCKS_MAX, max(wanted, min(paying, possible))))


def fly_pilot(prepared: Prepared, watch: Watch, stop: Stop) -> Pilot:
    """A round of one block, measured for its length only. DbtollError if the baseline or its copy does not get through."""
    experiment = prepared.inputs.experiment
    watch.say("pilot: one round of one block, to see how many fit into the budget")
    records: list[schema.Record] = []
    plan = Plan(experiment, prepared.queries, 1, {}).round(-1)
    budget = Budget(float("inf"))
    run = RoundRun(prepared.ground, prepared.inputs, plan, records.append, watch, budget, None, set(), held=stop.held)
    begin = time.monotonic()
    run.measure()
    whole_s = time.monotonic() - begin
    for start in (record for record in records if isinstance(record, schema.Start) and record.outcome != "ok"):
        if experiment.baseline in (start.arm, experiment.arm(start.arm).copy_of):
            raise EngineError(f"the baseline cannot be measured: {start.arm}: {start.reason}", "see `dbtoll doctor`")
    slow: dict[str, tuple[dict[str, str], ...]] = {}
    slow_s = 0.0
    for phase in (phase for phase in plan.phases if phase.kind == "timed"):
        of_phase = [record for record in records if isinstance(record, schema.Visit) and record.levels == phase.levels]
        by_arm = visits_s(of_phase, timed=set(prepared.queries))
        for arm in slow_arms(experiment, by_arm):
            slow[arm] = (*slow.get(arm, ()), dict(phase.levels))
            slow_s += by_arm[arm]
    return Pilot(fixed_s=whole_s - run.timed_s, block_s=run.timed_s - slow_s, slow_s=slow_s, slow=slow)


def slow_arms(experiment: Experiment, by_arm: Mapping[str, float]) -> list[str]:
    """Those that take more than SLOW_FACTOR times as long as the baseline. ``by_arm``: see visits_s.

    A copy is one where its original is, also if it stood still for a while: both take part in the same blocks.
    """
    limit_s = SLOW_FACTOR * by_arm[experiment.baseline]
    return [arm for arm in by_arm if by_arm.get(experiment.arm(arm).copy_of or arm, 0.0) > limit_s]


def visits_s(visits: Sequence[schema.Visit], timed: Collection[str]) -> dict[str, float]:
    """Arm -> time of its visits after the warm-up, by the clock of whoever drove it (its own where nobody else did).

    ``timed``: the workload's queries; what is only counted or probed is left out.
    """
    total: dict[str, float] = {}
    for visit in visits:
        if not visit.first_touch and visit.counts is None and visit.query in timed:
            begin_ns = visit.start_ns if visit.host_start_ns is None else visit.host_start_ns
            end_ns = visit.end_ns if visit.host_end_ns is None else visit.host_end_ns
            total[visit.arm] = total.get(visit.arm, 0.0) + (end_ns - begin_ns) / 1e9
    return total
