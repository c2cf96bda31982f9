"""One specification at several values of a variable, each a run of its own: `sweep`."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbtoll import registry, spec
from dbtoll.commands.inspect import require_no_link, write_page
from dbtoll.commands.measure import asked_otherwise, bring_programs
from dbtoll.errors import BudgetTooSmall, EngineError, RunFolderError, SpecError, Stopped, Unavailable, UsageError
from dbtoll.model.experiment import Arm, Experiment, Precision
from dbtoll.model.sweep import Costs, LeftOut, Limit, Sweep, Value
from dbtoll.report.text import numbers
from dbtoll.runner.preparation.requirements import unfit
from dbtoll.spec import sweeps as spec_sweeps
from dbtoll.spec.variables import from_words
from dbtoll.store import sweeps as store_sweeps
from dbtoll.store.folders import folder_name
from dbtoll.store.schema import STOPPED
from dbtoll.terminal import notices, print_tables

if TYPE_CHECKING:
    from dbtoll.analysis.sweeps.builder import Swept
    from dbtoll.analysis.sweeps.schema import SweepResult
    from dbtoll.commands.planning import Needs
    from dbtoll.store.reader import Run

SWEEP_FOLDER = "sweep"
"""In the folder of a sweep's first run: its page, its result, its tables."""


@dataclass(frozen=True)
class Planned:
    """``experiments``: by value, of those at which some arm fits. ``text``: of the specification."""

    sweep: Sweep
    experiments: Mapping[Value, Experiment]
    text: str


def plan(
    text: str,
    file: str,
    over: str,
    *,
    variables: Mapping[str, Any],
    limit: Limit | None = None,
    costs: Costs | None = None,
    exclusive: bool = False,
    name: str = "",
) -> Planned:
    """What each value's run is. ``over``: as on the command line; ``variables``: of the others. UsageError, SpecError."""
    variable, values = spec_sweeps.values(over, spec.declared_in(text, file), each=limit is not None)
    if variable in variables:
        raise UsageError(f"--set {variable}: the sweep gives it its values", "leave it out")
    if limit is not None and not _are_numbers(values):
        raise UsageError(f"--limit: the values of {variable} are no numbers among which to search", "leave it out")
    stamp = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    asked = Sweep(folder_name(stamp, name), file, variable, values, values[0], limit=limit, costs=costs)
    return _planned(asked, text, variables, exclusive=exclusive)


def _planned(asked: Sweep, text: str, variables: Mapping[str, Any], *, exclusive: bool) -> Planned:
    experiments: dict[Value, Experiment] = {}
    left_out: list[LeftOut] = []
    refused: dict[Value, SpecError] = {}
    for value in asked.values:
        try:
            found, without = spec.fitting(
                text,
                asked.file,
                exclusive=exclusive,
                variables={**variables, asked.variable: value},
                unfit=lambda experiment: {arm: why for arm, (why, _) in unfit(experiment).items()},
            )
        except SpecError as error:
            refused[value] = error
            left_out.append(LeftOut(value, "", _without_places(error, asked.file)))
            continue
        left_out += [LeftOut(value, arm, why) for arm, why in without.items()]
        if found is not None:
            experiments[value] = found
    # A number may be too small or too large for what is asked; a word is right or wrong.
    if refused and (len(experiments) < 2 or not _are_numbers(asked.values)):
        raise next(iter(refused.values()))
    if not experiments:
        raise UsageError(
            f"no arm fits at any value: {'; '.join(dict.fromkeys(each.why for each in left_out))}",
            "more memory under [resources], or smaller values",
        )
    _require_one_question(asked.variable, experiments, left_out)
    if asked.limit is not None:
        _require_transaction(asked.limit, next(iter(experiments.values())))
        _require_more_load(asked.variable, list(experiments.values()))
    whole = replace(asked, left_out=tuple(left_out))
    made = {value: replace(each, sweep=replace(whole, value=value)) for value, each in experiments.items()}
    return Planned(whole, made, text)


def _are_numbers(values: Iterable[Value]) -> bool:
    return not any(isinstance(value, str | bool) for value in values)


def _without_places(error: SpecError, file: str) -> str:
    """What is wrong, each once, without the file and the line."""
    said = [re.sub(rf"^{re.escape(file)}:\d+: ", "", each.message) for each in error.parts or (error,)]
    return "; ".join(dict.fromkeys(said))


