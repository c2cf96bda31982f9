"""Measure, analyse, report: `quick`, `compare`, `run` and `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from dbtoll import spec, units
from dbtoll.commands.experiments import experiments
from dbtoll.commands.inspect import is_compared, report
from dbtoll.errors import INTERRUPTED, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.spec import command_line
from dbtoll.spec.stack import parse_words
from dbtoll.spec.variables import from_words

QUICK = "quick.toml"

QUICK_WITH_GUESTS = {"scale": 0.05, "budget": "8m"}
"""Its variables where guests are among the arms: these may be twenty times slower."""


def quick(runs_dir: Path, *, as_json: bool) -> int:
    """The shipped experiment ``quick.toml``, without the arms that this machine lacks; says why each is missing."""
    from dbtoll.machines.agent.local import open_local
    from dbtoll.runner.arms import boots
    from dbtoll.runner.preparation.requirements import missing_requirements

    experiment, text = spec.read(experiments() / QUICK)
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False)

    with open_local() as host:
        missing = missing_requirements(host, experiment.arms, say)
    for name, found in missing.items():
        for lack in found:
            say(f"{name} is left out: {lack.what} ({lack.why}); hint: {lack.hint}")
    kept = tuple(arm for arm in experiment.arms if arm.name not in missing)
    if not any(is_compared(arm, experiment) for arm in kept):
        raise UsageError("nothing is left to compare on this machine", "see `dbtoll doctor`")
    if any(boots(step) for arm in kept for step in arm.stack):
        experiment, text = spec.read(experiments() / QUICK, variables=QUICK_WITH_GUESTS)
    say(f"TPC-H at scale factor {experiment.workload.options['scale']:g}, {len(kept)} arms")
    return _measure(replace(experiment, arms=kept), text, runs_dir, as_json=as_json)


def compare(text: str, *, runs_dir: Path, as_json: bool) -> int:
    """Measure the specification that the command line was made into."""
    return _measure(spec.parse(text, command_line.COMMAND_LINE), text, runs_dir, as_json=as_json)


def comparison_text(
    stacks: Sequence[str],
    *,
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
    pictured = {} if image is None else {"path" if "/" in image or Path(image).exists() else "suite": image}
    return command_line.comparison(
        stacks,
        baseline=baseline,
        engine=engine,
        engine_options={key: value for key, value in engine_options.items() if value is not None},
        workload=name,
        workload_options=given | {key: value for key, value in workload_options.items() if value is not None},
        tables={**tables, "image": pictured},
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
    runs_dir: Path,
    as_json: bool,
    exclusive: bool,
    variables: Sequence[str],
    budget: str | None,
    max_overhead: str | None,
) -> int:
    """A specification, or with ``resume`` a run folder; ``budget`` is the whole run's, what it has used included.

    ``variables``: NAME=VALUE.
    """
    if not resume:
        experiment, text = spec.read(path, exclusive=exclusive, variables=from_words(variables))
        return _measure(asked_otherwise(experiment, budget, max_overhead), text, runs_dir, as_json=as_json)
    if variables:
        raise UsageError("--set: a run goes on with the values that it began with", "leave it out, or begin a new run")
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    experiment = asked_otherwise(runs.experiment_of(path), budget, max_overhead)
    with Progress(experiment, quiet=as_json) as progress:
        progress.say(f"{path}: its plan is carried out, with your rights: resume only folders of people whom you trust")
        runs.resume(path, progress, experiment.precision)
    return _conclude(path, experiment, as_json=as_json)


def asked_otherwise(experiment: Experiment, budget: str | None, max_overhead: str | None) -> Experiment:
    """With what the command line says in the specification's place."""
    if budget is not None:
        budget_s = _unit("--budget", budget, units.duration_ns) / 1e9
        experiment = replace(experiment, precision=replace(experiment.precision, budget_s=budget_s))
    if max_overhead is not None:
        experiment = replace(experiment, max_overhead=_unit("--max-overhead", max_overhead, units.fraction))
    return experiment


def _unit(option: str, text: str, convert: Any) -> Any:
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", "see --help") from None


def _measure(experiment: Experiment, text: str, runs_dir: Path, *, as_json: bool) -> int:
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    with Progress(experiment, quiet=as_json) as progress:
        folder = runs.begin(experiment, text, runs_dir, progress)
    return _conclude(folder, experiment, as_json=as_json)


def _conclude(folder: Path, experiment: Experiment, *, as_json: bool) -> int:
    """Analysis and report of a run that has just ended, and the gate's exit code. What its user stopped decides nothing."""
    from dbtoll.analysis.effects import overhead_gate
    from dbtoll.runner.cleanup.journal import resuming
    from dbtoll.runner.run import STOPPED

    result = report(folder, as_json=as_json)
    code, sentence = 0, None
    if result.stopped == STOPPED:
        code, sentence = INTERRUPTED, f"stopped: {resuming(folder)}"
    elif experiment.max_overhead is not None:
        code, sentence = overhead_gate.judge(result, experiment.max_overhead)
    if sentence is not None:
        Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)
    return code


def predict(
    stacks: Sequence[str],
    *,
    profile: Path | None,
    probes: Path | None,
    profile_text: str,
    probes_text: str,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """What arms would lose, by a native profile of the workload and their probes; each is measured unless its run is given."""
    from dbtoll.analysis.attribution import prediction
    from dbtoll.progress import Progress
    from dbtoll.report import predictions
    from dbtoll.runner import run as runs
    from dbtoll.store.reader import read_run

    def measured(text: str) -> Path:
        experiment = spec.parse(text, command_line.COMMAND_LINE)
        with Progress(experiment, quiet=as_json) as progress:
            return runs.begin(experiment, text, runs_dir, progress)

    found = prediction.find_all(
        read_run(profile or measured(profile_text)), read_run(probes or measured(probes_text)), stacks
    )
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        Console(highlight=False).print(predictions.terminal(found))
    return 0
