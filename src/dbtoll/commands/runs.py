"""What runs there are: `runs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dbtoll import registry
from dbtoll.errors import RunFolderError, Unavailable, UsageError
from dbtoll.model.experiment import Verdict
from dbtoll.model.json import Json
from dbtoll.model.sweep import Value
from dbtoll.report.text import numbers
from dbtoll.runner.cleanup.journal import is_held
from dbtoll.store import upgrade
from dbtoll.store.folders import name_in, run_folders
from dbtoll.store.reader import read_file
from dbtoll.store.schema import EXPERIMENT_FILE, HISTORY_FILE, PLAN_FILE, RESULT_FILE, SCHEMA_VERSION
from dbtoll.terminal import print_tables
from dbtoll.text import printable

END_BYTES = 4096
"""The last record of a run that ended is shorter."""

GOING_ON, NOT_MEASURED, UNFINISHED = "going on", "nothing measured yet", "not finished"


@dataclass(frozen=True, slots=True)
class Listed:
    """One run as the list has it. ``verdicts``: arm -> a few words; ``state``: why it ended, or that it has not.

    ``sweep``: the id of the sweep that it is of, and ``value``, which of its values: ``tenants = 4``; empty of another run.
    """

    run: str
    folder: str
    name: str
    started_at: str
    question: str
    workload: str
    engine: str
    arms: tuple[str, ...]
    verdicts: Mapping[str, str]
    state: str
    sweep: str = ""
    value: str = ""


class _Component(msgspec.Struct):
    name: str


class _Configuration(msgspec.Struct):
    workload: _Component
    engine: _Component


class _Arm(msgspec.Struct):
    name: str
    configuration: _Configuration
    copy_of: str | None = None


class _Sweep(msgspec.Struct):
    id: str
    variable: str
    value: Value


class _Experiment(msgspec.Struct):
    question: str
    arms: Annotated[list[_Arm], msgspec.Meta(min_length=1)]
    sweep: _Sweep | None = None


class _PlanOrAsked(msgspec.Struct):
    experiment: _Experiment


class _Comparison(msgspec.Struct):
    arm: str
    is_aa: bool
    metric: str
    estimand: str
    verdict: str
    levels: dict[str, str]
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


class _Result(msgspec.Struct):
    comparisons: list[_Comparison]
    main_metric: str = "run_time"


class _Line(msgspec.Struct):
    record: str = ""
    started_at: str = ""
    reason: str = ""


def show_runs(runs_dir: Path, *, as_json: bool) -> int:
    """The runs in a folder, the newest first. A folder that cannot be read is a line that says so."""
    listed = [list_run(folder) for folder in run_folders(runs_dir)]
    if as_json:
        print(json.dumps([asdict(each) for each in listed]))
        return 0
    if not listed:
        print(f"no runs in {runs_dir}: begin with `dbtoll quick`, or say where they lie with --runs-dir")
        return 0
    table = Table("run", "of", "verdict", "state", box=SIMPLE_HEAD, pad_edge=False)
    for each in listed:
        engines = ", ".join(_title("engines", name) for name in each.engine.split("+"))
        of = ", ".join(filter(None, (_title("workloads", each.workload), engines, each.value))) if each.workload else ""
        verdicts = "\n".join(f"{arm}: {words}" for arm, words in each.verdicts.items())
        arms = "" if each.verdicts else ", ".join(each.arms)
        table.add_row(*(Text(printable(text, lines=True)) for text in (each.run, of, verdicts or arms, each.state)))
    print_tables(table)
    return 0


def _title(family: str, name: str) -> str:
    """What it is called; a folder may name what nobody here knows."""
    try:
        return str(registry.find(family, name).description.title)
    except (UsageError, Unavailable):
        return name


def list_run(folder: Path) -> Listed:
    """What a few small files of a run folder say; they may come from anybody."""
    try:
        return _listed(folder)
    except (RunFolderError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        said = error.message if isinstance(error, RunFolderError) else f"{folder}: {error}"
        said = f"cannot be read: {said}"
        return Listed(folder.name, str(folder), name_in(folder.name), "", "", "", "", (), {}, said)


def _listed(folder: Path) -> Listed:
    asked = folder / PLAN_FILE
    kept = _read(asked if asked.exists() else folder / EXPERIMENT_FILE, Json)
    version = kept.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version < SCHEMA_VERSION:
        kept = upgrade.plan(kept, version)
    experiment = msgspec.convert(kept, _PlanOrAsked).experiment
    arms = [arm for arm in experiment.arms if arm.copy_of is None]
    started_at, state = _state(folder)
    return Listed(
        run=folder.name,
        folder=str(folder),
        name=name_in(folder.name),
        started_at=started_at,
        question=experiment.question,
        workload=arms[0].configuration.workload.name,
        engine="+".join(dict.fromkeys(arm.configuration.engine.name for arm in arms)),
        arms=tuple(arm.name for arm in arms),
        verdicts=_verdicts(folder / RESULT_FILE),
        state=state,
        sweep=experiment.sweep.id if experiment.sweep else "",
        value=f"{experiment.sweep.variable} = {experiment.sweep.value}" if experiment.sweep else "",
    )


def _read(path: Path, kind: type[Any]) -> Any:
    return msgspec.json.decode(read_file(path), type=kind)


def _state(folder: Path) -> tuple[str, str]:
    """When it began, as it says; and why it ended, or that it has not."""
    going_on = is_held(folder.name)
    history = folder / HISTORY_FILE
    if not history.is_file() or history.is_symlink() or not history.stat().st_size:
        return "", GOING_ON if going_on else NOT_MEASURED
    with history.open("rb") as file:
        first = msgspec.json.decode(file.readline(1 << 20), type=_Line)
        file.seek(max(0, file.seek(0, 2) - END_BYTES))
        tail = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    try:
        last = msgspec.json.decode(tail, type=_Line)
    except msgspec.DecodeError:  # cut where its writer was killed, or longer than the record of an end
        last = _Line()
    ended = last.reason if last.record == "run_end" else UNFINISHED
    return first.started_at, GOING_ON if going_on else ended


def _verdicts(path: Path) -> dict[str, str]:
    """Arm -> verdict with its estimate, of the headline; {} where nobody has analysed the run."""
    if not path.exists():
        return {}
    result = _read(path, _Result)
    found: dict[str, str] = {}
    for each in result.comparisons:
        if each.is_aa or each.estimand != "geomean" or each.metric != result.main_metric:
            continue
        if each.arm in found:  # one for each level of a factor
            found[each.arm] = f"{found[each.arm].removesuffix(', …')}, …"
            continue
        shown = numbers.EffectText(each.metric, each.estimate, each.low, each.high)
        figure = f" ({shown.value})" if each.estimate is not None or shown.is_bound else ""
        found[each.arm] = f"{Verdict(each.verdict) if each.verdict in list(Verdict) else '–'}{figure}"
    return found
