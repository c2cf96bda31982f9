"""One round: a fresh start of every arm, the warm-up, the phases, the end of every arm; each written down as it happens."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Protocol

import dbtoll
from dbtoll.errors import DbtollError, EngineError
from dbtoll.images import dataset
from dbtoll.interfaces.collector import Collector
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.machine import Machine
from dbtoll.interfaces.workload import ProbeWorkload, TransactionWorkload, Workload
from dbtoll.model.experiment import THREADS, Arm, Experiment
from dbtoll.model.json import Json
from dbtoll.model.machine import LOG, Artifact
from dbtoll.model.plan import Block, Phase, Round
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.runner.arm_devices import ArmDevices
from dbtoll.runner.arms import (
    HostContext,
    RunningArm,
    RunningServer,
    RunningUnit,
    busy_ns,
    memory_parts,
    open_machines,
    storage_of,
)
from dbtoll.runner.budget import Budget
from dbtoll.runner.checks import commits, paths, storage
from dbtoll.runner.drivers.counting import CountingDriver
from dbtoll.runner.drivers.probes import ProbeDriver
from dbtoll.runner.drivers.protocol import VisitDriver, is_cold
from dbtoll.runner.drivers.statements import StatementDriver
from dbtoll.runner.drivers.transactions import TransactionDriver
from dbtoll.runner.parallel import in_parallel
from dbtoll.secretive import without_secrets
from dbtoll.store import schema
from dbtoll.store.reader import Run
from dbtoll.store.schema import Record

PACKAGE = Path(dbtoll.__file__).parent

PLANNED_BY = (THREADS,)
"""Factors on which a server's plans can depend."""

WARM_UP = -1
"""Block number of the first run of every query after a start."""


class Watch(Protocol):
    """What looks on: shows progress and decides, after whole rounds, whether another one is worth it.

    ``settled``: arms that are not worth another one, by the last decision; ``rounds_with_effect``: of each arm, by then: none of
    them lacks the visits of a query. Empty where nobody looks.
    """

    settled: frozenset[str]
    rounds_with_effect: Mapping[str, int]

    def say(self, text: str) -> None: ...
    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None: ...
    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        """A reason to stop, or None to go on. ``run``: all that its history holds so far."""
        ...

    def larger_budget(self, budget_s: float) -> bool:
        """Whether to measure for so long, since nothing could be decided within the budget that was asked for."""
        ...


@dataclass(frozen=True, slots=True)
class ArmInputs:
    """What the arms of one configuration get, in every round.

    ``context``: with their image and its disks. ``settings``: of a server that has all of an arm's memory. ``statements`` and
    ``answers`` by parameter set. ``fresh_data``: new copies of the data for the machines of an arm, on a device of its own if it
    has one; None: there are none. ``devices``: opens those of an arm.
    """

    context: HostContext
    engine: Engine
    workload: Workload
    settings: Mapping[str, str]
    statements: Sequence[Mapping[str, Statement]]
    answers: Sequence[Mapping[str, AnswerReference]]
    fresh_data: Callable[..., tuple[Artifact, ...]] | None
    drop_data: Callable[[Arm], None]
    devices: Callable[[Arm, ExitStack], ArmDevices] = lambda arm, closing: ArmDevices()

    def settings_of(self, arm: Arm) -> Mapping[str, str]:
        """Of each server of an arm: they share its memory."""
        servers = arm.layout.all_servers
        return self.settings if servers == 1 else self.engine.settings(arm.configuration.resources.shared_by(servers))


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is the same in every round. ``by_arm``: arms of one configuration have the same. ``collectors`` and ``probing``: of an
    experiment that explains.
    """

    experiment: Experiment
    by_arm: Mapping[str, ArmInputs]
    collectors: Sequence[Collector] = ()
    probing: ProbeWorkload | None = None

    @property
    def of_baseline(self) -> ArmInputs:
        """Those of the baseline, whose workload is of the same kind as every arm's."""
        return self.by_arm[self.experiment.baseline]


class Cut(Exception):
    """The budget ended inside a round."""


