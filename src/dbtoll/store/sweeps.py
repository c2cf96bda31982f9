"""Which runs in a folder belong to one sweep: each says so in its plan, or, before it has one, in what was asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dbtoll.errors import RunFolderError
from dbtoll.model.sweep import Costs, LeftOut, Sweep
from dbtoll.store.folders import run_folders
from dbtoll.store.reader import UNREADABLE, read_file
from dbtoll.store.schema import EXPERIMENT_FILE, PLAN_FILE

RESULT_FILE = "sweep.json"
"""What was found, in a folder of the sweep's first run (analysis/sweeps/schema.py)."""


class Said(msgspec.Struct):
    """What a sweep's result has of what was asked for that the plans of its runs may not have."""

    left_out: tuple[LeftOut, ...]
    costs: Costs | None


class _Experiment(msgspec.Struct):
    sweep: Sweep | None = None


class _PlanOrAsked(msgspec.Struct):
    experiment: _Experiment


def sweep_of(folder: Path) -> Sweep | None:
    """Which value of which sweep a run is; None of another run, and of one that cannot be read."""
    plan = folder / PLAN_FILE
    try:
        return msgspec.json.decode(
            read_file(plan if plan.exists() else folder / EXPERIMENT_FILE), type=_PlanOrAsked
        ).experiment.sweep
    except (RunFolderError, *UNREADABLE):
        return None


def runs_of(sweep_id: str, runs_dir: Path) -> list[Path]:
    """The folders of a sweep's runs, the first that was begun first."""
    return [
        folder for folder in reversed(run_folders(runs_dir)) if (sweep := sweep_of(folder)) and sweep.id == sweep_id
    ]


def said_of(folder: Path) -> Said | None:
    """Of the result in that folder; None where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(read_file(folder / RESULT_FILE), type=Said)
    except (RunFolderError, *UNREADABLE):
        return None
