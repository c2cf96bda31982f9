"""The page and the tables of `dbtoll reproduce`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from dbtoll import __version__
from dbtoll.durable import make_directory, write_durably
from dbtoll.report import attribution
from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from dbtoll.analysis.reproduction import ClaimResult, Reproduction
    from dbtoll.analysis.reproduction.tables import Cell, Column, Reproduced
    from dbtoll.analysis.reproduction.verdicts import Figure, Judgement
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run

PAGE = "minhas2008.html"
TITLE = "Database Systems on Virtual Machines: How Much Do You Lose?"
OUTCOMES = {"reproduced": "same", "differs": "loses", "cannot tell": "unknown", "not possible here": "unknown"}
"""The colour of a verdict."""


def write(folder: Path, found: Reproduction, explained: Sequence[Result], runs: Sequence[Run]) -> list[Path]:
    """One page and a CSV file of each table into ``folder``; their paths, the page's first. Raises OSError.

    ``explained``: of the parts that explain, the warm one first.
    """
    page = make_directory(folder) / PAGE
    write_durably(page, render(found, explained, runs).encode())
    written = [page, _write_csv(folder / "claims.csv", CLAIM_HEAD, [claim_row(each) for each in found.claims])]
    for each in found.tables:
        path = folder / f"{each.name.lower().replace(' ', '')}.csv"
        head = ["query", *(f"{_side(column)}: {column.name} [{column.unit}]" for column in each.columns)]
        written.append(_write_csv(path, head, [["" if cell is None else cell for cell in row] for row in each.rows]))
    return written


def _side(column: Column) -> str:
    return "ours" if column.ours else "published"


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows((head, *rows))
    write_durably(path, text.getvalue().encode())
    return path


ASPECTS = ("direction", "size")
CLAIM_HEAD = (
    "id", "where", "claim", "published", "published data",
    *(f"{aspect}{what}" for aspect in ASPECTS for what in ("", ": measured", ": rule")),
)  # fmt: skip
NOT_CLAIMED = "not claimed"


def claim_row(each: ClaimResult) -> list[str]:
    """As the heads of `CLAIM_HEAD` say."""
    claim = each.checked.claim
    value = f"{claim.published_value} {claim.unit}".removesuffix(" -")
    row = [claim.id, claim.where, claim.claim, value, each.checked.finding.support.value]
    for aspect in ASPECTS:
        judged: Judgement | None = getattr(each.judged, aspect)
        row += [judged.outcome, measured(judged), judged.rule] if judged else [NOT_CLAIMED, "", ""]
    return row


def measured(judged: Judgement) -> str:
    """What was counted, the figures with their intervals, and why it cannot be told."""
    return "; ".join(part for part in (judged.counted, *map(figure_text, judged.figures), judged.why) if part)


def figure_text(figure: Figure) -> str:
    """``most, Q3: 10.8× (9.2 … 12.4), published +60.0 %``"""
    text = _in_unit(figure, figure.estimate, figure.low, figure.high)
    published = "" if figure.published is None else f", published {_in_unit(figure, figure.published, None, None)}"
    return f"{figure.name}: {text}{published}"


def _in_unit(figure: Figure, estimate: float, low: float | None, high: float | None) -> str:
    if figure.unit == "overhead":
        return numbers.EffectText("run_time", estimate, low, high).text
    if figure.unit == "share":
        interval = numbers.IntervalText(estimate, low, high)
        return interval.text.removeprefix("+")
    bounds = "" if low is None or high is None else f" ({numbers.number(low, 2)} … {numbers.number(high, 2)})"
    return numbers.number(estimate, 2) + bounds


def counts(found: Reproduction, aspect: str) -> dict[str, int]:
    """Outcome -> claims, of one aspect; what is not claimed is left out."""
    judged = Counter(each.outcome for claim in found.claims if (each := getattr(claim.judged, aspect)))
    return {outcome: judged[outcome] for outcome in OUTCOMES if judged[outcome]}


def render(found: Reproduction, explained: Sequence[Result], runs: Sequence[Run]) -> str:
    """The whole page; everything that comes from a spec or a host is escaped."""
    environment = Environment(
        loader=PackageLoader("dbtoll.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(cell_text=cell_text, claim_row=claim_row, outcomes=OUTCOMES)
    labelled = [names.with_arm_labels(each) for each in explained]
    together = replace(labelled[0], ledgers=tuple(ledger for each in labelled for ledger in each.ledgers))
    return environment.get_template("reproduction.html.j2").render(
        title=TITLE,
        version=__version__,
        found=found,
        counts={aspect: counts(found, aspect) for aspect in ASPECTS},
        bills=attribution.bills(together),
        runs=[(run.begin.run, run.begin.started_at[:10], run.plan.experiment.question) for run in runs],
        host=together.facts.get("host", {}),
        scale=runs[0].plan.experiment.workload.options.get("scale"),
        rounds=[len(run.complete_rounds) for run in runs],
    )


_NUMBERS: dict[str, Callable[[float], str]] = {
    "s": lambda value: numbers.time_of(value * 1e9),
    "ms": numbers.milliseconds,
    "percent": lambda value: numbers.EffectText("run_time", value / 100, None, None).value,
    "MB": lambda value: f"{numbers.figure(value)} MB",
}


def cell_text(cell: Cell, column: Column) -> str:
    """With the digits of its unit."""
    if cell is None:
        return numbers.NOTHING
    if isinstance(cell, str):
        return cell.replace("_", " ")
    return _NUMBERS.get(column.unit, numbers.count)(cell)


def sentences(found: Reproduction) -> list[str]:
    """For the terminal: a line for each claim."""
    lines = []
    for each in found.claims:
        told = ((aspect, getattr(each.judged, aspect)) for aspect in ASPECTS)
        said = [f"{aspect} {judged.outcome}: {measured(judged)}" for aspect, judged in told if judged]
        lines.append(f"{each.checked.claim.id} {'. '.join(said)}")
    return lines


def markdown(each: Reproduced) -> str:
    """A table for the documents."""
    from dbtoll.report.tables import markdown_table

    head = ["query", *(f"{_side(column)}: {column.name}" for column in each.columns)]
    rows = [
        [str(row[0]), *(cell_text(cell, column) for cell, column in zip(row[1:], each.columns, strict=True))]
        for row in each.rows
    ]
    return markdown_table(head, rows, right=range(1, len(head)))