@dataclass(slots=True)
class Spent:
    """What an arm has taken of a round, s: ``timed_s`` by number of a timed phase, in its blocks; ``untimed_s``: all else."""

    untimed_s: float = 0.0
    timed_s: dict[int, float] = field(default_factory=dict)

    @property
    def all_s(self) -> float:
        return self.untimed_s + sum(self.timed_s.values())


@dataclass(slots=True)
class RoundRun:
    """One attempt at one round. ``write`` takes each record as it comes.

    ``left_out``: arms that take no part in it. ``deferring``: around what a signal must not cut
    (`signals.Stop.deferring_signals`). ``whole``: every phase was measured to its end.
    """

    context: HostContext
    inputs: Inputs
    plan: Round
    write: Callable[[Record], object]
    watch: Watch
    budget: Budget
    logs: Path | None
    seen_plans: set[str]
    left_out: frozenset[str] = frozenset()
    deferring: Callable[[], AbstractContextManager[None]] = nullcontext
    whole: bool = False
    arms: dict[str, RunningArm] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)
    _planned: list[dict[str, str]] = field(default_factory=list)
    _timed_phase: int | None = None
    _order: int = 0
    _done: int = 0
    _of: int = 0

    def measure(self) -> None:
        """All of it. Raises Cut where the budget ends; whatever happens, every arm is ended and its data removed."""
        self._of = sum(len(block.visits) for phase in self.plan.phases for block in phase.blocks)
        try:
            for name in self.plan.start_order:
                if name not in self.left_out:
                    self.start(self.inputs.experiment.arm(name))
            if self.plan.index == 0:
                # Arms of one configuration begin with the same pages: one of them tells of all.
                for _, names in self.inputs.experiment.configurations:
                    for name in [name for name in names if name in self.healthy()][:1]:
                        self.awake(self.arms[name], lambda running: self.verify(running, initially=True))
            for number, phase in enumerate(self.plan.phases):
                self.phase(number, phase)
            for name in self.healthy():
                self.awake(self.arms[name], lambda running: self.verify(running, initially=False))
            self.whole = True
        finally:
            with self.deferring():
                self.end()

    def driver(self, running: RunningArm, phase: Phase | None = None) -> VisitDriver:
        """How an arm is driven, in a phase other than the timed ones."""
        inputs, own = self.inputs, self.inputs.by_arm[running.arm.name]
        if phase is not None and phase.kind == "probed":
            assert inputs.probing is not None
            return ProbeDriver(inputs.experiment, self.context.host, inputs.probing)
        if isinstance(own.workload, ProbeWorkload):
            return ProbeDriver(inputs.experiment, self.context.host, own.workload)
        driver = (
            TransactionDriver(inputs.experiment, own.workload)
            if isinstance(own.workload, TransactionWorkload)
            else StatementDriver(inputs.experiment, self.context.host, own.statements, own.answers)
        )
        if phase is not None and phase.kind == "counted":
            return CountingDriver(driver, inputs.collectors, inputs.experiment.baselines)
        return driver

    def healthy(self) -> list[str]:
        """Arms that work, or would: not those that failed, nor those that a fault has ended, which got through the round."""
        return [name for name, running in self.arms.items() if running.failure is None]

    # --- starts and ends ---------------------------------------------------------------------------------------------

    def start(self, arm: Arm) -> None:
        """A fresh copy of the data, a fresh boot, a fresh server; then asleep. A failure is recorded, the others go on."""
        self.progress(f"start of {arm.name}")
        experiment, own = self.inputs.experiment, self.inputs.by_arm[arm.name]
        closing = ExitStack()
        running: RunningArm | None = None
        try:
            with self.spending(arm.name), understood(arm.name):
                if self.context.remotes is not None:
                    self.context.remotes.renew(arm)
                devices = own.devices(arm, closing)
                data = own.fresh_data(arm, devices.data) if own.fresh_data else ()
                machines = open_machines(own.context, arm, data, closing, devices.logs)
                outside = "outside" in experiment.factors.get("placement", ())
                settings, threads = own.settings_of(arm), experiment.fewest_threads
                running = RunningArm(
                    arm, machines, own.engine, settings, closing, outside=outside, threads=threads, devices=devices
                )
                if data:
                    servers = running.servers  # never simulated
                    in_parallel([partial(dataset.read_in, server.machine, server.place.data) for server in servers])
                self.serve(running, data)
                running.sleep()
        except BaseException as error:
            with self.deferring():
                self.undo(arm, running, closing)
            if not isinstance(error, DbtollError):
                raise
            self.write(schema.Start(round=self.plan.index, arm=arm.name, outcome="failed", reason=error.in_one_line))
            self.watch.say(f"{arm.name} did not start: {error.in_one_line}")
            return
        self.arms[arm.name] = running

    def serve(self, running: RunningArm, data: Sequence[Artifact]) -> None:
        """Starts the servers in machines that run, and writes down what is found in both."""
        experiment, arm, logs = self.inputs.experiment, running.arm, running.devices.logs
        running.find_devices()
        if logs:
            in_parallel([server.move_log for server in running.servers])
        running.start_servers()
        placements = experiment.factors.get("placement", ())
        kind = storage_of(arm) if data else None
        parts = memory_parts(arm)
        each = [running.first_unit_of(server) for server in running.servers]
        found = running.in_parallel([partial(self.facts, unit, placements, parts, kind) for unit in each])
        durability = experiment.factors.get("durability", ())
        commit = commits.commit_reaches_device(
            self.context, running, arm.configuration.workload.name, data, self.plan.index, durability
        )
        self.write(schema.Start(round=self.plan.index, arm=arm.name, outcome="ok", servers=tuple(found)))
        self.write(self.answers_gate(arm))
        self.write(commit)
        if kind is not None:
            for machine, its, log in zip_longest(running.machines, data, logs):
                self.write(storage.check(machine, kind, its, self.plan.index, arm.name))
                if log is not None:
                    self.write(storage.check(machine, kind, log, self.plan.index, arm.name, at=LOG))
        if placements:
            self.write(paths.check(self.plan.index, arm.name, [facts["paths"] for facts in found]))

    def facts(self, unit: RunningUnit, placements: Sequence[str], parts: int, kind: str | None) -> Json:
        """Of a unit's server and of the machine that it is in. ``parts``: of the arm's memory, of which that has one;
        ``kind``: of storage that was asked for."""
        found = without_secrets({**unit.machine.facts(), **unit.engine.facts(unit.session())})
        if parts > 1:
            found["memory_parts"] = parts
        if kind is not None:
            found["storage"] = storage.found(unit.machine, kind, found.get("environment") or {})
        if kind is not None and unit.server.log_apart:
            found["log_storage"] = storage.found(unit.machine, kind, found.get("environment") or {}, at=LOG)
        return {**found, "paths": paths.measured(unit, placements)} if placements else found

    def answers_gate(self, arm: Arm) -> schema.CheckRecord:
        """Whether there is an answer to check each statement against; a label, the checks themselves are in the visits."""
        own = self.inputs.by_arm[arm.name]
        pairs = zip(own.statements, own.answers, strict=True)
        unknown = sorted({query for statements, known in pairs for query in statements if query not in known})
        passed: bool | None = not unknown
        finding = "every statement has an answer to be checked against"
        if not own.engine.returns_rows:
            passed, finding = None, f"what {own.engine.name} answers means nothing"
        elif isinstance(own.workload, TransactionWorkload):
            passed, finding = None, "not answers but the state of the data is checked"
        elif unknown:
            finding = f"nothing to check the answers of {', '.join(unknown)} against"
        return schema.CheckRecord(
            round=self.plan.index, arm=arm.name, check="answers_known", passed=passed, finding=finding, voids=False
        )

    def end(self) -> None:
        """Every arm's end; its logs are kept."""
        for name, running in self.arms.items():
            self.progress(f"end of {name}")
            self.undo(running.arm, running, running.closing)

    def undo(self, arm: Arm, running: RunningArm | None, closing: ExitStack) -> None:
        """Take an arm down, however far it came, and its copy of the data; what goes wrong is said and does not spread.

        What remains stays open in the journal, for the cleaning at the end of the run (cleanup/beside_arms.py).
        """
        steps: list[Callable[[], object]] = [closing.close]
        if running is not None:
            # A failed one is not asked to stop its server cleanly: it may not answer, and its data are thrown away.
            stop = [] if running.failure is not None or running.lost else [running.stop_servers]
            # Agents of its units end before their machine does, and cannot in their sleep.
            steps = [running.wake, lambda: self.keep_logs(running), *stop, closing.close]
        steps.append(lambda: self.inputs.by_arm[arm.name].drop_data(arm))
        for step in steps:
            try:
                with self.spending(arm.name), understood(arm.name):
                    step()
            except (DbtollError, OSError) as error:  # OSError: a full disk where the logs are kept
                said = error.message if isinstance(error, DbtollError) else str(error)
                self.watch.say(f"{arm.name} did not end cleanly: {said}")

    def keep_logs(self, running: RunningArm) -> None:
        if self.logs is None:
            return
        of_arm = self.logs / running.arm.name.replace("/", "_")
        for number, machine in enumerate(running.machines):
            folder = of_arm if len(running.machines) == 1 else of_arm / f"machine-{number}"
            for name, content in machine.logs().items():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name.replace("/", "_")).write_bytes(content)

    def fail(self, running: RunningArm, error: DbtollError) -> None:
        """This start failed in mid-round: said in a second `start` record; the other arms go on."""
        running.failure = error.in_one_line
        with suppress(DbtollError):
            running.sleep()  # BIAS: whatever still works in there would do so beside the others
        record = schema.Start(round=self.plan.index, arm=running.arm.name, outcome="failed", reason=error.in_one_line)
        self.write(record)
        self.watch.say(f"{running.arm.name} failed: {error.in_one_line}")

    # --- measuring ---------------------------------------------------------------------------------------------------

    def warm_up(self, phase: Phase) -> None:
        """Every query once in every arm whose server has just been started (Minhas et al. 2008, §4.1), untimed.

        These first runs are recorded and reported apart (first execution), but for those before a counting pass.
        """
        started = [name for name in self.healthy() if not self.arms[name].warmed_up]
        first = phase.blocks[0]
        for visit in first.visits:
            if visit.arm in started:
                self.visit(phase, Block(WARM_UP, first.parameter_set, ()), visit.arm, visit.query)
        for name in started:
            self.arms[name].warmed_up = True

    def take_plans(self, phase: Phase) -> None:
        """The plans of every arm, once for each level on which they can depend, and a checkpoint; untimed, also where all is
        measured cold."""
        levels = {factor: phase.levels[factor] for factor in PLANNED_BY if factor in phase.levels}
        if levels in self._planned:
            return
        self._planned.append(levels)
        for name in self.healthy():
            if not self.arms[name].engine.returns_rows:
                continue
            self.progress(f"plans of {name}")
            self.awake(self.arms[name], lambda running: self.fingerprints(running, levels))

    def fingerprints(self, running: RunningArm, levels: dict[str, str]) -> None:
        """Plans of every statement of this round in each unit, outside timed passes; then a checkpoint on command."""
        sets = sorted({block.parameter_set for phase in self.plan.phases for block in phase.blocks})
        statements = self.inputs.by_arm[running.arm.name].statements
        asked = [(number, query, text) for number in sets for query, text in statements[number].items()]
        for unit, (parameter_set, query, statement) in product(running.units, asked):
            mark, text = running.engine.fingerprint(unit.session(), statement)
            new = mark not in self.seen_plans
            self.seen_plans.add(mark)
            self.write(
                schema.Fingerprint(
                    round=self.plan.index,
                    arm=running.arm.name,
                    query=query,
                    parameter_set=parameter_set,
                    fingerprint=mark,
                    plan=text if new else None,
                    levels=levels,
                    unit=unit.unit.number,
                )
            )
        for server in running.servers:
            running.engine.settle(running.first_unit_of(server).session())

    def phase(self, number: int, phase: Phase) -> None:
        for name in self.healthy():
            self.awake(self.arms[name], lambda running: self.driver(running, phase).begin_phase(running, phase))
        # A probe warms what it needs by itself.
        if phase.kind != "probed" and not isinstance(self.inputs.of_baseline.workload, ProbeWorkload):
            if not is_cold(phase):
                self.warm_up(phase)
            self.take_plans(phase)
        if phase.kind == "timed":
            self.count(phase, "begin")
        self._timed_phase = number if phase.kind == "timed" else None
        for block in phase.blocks:
            for visit in block.visits:
                self._done += 1
                self.visit(phase, block, visit.arm, visit.query)
        self._timed_phase = None
        if phase.kind == "timed":
            self.count(phase, "end")
        for running in self.arms.values():
            running.close_sessions() if running.awake else self.awake(running, RunningArm.close_sessions)

    def visit(self, phase: Phase, block: Block, arm: str, query: str) -> None:
        """Wake one arm, let it answer one statement, put it to sleep again."""
        running = self.arms.get(arm)
        if running is None or running.failure is not None:
            return
        if self.budget.overrun():
            raise Cut
        self.progress(f"{arm} {query}")
        first_execution = block.index == WARM_UP
        self._order += 1
        try:
            with self.spending(arm), understood(running.arm.name):
                running.wake()
                driver = self.driver(running, replace(phase, kind="timed") if first_execution else phase)
                driver.make_ready(running, phase, first_execution=first_execution)
                with running.devices.at_pace():
                    result = driver.drive(running, phase, block, query, first_execution=first_execution)
                others_asleep = self.others_asleep(running)
                if not result.is_last:
                    running.sleep()
                if first_execution and phase.kind == "counted":
                    return
                self.write(
                    schema.Visit(
                        round=self.plan.index,
                        arm=arm,
                        levels=phase.levels,
                        block=block.index,
                        parameter_set=block.parameter_set,
                        query=query,
                        order=self._order,
                        first_execution=first_execution,
                        asleep_ok=others_asleep,
                        units=result.units,
                        shared=result.shared,
                        devices=result.devices,
                        counts=result.counts,
                        neighbour=result.neighbour,
                    )
                )
                if result.is_last:
                    self.verify(running, initially=False)
        except DbtollError as error:
            self.fail(running, error)
            return
        if result.is_last:
            with self.deferring():
                self.undo(running.arm, running, running.closing)
            del self.arms[arm]

    def verify(self, running: RunningArm, *, initially: bool) -> None:
        """Whether the data are as they must be, before or after all that is done to them."""
        self.progress(f"data of {running.arm.name}")
        found = self.driver(running).violations(running, initially=initially)
        if found is None:
            return
        when = "before the first transaction" if initially else "after the round"
        left = sum(map(len, running.left_by_tables()))
        where = f" in each of {left} units" if len(running.units) > 1 else ""
        if gone := len(running.units) - left:
            where += f"; the server of {gone} more is gone, whose data were not looked at"
        finding = (
            f"does not hold {when}: {'; '.join(found)}" if found else f"all conditions of the workload hold{where}"
        )
        self.write(
            schema.CheckRecord(
                round=self.plan.index, arm=running.arm.name, check="consistent", passed=not found, finding=finding
            )
        )

    def others_asleep(self, running: RunningArm) -> bool | None:
        """Whether every other arm has slept through this visit; None where one of them cannot tell."""
        told = []
        for other in self.arms.values():
            if other is running or other.failure is not None:
                continue
            try:
                told.append(other.asleep())
            except DbtollError as error:  # it died in its sleep, which is not the fault of the one that is awake
                self.fail(other, error)
        return None if None in told else all(told)

    def count(self, phase: Phase, when: str) -> None:
        """Counters of every arm and of the host on which it stands around a phase, outside timed passes."""
        placement = phase.levels.get("placement", "inside")

        def driver_machine(unit: RunningUnit) -> Machine:
            return unit.driver_machine(placement)

        for name in self.healthy():
            running = self.arms[name]

            def read(running: RunningArm) -> None:
                background = _background(running) if running.engine.returns_rows else None
                counters = running.in_parallel([server.counters for server in running.servers])
                inside = [counted.get("processes") for counted in counters]
                drivers = {id(machine): machine for machine in map(driver_machine, running.units)}
                driver_ns = [commits.agent_cpu_ns(machine) for machine in drivers.values()]
                host = self.context.at(running.arm).host.counters()
                self.write(
                    schema.Counters(
                        round=self.plan.index,
                        arm=running.arm.name,
                        levels=phase.levels,
                        when="begin" if when == "begin" else "end",
                        machine=host.get("machine"),
                        processes=_sums(inside),
                        background=background,
                        unattributed_cpu_ns=self.unattributed_cpu_ns(running, host),
                        driver_cpu_ns=_sum(driver_ns),
                        host_at_ns=host.get("at_ns"),
                    )
                )

            self.awake(running, read)

    def unattributed_cpu_ns(self, running: RunningArm, counters: Json) -> int | None:
        """CPU time so far that the arm's host spent neither in an arm nor in the rig (that host's agent, what serves disk models,
        and this process)."""
        busy, host = busy_ns(counters), self.context.at(running.arm).host
        there = [other for other in self.arms.values() if self.context.at(other.arm).host is host]
        counted = [_known(count) for other in there for count in (other.cpu_ns, other.devices.cpu_ns)]
        own_ns = time.process_time_ns() if host is self.context.host else 0
        parts = [*counted, commits.agent_cpu_ns(host), own_ns]
        return None if busy is None or None in parts else busy - sum(ns for ns in parts if ns is not None)

    def awake(self, running: RunningArm, work: Callable[[RunningArm], object]) -> None:
        """Do untimed work with one arm awake. A failure is this arm's, the others go on."""
        if running.failure is not None:
            return
        try:
            with self.spending(running.arm.name), understood(running.arm.name):
                running.wake()
                work(running)
                running.sleep()
        except DbtollError as error:
            self.fail(running, error)

    @contextmanager
    def spending(self, arm: str) -> Iterator[None]:
        """The time of what is done meanwhile is this arm's; Python's clock, for the budget alone."""
        begin = time.monotonic()
        try:
            yield
        finally:
            spent, took_s = self.spent.setdefault(arm, Spent()), time.monotonic() - begin
            if self._timed_phase is None:
                spent.untimed_s += took_s
            else:
                spent.timed_s[self._timed_phase] = spent.timed_s.get(self._timed_phase, 0.0) + took_s

    def progress(self, doing: str) -> None:
        self.watch.at(self.plan.index, doing, self._done, self._of, self.budget.left_s())


