"""What runs say and what this machine can do: `analyze`, `report`, `plan`, `doctor`, `selfbench`."""

from __future__ import annotations

import errno
import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from dbtoll import registry, spec
from dbtoll.commands.summaries import NO_SUMMARIES, Summaries
from dbtoll.durable import write_durably
from dbtoll.errors import RunFolderError, Unavailable
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.plan import Plan
from dbtoll.spec.stack import write_stack
from dbtoll.spec.variables import from_words
from dbtoll.store.schema import REPORT_FILE, RESULT_FILE

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run


def analyze(
    folder: Path, *, as_json: bool, max_overhead: float | None = None, summaries: Summaries = NO_SUMMARIES
) -> Any:
    """Print the result, or its tables, and keep it as result.json; a folder that may only be read is analysed all the same.

    ``max_overhead``: the gate's limit, a fraction, instead of the run's own.
    """
    run, result, text = _analyzed(folder, max_overhead, summaries)
    _print(result, text, as_json=as_json)
    _keep(folder, text)
    summaries.write(result, run)
    return result


@contextmanager
def _without_collection() -> Iterator[None]:
    """Reading and analysing make an object for each visit and hardly a cycle: to look for some would take a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _analyzed(
    folder: Path, max_overhead: float | None = None, summaries: Summaries = NO_SUMMARIES
) -> tuple[Run, Result, str]:
    """The run, what is said of it, and that as JSON."""
    from dbtoll.analysis.result import builder as results
    from dbtoll.analysis.result.schema import to_json
    from dbtoll.store.reader import read_run

    with _without_collection():
        run = read_run(folder)
        summaries.require(run.plan.experiment.max_overhead if max_overhead is None else max_overhead)
        result = results.analyze_run(run, max_overhead)
    return run, result, to_json(result)


def _print(result: Result, text: str, *, as_json: bool) -> None:
    from dbtoll.report import tables

    if as_json:
        print(text)
    else:
        Console(highlight=False).print(tables.terminal(result))


def _keep(folder: Path, text: str) -> None:
    try:
        write_durably(folder / RESULT_FILE, f"{text}\n".encode())
    except OSError as error:
        require_no_link(error)
        said = f"{folder}/result.json was not written: {error.strerror}"
        Console(stderr=True, highlight=False, soft_wrap=True).print(said, markup=False)


def report(
    folder: Path, *, as_json: bool, max_overhead: float | None = None, summaries: Summaries = NO_SUMMARIES
) -> Any:
    """As `analyze`, and write the page and the tables into the run folder."""
    from dbtoll.report import export

    run, result, text = _analyzed(folder, max_overhead, summaries)
    _print(result, text, as_json=as_json)
    _keep(folder, text)
    try:
        written = _write_page(run, result)
        with _without_collection():
            tables_written = export.write(folder, result, run)
    except OSError as error:
        require_no_link(error)
        raise RunFolderError(
            f"{folder}: the report cannot be written: {error.strerror}", "copy the folder to where you may write"
        ) from error
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"report: {written}", markup=False)
    console.print(f"tables: {tables_written[0].parent}", markup=False)
    summaries.write(result, run)
    return result


def write_page(folder: Path) -> Path:
    """Of a report the result and the page alone, without the tables. Returns the page's path."""
    run, result, text = _analyzed(folder)
    _keep(folder, text)
    return _write_page(run, result)


def _write_page(run: Run, result: Result) -> Path:
    from dbtoll.report import page

    written = run.folder / REPORT_FILE
    write_durably(written, page.render(result, run).encode())
    return written


def require_no_link(error: OSError) -> None:
    """RunFolderError if that is why something was not written: who sent the folder may want something else overwritten."""
    if error.errno == errno.ELOOP:
        said = f"{error.filename}: it is a link, and a run folder holds none"
        raise RunFolderError(said, "ask who sent the folder; or remove the link, then again") from error


def show_plan(path: Path, *, variables: Sequence[str], rounds: int, blocks: int, as_json: bool) -> None:
    """The experiment and its first rounds. ``variables``: NAME=VALUE."""
    experiment, _ = spec.read(path, variables=from_words(variables))
    declared = spec.variables_of(path)
    workload = registry.find("workloads", experiment.workload.name)(experiment.workload.options)
    plan = Plan(experiment, workload.queries, blocks, {})
    shown = [plan.round(index) for index in range(rounds)]
    if as_json:
        print(
            msgspec.json.encode(
                {"experiment": experiment, "variables": declared, "queries": plan.queries, "rounds": shown}
            ).decode()
        )
        return
    print(experiment.question)
    for name, variable in declared.items():
        print(f"variable {name} = {experiment.variables[name]} ({variable.kind}): {variable.help}")
    for arm in experiment.arms:
        print(f"arm {arm.name}: {write_stack(arm.stack)}" + (f", copy of {arm.copy_of}" if arm.copy_of else ""))
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


def is_compared(arm: Arm, experiment: Experiment) -> bool:
    """Whether the arm is neither the baseline nor its copy."""
    return experiment.baseline not in (arm.name, arm.copy_of)
