"""A whole run: prepared, sized, measured round by round until it is precise enough or its budget ends; or resumed."""

from __future__ import annotations

import datetime
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dbtoll import facts as host_facts
from dbtoll.errors import RunFolderError
from dbtoll.model import Experiment, Precision
from dbtoll.plan import Plan
from dbtoll.runner import preparation
from dbtoll.runner.journal import Journal
from dbtoll.runner.rounds import Budget, Cut, RoundRun, Watch
from dbtoll.store import schema
from dbtoll.store.reader import Run, read_run
from dbtoll.store.writer import RunWriter

FAILURES_MAX = 2
"""Rounds in a row in which an arm may fail before it is given up: its starts cost the others their budget."""


def new_folder(runs_dir: Path) -> Path:
    """A folder of its own for a new run: date, time and six random digits, so that names sort and never meet."""
    stamp = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = runs_dir / f"{stamp}-{secrets.token_hex(3)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be made: {error.strerror}", "give a writable --runs-dir") from None
    return folder


def begin(experiment: Experiment, spec_text: str, runs_dir: Path, watch: Watch) -> Path:
    """Measure a new run. Returns its folder; whatever happens, nothing that it made is left behind."""
    folder = new_folder(runs_dir)
    watch.say(f"run folder: {folder}")
    with ready(experiment, folder, watch) as prepared:
        pilot = preparation.fly_pilot(prepared, watch)
        blocks = pilot.blocks(experiment.precision.budget_s)
        watch.say(budget_line(experiment, pilot, blocks))
        plan_file = schema.PlanFile(experiment=experiment, queries=prepared.queries, blocks=blocks)
        with RunWriter.create(folder, spec=spec_text.encode(), plan=plan_file, facts=prepared.facts) as writer:
            plan = Plan(experiment, plan_file.queries, plan_file.blocks, dict(plan_file.slow))
            Measurement(prepared, plan, folder, writer, None, pilot.round_s(blocks), watch).run()
    return folder


def resume(folder: Path, watch: Watch) -> Path:
    """Go on with a run that was stopped or killed: same plan, finished rounds count, the rest is measured anew."""
    before = read_run(folder)
    experiment = before.plan.experiment
    with ready(experiment, folder, watch) as prepared:
        host_facts.compare(before.facts, prepared.facts, str(folder))
        writer, run = RunWriter.resume(folder)
        with writer:
            seen_s = [a.end.elapsed_s - a.begin.elapsed_s for a in run.counted if a.end]
            plan = Plan(experiment, run.plan.queries, run.plan.blocks, dict(run.plan.slow))
            Measurement(prepared, plan, folder, writer, run, max(seen_s, default=0.0), watch).run()
    return folder


@contextmanager
def ready(experiment: Experiment, folder: Path, watch: Watch) -> Iterator[preparation.Prepared]:
    """All that rounds stand on, for as long as the context lasts; the folder's journal is held meanwhile."""
    with Journal(folder) as journal, stoppable(), preparation.host_machine(experiment) as (host, cpuset):
        preparation.demand_all(host, experiment)
        prepared = preparation.prepare(experiment, host, cpuset, folder, journal, watch)
        with preparation.kept_up(prepared):
            yield preparation.baseline_answers(prepared, folder, watch)


