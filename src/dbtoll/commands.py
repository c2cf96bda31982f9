"""What the commands of the command line do. The only place where measuring, analysing and reporting are joined."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from dbtoll import registry, spec, units
from dbtoll.durable import write_durably
from dbtoll.errors import DbtollError, RunFolderError, Unavailable, UsageError
from dbtoll.model import Arm, Experiment
from dbtoll.plan import Plan
from dbtoll.store.schema import REPORT_FILE, RESULT_FILE
from dbtoll.text import printable

QUICK = "quick.toml"

QUICK_WITH_GUESTS = {"scale = 0.1": "scale = 0.05", 'budget = "4m"': 'budget = "8m"'}
"""What is written otherwise where guests are among the arms: these may be twenty times slower."""


# --- measuring -------------------------------------------------------------------------------------------------------


def quick(runs_dir: Path, *, as_json: bool) -> int:
    """The shipped experiment ``quick.toml``, without the arms that this machine lacks; says why each is missing."""
    from dbtoll.machines.agent.local import open_local
    from dbtoll.runner.arms import boots
    from dbtoll.runner.preparation.inputs import missing_requirements

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
    if not any(_compared(arm, experiment) for arm in kept):
        raise UsageError("nothing is left to compare on this machine", "see `dbtoll doctor`")
    if any(boots(step) for arm in kept for step in arm.stack):
        for plain, with_guests in QUICK_WITH_GUESTS.items():
            text = text.replace(plain, with_guests)
        experiment = spec.parse(text, QUICK)
    say(f"TPC-H at scale factor {experiment.workload.options['scale']:g}, {len(kept)} arms")
    return _measure(replace(experiment, arms=kept), text, runs_dir, as_json=as_json)


def compare(text: str, *, runs_dir: Path, as_json: bool) -> int:
    """Measure the specification that the command line was made into."""
    return _measure(spec.parse(text, spec.COMMAND_LINE), text, runs_dir, as_json=as_json)


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
    name, given = spec.parse_words(workload, "workloads")
    if "directory" in given:
        given["directory"] = str(Path(given["directory"]).absolute())
    pictured = {} if image is None else {"path" if "/" in image or Path(image).exists() else "suite": image}
    return spec.comparison(
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
    """``connection=one+per_statement`` -> its levels."""
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
    budget: str | None,
    max_overhead: str | None,
) -> int:
    """A specification, or with ``resume`` a run folder; ``budget`` is the whole run's, what it has used included."""
    if not resume:
        experiment, text = spec.read(path, exclusive=exclusive)
        return _measure(_asked_otherwise(experiment, budget, max_overhead), text, runs_dir, as_json=as_json)
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs

    experiment = _asked_otherwise(runs.experiment_of(path), budget, max_overhead)
    with Progress(experiment, quiet=as_json) as progress:
        progress.say(f"{path}: its plan is carried out, with your rights: resume only folders of people whom you trust")
        runs.resume(path, progress, experiment.precision)
    return _conclude(path, experiment, as_json=as_json)


def _asked_otherwise(experiment: Experiment, budget: str | None, max_overhead: str | None) -> Experiment:
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
    """Analysis and report of a run that has just ended, and the gate's exit code."""
    result = report(folder, as_json=as_json)
    if experiment.max_overhead is None:
        return 0
    from dbtoll.analysis.effects import overhead_gate

    code, sentence = overhead_gate.judge(result, experiment.max_overhead)
    Console(stderr=True, highlight=False).print(sentence, markup=False)
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
        experiment = spec.parse(text, spec.COMMAND_LINE)
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


REPRODUCED = {"minhas2008": ("reproduce-warm.toml", "reproduce-cold.toml", "reproduce-cold-without-read-ahead.toml")}
"""Paper -> the specifications that its reproduction consists of, in whose guest's place another environment can stand."""
GUEST = 'stack = "uml"'
GUEST_THAT_DOES_NOT_READ_AHEAD = 'stack = "uml:read_ahead=0 KiB"'
COLD = 'temperature = ["cold"]'


