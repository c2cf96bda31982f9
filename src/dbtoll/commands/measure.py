"""Measure, analyse, report: `quick`, `compare`, `run` and `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dbtoll import spec, units
from dbtoll.commands.experiments import experiments
from dbtoll.commands.inspect import is_compared, report
from dbtoll.errors import INTERRUPTED, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.spec import command_line
from dbtoll.spec.stack import parse_words
from dbtoll.store.folders import find_run
from dbtoll.terminal import notices, print_tables

QUICK = "quick.toml"

QUICK_WITH_GUESTS = {"scale = 0.1": "scale = 0.05", 'budget = "4m"': 'budget = "8m"'}
"""What is written otherwise where guests are among the arms: these may be twenty times slower."""


def quick(runs_dir: Path, *, name: str | None, as_json: bool, quiet: bool) -> int:
    """The shipped experiment ``quick.toml``, without the arms that this machine lacks; says why each is missing."""
    from dbtoll.machines.agent.local import open_local
    from dbtoll.runner.arms import boots
    from dbtoll.runner.preparation.requirements import missing_requirements

    experiment, text = spec.read(experiments() / QUICK)
    asked_otherwise(experiment, None, None, name)  # a name that is none is told before anything is tried
    say = notices(quiet=quiet)
    with open_local() as host:
        missing = missing_requirements(host, experiment.arms, say)
    for arm, found in missing.items():
        for lack in found:
            say(f"{arm} is left out: {lack.what} ({lack.why}); hint: {lack.hint}")
    kept = tuple(arm for arm in experiment.arms if arm.name not in missing)
    if not any(is_compared(arm, experiment) for arm in kept):
        raise UsageError("nothing is left to compare on this machine", "see `dbtoll doctor`")
    if any(boots(step) for arm in kept for step in arm.stack):
        for plain, with_guests in QUICK_WITH_GUESTS.items():
            text = text.replace(plain, with_guests)
        experiment = spec.parse(text, QUICK)
    say(f"TPC-H at scale factor {experiment.workload.options['scale']:g}, {len(kept)} arms")
    experiment = asked_otherwise(replace(experiment, arms=kept), None, None, name)
    return _measure(experiment, text, runs_dir, as_json=as_json, quiet=quiet)


def compare(text: str, *, runs_dir: Path, as_json: bool, quiet: bool) -> int:
    """Measure the specification that the command line was made into."""
    return _measure(spec.parse(text, command_line.COMMAND_LINE), text, runs_dir, as_json=as_json, quiet=quiet)


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
    pictured: dict[str, str] = {}
    if image is not None:
        reference = image.partition("://")[2]  # docker://NAME: nothing is fetched from a registry
        is_path = not reference and ("/" in image or Path(image).exists())
        pictured = {"path": image} if is_path else {"suite": reference or image}
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
    name: str | None,
    runs_dir: Path,
    as_json: bool,
    quiet: bool,
    exclusive: bool,
    budget: str | None,
    max_overhead: str | None,
) -> int:
    """A specification, or with ``resume`` a run folder; ``budget`` is the whole run's, what it has used included."""
    if not resume:
        experiment, text = spec.read(path, exclusive=exclusive)
        asked = asked_otherwise(experiment, budget, max_overhead, name)
        return _measure(asked, text, runs_dir, as_json=as_json, quiet=quiet)
    if name is not None:
        raise UsageError("a run that is resumed has its name already", "leave --name out")
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    path = find_run(path, runs_dir)
    experiment = asked_otherwise(runs.experiment_of(path), budget, max_overhead)
    with Progress(experiment, quiet=quiet) as progress:
        progress.say(f"{path}: its plan is carried out, with your rights: resume only folders of people whom you trust")
        runs.resume(path, progress, experiment.precision)
    return _conclude(path, experiment, as_json=as_json, quiet=quiet)


def asked_otherwise(
    experiment: Experiment, budget: str | None, max_overhead: str | None, name: str | None = None
) -> Experiment:
    """With what the command line says in the specification's place. UsageError."""
    if budget is not None:
        budget_s = _unit("--budget", budget, units.duration_ns) / 1e9
        experiment = replace(experiment, precision=replace(experiment.precision, budget_s=budget_s))
    if max_overhead is not None:
        experiment = replace(experiment, max_overhead=_unit("--max-overhead", max_overhead, units.fraction))
    if name is not None:
        experiment = replace(experiment, name=_unit("--name", name, spec.run_name))
    return experiment


def _unit(option: str, text: str, convert: Any) -> Any:
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", spec.form_hint(f"{option} ", text, convert)) from None


def _measure(experiment: Experiment, text: str, runs_dir: Path, *, as_json: bool, quiet: bool) -> int:
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    with Progress(experiment, quiet=quiet) as progress:
        folder = runs.begin(experiment, text, runs_dir, progress)
    return _conclude(folder, experiment, as_json=as_json, quiet=quiet)


def _conclude(folder: Path, experiment: Experiment, *, as_json: bool, quiet: bool) -> int:
    """Analysis and report of a run that has just ended, and the gate's exit code. What its user stopped decides nothing."""
    from dbtoll.analysis.effects import overhead_gate
    from dbtoll.runner.cleanup.journal import resuming
    from dbtoll.runner.run import STOPPED

    result = report(folder, as_json=as_json, quiet=quiet)
    code, sentence = 0, None
    if result.stopped == STOPPED:
        code, sentence = INTERRUPTED, f"stopped: {resuming(folder)}"
    elif experiment.max_overhead is not None:
        code, sentence = overhead_gate.judge(result, experiment.max_overhead)
    if sentence is not None:
        notices()(sentence)
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
    quiet: bool,
) -> int:
    """What arms would lose, by a native profile of the workload and their probes; each is measured unless its run is given."""
    from dbtoll.analysis.attribution import prediction
    from dbtoll.progress import Progress
    from dbtoll.report import predictions
    from dbtoll.runner import run as runs
    from dbtoll.store.reader import read_run

    def measured(text: str) -> Path:
        experiment = spec.parse(text, command_line.COMMAND_LINE)
        with Progress(experiment, quiet=quiet) as progress:
            return runs.begin(experiment, text, runs_dir, progress)

    found = prediction.find_all(
        read_run(profile or measured(profile_text)), read_run(probes or measured(probes_text)), stacks
    )
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print_tables(predictions.terminal(found))
    return 0
