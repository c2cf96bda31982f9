"""What runs say and what this machine can do: `analyze`, `report`, `doctor`, `selfbench`."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbtoll.commands.summaries import NO_SUMMARIES, Summaries
from dbtoll.durable import write_durably
from dbtoll.errors import RunFolderError, Unavailable
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.store.schema import REPORT_FILE, RESULT_FILE
from dbtoll.terminal import notices, print_tables

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run


def analyze(
    folder: Path,
    *,
    as_json: bool,
    quiet: bool = False,
    max_overhead: float | None = None,
    summaries: Summaries = NO_SUMMARIES,
) -> Any:
    """Print the result, or its tables, and keep it as result.json; a folder that may only be read is analysed all the same.

    ``max_overhead``: the gate's limit, a fraction, instead of the run's own.
    """
    run, result, text = _analyzed(folder, max_overhead, summaries)
    _print(result, text, as_json=as_json)
    _keep(folder, text, quiet=quiet)
    summaries.write(result, run)
    return result


def _analyzed(
    folder: Path, max_overhead: float | None = None, summaries: Summaries = NO_SUMMARIES
) -> tuple[Run, Result, str]:
    """The run, what is said of it, and that as JSON."""
    from dbtoll.analysis.result import builder as results
    from dbtoll.analysis.result.schema import to_json
    from dbtoll.analysis.uncollected import uncollected
    from dbtoll.store.reader import read_run

    with uncollected():
        run = read_run(folder)
        summaries.require(run.plan.experiment.max_overhead if max_overhead is None else max_overhead)
        result = results.analyze_run(run, max_overhead)
    return run, result, to_json(result)


def _print(result: Result, text: str, *, as_json: bool) -> None:
    from dbtoll.report import tables

    if as_json:
        print(text)
    else:
        print_tables(tables.terminal(result))


def _keep(folder: Path, text: str, *, quiet: bool = False) -> None:
    try:
        write_durably(folder / RESULT_FILE, f"{text}\n".encode())
    except OSError as error:
        require_no_link(error)
        notices(quiet=quiet)(f"{folder}/result.json was not written: {error.strerror}")


def report(
    folder: Path,
    *,
    as_json: bool,
    quiet: bool = False,
    max_overhead: float | None = None,
    summaries: Summaries = NO_SUMMARIES,
) -> tuple[Run, Result]:
    """As `analyze`, and write the page and the tables into the run folder."""
    from dbtoll.analysis.uncollected import uncollected
    from dbtoll.report import export

    run, result, text = _analyzed(folder, max_overhead, summaries)
    _print(result, text, as_json=as_json)
    _keep(folder, text, quiet=quiet)
    try:
        written = _write_page(run, result)
        with uncollected():
            tables_written = export.write(folder, result, run)
    except OSError as error:
        require_no_link(error)
        raise RunFolderError(
            f"{folder}: the report cannot be written: {error.strerror}", "copy the folder to where you may write"
        ) from error
    say = notices(quiet=quiet)
    say(f"report: {written}")
    say(f"tables: {tables_written[0].parent}")
    summaries.write(result, run)
    return run, result


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


def doctor(*, as_json: bool, with_noise: bool, quiet: bool) -> int:
    """What can be measured here and what is missing for the rest. 0, unless nothing can be measured at all."""
    from dbtoll import doctor as examination
    from dbtoll.doctor import summary

    found = examination.examine(notices(quiet=quiet), with_noise=with_noise)
    print(json.dumps(found) if as_json else summary.text(found))
    return 0 if found["can_measure"] else Unavailable.exit_code


def show_selfbench(name: str | None, options: Sequence[str], *, as_json: bool, quiet: bool) -> int:
    """One property of the instrument, with its bounds; exit 1 if a figure is out of bounds."""
    from dbtoll import selfbench as certificates

    if name is None:
        listed = certificates.listed()
        print(json.dumps(listed) if as_json else "\n".join(f"{key}: {about}" for key, about in listed.items()))
        return 0
    given = dict(option.partition("=")[::2] for option in options)
    certificate = certificates.measure(name, given, notices(quiet=quiet))
    if as_json:
        print(json.dumps(certificate.as_json()))
    else:
        print(certificate.as_text())
    return 0 if certificate.holds() else 1


def is_compared(arm: Arm, experiment: Experiment) -> bool:
    """Whether the arm is neither the baseline nor its copy."""
    return experiment.baseline not in (arm.name, arm.copy_of)
