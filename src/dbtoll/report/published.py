"""Published tables and figures beside ours: on a run's page, on a reproduction's, in the documents. Names no paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dbtoll import registry
from dbtoll.analysis.reproduction.paper import About, Paper
from dbtoll.analysis.reproduction.tables import Cell, Column, Difference, PublishedTable, Quantity
from dbtoll.analysis.result.schema import Result, varied_factors
from dbtoll.model.experiment import Experiment, Verdict
from dbtoll.report.figures import forest
from dbtoll.report.tables import markdown_table
from dbtoll.report.text import names, numbers, sentences

_NUMBERS: dict[str, Callable[[float], str]] = {
    "s": lambda value: numbers.time_of(value * 1e9),
    "ms": numbers.milliseconds,
    "ns": numbers.time_of,
    "times": lambda value: f"{numbers.figure(value)}×",
    "percent": lambda value: numbers.EffectText("run_time", value / 100, None, None).value,
    "percent of all": lambda value: numbers.percent(value / 100, plus=False),
    "MB": lambda value: f"{numbers.figure(value)} MB",
}

_PRINTED = {"s": "s", "ms": "ms", "percent": "%", "percent of all": "%", "MB": "MB"}


@dataclass(frozen=True, slots=True)
class Beside:
    """A paper and those of its tables that a run has figures of."""

    about: About
    tables: list[PublishedTable]


def beside(result: Result, experiment: Experiment) -> Iterator[Beside]:
    """Of every paper that has such tables. ``result``: with its arms labelled.

    None where arms differ in more than their environment, which is what the papers compared.
    """
    if len(experiment.configurations) > 1:
        return
    for member in registry.members("papers"):
        paper: Paper = member()
        if tables := list(paper.beside(result, experiment)):
            yield Beside(paper.about, tables)


def citation(about: About) -> str:
    """``Minhas, Yadav, Aboulnaga and Salem, ICDE Workshops 2008``"""
    return ", ".join(part for part in (about.authors, about.venue) if part)


def levels_of(table: PublishedTable, result: Result) -> str:
    """At which of the run's levels, as far as these vary."""
    if table.levels is None:
        return ""
    varied = varied_factors(each.levels for each in result.windows or result.comparisons)
    return names.levels_text(table.levels, varied)


def cell_text(cell: Cell, column: Column, margin: float) -> str:
    """With the digits of its unit, or as many as the paper prints. ``margin``: the run's, which a verdict speaks of; a fraction."""
    match cell:
        case Verdict():
            text = sentences.verdict_text(cell, margin)
        case str():
            text = cell
        case Difference():
            text = numbers.EffectText(cell.metric, cell.estimate, cell.low, cell.high).text
        case Quantity():
            text = numbers.figure(cell.estimate, cell.low, cell.high)
            text += f"{numbers.THIN}%" if column.unit == "percent of all" else ""
        case None:
            text = numbers.NOTHING
        case _ if column.decimals is None:
            text = _NUMBERS.get(column.unit, numbers.count)(cell)
        case _:
            unit = _PRINTED.get(column.unit)
            text = numbers.number(cell, column.decimals, plus=column.unit == "percent")
            text += f"{numbers.THIN}{unit}" if unit else ""
    return text


def cell_class(cell: Cell, column: Column) -> str:
    """Its colour, or that it says why there is no figure; empty for most."""
    if isinstance(cell, Verdict):
        return forest.kind_of(cell)
    return "reason" if column.unit == "verdict" and cell is not None else ""


def markdown(table: PublishedTable, margin: float) -> str:
    """A table for the documents."""
    head = [table.rows_are, *(f"ours: {column.name}" if column.ours else column.name for column in table.columns)]
    rows = [
        [
            numbers.NOTHING if row[0] is None else str(row[0]),
            *(cell_text(cell, column, margin) for cell, column in zip(row[1:], table.columns, strict=True)),
        ]
        for row in table.rows
    ]
    texts = {number for number, column in enumerate(table.columns, 1) if column.unit in ("text", "verdict")}
    return markdown_table(head, rows, right=sorted(set(range(1, len(head))) - texts))