def _require_one_question(variable: str, experiments: Mapping[Value, Experiment], left_out: Sequence[LeftOut]) -> None:
    """UsageError where the runs could not be told by one curve for each design."""
    asked = {value: spec.asked(each.configuration.workload) for value, each in experiments.items()}
    first = next(iter(experiments))
    for value in experiments:
        if asked[value] != asked[first]:
            raise UsageError(
                f"{variable} = {value_text(value)} and {variable} = {value_text(first)} are told by unlike figures: other queries, "
                "or one has a rate of arrivals",
                "sweep over values that ask the same",
            )
    if not _are_numbers(experiments):
        return  # of other devices or environments the arms are others
    from dbtoll.analysis.sweeps.builder import TENANTS, design_of

    there = {value: {design_of(arm) for arm in each.arms if arm.copy_of is None} for value, each in experiments.items()}
    gone = {
        value: {name for each in left_out if each.value == value for name in (each.arm, TENANTS.sub("", each.arm))}
        for value in there
    }
    for value, names in there.items():
        others = [there[other] | gone[other] for other in there if other != value]
        only_there = sorted(names.difference(*others))
        if only_there and others:
            raise UsageError(
                f"at {variable} = {value_text(value)} alone is an arm named {only_there[0]}: designs are told by their names",
                "name the arms: name = … under each [[arm]]",
            )


def _require_more_load(variable: str, experiments: Sequence[Experiment]) -> None:
    """UsageError where arms are or have something else at larger values: what keeps a limit there says nothing of smaller ones."""
    from dbtoll.analysis.sweeps.builder import design_of

    first: dict[str, Arm] = {}
    for arm in (arm for each in experiments for arm in each.arms if arm.copy_of is None):
        name = design_of(arm)
        if unlike := _not_load(first.setdefault(name, arm), arm):
            raise UsageError(
                f"--limit: {unlike} of {name} is not the same at all values of {variable}, and what is kept with more of it need "
                "not be kept with less",
                "search over what arms are asked for: tenants, terminals, warehouses, a rate of arrivals",
            )


def _not_load(one: Arm, other: Arm) -> str | None:
    """What differs of two arms beside the load that they are under and the sessions that this needs; None where nothing does.
    Whether more of an option of their environments is more load, its author knows."""
    apart = one.configuration.differences(other.configuration)
    load = (each for each in apart if each.part == "workload" and each.name != "threads")
    of_load = {each.name for each in load} | {"sessions"}
    return next((each.name for each in apart if each.name not in of_load), None)


def _require_transaction(limit: Limit, experiment: Experiment) -> None:
    """UsageError where nothing of that name has response times."""
    name = experiment.configuration.workload.name
    mix = getattr(registry.find("workloads", name), "mix", {})
    if not mix:
        raise UsageError(f"--limit: {name} has no transactions whose response times could be kept", "leave it out")
    if limit.transaction and limit.transaction not in mix:
        raise UsageError(f"--limit: {name} has no transaction {limit.transaction!r}", f"there is: {', '.join(mix)}")


def _unknown_devices(costs: Costs, experiments: Iterable[Experiment]) -> list[str]:
    """Those that cost something and that no arm has: of another sweep, or misspelt."""
    from dbtoll.analysis.sweeps.price import devices_of

    known = {name for each in experiments for arm in each.arms for names in devices_of(arm) for name in names}
    return [name for name in costs.devices if name not in known]


def _obstacles(experiments: Mapping[Value, Experiment], needs: Mapping[Value, Needs]) -> dict[str, list[Value]]:
    """What stands in the way of a run, and at which values."""
    found: dict[str, list[Value]] = {}
    for value, experiment in experiments.items():
        alone = len([arm for arm in experiment.arms if arm.copy_of is None]) == 1
        for obstacle in (*needs[value].obstacles(), *(["one design is left, so nothing is compared"] if alone else [])):
            found.setdefault(obstacle, []).append(value)
    return found


