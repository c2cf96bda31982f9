"""A whole run: prepared, sized, measured round by round until it is precise enough or its budget ends; or resumed."""

from __future__ import annotations

import datetime
import errno
import hashlib
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from dbtoll import facts as host_facts
from dbtoll.durable import sync_directory, write_durably
from dbtoll.errors import BudgetTooSmall, ChannelError, DbtollError, RunFolderError, Stopped, UsageError
from dbtoll.interfaces.workload import TransactionWorkload
from dbtoll.model.experiment import Experiment, Precision
from dbtoll.model.json import Json
from dbtoll.plan import Plan
from dbtoll.runner import pilot
from dbtoll.runner.budget import Budget, RoundLength, proposed_minutes
from dbtoll.runner.cleanup.beside_arms import cleaned, host_of
from dbtoll.runner.cleanup.journal import of_run, resume_command, resuming
from dbtoll.runner.cleanup.signals import Stop
from dbtoll.runner.hosts import remote_hosts
from dbtoll.runner.preparation import baseline_answers, inputs, requirements
from dbtoll.runner.rounds import Cut, RoundRun, Watch
from dbtoll.store import folders, schema
from dbtoll.store.reader import Attempt, Run, answered_wrongly, read_file, read_run
from dbtoll.store.schema import STOPPED
from dbtoll.store.writer import RunWriter
from dbtoll.text import noun

FAILURES_MAX = 2
"""Rounds in a row in which an arm may fail before it is given up: its starts cost the others their budget."""


def new_folder(runs_dir: Path, name: str = "") -> Path:
    """A folder of its own for a new run (`folders.folder_name`)."""
    stamp = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = runs_dir / folders.folder_name(stamp, name)
    try:
        str(folder.absolute()).encode()  # no journal could hold another, nor any agent be told
    except UnicodeEncodeError:
        raise UsageError(f"{runs_dir}: its name is no UTF-8", "give a --runs-dir whose name is") from None
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be made: {error.strerror}", "give a writable --runs-dir") from None
    return folder