def reproduce(
    paper: str,
    environment: str,
    *,
    scale: float | None,
    rounds: int | None,
    budget: str | None,
    exclusive: bool,
    use: Sequence[Path],
    runs_dir: Path,
    as_json: bool,
) -> int:
    """A paper's experiments, measured here, beside its tables, figures and claims. Parts in ``use`` are not measured again."""
    from dbtoll.analysis import reproduction
    from dbtoll.analysis.result.builder import analyze_run
    from dbtoll.progress import Progress
    from dbtoll.report import reproduction as reports
    from dbtoll.runner import run as runs
    from dbtoll.store.reader import read_run

    if paper not in REPRODUCED:
        raise UsageError(f"there is no reproduction of {paper!r}", f"choose one of: {', '.join(REPRODUCED)}")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    found = {spec_name: read_run(folder) for folder in use if (spec_name := _part_of(read_run(folder).plan.experiment))}
    for name in REPRODUCED[paper]:
        text = _reproducing((experiments() / paper / name).read_text(encoding="utf-8"), environment, scale, rounds)
        if name in found:
            continue
        if text is None:
            console.print(
                f"{name}: left out: {environment} has no kernel of its own that could read ahead", markup=False
            )
            continue
        if COLD in text and not exclusive:
            console.print(
                f"{name}: left out: cold statements drop this machine's caches; say that it is yours: --exclusive",
                markup=False,
            )
            continue
        experiment = _asked_otherwise(spec.parse(text, name, exclusive=exclusive), budget, None)
        console.print(f"{name}: {experiment.question}", markup=False)
        with Progress(experiment, quiet=as_json) as progress:
            found[name] = runs.begin_part(experiment, text, runs_dir, progress)
    warm = found.get(REPRODUCED[paper][0])
    if warm is None:
        raise UsageError("without its warm part nothing can be said", "leave --use out, or name a run of it")
    result = reproduction.reproduce(list(found.values()))
    parts = [warm, *(run for run in found.values() if run is not warm)]
    explained = [analyze_run(run) for run in parts if run.plan.experiment.explain]
    try:
        written = reports.write(warm.folder / paper, result, explained, parts)
    except OSError as error:
        _demand_no_link(error)
        raise RunFolderError(
            f"{warm.folder}: the page cannot be written: {error.strerror}", "make room there"
        ) from error
    if as_json:
        print(msgspec.json.encode(result).decode())
    else:
        Console(highlight=False, soft_wrap=True).print("\n".join(reports.sentences(result)), markup=False)
    console.print(f"page: {written[0]}", markup=False)
    console.print(f"tables: {written[0].parent}", markup=False)
    return 0


def _part_of(experiment: Experiment) -> str | None:
    """Which of the specifications a run is of; None of none."""
    cold = "cold" in experiment.factors.get("temperature", ())
    unread = any(step.options.get("read_ahead") is not None for arm in experiment.arms for step in arm.stack)
    warm, reading, not_reading = REPRODUCED["minhas2008"]
    return (not_reading if unread else reading) if cold else warm


def _reproducing(text: str, environment: str, scale: float | None, rounds: int | None) -> str | None:
    """A shipped specification with that environment in the guest's place; None where it cannot be."""
    if GUEST_THAT_DOES_NOT_READ_AHEAD in text:
        name, _, options = environment.partition(":")
        if "read_ahead" not in registry.find("environments", name).options:
            return None
        environment = f"{name}:{options + ',' if options else ''}read_ahead=0 KiB"
        text = text.replace(GUEST_THAT_DOES_NOT_READ_AHEAD, GUEST)
    text = text.replace(GUEST, f"stack = {json.dumps(environment)}").replace(
        '"guest"', json.dumps(environment.partition(":")[0])
    )
    if scale is not None:
        text = text.replace("scale = 0.05", f"scale = {scale:g}")
    if rounds is not None:
        text = text.replace('margin = "2%"', f'margin = "2%"\nrounds_min = {rounds}\nrounds_max = {rounds}')
    return text


# --- looking ---------------------------------------------------------------------------------------------------------


def analyze(folder: Path, *, as_json: bool) -> Any:
    """Print the result, or its tables, and keep it as result.json; a folder that may only be read is analysed all the same."""
    from dbtoll.analysis.result import builder as results
    from dbtoll.report import tables

    result = results.analyze(folder)
    text = results.to_json(result)
    if as_json:
        print(text)
    else:
        Console(highlight=False).print(tables.terminal(result))
    try:
        write_durably(folder / RESULT_FILE, f"{text}\n".encode())
    except OSError as error:
        _demand_no_link(error)
        said = f"{folder}/result.json was not written: {error.strerror}"
        Console(stderr=True, highlight=False, soft_wrap=True).print(said, markup=False)
    return result


def report(folder: Path, *, as_json: bool) -> Any:
    """Analyse, print, and write the page and the tables into the run folder."""
    from dbtoll.report import export, page
    from dbtoll.store.reader import read_run

    result = analyze(folder, as_json=as_json)
    written = folder / REPORT_FILE
    run = read_run(folder)
    try:
        write_durably(written, page.render(result, run).encode())
        tables_written = export.write(folder, result, run)
    except OSError as error:
        _demand_no_link(error)
        raise RunFolderError(
            f"{folder}: the report cannot be written: {error.strerror}", "copy the folder to where you may write"
        ) from error
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"report: {written}", markup=False)
    console.print(f"tables: {tables_written[0].parent}", markup=False)
    return result