def preview(planned: Planned) -> Iterator[str]:
    """What will be measured, how long, and what does not fit."""
    from dbtoll.commands import planning
    from dbtoll.report.text import sentences

    sweep, experiments = planned.sweep, planned.experiments
    budget_s = next(iter(experiments.values())).precision.budget_s
    listed = _several(list(experiments))
    if sweep.limit is None:
        runs = len(experiments)
        yield f"sweep over {sweep.variable} = {listed}"
    else:
        designs = max(len([arm for arm in each.arms if arm.copy_of is None]) for each in experiments.values())
        runs = min(len(experiments), designs * len(experiments).bit_length())
        yield (
            f"search for the largest {sweep.variable} of {listed} at which {sweep.limit.measure} of every unit stays "
            f"below {numbers.time_of(sweep.limit.ns)}: at most about {numbers.plural(runs, 'run')}"
        )
    yield (
        f"  {numbers.plural(runs, 'run')}, each measures for up to {numbers.span(budget_s)}, "
        f"{numbers.span(runs * budget_s)} in all; set-up comes on top"
    )
    needs = {value: planning.needs(each) for value, each in experiments.items()}
    if running_time := next(iter(needs.values())).running_time:
        yield f"  its author says: {running_time}"
    most = max(needs.values(), key=lambda needed: needed.disk_bytes)
    if most.disk_bytes:
        yield (
            f"  disk: up to about {numbers.size_of(most.data_bytes)} for the data and "
            f"{numbers.size_of(most.copies_bytes)} for copies of it, {numbers.size_of(most.free_bytes)} are free"
        )
    for obstacle, at in _obstacles(experiments, needs).items():
        yield f"  {sweep.variable} = {_several(at)}: {obstacle}"
    if sweep.costs is not None:
        for name in _unknown_devices(sweep.costs, experiments.values()):
            yield f"  costs: no arm has a device {name}"
    for each in sweep.left_out:
        what = f": {each.arm}" if each.arm else ""
        yield f"  {sweep.variable} = {value_text(each.value)}{what} is left out: {each.why}"
    values = list(experiments)
    for value in values if len(values) <= FEW_VALUES else (values[0], values[-1]):
        yield from (
            f"  {sweep.variable} = {value_text(value)}: {line}" for line in sentences.buffer_pools(experiments[value])
        )


FEW_VALUES = 8
"""So many are named each; of more the first and the last."""


def _several(values: Sequence[Value]) -> str:
    """As a user writes them, or how many there are from where to where."""
    texts = [value_text(value) for value in values]
    return ", ".join(texts) if len(texts) <= FEW_VALUES else f"{texts[0]} … {texts[-1]} ({len(texts)} values)"


