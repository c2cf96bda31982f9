"""A paper's experiments measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from dbtoll import registry, spec
from dbtoll.commands.inspect import require_no_link
from dbtoll.commands.measure import asked_otherwise, bring_programs
from dbtoll.errors import RunFolderError, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.spec.variables import from_words
from dbtoll.text import noun

if TYPE_CHECKING:
    from dbtoll.analysis.reproduction.paper import Paper, PartFile
    from dbtoll.store.reader import Run

ENVIRONMENT = "environment"
"""The variable of a part's specification that says what is measured in the place of the paper's environment."""


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
    use: Sequence[Path],
    runs_dir: Path,
    as_json: bool,
    quiet: bool,
    yes: bool,
) -> int:
    """A paper's experiments, measured here, beside its tables, figures and claims. Parts in ``use`` are not measured again.

    ``environment``: None: the paper's own choice. ``variables``: NAME=VALUE, for the parts that declare them.
    """
    from dbtoll.analysis.result.builder import analyze_run
    from dbtoll.progress import Progress
    from dbtoll.report import reproduction as reports
    from dbtoll.runner import run as runs

    paper: Paper = registry.find("papers", name)()
    if not paper.about.parts:
        raise UsageError(f"nothing of {name} can be measured here yet", "dbtoll reproduce lists the papers")
    environment = environment or paper.about.environment
    values = from_words(variables)
    if ENVIRONMENT in values:
        raise UsageError("--set environment: it is named after the paper", f"dbtoll reproduce {name} ENV")
    given = _given(paper, {ENVIRONMENT: environment, **values})
    found = _used(paper, use)
    console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
    for part in paper.about.parts:
        if part.role in found:
            continue
        if why := _left_out(part, environment, exclusive=exclusive):
            console.print(f"{part.role}: left out: {why}", markup=False)
            continue
        experiment, text = spec.read(paper.folder / part.file, exclusive=exclusive, variables=given[part.role])
        experiment = _of_rounds(asked_otherwise(experiment, budget, None), rounds)
        bring_programs(experiment, yes=yes)
        console.print(f"{part.role}: {experiment.question}", markup=False)
        with Progress(experiment, quiet=quiet, yes=yes) as progress:
            found[part.role] = runs.begin_part(experiment, text, runs_dir, progress)
    needed = paper.about.parts[0].role
    if needed not in found:
        raise UsageError(f"without the part {needed!r} nothing can be said", "leave --reuse out, or name a run of it")
    result = paper.reproduce(found)
    parts = [found[part.role] for part in paper.about.parts if part.role in found]
    explained = [analyze_run(run) for run in parts if run.plan.experiment.explain]
    main = found[needed]
    try:
        written = reports.write(main.folder / name, paper.about, result, explained, parts)
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


def _used(paper: Paper, folders: Sequence[Path]) -> dict[str, Run]:
    """By role. UsageError for a run of something else."""
    from dbtoll.store.reader import read_run

    found: dict[str, Run] = {}
    for folder in folders:
        run = read_run(folder)
        experiment = run.plan.experiment
        if experiment.paper != paper.name or experiment.role not in [part.role for part in paper.about.parts]:
            raise UsageError(f"--use {folder}: it is no run of a part of {paper.name}", "leave it out")
        found[experiment.role] = run
    return found


def _left_out(part: PartFile, environment: str, *, exclusive: bool) -> str | None:
    """Why a part is not measured; None if it is."""
    if "exclusive" in part.needs and not exclusive:
        return "it drops this machine's caches; say that the machine is yours: --exclusive"
    name, _, _ = environment.rsplit("//", maxsplit=1)[-1].partition(":")
    if part.option and part.option not in registry.find("environments", name).options:
        return f"{name} has no option {part.option}"
    return None


def _of_rounds(experiment: Experiment, rounds: int | None) -> Experiment:
    """With exactly so many rounds."""
    if rounds is None:
        return experiment
    if rounds < 2:
        raise UsageError("--rounds: an interval needs at least two rounds", "--rounds 5")
    return replace(experiment, precision=replace(experiment.precision, rounds_min=rounds, rounds_max=rounds))
