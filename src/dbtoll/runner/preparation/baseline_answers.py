"""The answers that the baseline gives, for statements that no independent engine has answered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from dbtoll.durable import write_durably
from dbtoll.model.reply import AnswerReference, Statement
from dbtoll.runner.preparation.answering import answered
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.rounds import Watch, understood
from dbtoll.store import schema
from dbtoll.store.reader import HISTORY_BYTES_MAX, read_file


def baseline_answers(prepared: Prepared, folder: Path, watch: Watch) -> Prepared:
    """For statements without an independent reference: what the baseline answers in an untimed pass holds for all arms, also for
    those that ask the query of that name in other words.

    Kept in the run folder, so that a resumed run checks against the same. Where the file is damaged the baseline is asked once
    more, and the run's facts tell whether it answers the same (`facts.compare`).
    """
    inputs = prepared.inputs
    baseline = inputs.of_baseline
    different = [inputs.by_arm[names[0]] for _, names in inputs.experiment.configurations]
    missing = [
        {
            query: statement
            for query, statement in each.items()
            if any(query not in own.answers[number] for own in different if own.engine.returns_rows)
        }
        for number, each in enumerate(baseline.statements)
    ]
    if not baseline.engine.returns_rows or not any(missing):
        return prepared
    kept = folder / schema.ANSWERS_FILE
    answers = _kept_answers(kept, missing)
    if answers is None:
        watch.say("answers of the baseline, to check those of all arms against")
        with understood(inputs.experiment.baseline):
            answers = _asked(prepared, missing)
        write_durably(kept, msgspec.json.encode(answers), mode=0o600)  # they are the user's data
    by_arm = {
        name: replace(own, answers=[{**more, **known} for known, more in zip(own.answers, answers, strict=True)])
        for name, own in inputs.by_arm.items()
    }
    digest = hashlib.sha256(msgspec.json.encode(answers)).hexdigest()
    return replace(prepared, inputs=replace(inputs, by_arm=by_arm), facts={**prepared.facts, "answers_sha256": digest})


def _kept_answers(kept: Path, missing: Sequence[Mapping[str, Statement]]) -> list[dict[str, AnswerReference]] | None:
    """None where there are none, or not of just these statements."""
    if not kept.exists():
        return None
    try:
        answers = msgspec.json.decode(read_file(kept, HISTORY_BYTES_MAX), type=list[dict[str, AnswerReference]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answers if [each.keys() for each in answers] == [each.keys() for each in missing] else None


def _asked(prepared: Prepared, missing: Sequence[Mapping[str, Statement]]) -> list[dict[str, AnswerReference]]:
    inputs = prepared.inputs
    experiment = inputs.experiment
    arm = experiment.arm(experiment.baseline)
    own = inputs.of_baseline
    found = answered(own.context, experiment, own.engine, arm, own.fresh_data, own.drop_data, missing)
    return [{query: _reference(rows) for query, rows in some.items()} for some in found]


def _reference(rows: Sequence[Sequence[str | None]]) -> AnswerReference:
    """Columns that hold a fraction or an exponent somewhere are compared as numbers, all others to the letter. ValueError for
    rows of unlike width."""
    width = len(rows[0]) if rows else 0
    if any(len(row) != width for row in rows):
        raise ValueError("its rows are not all of one width")
    columns = tuple("numeric" if _is_fractional(rows, column) else "exact" for column in range(width))
    return AnswerReference(columns, tuple(tuple(row) for row in rows))


def _is_fractional(rows: Sequence[Sequence[str | None]], column: int) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    number = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
    return all(number.fullmatch(value or "") for value in values) and any(
        set(value or "") & set(".eE") for value in values
    )