def value_text(value: Value) -> str:
    """As a user writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def measure(
    planned: Planned,
    runs_dir: Path,
    *,
    so_far: Mapping[Value, Path] | None = None,
    budget: str | None = None,
    quiet: bool,
    yes: bool,
    after: Callable[[Swept], object] = lambda swept: None,
) -> Swept:
    """The runs of all values, or of those that a search looks at, in the order in which they were measured.

    ``so_far``: value -> its run, of a sweep that goes on: what is finished is kept, what is not is resumed. ``budget``: of each
    value; runs that it ended go on where it is larger now. ``after``: is told all so far, after each. A value at which no run can
    be begun is left out with the reason, as long as there is another one. Raises Stopped where the user stopped one.
    """
    from dbtoll.analysis.reproduction.parts import Part
    from dbtoll.analysis.sweeps.builder import Swept
    from dbtoll.progress import Progress
    from dbtoll.runner import run as runs
    from dbtoll.store.reader import read_run

    say = notices(quiet=quiet)
    folders = dict(so_far or {})
    whole = planned.sweep

    def asked_at(value: Value) -> Experiment:
        asked = asked_otherwise(planned.experiments[value], budget, None)
        return replace(asked, sweep=replace(whole, value=value))

    finished = {
        value: _finished(folder, asked_at(value) if budget is not None else None)
        for value, folder in folders.items()
        if value in planned.experiments
    }
    found = {value: Part(run) for value, run in finished.items() if run is not None}
    while (value := _next(planned, Swept(list(found.values()), whole))) is not None:
        asked, folder = asked_at(value), folders.get(value)
        bring_programs(asked, yes=yes)
        say(f"{planned.sweep.variable} = {value_text(value)}{' (resumed)' if folder else ''}: {asked.question}")
        with Progress(asked, quiet=quiet, yes=yes) as progress:
            try:
                if folder is None:
                    folder = runs.begin(asked, planned.text, runs_dir, progress)
                else:
                    kept = asked_otherwise(runs.experiment_of(folder), budget, None)
                    runs.resume(folder, progress, kept.precision)
            except KeyboardInterrupt as stopped:
                stopped.__notes__ = [f"go on with the sweep: {_going_on(planned.sweep, runs_dir)}"]
                raise
            except BudgetTooSmall as error:
                raise BudgetTooSmall(
                    f"{planned.sweep.variable} = {value_text(value)}: {error.message}",
                    f"a larger budget for each value: {_going_on(planned.sweep, runs_dir)} --budget …",
                ) from None
            except (Unavailable, EngineError) as error:
                if folder is not None and runs.has_begun(folder):
                    raise
                whole = replace(whole, left_out=(*whole.left_out, LeftOut(value, "", error.in_one_line)))
                if not found and _next(planned, Swept([], whole)) is None:
                    raise
                say(f"{planned.sweep.variable} = {value_text(value)} is left out: {error.in_one_line}")
                continue
        known = read_run(folder)
        write_page(folder)
        found[value] = Part(known)
        after(Swept(list(found.values()), whole))
        if known.end is None or known.end.reason == STOPPED:
            raise Stopped(f"{known.folder}: {STOPPED}", f"go on with the sweep: {_going_on(planned.sweep, runs_dir)}")
    return Swept(list(found.values()), whole)


def _next(planned: Planned, so_far: Swept) -> Value | None:
    """The value that is to be measured now, if any is left."""
    from dbtoll.analysis.sweeps import price
    from dbtoll.analysis.sweeps.search import next_value

    nowhere = {each.value for each in so_far.sweep.left_out if not each.arm}
    candidates = [value for value in planned.experiments if value not in nowhere]
    measured = set(so_far.by_value)
    if planned.sweep.limit is None:
        return next((value for value in candidates if value not in measured), None)
    return next_value(list(price.brackets(so_far)) if measured else [], candidates, measured) if candidates else None


def _finished(folder: Path, larger: Experiment | None) -> Run | None:
    """The run, if nothing of it is left to measure. ``larger``: with another budget, which may let it go on."""
    from dbtoll.analysis.effects.stopping import BUDGET_ENDED
    from dbtoll.store.reader import read_run

    try:
        run = read_run(folder)
    except RunFolderError:  # killed before its history had a line; resuming it says what else is wrong
        return None
    if run.end is None or run.end.reason == STOPPED:
        return None
    if larger and run.end.reason == BUDGET_ENDED and run.elapsed_s < larger.precision.budget_s:
        return None
    return run


def _going_on(sweep: Sweep, runs_dir: Path) -> str:
    first = next(iter(store_sweeps.runs_of(sweep.id, runs_dir)), None)
    return f"dbtoll sweep {first or runs_dir} --resume"


def sweep(
    path: Path,
    *,
    over: str,
    variables: Sequence[str],
    limit: str | None,
    costs: Path | None,
    budget: str | None,
    name: str | None,
    exclusive: bool,
    runs_dir: Path,
    as_json: bool,
    quiet: bool,
    yes: bool,
) -> int:
    """Measure a new sweep."""
    planned = planned_from(
        path, over=over, variables=variables, limit=limit, costs=costs, name=name, exclusive=exclusive, budget=budget
    )
    say = notices(quiet=quiet)
    for line in preview(planned):
        say(line)
    swept = measure(planned, runs_dir, budget=budget, quiet=quiet, yes=yes, after=write)
    return _conclude(swept, as_json=as_json, quiet=quiet)


def planned_from(
    path: Path,
    *,
    over: str,
    variables: Sequence[str] = (),
    limit: str | None = None,
    costs: Path | None = None,
    name: str | None = None,
    exclusive: bool = False,
    budget: str | None = None,
) -> Planned:
    """As the command line has it."""
    planned = plan(
        spec.read_text(path),
        str(path.absolute()),
        over,
        variables=from_words(variables),
        limit=None if limit is None else spec_sweeps.limit(limit),
        costs=None if costs is None else spec_sweeps.costs(costs),
        exclusive=exclusive,
        name=name or "",
    )
    if len(planned.sweep.values) < 2:
        raise UsageError(f"--over {over}: a sweep has several values", f"one is: dbtoll run {path} --set {over}")
    experiments = {value: asked_otherwise(each, budget, None, name) for value, each in planned.experiments.items()}
    return replace(planned, experiments=experiments)


def resume(
    folder: Path, *, budget: str | None, costs: Path | None, runs_dir: Path, as_json: bool, quiet: bool, yes: bool
) -> int:
    """Go on with the sweep that a run is of. ``costs``: another table, or the first."""
    from dbtoll.runner import run as runs
    from dbtoll.store.reader import read_file
    from dbtoll.store.schema import SPEC_FILE

    known = runs.experiment_of(folder)
    asked = known.sweep
    if asked is None:
        raise UsageError(f"{folder}: it is no run of a sweep", f"dbtoll run {folder} --resume")
    said = store_sweeps.said_of(_folder(asked, folder.parent))
    if costs is not None:
        asked = replace(asked, costs=spec_sweeps.costs(costs))
    elif said is not None:
        asked = replace(asked, costs=said.costs)
    others = {name: value for name, value in known.variables.items() if name != asked.variable}
    planned = _planned(asked, read_file(folder / SPEC_FILE).decode(), others, exclusive=known.exclusive)
    named = {
        value: replace(each, name=known.name, precision=_asked_with(each, known))
        for value, each in planned.experiments.items()
    }
    runs_of_it = store_sweeps.runs_of(asked.id, folder.parent)
    so_far = {each.value: path for path in runs_of_it if (each := store_sweeps.sweep_of(path))}
    for missing in planned.sweep.left_out:
        if not missing.arm and missing.value in so_far:
            raise UsageError(
                f"{so_far[missing.value]} was measured, and its specification is not possible: {missing.why}",
                "go on with the version of dbtoll that began it",
            )
    say = notices(quiet=quiet)
    say(f"{folder}: its plan is carried out, with your rights: resume only folders of people whom you trust")
    for line in preview(replace(planned, experiments=named)):
        say(line)
    swept = measure(
        replace(planned, experiments=named),
        folder.parent,
        so_far=so_far,
        budget=budget,
        quiet=quiet,
        yes=yes,
        after=write,
    )
    return _conclude(swept, as_json=as_json, quiet=quiet)


def _folder(sweep: Sweep, runs_dir: Path) -> Path:
    """Where its page and its result lie: in that of its run that was begun first."""
    return store_sweeps.runs_of(sweep.id, runs_dir)[0] / SWEEP_FOLDER


def _asked_with(experiment: Experiment, known: Experiment) -> Precision:
    """Its own, with the budget and the rounds of a run of the same sweep, which its user may have given on the command line."""
    asked = known.precision
    return replace(
        experiment.precision, budget_s=asked.budget_s, rounds_min=asked.rounds_min, rounds_max=asked.rounds_max
    )


def write(swept: Swept) -> tuple[SweepResult, Path]:
    """The page of a sweep with its result and tables, in the folder of its first run. Returns what is said, and the page's path."""
    from dbtoll.report import sweep as reports

    folder = _folder(swept.sweep, swept.parts[0].run.folder.parent)
    result, parts = swept.result(), swept.by_value.values()
    try:
        page = reports.write(folder, result, [part.result for part in parts], [part.run for part in parts])
    except OSError as error:
        require_no_link(error)
        raise RunFolderError(f"{folder}: the page cannot be written: {error.strerror}", "make room there") from error
    return result, page


