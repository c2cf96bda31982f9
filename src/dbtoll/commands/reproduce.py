"""A paper's experiments measured here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from dbtoll import registry, spec
from dbtoll.commands.experiments import experiments
from dbtoll.commands.inspect import require_no_link
from dbtoll.commands.measure import asked_otherwise
from dbtoll.errors import RunFolderError, UsageError
from dbtoll.model.experiment import Experiment

REPRODUCED = {"minhas2008": ("reproduce-warm.toml", "reproduce-cold.toml", "reproduce-cold-without-read-ahead.toml")}
"""Paper -> the specifications that its reproduction consists of, in whose guest's place another environment can stand."""

GUEST = 'stack = "uml"'

GUEST_THAT_DOES_NOT_READ_AHEAD = 'stack = "uml:read_ahead=0 KiB"'

COLD = 'cache = ["cold"]'


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
    quiet: bool,
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
    console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
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
        experiment = asked_otherwise(spec.parse(text, name, exclusive=exclusive), budget, None)
        console.print(f"{name}: {experiment.question}", markup=False)
        with Progress(experiment, quiet=quiet) as progress:
            found[name] = runs.begin_part(experiment, text, runs_dir, progress)
    warm = found.get(REPRODUCED[paper][0])
    if warm is None:
        raise UsageError("without its warm part nothing can be said", "leave --reuse out, or name a run of it")
    result = reproduction.reproduce(list(found.values()))
    parts = [warm, *(run for run in found.values() if run is not warm)]
    explained = [analyze_run(run) for run in parts if run.plan.experiment.explain]
    try:
        written = reports.write(warm.folder / paper, result, explained, parts)
    except OSError as error:
        require_no_link(error)
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
    cold = "cold" in experiment.factors.get("cache", ())
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
