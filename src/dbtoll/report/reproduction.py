"""The page and the tables of `dbtoll reproduce`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dbtoll import __version__
from dbtoll.analysis.reproduction.tables import Difference, Quantity
from dbtoll.durable import make_directory, write_durably
from dbtoll.report import attribution, page, published
from dbtoll.report.text import names, numbers, warnings

if TYPE_CHECKING:
    from dbtoll.analysis.reproduction.paper import About, ClaimResult, Reproduction
    from dbtoll.analysis.reproduction.tables import Cell, Column
    from dbtoll.analysis.reproduction.verdicts import Figure, Judgement
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run

OUTCOMES = {"reproduced": "same", "differs": "loses"} | dict.fromkeys(
    ("cannot tell", "not measured", "not possible here"), "unknown"
)
"""The colour of a verdict."""


def write(
    folder: Path, about: About, found: Reproduction, results: Sequence[Result], runs: Sequence[Run]
) -> list[Path]:
    """One page and a CSV file of each table into ``folder``; their paths, the page's first. Raises OSError.

    ``runs``: in the order of the paper's parts; ``results``: theirs.
    """
    path = make_directory(folder) / f"{found.paper}.html"
    write_durably(path, render(about, found, results, runs).encode())
    written = [path, _write_csv(folder / "claims.csv", CLAIM_HEAD, [claim_row(each) for each in found.claims])]
    for each in found.tables:
        path = folder / f"{each.name.lower().replace(' ', '')}.csv"
        head = [each.rows_are, *(f"{_side(column)}: {column.name} [{column.unit}]" for column in each.columns)]
        rows = [[csv_cell(cell) for cell in row] for row in each.rows]
        written.append(_write_csv(path, head, rows))
    return written


def csv_cell(cell: Cell) -> object:
    """A number or a text; of a figure with an interval the estimate alone. A difference is of the quantity that the page shows, as
    a fraction."""
    if isinstance(cell, Difference):
        return numbers.EffectText(cell.metric, cell.estimate, cell.low, cell.high).change.estimate
    return "" if cell is None else cell.estimate if isinstance(cell, Quantity) else cell


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
    value = f"{claim.published_value} {claim.unit}".removesuffix(" -").replace("..", " to ").replace(";", " and ")
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


def render(about: About, found: Reproduction, results: Sequence[Result], runs: Sequence[Run]) -> str:
    """The whole page; everything that comes from a paper, a spec or a host is escaped."""
    environment = page.environment()
    environment.globals.update(claim_row=claim_row, outcomes=OUTCOMES)
    asked = [run.plan.experiment for run in runs]
    # Of a sweep each value has its own page, and all of them one.
    labelled = [
        names.with_arm_labels(result)
        for result, each in zip(results, asked, strict=True)
        if each.explain and each.sweep is None
    ]
    ledgers = tuple(ledger for each in labelled for ledger in each.ledgers)
    experiment = asked[0]
    return environment.get_template("reproduction.html.j2").render(
        about=about,
        citation=published.citation(about),
        version=__version__,
        found=found,
        counts={aspect: counts(found, aspect) for aspect in ASPECTS},
        bills=attribution.bills(replace(labelled[0], ledgers=ledgers)) if labelled else [],
        runs=[
            (
                run.begin.run,
                run.begin.started_at[:10],
                len(run.complete_rounds),
                each.question + (f" ({each.sweep.variable} = {each.sweep.value})" if each.sweep else ""),
                warnings.cautions(result).all,
            )
            for run, each, result in zip(runs, asked, results, strict=True)
        ],
        host=runs[0].host,
        workload=runs[0].descriptions.workload.title,
        disclaimer=runs[0].descriptions.workload.disclaimer,
        scale=experiment.configuration.workload.options.get("scale"),
        margin=experiment.precision.margin,
    )


def sentences(found: Reproduction) -> list[str]:
    """For the terminal: a line for each claim."""
    lines = []
    for each in found.claims:
        told = ((aspect, getattr(each.judged, aspect)) for aspect in ASPECTS)
        said = [f"{aspect} {judged.outcome}: {measured(judged)}" for aspect, judged in told if judged]
        lines.append(f"{each.checked.claim.id} {'. '.join(said)}")
    return lines
