"""A simulated run in which something is changed: what went wrong, where it went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from dbtoll.store.reader import read_run
from dbtoll.store.schema import Record, RoundBegin, RoundEnd, UnitVisit, Visit
from dbtoll.store.writer import RunWriter

R = TypeVar("R", bound=Record)

Change = Callable[[Record], Iterable[Record]]
"""The records to write instead of one."""


OF_UNITS = frozenset(UnitVisit.__struct_fields__)


def revised(record: R, **changes: object) -> R:
    """The record with other values for some of its keys, or of those of each of its units."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    if isinstance(record, Visit):
        of_units = {name: changes.pop(name) for name in OF_UNITS & changes.keys()}
        values["units"] = tuple(revised(unit, **of_units) for unit in record.units)  # type: ignore[type-var]
    return type(record)(**{**values, **changes})


def visit_of_one_unit(**values: Any) -> Visit:
    """A visit, by the keys that it has and those of its only unit."""
    of_unit = {name: values.pop(name) for name in OF_UNITS & values.keys()}
    return Visit(**values, units=(UnitVisit(**of_unit),))


def changed_run(source: Path, folder: Path, change: Change) -> Path:
    """The run's rounds that count, written again with every record passed through ``change``."""
    run = read_run(source)
    with RunWriter.create(folder, spec=b"", plan=run.plan, facts=run.facts) as writer:
        for attempt in run.counted:
            assert attempt.end is not None
            writer.append(RoundBegin(round=attempt.round, attempt=0, elapsed_s=attempt.begin.elapsed_s))
            for record in attempt.records:
                for written in change(record):
                    writer.append(written)
            writer.append(RoundEnd(round=attempt.round, attempt=0, complete=True, elapsed_s=attempt.end.elapsed_s))
        if run.end is not None:
            writer.append(run.end)
    return folder
