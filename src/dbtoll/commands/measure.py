"""Measure, analyse, report: `quick`, `compare`, `run` and `predict`."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dbtoll import registry, spec, units
from dbtoll.commands.experiments import experiments
from dbtoll.commands.inspect import is_compared, report
from dbtoll.commands.summaries import NO_SUMMARIES, Summaries, conclude_gate
from dbtoll.errors import INTERRUPTED, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.spec import command_line
from dbtoll.spec.stack import parse_words
from dbtoll.spec.variables import from_words
from dbtoll.store.folders import find_run
from dbtoll.system_packages import install_missing
from dbtoll.terminal import notices, print_tables

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run

QUICK = "quick.toml"

QUICK_SCALE_WITH_GUESTS = 0.01
"""Where guests are among the arms: these may be twenty times slower."""

QUICK_WHOLE_S, QUICK_AROUND_S = 480, 60
"""From the command to the report, with guests; and what of it is neither over when `quick` says how long it takes nor measuring:
data, reference answers and report, half a minute, and as much for a pilot that is no round (docs/adr/0027)."""

QUICK_MEASURES_S = 200, 360
"""At least and at most: whoever waited long for the set-up gets a verdict all the same, and who did not wait is not held up."""

LONGEST_S = 24 * 3600
"""A run that would have to go on for longer is better changed."""


def quick(runs_dir: Path, *, name: str | None, as_json: bool, quiet: bool, yes: bool) -> int:
    """The shipped experiment ``quick.toml``, without the arms that this machine lacks; says why each is missing."""
    from dbtoll.commands import ahead
    from dbtoll.machines.agent.local import open_local
    from dbtoll.report.text import numbers
    from dbtoll.runner.preparation.requirements import missing_requirements

    text = with_further_environments((experiments() / QUICK).read_text(encoding="utf-8"))
    experiment = spec.parse(text, QUICK)
    asked_otherwise(experiment, None, None, name)  # a name that is none is told before anything is tried
    bring_programs(experiment, yes=yes)
    say = notices(quiet=quiet)
    with open_local() as host:
        missing = missing_requirements(host, experiment.arms, say)
    for arm, found in missing.items():
        for lack in found:
            say(f"{arm} is left out: {lack.what} ({lack.why}); hint: {lack.hint}")
    if not any(is_compared(arm, experiment) for arm in experiment.arms if arm.name not in missing):
        raise UsageError("nothing is left to compare on this machine", "see `dbtoll doctor`")
    # The launcher had it made while it set up. Without one it is made here, so that what is said next is true of both.
    ahead.image(experiment, say)
    experiment = quick_experiment(text, missing, age_s())
    scale = experiment.configuration.workload.options["scale"]
    say(
        f"TPC-H at scale factor {scale:g}, {len(experiment.arms)} arms: prepares for about half a minute, then "
        f"measures for {numbers.span(experiment.precision.budget_s)}"
    )
    experiment = asked_otherwise(experiment, None, None, name)
    return _measure(experiment, text, runs_dir, as_json=as_json, quiet=quiet, yes=yes, tried=True)


def quick_experiment(text: str, missing: Container[str], age_s: float) -> Experiment:
    """Without the arms that are ``missing``. Where guests are among the others it is smaller, and measures for what is left of the
    minutes: ``age_s`` have passed since the command."""
    from dbtoll.runner.arms import boots

    def parsed(**values: Any) -> Experiment:
        experiment = spec.parse(text, QUICK, variables=values)
        return replace(experiment, arms=tuple(arm for arm in experiment.arms if arm.name not in missing))

    experiment = parsed()
    if not any(boots(step) for arm in experiment.arms for step in arm.stack):
        return experiment
    return parsed(scale=QUICK_SCALE_WITH_GUESTS, budget=f"{quick_budget_s(age_s):.0f}s")


def quick_budget_s(age_s: float) -> float:
    """How long `quick` measures with guests, where ``age_s`` have passed since the command."""
    least_s, most_s = QUICK_MEASURES_S
    return min(max(QUICK_WHOLE_S - QUICK_AROUND_S - age_s, least_s), most_s)


def age_s() -> float:
    """Since this process began: with the launcher's set-up, for the launcher becomes this program (proc(5), ``starttime``)."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    began_s = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s


