"""A paper's experiments measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from dbtoll import registry, spec
from dbtoll.analysis.reproduction import ENVIRONMENT
from dbtoll.commands import planning, sweep
from dbtoll.commands.inspect import require_no_link
from dbtoll.commands.measure import asked_otherwise, bring_programs
from dbtoll.defaults import BASELINE
from dbtoll.errors import RunFolderError, Unavailable, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.model.sweep import LeftOut
from dbtoll.runner.preparation.requirements import unfit
from dbtoll.spec.variables import from_words
from dbtoll.store import sweeps
from dbtoll.terminal import notices
from dbtoll.text import noun

if TYPE_CHECKING:
    from dbtoll.analysis.reproduction.paper import Paper, PartFile
    from dbtoll.store.reader import Run

EXCLUSIVE = "exclusive"
"""What a part may need that is an option of its own; all else that it needs are variables."""


def list_papers(*, as_json: bool) -> None:
    """Every paper: its name, title and claims, and where its specifications lie."""
    papers: list[Paper] = [member() for member in registry.members("papers")]
    specifications = {paper.name: sorted((paper.folder / "specs").glob("*.toml")) for paper in papers}
    if as_json:
        listed = {
            paper.name: {
                "title": paper.about.title,
                "authors": paper.about.authors,
                "venue": paper.about.venue,
                "claims": len(paper.claims),
                "environment": paper.about.environment,
                "parts": [part.role for part in paper.about.parts],
                "specifications": [str(path) for path in specifications[paper.name]],
            }
            for paper in papers
        }
        print(msgspec.json.encode(listed).decode())
        return
    for paper in papers:
        about = paper.about
        print(f"{paper.name}: {', '.join(part for part in (about.authors, about.title, about.venue) if part)}")
        parts, claims = len(about.parts), len(paper.claims)
        measured = f"in {parts} {noun(parts, 'part')}, with {about.environment} unless another environment is named"
        print(f"  {claims} {noun(claims, 'claim')}; reproduced {measured if parts else 'not yet'}")
        for path in specifications[paper.name]:
            print(f"  {path}")


def reproduce(
    name: str,
    environment: str | None,
    *,
    variables: Sequence[str],
    rounds: int | None,
    budget: str | None,
    exclusive: bool,
    only: Sequence[str] = (),
    use: Sequence[Path],
    samples: Path | None = None,
    runs_dir: Path,
    as_json: bool,
    quiet: bool,
    yes: bool,
) -> int:
    """A paper's experiments, measured here, beside its tables, figures and claims. Parts in ``use`` are not measured again.

    ``environment``: None: the paper's own choice. ``variables``: NAME=VALUE, for the parts that declare them. ``only``: roles of
    the parts to be measured; none: all. ``samples``: the folder of the authors' own samples.
    """
    from dbtoll.analysis.result.builder import analyze_run
    from dbtoll.report import reproduction as reports

    paper: Paper = registry.find("papers", name)()
    if not paper.about.parts:
        raise UsageError(f"nothing of {name} can be measured here yet", "dbtoll reproduce lists the papers")
    environment = environment or paper.about.environment
    values = from_words(variables)
    if ENVIRONMENT in values:
        raise UsageError("--set environment: it is named after the paper", f"dbtoll reproduce {name} ENV")
    if environment == BASELINE:
        raise UsageError(f"{BASELINE} is what the environment is held against", f"dbtoll reproduce {name} docker")
    if samples is not None and not paper.about.samples:
        raise UsageError(f"--samples: the authors of {name} published none", "leave it out")
    given = _given(paper, {ENVIRONMENT: environment, **values})
    found = _used(paper, use)
    left_out = {
        part.role: why
        for part in paper.about.parts
        if part.role not in found
        and (
            why := _left_out(part, environment, exclusive=exclusive, values=values, only=_chosen(paper, only))
            or _unfit(paper.folder / part.file, part, given[part.role], exclusive=exclusive)
        )
    }
    _require_enough(paper, left_out)
    console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
    if samples is None and paper.about.samples:
        console.print(f"samples: left out: --samples FOLDER names them ({paper.about.samples})", markup=False)
    asked = _Asked(
        otherwise=lambda experiment: _of_rounds(asked_otherwise(experiment, budget, None), rounds),
        exclusive=exclusive,
        runs_dir=runs_dir,
        quiet=quiet,
        yes=yes,
    )
    planned = {
        part.role: asked.part(paper.folder / part.file, part, given[part.role])
        for part in paper.about.parts
        if part.role not in found and part.role not in left_out
    }
    for role, why in left_out.items():
        console.print(f"{role}: left out: {why}", markup=False)
    for role, part in planned.items():
        for line in part.preview():
            console.print(f"{role}: {line}", markup=False)
    _require_possible(planned)
    found |= {role: part.measure(asked) for role, part in planned.items()}
    result = paper.reproduce(found, samples)
    parts = [run for part in paper.about.parts for run in found.get(part.role, ())]
    results = [analyze_run(run) for run in parts]
    main = parts[0]
    try:
        written = reports.write(main.folder / name, paper.about, result, results, parts)
    except OSError as error:
        require_no_link(error)
        raise RunFolderError(
            f"{main.folder}: the page cannot be written: {error.strerror}", "make room there"
        ) from error
    if as_json:
        print(msgspec.json.encode(result).decode())
    else:
        Console(highlight=False, soft_wrap=True).print("\n".join(reports.sentences(result)), markup=False)
    console.print(f"page: {written[0]}", markup=False)
    console.print(f"tables: {written[0].parent}", markup=False)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """As the user wants all parts to be measured. ``otherwise``: what is asked for of each experiment."""

    otherwise: Callable[[Experiment], Experiment]
    exclusive: bool
    runs_dir: Path
    quiet: bool
    yes: bool

    def part(self, file: Path, part: PartFile, variables: Mapping[str, str]) -> _OneRun | _SeveralRuns:
        """``file``: its specification. A value that the user gave the variable of a sweep is its only one."""
        if not part.over:
            experiment, text = spec.read(file, exclusive=self.exclusive, variables=variables)
            return _OneRun(part.role, self.otherwise(experiment), text)
        variable, _, _ = part.over.partition("=")
        others = {name: value for name, value in variables.items() if name != variable}
        over = f"{variable}={variables[variable]}" if variable in variables else part.over
        planned = sweep.plan(spec.read_text(file), str(file), over, variables=others, exclusive=self.exclusive)
        experiments = {value: self.otherwise(each) for value, each in planned.experiments.items()}
        return _SeveralRuns(part.role, replace(planned, experiments=experiments))


@dataclass(frozen=True, slots=True)
class _OneRun:
    """A part that is one run. ``text``: its specification."""

    role: str
    experiment: Experiment
    text: str

    def preview(self) -> Iterator[str]:
        """What it takes."""
        yield self.experiment.question
        yield from planning.needs_lines(planning.needs(self.experiment))

    def experiments(self) -> dict[str, Experiment]:
        """By what tells them apart."""
        return {"": self.experiment}

    def measure(self, asked: _Asked) -> list[Run]:
        """Its run."""
        from dbtoll.progress import Progress
        from dbtoll.runner import run as runs

        bring_programs(self.experiment, yes=asked.yes)
        notices(quiet=asked.quiet)(f"{self.role}: {self.experiment.question}")
        with Progress(self.experiment, quiet=asked.quiet, yes=asked.yes) as progress:
            return [runs.begin_part(self.experiment, self.text, asked.runs_dir, progress)]


@dataclass(frozen=True, slots=True)
class _SeveralRuns:
    """A part that is a sweep."""

    role: str
    planned: sweep.Planned

    def preview(self) -> Iterator[str]:
        """What it takes."""
        yield from sweep.preview(self.planned)

    def experiments(self) -> dict[str, Experiment]:
        """By what tells them apart."""
        variable = self.planned.sweep.variable
        return {f"{variable} = {sweep.value_text(value)}": each for value, each in self.planned.experiments.items()}

    def measure(self, asked: _Asked) -> list[Run]:
        """Its runs, with their own page."""
        variable = self.planned.sweep.variable
        notices(quiet=asked.quiet)(f"{self.role}: {next(iter(self.planned.experiments.values())).question}")
        measured = sweep.measure(self.planned, asked.runs_dir, quiet=asked.quiet, yes=asked.yes, after=sweep.write)
        _require_all_values(self.role, variable, measured.sweep.left_out)
        return [each.run for each in measured.parts]


def _require_all_values(role: str, variable: str, left_out: Sequence[LeftOut]) -> None:
    """Claims are about all values: what cannot be measured is not passed over. Unavailable."""
    for each in left_out:
        if not each.arm:
            raise Unavailable(
                f"{role}: {variable} = {sweep.value_text(each.value)} could not be measured: {each.why}",
                f"the other values are kept; without it: --set {variable}=VALUE",
            )


def _require_possible(parts: Mapping[str, _OneRun | _SeveralRuns]) -> None:
    """Unavailable, before anything is measured, where a part would end for want of room, or without one of its values."""
    for role, part in parts.items():
        if isinstance(part, _SeveralRuns):
            _require_all_values(role, part.planned.sweep.variable, part.planned.sweep.left_out)
        for which, experiment in part.experiments().items():
            for lacking in planning.needs(experiment).no_room():
                others = ", ".join(f"--part {other!r}" for other in parts if other != role)
                raise Unavailable(
                    ": ".join(each for each in (role, which, lacking) if each),
                    "make room there, give it a smaller value (--set NAME=VALUE)"
                    + (f", or measure the others: {others}" if others else ""),
                )


def _given(paper: Paper, values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """By role: those of ``values`` that the part's specification declares. UsageError for one that none declares."""
    declared = {part.role: spec.variables_of(paper.folder / part.file) for part in paper.about.parts}
    everywhere = {name for variables in declared.values() for name in variables}
    for name in values:
        if name not in everywhere and name != ENVIRONMENT:
            raise UsageError(
                f"--set {name}: no part of {paper.name} has such a variable",
                f"there is: {', '.join(sorted(everywhere))}",
            )
    return {
        role: {name: value for name, value in values.items() if name in variables}
        for role, variables in declared.items()
    }