def _demand_no_link(error: OSError) -> None:
    """RunFolderError if that is why something was not written: who sent the folder may want something else overwritten."""
    if error.errno == errno.ELOOP:
        said = f"{error.filename}: it is a link, and a run folder holds none"
        raise RunFolderError(said, "ask who sent the folder; or remove the link, then again") from error


def show_plan(path: Path, *, rounds: int, blocks: int, as_json: bool) -> None:
    """The experiment and its first rounds."""
    experiment, _ = spec.read(path)
    workload = registry.find("workloads", experiment.workload.name)(experiment.workload.options)
    plan = Plan(experiment, workload.queries, blocks, {})
    shown = [plan.round(index) for index in range(rounds)]
    if as_json:
        print(msgspec.json.encode({"experiment": experiment, "queries": plan.queries, "rounds": shown}).decode())
        return
    print(experiment.question)
    for arm in experiment.arms:
        print(f"arm {arm.name}: {spec.write_stack(arm.stack)}" + (f", copy of {arm.copy_of}" if arm.copy_of else ""))
    for each in shown:
        print(f"round {each.index}: starts {', '.join(each.start_order)}")
        for phase in each.phases:
            print(f"  phase {', '.join(f'{k} {v}' for k, v in phase.levels.items())}")
            for block in phase.blocks:
                order = "; ".join(f"{visit.query} {visit.arm}" for visit in block.visits)
                print(f"    block {block.index}, parameter set {block.parameter_set}: {order}")


def doctor(*, as_json: bool, with_noise: bool) -> int:
    """What can be measured here and what is missing for the rest. 0, unless nothing can be measured at all."""
    from dbtoll import doctor as examination
    from dbtoll.doctor import summary

    console = Console(stderr=True, highlight=False)
    found = examination.examine(lambda line: console.print(line, markup=False), with_noise=with_noise)
    print(json.dumps(found) if as_json else summary.text(found))
    return 0 if found["can_measure"] else Unavailable.exit_code


def clean(runs_dir: Path, *, as_json: bool) -> int:
    """Remove what runs that no longer live left behind."""
    from dbtoll.images.cache import default_root
    from dbtoll.runner.cleanup.removers import clean_all

    cleaned = clean_all(runs_dir)
    if as_json:
        print(json.dumps(asdict(cleaned)))
    else:
        for line in cleaned.removed:
            print(printable(f"removed {line}"))
        for line in cleaned.failed:
            print(printable(f"not removed {line}"))
        for line in cleaned.alive:
            print(printable(f"left alone, it is going on: {line}"))
        for line in cleaned.left:
            print(printable(f"left alone: {line}"))
        if not cleaned.removed and not cleaned.failed:
            print(f"nothing was left behind by runs with this cache, {default_root()}")
    return DbtollError.exit_code if cleaned.failed else 0


def clean_cache(*, older: float | None, keep: str | None, as_json: bool) -> int:
    """Remove what is kept from run to run and nobody uses: all of it, or what ``older`` (days) and ``keep`` (a size) leave."""
    from dbtoll.runner.cleanup.caches import shrink

    if older is not None and not older >= 0:
        raise UsageError(f"--older {older}: days are counted from 0", "--older 30")
    try:
        keep_bytes = units.size_bytes(keep) if keep else 0
    except ValueError as error:
        raise UsageError(f"--keep: {error}", "--keep '20 GiB'") from None
    shrunk = shrink(older_days=older or 0.0, keep_bytes=keep_bytes)
    if as_json:
        print(json.dumps(asdict(shrunk)))
    else:
        for words, lines in (
            ("removed", shrunk.removed),
            ("left alone", shrunk.left_alone),
            ("not removed", shrunk.failed),
        ):
            for line in lines:
                print(printable(f"{words}: {line}"))
        print(f"the cache and Docker's imported images hold {shrunk.left_bytes / (1 << 30):.1f} GiB")
    return DbtollError.exit_code if shrunk.failed else 0


def show_selfbench(name: str | None, options: Sequence[str], *, as_json: bool) -> int:
    """One property of the instrument, with its bounds; exit 1 if a figure is out of bounds."""
    from dbtoll import selfbench as certificates

    if name is None:
        listed = certificates.listed()
        print(json.dumps(listed) if as_json else "\n".join(f"{key}: {about}" for key, about in listed.items()))
        return 0
    given = dict(option.partition("=")[::2] for option in options)
    console = Console(stderr=True, highlight=False)
    certificate = certificates.measure(name, given, lambda text: console.print(text, markup=False))
    if as_json:
        print(json.dumps(certificate.as_json()))
    else:
        print(certificate.as_text())
    return 0 if certificate.holds() else 1


def experiments() -> Path:
    """Where the shipped specifications lie: in the package of a wheel, in the checkout otherwise."""
    packaged = Path(__file__).parent / "experiments"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent.parent / "experiments"


def _compared(arm: Arm, experiment: Experiment) -> bool:
    return experiment.baseline not in (arm.name, arm.copy_of)