def with_further_environments(text: str) -> str:
    """A specification with an arm for each environment that has a default stack and none there: those of other packages."""
    there = {step.environment for arm in spec.parse(text, QUICK).arms for step in arm.stack}
    further = [kind for kind in registry.members("environments") if kind.name not in there and kind.default_stacks]
    stacks = [kind.default_stacks[0] for kind in further]
    heads = [command_line.arm(command_line.GivenArm(stack, stack)) for stack in stacks]
    return "\n".join([text, *heads])


def compare(
    text: str, *, runs_dir: Path, as_json: bool, quiet: bool, yes: bool, summaries: Summaries = NO_SUMMARIES
) -> int:
    """Measure the specification that the command line was made into."""
    experiment = spec.parse(text, command_line.COMMAND_LINE)
    bring_programs(experiment, yes=yes)
    return _measure(experiment, text, runs_dir, as_json=as_json, quiet=quiet, yes=yes, summaries=summaries)


def bring_programs(experiment: Experiment, *, yes: bool) -> None:
    """Install what the arms' environments call and this machine lacks, if the user agrees (``yes``: has agreed)."""
    install_missing({arm.stack[0].environment for arm in experiment.arms}, yes=yes)


def comparison_text(
    stacks: Sequence[str],
    *,
    arms: Sequence[str] = (),
    baseline: str | None,
    engine: str,
    engine_options: Mapping[str, Any],
    workload: str,
    workload_options: Mapping[str, Any],
    image: str | None,
    tables: Mapping[str, Mapping[str, Any]],
    top: Mapping[str, Any],
) -> str:
    """The specification that `dbtoll compare` stands for. ``workload``: NAME:OPTION=VALUE,…"""
    name, given = parse_words(workload, "workloads")
    if "directory" in given:
        given["directory"] = str(Path(given["directory"]).absolute())
    return command_line.comparison(
        stacks,
        arms=arms,
        baseline=baseline,
        engine=engine,
        engine_options={key: value for key, value in engine_options.items() if value is not None},
        workload=name,
        workload_options=given | {key: value for key, value in workload_options.items() if value is not None},
        tables={**tables, "image": command_line.image_table(image) if image is not None else {}},
        top=top,
    )


def factors(given: Sequence[str]) -> dict[str, list[str]]:
    """``connection=persistent+per_statement`` -> its levels."""
    found = {}
    for text in given:
        name, equals, levels = text.partition("=")
        if not equals or not levels:
            raise UsageError(f"--factor {text}: no levels", "write FACTOR=LEVEL+LEVEL")
        found[name] = levels.split("+")
    return found


def run(
    path: Path,
    *,
    resume: bool,
    name: str | None,
    runs_dir: Path,
    as_json: bool,
    quiet: bool,
    exclusive: bool,
    variables: Sequence[str],
    budget: str | None,
    max_overhead: str | None,
    yes: bool,
    summaries: Summaries = NO_SUMMARIES,
) -> int:
    """A specification, or with ``resume`` a run folder; ``budget`` is the whole run's, what it has used included.

    ``variables``: NAME=VALUE.
    """
    if not resume:
        experiment, text = spec.read(path, exclusive=exclusive, variables=from_words(variables))
        experiment = asked_otherwise(experiment, budget, max_overhead, name)
        bring_programs(experiment, yes=yes)
        return _measure(experiment, text, runs_dir, as_json=as_json, quiet=quiet, yes=yes, summaries=summaries)
    if name is not None:
        raise UsageError("a run that is resumed has its name already", "leave --name out")
    if variables:
        raise UsageError("--set: a run goes on with the values that it began with", "leave it out, or begin a new run")
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    path = find_run(path, runs_dir)
    experiment = asked_otherwise(runs.experiment_of(path), budget, max_overhead)
    summaries.require(experiment.max_overhead)
    bring_programs(experiment, yes=yes)
    with Progress(experiment, quiet=quiet, yes=yes) as progress:
        progress.say(f"{path}: its plan is carried out, with your rights: resume only folders of people whom you trust")
        runs.resume(path, progress, experiment.precision)
    return _conclude(path, experiment, as_json=as_json, quiet=quiet, summaries=summaries)


def asked_otherwise(
    experiment: Experiment, budget: str | None, max_overhead: str | None, name: str | None = None
) -> Experiment:
    """With what the command line says in the specification's place. UsageError."""
    if budget is not None:
        budget_s = _unit("--budget", budget, units.duration_ns) / 1e9
        if not budget_s:
            raise UsageError("--budget: nothing is measured in no time", "--budget 20m")
        experiment = replace(experiment, precision=replace(experiment.precision, budget_s=budget_s))
    if max_overhead is not None:
        experiment = replace(experiment, max_overhead=limit(max_overhead))
    if name is not None:
        experiment = replace(experiment, name=_unit("--name", name, spec.run_name))
    return experiment