def budget_line(experiment: Experiment, pilot: preparation.Pilot, blocks: int) -> str:
    """What the budget buys, said before the first round; and the budget that would do, where it buys too little."""
    precision = experiment.precision
    round_s = pilot.round_s(blocks)
    fits = int(precision.budget_s // round_s) if round_s else precision.rounds_max
    line = f"budget {precision.budget_s:.0f} s: about {min(fits, precision.rounds_max)} rounds of {round_s:.0f} s"
    line += f", {blocks} block{'s' if blocks > 1 else ''} each"
    if fits < precision.rounds_min:
        enough_s = precision.rounds_min * pilot.round_s(1) * 1.1
        line += f"; {precision.rounds_min} rounds do not fit, a budget of {enough_s / 60:.0f} min would do"
    return line


@dataclass(slots=True)
class Measurement:
    """Rounds until `watch.decide` says enough, the next one would not fit, or nothing is left to compare.

    ``visits``: of the rounds that count; ``failures``: how many rounds in a row each arm has failed.
    """

    prepared: preparation.Prepared
    plan: Plan
    folder: Path
    writer: RunWriter
    before: Run | None
    round_s: float
    watch: Watch
    budget: Budget = field(init=False)
    visits: list[schema.Visit] = field(default_factory=list)
    complete: set[int] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)
    seen_plans: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.budget = Budget(self.precision.budget_s, self.before.elapsed_s if self.before else 0.0)
        if self.before:
            self.visits = list(self.before.records(schema.Visit))
            self.complete = set(self.before.complete_rounds)

    @property
    def precision(self) -> Precision:
        return self.plan.experiment.precision

    def run(self) -> None:
        reason: str | None = None
        index = -1
        while reason is None:
            index += 1
            if index not in self.complete:
                reason = self.round(index) or self.decide()
        self.writer.append(schema.RunEnd(reason=reason, elapsed_s=self.budget.elapsed_s()))
        self.watch.say(f"measured {len(self.complete)} rounds in {self.budget.elapsed_s():.0f} s: {reason}")

    def round(self, index: int) -> str | None:
        """One attempt at one round. Returns why no other can follow, or None."""
        attempt = self.before.next_attempt(index) if self.before else 0
        begin_s = self.budget.elapsed_s()
        self.writer.append(schema.RoundBegin(round=index, attempt=attempt, elapsed_s=begin_s))
        records: list[schema.Record] = []

        def write(record: schema.Record) -> None:
            self.writer.append(record)
            records.append(record)

        run = RoundRun(
            self.prepared.ground,
            self.prepared.inputs,
            self.plan.round(index),
            write,
            self.watch,
            self.budget,
            self.folder / "logs",
            self.seen_plans,
            self.given_up(),
        )
        ended: str | None = None
        problem: str | None = None
        try:
            run.measure()
        except Cut:
            ended, problem = "budget ended", "cut: it ran past the budget"
        except KeyboardInterrupt:
            ended = problem = "stopped by the user"
        healthy = set(run.healthy())
        missing = self.needed() - healthy
        if problem is None and missing:
            problem = f"without {', '.join(sorted(missing))} there is nothing to compare with"
        end_s = self.budget.elapsed_s()
        self.writer.append(
            schema.RoundEnd(round=index, attempt=attempt, complete=problem is None, reason=problem, elapsed_s=end_s)
        )
        for arm in self.plan.experiment.arms:
            self.failures[arm.name] = 0 if arm.name in healthy else self.failures.get(arm.name, 0) + 1
        if problem is None:
            self.complete.add(index)
            self.visits += [record for record in records if isinstance(record, schema.Visit)]
            # The longest so far, slowly forgotten: a round that would not fit is not begun.
            self.round_s = max(end_s - begin_s, 0.8 * self.round_s)
        return ended or self.nothing_left()

    def decide(self) -> str | None:
        """After whole rounds only."""
        elapsed_s = self.budget.elapsed_s()
        return self.watch.decide(self.visits, len(self.complete), elapsed_s, self.round_s)

    def needed(self) -> set[str]:
        """The baseline and its copy."""
        experiment = self.plan.experiment
        return {arm.name for arm in experiment.arms if experiment.baseline in (arm.name, arm.copy_of)}

    def given_up(self) -> frozenset[str]:
        return frozenset(arm for arm, count in self.failures.items() if count >= FAILURES_MAX)

    def nothing_left(self) -> str | None:
        others = {arm.name for arm in self.plan.experiment.arms} - self.needed()
        gone = self.given_up()
        return "no arm left" if self.needed() & gone or (others and others <= gone) else None


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as control-C does: through every teardown."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