def _used(paper: Paper, folders: Sequence[Path]) -> dict[str, list[Run]]:
    """By role; of a run of a sweep all of its runs. UsageError for a run of something else."""
    from dbtoll.store.reader import read_run

    found: dict[str, list[Run]] = {}
    for folder in folders:
        run = read_run(folder)
        experiment = run.plan.experiment
        if experiment.paper != paper.name or experiment.role not in [part.role for part in paper.about.parts]:
            raise UsageError(f"--reuse {folder}: it is no run of a part of {paper.name}", "leave it out")
        of_sweep = experiment.sweep
        found[experiment.role] = (
            [run]
            if of_sweep is None
            else [read_run(each) for each in sweeps.runs_of(of_sweep.id, folder.absolute().parent)]
        )
    return found


def _chosen(paper: Paper, only: Sequence[str]) -> list[str]:
    """The roles that shall be measured. UsageError for one that the paper has not."""
    roles = [part.role for part in paper.about.parts]
    for role in only:
        if role not in roles:
            raise UsageError(f"--part {role}: {paper.name} has no such part", f"its parts are: {', '.join(roles)}")
    return list(only) or roles


def _left_out(
    part: PartFile, environment: str, *, exclusive: bool, values: Mapping[str, str], only: Sequence[str]
) -> str | None:
    """Why a part is not measured; None if it is. ``values``: of the variables that the user gave; ``only``: the parts that are
    asked for."""
    if part.role not in only:
        return "it was not asked for"
    if EXCLUSIVE in part.needs and not exclusive:
        return "it drops this machine's caches; say that the machine is yours: --exclusive"
    if lacking := [name for name in part.needs if name != EXCLUSIVE and name not in values]:
        return f"it needs a {lacking[0]}: --set {lacking[0]}=VALUE"
    name, _, _ = environment.rsplit("//", maxsplit=1)[-1].partition(":")
    if part.option and part.option not in registry.find("environments", name).options:
        return f"{name} has no option {part.option}"
    return None