@contextmanager
def understood(who: str) -> Iterator[None]:
    """What an arm's server and programs say is data: where it cannot be read, or no history could hold it, the arm failed.

    Raises EngineError, with the place in this program that expected something else, for whatever reading it may raise: what is
    nested too deeply, is no object, or asks for all memory. What this machine's files and disks raise (OSError) passes.
    """
    try:
        yield
    except (DbtollError, OSError, Cut):
        raise
    except Exception as error:
        ours = [at for at in traceback.extract_tb(error.__traceback__) if PACKAGE in Path(at.filename).parents]
        where = f"{Path(ours[-1].filename).relative_to(PACKAGE)}:{ours[-1].lineno}" if ours else "dbtoll"
        raise EngineError(
            f"{who}: what it said cannot be read ({where}): {type(error).__name__}: {error}",
            "run its image without dbtoll, and see whether its server and its programs answer as they should",
        ) from error


def _background(running: RunningArm) -> Json:
    """What the servers did by themselves so far, of each kind."""

    def done(server: RunningServer) -> Counter[str]:
        found = Counter(running.engine.background_work(running.first_unit_of(server).session()))
        found.subtract(server.prepared_work)
        return found

    total: Counter[str] = Counter()
    for found in running.in_parallel([partial(done, server) for server in running.servers]):
        total.update(found)
    return dict(total)


def _sums(counters: Sequence[Json | None]) -> Json | None:
    """Of what several servers counted; None where one of them did not."""
    if len(counters) == 1 or None in counters:
        return counters[0] if len(counters) == 1 else None
    known = [each for each in counters if each is not None]
    return {name: _sum([each.get(name) for each in known]) for name in known[0] if name != "each"}


def _sum(values: Sequence[int | None]) -> int | None:
    """None where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _known(count: Callable[[], int | None]) -> int | None:
    """CPU time of an arm, or of its devices, so far; None also where they have gone, and their count with them."""
    try:
        return count()
    except DbtollError:
        return None