def write_again(folder: Path) -> Path | None:
    """The page of the sweep that a run is of, of all its runs beside it that can be read; None of another run. Costs, and what was
    left out, are those that the page had."""
    from dbtoll.analysis.reproduction.parts import Part
    from dbtoll.analysis.sweeps.builder import Swept
    from dbtoll.store.reader import read_run

    known = store_sweeps.sweep_of(folder)
    if known is None:
        return None
    found = []
    for each in store_sweeps.runs_of(known.id, folder.absolute().parent):
        try:
            found.append(Part(read_run(each)))
        except RunFolderError as error:
            notices()(f"{each.name} is left out of the sweep's page: {error.message}")
    if not found:
        return None
    swept = Swept(found)
    said = store_sweeps.said_of(_folder(swept.sweep, folder.absolute().parent))
    return write(
        replace(swept, asked=replace(swept.sweep, costs=said.costs, left_out=said.left_out)) if said else swept
    )[1]


def _conclude(swept: Swept, *, as_json: bool, quiet: bool) -> int:
    from dbtoll.analysis.sweeps.schema import to_json
    from dbtoll.report import sweep as reports

    result, page = write(swept)
    if as_json:
        print(to_json(result))
    else:
        print_tables(reports.terminal(result))
    notices(quiet=quiet)(f"page: {page}")
    return 0