def limit(max_overhead: str) -> float:
    """What `--max-overhead` says, as a fraction."""
    return float(_unit("--max-overhead", max_overhead, units.fraction))


def _unit(option: str, text: str, convert: Any) -> Any:
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", spec.form_hint(f"{option} ", text, convert)) from None


def _measure(
    experiment: Experiment,
    text: str,
    runs_dir: Path,
    *,
    as_json: bool,
    quiet: bool,
    yes: bool,
    summaries: Summaries = NO_SUMMARIES,
    tried: bool = False,
) -> int:
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    summaries.require(experiment.max_overhead)
    with Progress(experiment, quiet=quiet, yes=yes) as progress:
        folder = runs.begin(experiment, text, runs_dir, progress, tried=tried)
    return _conclude(folder, experiment, as_json=as_json, quiet=quiet, summaries=summaries)


def _conclude(folder: Path, experiment: Experiment, *, as_json: bool, quiet: bool, summaries: Summaries) -> int:
    """Analysis and report of a run that has just ended, and the gate's exit code. What its user stopped decides nothing."""
    from dbtoll.runner.cleanup.journal import resuming
    from dbtoll.store.schema import STOPPED

    run, result = report(
        folder, as_json=as_json, quiet=quiet, max_overhead=experiment.max_overhead, summaries=summaries
    )
    code = conclude_gate(result)
    said = going_on(result, run)
    if result.stopped == STOPPED:
        code, said = INTERRUPTED, f"stopped: {resuming(folder)}"
    if said is not None:
        notices()(said)
    return code


def going_on(result: Result, run: Run) -> str | None:
    """How much longer what could not be decided would take, and the command; None where all was decided, or its user stopped it."""
    from dbtoll.analysis.effects import stopping
    from dbtoll.report.text import numbers
    from dbtoll.runner.budget import proposed_minutes
    from dbtoll.runner.cleanup.journal import resume_command
    from dbtoll.store.schema import STOPPED

    lacking = stopping.undecided(result, run)
    if not lacking or result.stopped == STOPPED:
        return None
    known = [each for each in lacking if each.more_s is not None]
    if not known:
        return f"undecided: {', '.join(each.arm for each in lacking)}; how long a verdict would take cannot be told yet"
    longest = max(known, key=lambda each: each.more_s or 0.0)
    more_s, rounds = longest.more_s or 0.0, longest.rounds or 0
    text = f"undecided: {', '.join(each.arm for each in lacking)}: about {numbers.plural(rounds, 'round')} more"
    if more_s > LONGEST_S:
        return f"{text}, which is more than a day: a larger margin, more blocks or a quieter machine would help more"
    text += f" ({numbers.span(more_s)}) would do, if they are like those so far"
    if run.end and run.end.reason == stopping.ROUNDS_MAX:
        most = run.plan.experiment.precision.rounds_max
        return f"{text}; its rounds_max of {most} ended it: begin a new run with a larger one under [precision]"
    return f"{text}: {resume_command(run.folder, proposed_minutes(run.elapsed_s, more_s))}"


def predict(
    stacks: Sequence[str],
    *,
    profile: Path | None,
    probes: Path | None,
    profile_text: str,
    probes_text: str,
    runs_dir: Path,
    as_json: bool,
    quiet: bool,
    yes: bool,
) -> int:
    """What arms would lose, by a native profile of the workload and their probes; each is measured unless its run is given."""
    from dbtoll.analysis.attribution import prediction
    from dbtoll.progress import Progress
    from dbtoll.report import predictions
    from dbtoll.runner import run as runs
    from dbtoll.store.reader import read_run

    def measured(text: str) -> Path:
        experiment = spec.parse(text, command_line.COMMAND_LINE)
        bring_programs(experiment, yes=yes)
        with Progress(experiment, quiet=quiet, yes=yes) as progress:
            return runs.begin(experiment, text, runs_dir, progress)

    found = prediction.find_all(
        read_run(profile or measured(profile_text)), read_run(probes or measured(probes_text)), stacks
    )
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print_tables(predictions.terminal(found))
    return 0