def begin(experiment: Experiment, spec_text: str, runs_dir: Path, watch: Watch, *, tried: bool = False) -> Path:
    """Measure a new run. Returns its folder; whatever happens, nothing that it made is left behind. ``tried``: see `ready`.

    A run that could not be prepared leaves no folder either, unless it can be resumed.
    """
    requirements.require_beforehand(experiment)
    is_new = not runs_dir.exists()
    folder = new_folder(runs_dir, experiment.name)
    before = folders.point_latest(runs_dir, folder.name)
    watch.say(f"run folder: {folder}")
    try:
        try:
            write_durably(folder / schema.SPEC_FILE, spec_text.encode())
            asked = schema.ExperimentFile(
                experiment=experiment, spec_sha256=hashlib.sha256(spec_text.encode()).hexdigest()
            )
            write_durably(folder / schema.EXPERIMENT_FILE, msgspec.json.format(msgspec.json.encode(asked)))
            sync_directory(folder.parent)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RunFolderError(
                f"{folder}: cannot be written: {error.strerror}", "give a --runs-dir with room"
            ) from error
        resume(folder, watch, tried=tried)
    except DbtollError as error:
        resumes_there = isinstance(error, RunFolderError | BudgetTooSmall)  # these say how to go on in that folder
        if not folder.exists() or not (resumes_there or _is_kept(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            folders.point_latest(runs_dir, before)
            if is_new:
                with suppress(OSError):
                    runs_dir.rmdir()
        raise
    return folder


def _is_kept(folder: Path) -> bool:
    """Whether there is more in the folder than what was asked for: a plan, or something that was measured."""
    return (folder / schema.PLAN_FILE).exists() or _has_line(folder / schema.HISTORY_FILE)


def begin_part(experiment: Experiment, spec_text: str, runs_dir: Path, watch: Watch) -> Run:
    """As `begin`, of a run that others follow. Raises Stopped where its user stopped it: then none of them is to begin."""
    run = read_run(begin(experiment, spec_text, runs_dir, watch))
    if run.end and run.end.reason == STOPPED:
        raise Stopped(f"{run.folder}: {STOPPED}", f"go on with it: dbtoll run {run.folder} --resume")
    return run


def resume(folder: Path, watch: Watch, precision: Precision | None = None, *, tried: bool = False) -> Path:
    """Go on with a run, wherever it was stopped or killed: same plan, finished rounds count, the rest is measured anew.

    A new run is one that was stopped before anything was done. ``precision``: instead of the run's own, so that one that ended
    can go on with a larger budget; what was planned stays.
    """
    folder = folder.resolve()  # its name is the run's
    before = _begun(folder)
    experiment = experiment_of(folder)
    if precision is not None:
        experiment = replace(experiment, precision=precision)
    stop = Stop()
    begun_on = before.facts if before else None
    with _resumable(folder), ready(experiment, folder, watch, stop, tried=tried, begun_on=begun_on) as prepared:
        if before is None:
            writer, round_s, experiment = _planned(experiment, prepared, folder, watch, stop)
            before = read_run(folder)
        else:
            host_facts.compare(before.facts, prepared.facts, str(folder))
            writer, before = RunWriter.resume(folder)
            round_s = max((a.end.elapsed_s - a.begin.elapsed_s for a in before.counted[-1:] if a.end), default=0.0)
        with writer:
            planned = before.plan
            plan = Plan(experiment, planned.queries, planned.blocks, planned.slow, planned.pilot)
            Measurement(prepared, plan, folder, writer, before, RoundLength(round_s), watch, stop).run()
    return folder


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Who stops a run while it is prepared is told how to go on, too."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(resuming(folder))
        raise


def experiment_of(folder: Path) -> Experiment:
    """What a run measures. RunFolderError if the folder holds no run."""
    before = _begun(folder)
    if before is not None:
        return before.plan.experiment
    return _asked(folder).experiment


def _asked(folder: Path) -> schema.ExperimentFile:
    """What was asked for, and that the specification is still the one it was made from. RunFolderError otherwise."""
    path = folder / schema.EXPERIMENT_FILE
    try:
        asked = msgspec.json.decode(read_file(path), type=schema.ExperimentFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path}:1: it is damaged: {error}", "nothing was measured yet: begin a new run") from None
    if asked.schema_version != schema.SCHEMA_VERSION:
        raise RunFolderError(f"{path}:1: another dbtoll wrote it", "nothing was measured yet: begin a new run")
    spec = folder / schema.SPEC_FILE
    if hashlib.sha256(read_file(spec)).hexdigest() != asked.spec_sha256:
        raise RunFolderError(
            f"{spec}:1: it is not the file that the run began with", "nothing was measured yet: begin a new run"
        )
    return asked


def has_begun(folder: Path) -> bool:
    """Whether its history has a first line: what was stopped or failed before has measured nothing."""
    return _has_line(folder / schema.HISTORY_FILE)


def _begun(folder: Path) -> Run | None:
    """The run so far; None if it was stopped before its history had a first line. RunFolderError if there is no run."""
    if (folder / schema.EXPERIMENT_FILE).exists() and not has_begun(folder):
        return None
    run = read_run(folder)
    if run.schema_version < schema.SCHEMA_VERSION:
        raise RunFolderError(
            f"{folder}: it was written in schema {run.schema_version}; it can be analysed, and nothing can be added to it",
            "begin a new run",
        )
    return run


def _has_line(history: Path) -> bool:
    if not history.is_file():
        return history.exists()  # whatever else lies there, the reader names it
    with history.open("rb") as file:
        return file.readline().endswith(b"\n")


def _planned(
    experiment: Experiment, prepared: inputs.Prepared, folder: Path, watch: Watch, stop: Stop
) -> tuple[RunWriter, float, Experiment]:
    """The plan, kept; how long a round is expected to take, s (0 if nobody has seen one); the experiment, whose budget may have
    grown. A plan once kept holds."""
    round_s = 0.0
    plan_file = _kept_plan(folder)
    first: pilot.PilotRound | None = None
    if plan_file is None:
        first = pilot.run_pilot_round(prepared, logs_of(folder, 0, 0), watch, stop)
        piloted = first.pilot
        experiment = with_enough_budget(experiment, piloted, folder, watch)
        blocks = piloted.blocks(experiment.precision)
        round_s = piloted.round_s(blocks)
        for line in budget_lines(experiment, piloted, blocks):
            watch.say(line)
        workload = prepared.inputs.of_baseline.workload
        plan_file = schema.PlanFile(
            experiment=experiment,
            queries=prepared.queries,
            blocks=blocks,
            slow=piloted.slow,
            transactions=tuple(workload.mix) if isinstance(workload, TransactionWorkload) else (),
            pilot=blocks <= pilot.COUNTS_UP_TO_BLOCKS,
        )
    (folder / schema.HISTORY_FILE).unlink(missing_ok=True)  # cut before its first line was whole
    spec = read_file(folder / schema.SPEC_FILE)
    if not plan_file.pilot:
        shutil.rmtree(logs_of(folder, 0, 0), ignore_errors=True)
    with stop.deferring_signals():
        writer = RunWriter.create(folder, spec=spec, plan=plan_file, facts=prepared.facts)
        if first is not None and plan_file.pilot:
            writer.append(schema.RoundBegin(round=0, attempt=0, elapsed_s=0.0))
            for record in first.records:
                writer.append(record)
            writer.append(schema.RoundEnd(round=0, attempt=0, complete=True, elapsed_s=first.whole_s))
    return writer, round_s, experiment


def logs_of(folder: Path, index: int, attempt: int) -> Path:
    """Where what the arms of an attempt at a round wrote is kept."""
    return folder / "logs" / f"{index}.{attempt}"


def _kept_plan(folder: Path) -> schema.PlanFile | None:
    """None where there is none, or it is damaged: nothing was measured by it yet, so another one does as well."""
    path = folder / schema.PLAN_FILE
    if not path.exists():
        return None
    try:
        kept = msgspec.json.decode(read_file(path), type=schema.PlanFile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return kept if kept.schema_version == schema.SCHEMA_VERSION else None


@contextmanager
def ready(
    experiment: Experiment,
    folder: Path,
    watch: Watch,
    stop: Stop | None = None,
    *,
    tried: bool = False,
    begun_on: Json | None = None,
) -> Iterator[inputs.Prepared]:
    """All that rounds stand on, for as long as the context lasts; the folder's journal is held meanwhile. ``tried``: that every
    arm can be opened was tried just now, which boots guests and takes its time. ``begun_on``: facts of a run that goes on, whose
    machine has to be this one: that is said before what this one lacks.

    However it ends, nothing that is in the journal is left, unless its removal fails: that is said, and `dbtoll clean` can
    try again.
    """
    stop = stop or Stop()
    with (
        _room(folder),
        of_run(folder) as journal,
        stop.handling_signals(),
        cleaned(journal, stop, watch),
        host_of(experiment, folder.name, journal, watch.say) as (host, cpuset),
        remote_hosts(host, experiment.cpus, journal) as remotes,
    ):
        if begun_on is not None:
            host_facts.compare_host(begun_on, host_facts.host(host), str(folder))
        if not tried:
            requirements.require_all(host, experiment, journal)
        prepared = inputs.prepare(experiment, host, cpuset, folder, journal, watch, remotes)
        with inputs.run_scoped_resources(prepared):
            yield baseline_answers.baseline_answers(prepared, folder, watch)


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """A full disk is one sentence that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or folder
        raise RunFolderError(
            f"{where}: cannot be written: {error.strerror}; finished rounds are kept",
            f"make room there; {resuming(folder)}",
        ) from error


def with_enough_budget(experiment: Experiment, piloted: pilot.Pilot, folder: Path, watch: Watch) -> Experiment:
    """The same, or with the larger budget that was agreed to, where nothing could be decided within its own.

    One round too few is none too few: the last one is measured all the same (`analysis.effects.stopping`). Whoever asks for
    fewer rounds than decide anything (``rounds_max``) wants no verdict. BudgetTooSmall where nobody agrees.
    """
    precision = experiment.precision
    fewest = precision.rounds_to_decide
    if precision.rounds_max < fewest or piloted.rounds(1, precision) >= fewest - 1:
        return experiment
    round_s = piloted.round_s(1)
    minutes = proposed_minutes(0.0, piloted.rounds_s(1, fewest, precision))
    if not watch.larger_budget(60.0 * minutes):
        raise BudgetTooSmall(
            f"a round takes about {round_s:.0f} s ({_shares(piloted, 1)}), and nothing is decided on fewer than {fewest} rounds: "
            f"a budget of {precision.budget_s:.0f} s would end without a verdict, so nothing was measured",
            f"give it {minutes} min: {resume_command(folder, minutes)}",
        )
    return replace(experiment, precision=replace(precision, budget_s=60.0 * minutes))


def budget_lines(experiment: Experiment, piloted: pilot.Pilot, blocks: int) -> Iterator[str]:
    """What the budget buys, said before the first round."""
    precision = experiment.precision
    rounds = min(piloted.rounds(blocks, precision), precision.rounds_max)
    size = f"{rounds} {noun(rounds, 'round')} of {blocks} {noun(blocks, 'block')}"
    yield f"budget {precision.budget_s:.0f} s: about {size}, {piloted.round_s(blocks):.0f} s each: {_shares(piloted, blocks)}"
    if piloted.thinned and rounds > precision.rounds_of_slow:
        slow, later_s = ", ".join(sorted(piloted.thinned)), piloted.round_s(blocks, piloted.thinned)
        yield f"after {precision.rounds_of_slow} rounds without {slow}, many times slower than the baseline: {later_s:.0f} s each"


def _shares(piloted: pilot.Pilot, blocks: int) -> str:
    """Where the time of a round of so many blocks goes."""

    def share(name: str, cost: pilot.ArmCost) -> str:
        where = (
            "" if blocks == 1 or not cost.slow_s else " in one block" if name in piloted.thinned else " in fewer blocks"
        )
        return f"{name} {cost.of(blocks):.0f} s{where} ({cost.of(blocks) - cost.fixed_s:.0f} s timed)"

    arms = sorted(piloted.arms.items(), key=lambda each: -each[1].of(blocks))
    return ", ".join(share(name, cost) for name, cost in arms)


@dataclass(slots=True)
class Measurement:
    """Rounds until `watch.decide` says enough, the next one would not fit, or nothing is left to compare.

    ``so_far``: all that the history holds; ``failures``: how many rounds in a row each arm has failed. ``whole_rounds``: in how
    many that count each got through. ``wrong``: arms of which an answer was wrong. ``thinned_out``: those that are many times
    slower and have all the rounds that they get.
    """

    prepared: inputs.Prepared
    plan: Plan
    folder: Path
    writer: RunWriter
    so_far: Run
    length: RoundLength
    watch: Watch
    stop: Stop
    budget: Budget = field(init=False)
    failures: dict[str, int] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    whole_rounds: Counter[str] = field(default_factory=Counter)
    thinned_out: frozenset[str] = frozenset()
    seen_plans: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.budget = Budget(self.precision.budget_s, self.so_far.elapsed_s)
        for attempt in self.so_far.counted:
            self.whole_rounds.update(attempt.healthy)
            self.wrong |= answered_wrongly(attempt.records).keys()
            self.failures = dict.fromkeys(attempt.failed, 1)  # in the last round: it may have been the pilot
        self.seen_plans |= {record.fingerprint for record in self.so_far.records(schema.Fingerprint)}

    @property
    def precision(self) -> Precision:
        return self.plan.experiment.precision

    def run(self) -> None:
        index = -1
        try:
            reason = self.decide() if self.so_far.counted else None  # killed between its last round and its end
            while reason is None:
                index += 1
                if index not in self.so_far.complete_rounds:
                    reason = self.round(index) or self.decide()
        except KeyboardInterrupt:
            self.stop.granted()
            reason = STOPPED
        self.append(schema.RunEnd(reason=reason, elapsed_s=self.budget.elapsed_s()))
        rounds = len(self.so_far.counted)
        self.watch.say(f"measured {rounds} {noun(rounds, 'round')} in {self.budget.elapsed_s():.0f} s: {reason}")

    def append(self, record: schema.Record) -> schema.Record:
        """Into the history, whole; as its readers will have it."""
        with self.stop.deferring_signals():
            return self.writer.append(record)

    def round(self, index: int) -> str | None:
        """One attempt at one round. Returns why no other can follow, or None."""
        self.require_host()
        begin = schema.RoundBegin(
            round=index, attempt=self.so_far.next_attempt(index), elapsed_s=self.budget.elapsed_s()
        )
        self.append(begin)
        records: list[schema.Record] = []

        def write(record: schema.Record) -> None:
            records.append(self.append(record))  # what the stopping rule sees is what the analysis will see

        left_out = self.left_out()
        run = RoundRun(
            self.prepared.context,
            self.prepared.inputs,
            self.plan.round(index),
            write,
            self.watch,
            self.budget,
            logs_of(self.folder, index, begin.attempt),
            self.seen_plans,
            left_out,
            self.stop.deferring_signals,
        )
        ended: str | None = None
        problem: str | None = None
        try:
            run.measure()
        except Cut:
            ended, problem = "budget ended", "cut: it ran past the budget"
        except KeyboardInterrupt:
            self.stop.granted()
            ended, problem = STOPPED, None if run.whole else STOPPED
        made = Attempt(index, begin.attempt, begin, None, tuple(records))
        missing = self.needed() - made.healthy
        if problem is None and missing:
            problem = f"without {', '.join(sorted(missing))} there is nothing to compare with"
        end = schema.RoundEnd(
            round=index,
            attempt=begin.attempt,
            complete=problem is None,
            reason=problem,
            elapsed_s=self.budget.elapsed_s(),
        )
        self.append(end)
        made = replace(made, end=end)
        self.so_far = replace(self.so_far, attempts=(*self.so_far.attempts, made))
        for arm in self.plan.experiment.arms:
            if arm.name not in left_out:
                self.failures[arm.name] = 0 if arm.name in made.healthy else self.failures.get(arm.name, 0) + 1
        if problem is None:
            self.whole_rounds.update(made.healthy)
            wrong = answered_wrongly(records)
            for arm_name, query in wrong.items():
                self.watch.say(
                    f"{arm_name} answers {query} wrongly, so it has no verdict and takes part in no more rounds"
                )
            self.wrong |= wrong.keys()
            self.length.see(end.elapsed_s - begin.elapsed_s, {arm: spent.all_s for arm, spent in run.spent.items()})
        return ended or self.nothing_left()

    def require_host(self) -> None:
        """ChannelError unless the host's agent answers: without it every arm of every round would only fail."""
        try:
            self.prepared.context.host.call("ping", {})
        except ChannelError as error:
            raise ChannelError(
                f"{error.message}; finished rounds are kept", f"look what ended it; {resuming(self.folder)}"
            ) from error

    def decide(self) -> str | None:
        """After whole rounds only. A round that begins for the sake of a verdict stretches the budget."""
        elapsed_s, before = self.budget.elapsed_s(), self.watch.settled
        tried = {arm for arm in self.plan.thinned if self.whole_rounds[arm] >= self.precision.rounds_of_slow}
        others_s = self.length.next_s(self.left_out() | tried)
        reason = self.watch.decide(self.so_far, elapsed_s, others_s)
        self.thin_out(tried)
        for arm_name in sorted(self.watch.settled - before if reason is None else ()):
            self.watch.say(f"{arm_name} sits out: whatever comes, it is beyond {self.precision.settled:.0%}")
        next_s = self.length.next_s(self.left_out())
        if reason is None and elapsed_s <= self.budget.budget_s < elapsed_s + next_s:
            more_s = elapsed_s + next_s - self.budget.budget_s
            self.watch.say(
                f"the budget is stretched by about {more_s:.0f} s: with one more round there can be a verdict"
            )
            self.budget.stretch(elapsed_s + next_s)
        return reason

    def needed(self) -> set[str]:
        """The baseline and its copy."""
        experiment = self.plan.experiment
        return {arm.name for arm in experiment.arms if experiment.baseline in (arm.name, arm.copy_of)}

    def given_up(self) -> frozenset[str]:
        """Those that fail time and again, and those that cannot have a verdict any more, since an answer was wrong."""
        return frozenset(arm for arm, count in self.failures.items() if count >= FAILURES_MAX) | self.wrong

    def left_out(self) -> frozenset[str]:
        """Those that take no part in the next round."""
        return self.given_up() | self.thinned_out | self.watch.settled

    def thin_out(self, tried: Collection[str]) -> None:
        """Of the arms that are many times slower and were in the rounds that they get, those in all of which they have an effect
        (docs/adr/0026). Where a visit was void the budget, but no more, may have room for another try."""
        for arm_name in sorted(set(tried) - self.thinned_out - self.given_up()):
            whole = self.whole_rounds[arm_name]
            with_effect = self.watch.rounds_with_effect.get(arm_name, whole)
            lacks = with_effect < self.precision.rounds_of_slow and whole < self.precision.rounds_of_slow_most
            if lacks and self.length.next_s(self.left_out()) <= self.budget.left_s():
                continue
            self.thinned_out |= {arm_name}
            had = f"{whole}" if with_effect == whole else f"{whole}, {with_effect} of them without a void visit"
            self.watch.say(f"{arm_name} takes part in no more rounds: it is many times slower, and was in {had}")

    def nothing_left(self) -> str | None:
        others = {arm.name for arm in self.plan.experiment.arms} - self.needed()
        gone = self.given_up()
        return "no arm left" if self.needed() & gone or (others and others <= gone) else None