def _unfit(file: Path, part: PartFile, variables: Mapping[str, str], *, exclusive: bool) -> str:
    """Why this machine cannot run an arm of a part that is one run; empty where it can. A sweep leaves arms out by itself."""
    if part.over:
        return ""
    experiment, _ = spec.read(file, exclusive=exclusive, variables=variables)
    return "; ".join(f"{arm}: {why} ({hint})" for arm, (why, hint) in unfit(experiment).items())


def _require_enough(paper: Paper, left_out: Mapping[str, str]) -> None:
    """UsageError, before anything is measured, where nothing could be said."""
    for part in paper.about.parts:
        if part.needed and part.role in left_out:
            raise UsageError(
                f"without the part {part.role!r} nothing can be said: {left_out[part.role]}",
                f"measure it (--part {part.role!r}), or name a run of it: --reuse RUN",
            )
    if len(left_out) == len(paper.about.parts):
        raise UsageError(f"no part of {paper.name} can be measured: {'; '.join(dict.fromkeys(left_out.values()))}")


def _of_rounds(experiment: Experiment, rounds: int | None) -> Experiment:
    """With exactly so many rounds."""
    if rounds is None:
        return experiment
    if rounds < 2:
        raise UsageError("--rounds: an interval needs at least two rounds", "--rounds 5")
    return replace(experiment, precision=replace(experiment.precision, rounds_min=rounds, rounds_max=rounds))
