"""What a sweep says, on its page, in its tables and on the terminal. Computes nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from dbtoll import __version__
from dbtoll.analysis.result.schema import arm_label, varied_factors
from dbtoll.analysis.sweeps.builder import LEAST, PER_TENANT, THROUGHPUT, TIME
from dbtoll.analysis.sweeps.schema import DesignAt, to_json
from dbtoll.durable import make_directory, write_durably
from dbtoll.model.experiment import Verdict
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.report import page, transactions
from dbtoll.report.export.columns import FORMULA_BEGINS
from dbtoll.report.figures import each_unit, over_values
from dbtoll.report.figures.axis import axis_for
from dbtoll.report.text import names, numbers
from dbtoll.store.sweeps import RESULT_FILE
from dbtoll.text import listed, printable

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import DeviceResult, Levels, Mean, Result
    from dbtoll.analysis.sweeps.schema import (
        Best,
        Bracket,
        Contrast,
        Curve,
        LimitPoint,
        Point,
        RatioPoint,
        SweepResult,
        TenantPrice,
    )
    from dbtoll.report.transactions import AtLevels
    from dbtoll.store.reader import Run

PAGE_FILE = "sweep.html"

TITLES = {
    THROUGHPUT: "Throughput",
    PER_TENANT: "Throughput of each tenant, on the mean",
    LEAST: "Throughput of the tenant that did least",
    TIME: "Time of all queries (geometric mean)",
}
QUANTILES = {"p50": "Median", "p95": "95th percentile", "p99": "99th percentile"}


def write(
    folder: Path, result: SweepResult, results: Sequence[Result], runs: Sequence[Run], *, is_beside_runs: bool = True
) -> Path:
    """The page, the result and tables into ``folder``. Returns the page's path. ``results``, ``runs``: of its values, in order.
    ``is_beside_runs``: ``folder`` lies in the first run's, beside which the others lie, each with its report. Raises OSError."""
    written = make_directory(folder) / PAGE_FILE
    write_durably(folder / RESULT_FILE, f"{to_json(result)}\n".encode())
    write_durably(folder / "curves.csv", _csv(_curve_rows(result)))
    write_durably(folder / "contrasts.csv", _csv(_contrast_rows(result)))
    write_durably(written, render(result, results, runs, is_beside_runs=is_beside_runs).encode())
    return written


def _csv(rows: Iterator[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([_cell(each) for each in row] for row in rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    """With an apostrophe before what a spreadsheet would take for a formula (docs/SCHEMA.md)."""
    return f"'{value}" if isinstance(value, str) and value and value[:1] in FORMULA_BEGINS else value


def _curve_rows(result: SweepResult) -> Iterator[Sequence[object]]:
    yield ("measure", "unit", "levels", "design", result.variable, "estimate", "low", "high", "rounds", "reason")
    for each in result.curves:
        for p in each.points:
            levels = names.levels_text(each.levels, list(each.levels))
            yield (each.measure, result.units[each.measure], levels, each.design, value_text(p.value), p.estimate, p.low, p.high,
                   p.rounds, p.reason)  # fmt: skip


def _contrast_rows(result: SweepResult) -> Iterator[Sequence[object]]:
    yield ("measure", "levels", "design", "against", result.variable, "estimate", "low", "high", "low_decisive", "high_decisive",
           "verdict", "rounds", "reason")  # fmt: skip
    for each in result.contrasts:
        for p in each.points:
            levels = names.levels_text(each.levels, list(each.levels))
            yield (each.measure, levels, each.design, each.against, value_text(p.value), p.estimate, p.low, p.high, p.low_decisive,
                   p.high_decisive, p.verdict.value, p.rounds, p.reason)  # fmt: skip


# --- words -------------------------------------------------------------------------------------------------------------------


def value_text(value: object) -> str:
    """As a user writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def place_text(value: float) -> str:
    """A place between values."""
    return f"{value:.3g}"


def measure_title(measure: str) -> str:
    """``99th percentile of response times``, ``Throughput``."""
    if measure in TITLES:
        return TITLES[measure]
    transaction, _, quantile = measure.rpartition(".")
    return f"{QUANTILES[quantile]} of response times{f' of {transaction}' if transaction else ''}"


def figure_text(point: Point, unit: str) -> str:
    """``27 700 (27 100 … 28 300)``; of times with their unit."""
    if point.estimate is None:
        return numbers.NOTHING
    if unit != "ns":
        return numbers.figure(point.estimate, point.low, point.high)
    if point.low is None or point.high is None:
        return numbers.time_of(point.estimate)
    return f"{numbers.time_of(point.estimate)} ({numbers.time_of(point.low)} … {numbers.time_of(point.high)})"


def metric_of(measure: str) -> str:
    """By which a difference is said: of what is done in a time, or of a time."""
    return TIME_PER_TRANSACTION if measure in (THROUGHPUT, LEAST) else "run_time"


def ratio_text(measure: str, point: RatioPoint) -> str:
    """``+5.3 % (4.1 … 6.5)``, of the quantity that is shown."""
    return _effect(measure, point).text if point.estimate is not None else numbers.NOTHING


def _effect(measure: str, point: RatioPoint) -> numbers.EffectText:
    """With the interval that the verdict rests on; none where nothing is decided."""
    return numbers.EffectText(metric_of(measure), point.estimate, point.low_decisive, point.high_decisive)


def best_lines(result: SweepResult, found: Sequence[Best]) -> list[str]:
    """``2 to 8: dedicated``: values in a row that are alike are one line."""
    lines = []
    for (designs, certain), group in groupby(found, key=lambda each: (each.designs, each.certain)):
        values = [value_text(each.value) for each in group]
        where = values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}" if result.scale else ", ".join(values)
        lines.append(f"{result.variable} {where}: {best_text(designs, certain=certain)}")
    return lines


def best_text(designs: Sequence[str], *, certain: bool) -> str:
    """Which design is best, or between which it cannot be told."""
    if not designs:
        return "nothing was measured"
    if len(designs) == 1:
        return designs[0]
    return f"{listed(designs)} alike (no difference)" if certain else f"cannot tell which of {', '.join(designs)}"


def contrast_text(contrast: Contrast, result: SweepResult) -> str:
    """Over all values: who is better from where to where, and where they cross."""
    one, other = contrast.design, contrast.against
    pair = f"{one} against {other}"
    known = [each for each in contrast.points if each.estimate is not None]
    if not known:
        return f"{pair}: {contrast.points[0].reason or 'nothing was measured'}"
    if not contrast.stretches:
        said = [f"{value_text(each.value)} {ratio_text(contrast.measure, each)}, {each.verdict}" for each in known]
        return f"{pair}: {'; '.join(said)}"
    first, last = (place_text(each) for each in (contrast.stretches[0].low, contrast.stretches[-1].high))
    better = {each.better for each in contrast.stretches}
    if better == {None}:
        if all(each.verdict == Verdict.NO_DIFFERENCE for each in contrast.points):
            return f"{pair}: no difference at any value, from {first} to {last}"
        why = next((f" ({each.reason})" for each in contrast.points if each.reason), "")
        return f"{pair}: cannot tell which is better from {first} to {last}{why}"
    if len(better) == 1:
        return f"no crossover: {contrast.stretches[0].better} better than {other if one in better else one} from {first} to {last}"
    said = [
        f"{place_text(each.low)} to {place_text(each.high)} {f'{each.better} better' if each.better else 'cannot tell'}"
        for each in contrast.stretches
    ]
    crossed = [
        f"crossover at {place_text(each.estimate)} ({place_text(each.low)} … {place_text(each.high)}), "
        f"beyond it {each.better_after}"
        for each in contrast.crossovers
    ]
    return f"{pair}: {'; '.join(crossed) or 'no crossover is certain'}; {', '.join(said)}"


def bracket_text(bracket: Bracket, result: SweepResult) -> str:
    """``dedicated: up to 8 (unit 3, the slowest: 18 ms); no longer at 10 (unit 7, the slowest: 31 ms)``"""
    slowest = {each.value: _slowest_text(each, result) for each in bracket.points}
    holds = (
        f"up to {value_text(bracket.holds)}{slowest[bracket.holds]}"
        if bracket.holds is not None
        else "at no value for sure"
    )
    beyond = "no value was found at which it is broken"
    if bracket.breaks is not None:
        broken = value_text(bracket.breaks)
        beyond = f"{broken} does not fit" if bracket.does_not_fit else f"no longer at {broken}{slowest[bracket.breaks]}"
    open_at = [value_text(each.value) for each in bracket.points if each.keeps is None]
    cannot = f"; cannot tell at {', '.join(open_at)}" if open_at else ""
    return f"{bracket.design}: {holds}; {beyond}{cannot}"


def _slowest_text(point: LimitPoint, result: SweepResult) -> str:
    """In brackets; empty where it is not known."""
    if point.slowest is None or point.slowest_ns is None:
        return ""
    several = any(part.tenants > 1 for part in result.parts)
    return f" ({f'unit {point.slowest}, the slowest: ' if several else ''}{numbers.time_of(point.slowest_ns)})"


def limit_title(result: SweepResult) -> str:
    """``largest tenants with p99 below 20 ms of every unit``"""
    assert result.limit is not None
    of_all = " of every unit" if any(part.tenants > 1 for part in result.parts) else ""
    return f"largest {result.variable} with {result.limit.measure} below {numbers.time_of(result.limit.ns)}{of_all}"


def tenant_text(each: TenantPrice, result: SweepResult) -> str:
    """What a tenant costs, between the two."""
    assert result.costs is not None
    unit = f"{result.costs.currency} a {result.costs.period}"
    if each.tenants_most == 0:
        return f"{each.design}: it breaks the limit, or does not fit, at the smallest value"
    if each.cost_most is None:
        return f"{each.design}: not known" + (
            f", at least {each.cost_least:.4g} {unit}" if each.cost_least is not None else ""
        )
    if each.cost_least is None or each.cost_least == each.cost_most:
        more = "" if each.cost_least is not None else " at most"
        return f"{each.design}: {each.cost_most:.4g} {unit}{more}, with {each.tenants} tenants"
    tenants = f"{each.tenants} to {each.tenants_most} tenants"
    return f"{each.design}: {each.cost_least:.4g} to {each.cost_most:.4g} {unit}, with {tenants}"


def pool_lines(result: SweepResult) -> Iterator[str]:
    """What each design has, and how its buffer pools are sized: the rule, and what it gives at each value."""
    if not any(each.pool_bytes is not None for each in result.parts):
        return
    at_each = [(value, list(its)) for value, its in groupby(result.parts, key=lambda each: each.value)]
    if all(map(_alike, (its for _, its in at_each))):
        yield (
            "An arm's processors and memory are the same in every design; its servers' buffer pools are equal in sum, and each has "
            "an equal part."
        )
    else:
        yield (
            "Processors, memory or the sum of buffer pools are NOT the same in every design: their differences are not those of "
            "designs alone. Each server of an arm has an equal part."
        )
    for value, its in at_each:
        said = [
            f"{each.design} {each.servers} of {numbers.size_of(each.pool_bytes)}"
            for each in its
            if each.pool_bytes is not None
        ]
        yield f"{result.variable} {value_text(value)}: {', '.join(said)}"


def _alike(designs: Sequence[DesignAt]) -> bool:
    """Whether they have as much of all. The part of each server is rounded down to whole bytes."""
    pools = [each.servers * each.pool_bytes for each in designs if each.pool_bytes is not None]
    rounded = max(each.servers for each in designs)
    return (
        len({(each.cpus, each.memory_bytes) for each in designs}) == 1
        and max(pools, default=0) - min(pools, default=0) < rounded
    )


def labelled(result: SweepResult) -> SweepResult:
    """The same with every design that is emulated called so."""
    emulated = {each.design for each in result.parts if each.emulated}
    if not emulated:
        return result
    named = dict.fromkeys((*result.designs, *(each.design for each in result.brackets)))  # some fit nowhere
    label = {design: arm_label(design, emulated=design in emulated) for design in named}

    def relabelled(each: Contrast) -> Contrast:
        return replace(
            each,
            design=label[each.design],
            against=label[each.against],
            stretches=tuple(replace(s, better=s.better and label[s.better]) for s in each.stretches),
            crossovers=tuple(
                replace(c, better_before=label[c.better_before], better_after=label[c.better_after])
                for c in each.crossovers
            ),
        )

    def best(found: Sequence[Best]) -> tuple[Best, ...]:
        return tuple(replace(each, designs=tuple(label[d] for d in each.designs)) for each in found)

    return replace(
        result,
        designs=tuple(label[each] for each in result.designs),
        parts=tuple(replace(each, design=label[each.design]) for each in result.parts),
        curves=tuple(replace(each, design=label[each.design]) for each in result.curves),
        contrasts=tuple(map(relabelled, result.contrasts)),
        best=best(result.best),
        brackets=tuple(replace(each, design=label[each.design]) for each in result.brackets),
        prices=tuple(replace(each, design=label[each.design]) for each in result.prices),
        cheapest=best(result.cheapest),
        tenant_prices=tuple(replace(each, design=label[each.design]) for each in result.tenant_prices),
        cheapest_tenant=tuple(
            replace(each, designs=tuple(label[design] for design in each.designs)) for each in result.cheapest_tenant
        ),
    )


def all_levels(result: SweepResult) -> list[tuple[str, Levels]]:
    """Each combination with how it is told from the others; one alone is told by nothing."""
    found: list[Levels] = []
    for each in result.curves:
        if each.levels not in found:
            found.append(each.levels)
    varied = varied_factors(found)
    return [(names.levels_text(levels, varied), levels) for levels in found]


# --- the terminal ------------------------------------------------------------------------------------------------------------


def terminal(result: SweepResult) -> Group:
    """Which design is best where, the figures, crossovers, the limit, the price."""
    result = labelled(result)
    shown: list[Table | Text] = [Text(printable(result.question))]
    for title, levels in all_levels(result):
        if title:
            shown.append(Text(f"\n{printable(title)}"))
        for measure in _main(result):
            shown += [Text(""), _table(result, measure, levels)]
            for line in _lines_of(result, measure, levels):
                shown.append(Text(printable(line)))
        if result.prices:
            prices = Table(
                *(Column(Text(printable(head))) for head in price_head(result)), box=SIMPLE_HEAD, pad_edge=False
            )
            for row in price_rows(result, levels):
                prices.add_row(*(Text(printable(cell)) for cell in row))
            shown += [Text(""), prices]
        for head, lines in _priced(result, levels):
            shown += [Text(f"\n{printable(head)}"), *(Text(f"  {printable(line)}") for line in lines)]
    shown.append(Text(""))
    shown += [Text(printable(line)) for line in (*pool_lines(result), *left_out_lines(result))]
    return Group(*shown)


def left_out_lines(result: SweepResult) -> Iterator[str]:
    """What did not fit, and where."""
    for each in result.left_out:
        yield f"left out at {result.variable} {value_text(each.value)}: {each.arm or 'no run could begin'}: {each.why}"


def _main(result: SweepResult) -> list[str]:
    """The measures that are compared, what the sweep is about first."""
    return [measure for measure in result.units if measure != PER_TENANT]


def _lines_of(result: SweepResult, measure: str, levels: Levels) -> Iterator[str]:
    found = [each for each in result.best if (each.measure, each.levels) == (measure, levels)]
    yield from (f"best: {line}" for line in best_lines(result, found))
    for each in result.contrasts:
        if (each.measure, each.levels) == (measure, levels):
            yield contrast_text(each, result)


def _table(result: SweepResult, measure: str, levels: Levels) -> Table:
    unit = result.units[measure]
    title = f"{measure_title(measure)}{'' if unit == 'ns' else f', {unit}'}"
    heads = [title, *(f"{result.variable} {value_text(each.value)}" for each in result.values)]
    table = Table(*(Column(Text(printable(head))) for head in heads), box=SIMPLE_HEAD, pad_edge=False)
    for curve in curves_of(result, measure, levels):
        cells = [curve.design, *(figure_text(point, unit) for point in curve.points)]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def curves_of(result: SweepResult, measure: str, levels: Levels) -> list[Curve]:
    """One for each design."""
    return [each for each in result.curves if (each.measure, each.levels) == (measure, levels)]


def _priced(result: SweepResult, levels: Levels) -> Iterator[tuple[str, list[str]]]:
    """Limit and price, each with its head."""
    if result.limit is not None:
        yield limit_title(result), [bracket_text(each, result) for each in result.brackets if each.levels == levels]
    if result.costs is not None:
        found = [each for each in result.cheapest if each.levels == levels]
        lines = [f"cheapest: {line}" for line in best_lines(result, found)]
        yield "what is done for the money", lines
    if result.tenant_prices:
        lines = [tenant_text(each, result) for each in result.tenant_prices if each.levels == levels]
        lines += [
            f"cheapest: {best_text(each.designs, certain=len(each.designs) == 1) if each.designs else 'none keeps the limit'}"
            for each in result.cheapest_tenant
            if each.levels == levels
        ]
        yield "what a tenant costs within the limit", lines


def price_head(result: SweepResult) -> tuple[str, ...]:
    """Heads of the table of prices."""
    assert result.costs is not None
    what = "queries (geometric mean)" if TIME in result.units else "transactions"
    currency, period = result.costs.currency, result.costs.period
    return (result.variable, "design", f"{currency} a {period}", f"{what} for 1 {currency}", f"{what}/s for each GiB")


def price_rows(result: SweepResult, levels: Levels) -> list[tuple[str, ...]]:
    """What each design costs at each value, and what is done for it."""
    return [
        (
            value_text(each.value),
            each.design,
            f"{each.cost:.4g}",
            figure_text(each.per_money, ""),
            figure_text(each.per_gib_s, ""),
        )
        for each in result.prices
        if each.levels == levels
    ]


# --- the page ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasureSection:
    """A measure at one combination of levels: its picture and the ratios of designs, as a table and in words."""

    title: str
    unit: str
    levels: str
    figure: over_values.OverValues | None
    ratios: list[over_values.OverValues]
    curves: list[Curve]
    contrasts: list[Contrast]
    measure: str
    best: list[str]
    sentences: list[str]


@dataclass(frozen=True, slots=True)
class ValueGroup:
    """What the run of one value says of its windows, without second copies."""

    value: str
    group: AtLevels
    units: list[each_unit.UnitPanels]


def render(result: SweepResult, results: Sequence[Result], runs: Sequence[Run], *, is_beside_runs: bool = True) -> str:
    """The whole page; see `write`."""
    result = labelled(result)
    sections = [section for title, levels in all_levels(result) for section in _sections(result, title, levels)]
    groups = [
        each
        for value, own in zip(result.values, results, strict=True)
        for each in _groups(result, value_text(value.value), own)
    ]
    first = runs[0]
    return page.environment().get_template("sweep.html.j2").render(
        result=result,
        version=__version__,
        is_beside_runs=is_beside_runs,
        sections=sections,
        main=[each for each in sections if each.measure == result.main_measure],
        priced=[(title, list(_priced(result, levels)), price_rows(result, levels)) for title, levels in all_levels(result)],
        price_head=price_head(result) if result.costs else (),
        groups=groups,
        devices=[each for title, levels in all_levels(result) for each in _devices(result, results, title, levels)],
        pools=list(pool_lines(result)),
        left_out=list(left_out_lines(result)),
        kinds=kinds_of(result),
        value_text=value_text,
        figure_text=figure_text,
        ratio_text=ratio_text,
        workload=first.descriptions.workload.title,
        disclaimer=first.descriptions.workload.disclaimer,
        engine=", ".join(each.title for each in first.descriptions.engines.values()),
        host=first.host,
        confidence=numbers.percent(result.confidence, 0, plus=False),
    )  # fmt: skip


_KINDS = (0, 2, 3, 4, 5, 1)
"""Colours and dashes in the order in which designs get them: that of second copies last."""


def kinds_of(result: SweepResult) -> dict[str, int]:
    """Of each design, the same in all pictures."""
    return {design: _KINDS[number % len(_KINDS)] for number, design in enumerate(result.designs)}


def _across(result: SweepResult) -> over_values.Across:
    return over_values.Across([each.value for each in result.values], result.scale)


def _sections(result: SweepResult, title: str, levels: Levels) -> Iterator[MeasureSection]:
    for measure in [*_main(result), *([PER_TENANT] if PER_TENANT in result.units else [])]:
        curves = curves_of(result, measure, levels)
        contrasts = [each for each in result.contrasts if (each.measure, each.levels) == (measure, levels)]
        found = [each for each in result.best if (each.measure, each.levels) == (measure, levels)]
        yield MeasureSection(
            title=measure_title(measure),
            unit=result.units[measure],
            levels=title,
            figure=_picture(result, measure, curves, contrasts),
            ratios=[drawn for each in contrasts if (drawn := _ratio_picture(result, each)) is not None],
            curves=curves,
            contrasts=contrasts,
            measure=measure,
            best=best_lines(result, found),
            sentences=[contrast_text(each, result) for each in contrasts],
        )


def _picture(
    result: SweepResult, measure: str, curves: Sequence[Curve], contrasts: Sequence[Contrast]
) -> over_values.OverValues | None:
    figures: dict[str, dict[object, over_values.Figure]] = {
        each.design: {p.value: (p.estimate, p.low, p.high) for p in each.points if p.estimate is not None}
        for each in curves
    }
    ends = over_values.ends(figure for its in figures.values() for figure in its.values())
    if not ends:
        return None
    unit, across = result.units[measure], _across(result)
    if unit == "ns":
        place, up = over_values.up_by_factors(min(ends), max(ends), numbers.time_of)
    else:
        place, up = over_values.up_from_zero(max(ends), lambda value: f"{value:g}")
    kinds = kinds_of(result)

    def title(design: str, value: object, figure: over_values.Figure) -> str:
        shown = numbers.time_of(figure[0]) if unit == "ns" else numbers.figure(figure[0])
        return f"{design}, {result.variable} {value}: {shown}"

    return over_values.OverValues(
        title=measure_title(measure),
        caption=f"{result.variable}{_scale_word(result)}, and {'response time (logarithmic)' if unit == 'ns' else unit}",
        lines=over_values.lines(figures, kinds, across, place, title),
        across=across.ticks(value_text),
        up=up,
        crossings=[mark for each in contrasts for mark in _marks(each, across)],
    )


def _scale_word(result: SweepResult) -> str:
    return " (logarithmic)" if result.scale == "log" else ""


def _marks(contrast: Contrast, across: over_values.Across) -> Iterator[over_values.CrossingMark]:
    for each in contrast.crossovers:
        x1, x2, x = across.at(each.low), across.at(each.high), across.at(each.estimate)
        yield over_values.CrossingMark(
            x1, round(x2 - x1, 2), x,
            f"crossover at {place_text(each.estimate)} ({place_text(each.low)} … {place_text(each.high)}): below it "
            f"{each.better_before}, beyond it {each.better_after}",
        )  # fmt: skip


def _ratio_picture(result: SweepResult, contrast: Contrast) -> over_values.OverValues | None:
    metric = metric_of(contrast.measure)
    changes: dict[object, over_values.Figure] = {}
    for point in contrast.points:
        change = _effect(contrast.measure, point).change
        if change.estimate is not None:
            changes[point.value] = (change.estimate, change.low, change.high)
    if not changes:
        return None
    of_factors = over_values.ends(tuple(None if e is None else 1 + e for e in figure) for figure in changes.values())
    ends = [each - 1 for each in of_factors]
    axis, across = axis_for(ends, result.margin, of_throughput=numbers.is_throughput(metric)), _across(result)
    place, up = over_values.up_by_changes(axis)
    name = f"{contrast.design} against {contrast.against}"

    def title(design: str, value: object, figure: over_values.Figure) -> str:
        return f"{name}, {result.variable} {value}: {numbers.IntervalText(*figure).text}"

    return over_values.OverValues(
        title=name,
        caption=f"{axis.title}, by {result.variable}{_scale_word(result)}",
        lines=over_values.lines({name: changes}, {name: kinds_of(result)[contrast.design]}, across, place, title),
        across=across.ticks(value_text),
        up=up,
        crossings=list(_marks(contrast, across)),
        zero=place(0.0),
        margin=(place(result.margin), place(-result.margin)),
    )


def _groups(result: SweepResult, value: str, own: Result) -> Iterator[ValueGroup]:
    own = names.with_arm_labels(own)
    copies = {arm.name for arm in own.arms if arm.copy_of}
    arms, kinds = [arm.name for arm in own.arms], kinds_of(result)
    design_of = {
        arm_label(each.arm, emulated=each.emulated): each.design
        for each in result.parts
        if value_text(each.value) == value
    }
    for group in transactions.groups(own):
        title = f"{result.variable} {value}" + (f", {group.title}" if group.title else "")
        kept = replace(group, title=title, arms=[arm for arm in group.arms if arm.arm not in copies])
        panels = [replace(each, kind=kinds[design_of[each.arm]]) for each in each_unit.panels(kept, arms)]
        yield ValueGroup(value, kept, panels)


def _busy(device: DeviceResult) -> Mean | None:
    return device.utilisation


def _service(device: DeviceResult) -> Mean | None:
    return device.service_ns


_TOLD: tuple[tuple[str, Callable[[DeviceResult], Mean | None], Callable[[float], str]], ...] = (
    ("busy", _busy, lambda share: numbers.percent(share, 0, plus=False)),
    ("service time", _service, numbers.time_of),
)
"""What of a device is drawn: its name, its figure, and how that is said."""


def _devices(
    result: SweepResult, results: Sequence[Result], at_levels: str, levels: Levels
) -> Iterator[over_values.OverValues]:
    """How busy each device was and how long it took, over the values: of each arm's windows at these levels, by where it was
    seen."""
    design_of = {(each.value, each.arm): each.design for each in result.parts}
    found: dict[tuple[str, str], dict[str, dict[object, DeviceResult]]] = {}
    for value, own in zip(result.values, results, strict=True):
        for windows in own.windows:
            design = design_of.get((value.value, windows.arm))
            if design is None or windows.levels != levels:
                continue
            for device in windows.devices:
                found.setdefault((device.where, device.device), {}).setdefault(design, {})[value.value] = device
    kinds = kinds_of(result)
    across = _across(result)
    for (where, name), its in sorted(found.items()):
        for what, of, text in _TOLD:
            figures: dict[str, dict[object, over_values.Figure]] = {
                design: {value: _mean(mean) for value, each in by_value.items() if (mean := of(each)) is not None}
                for design, by_value in its.items()
            }
            ends = over_values.ends(figure for each in figures.values() for figure in each.values())
            if not ends:
                continue
            place, up = over_values.up_from_zero(max(ends), text)
            yield over_values.OverValues(
                title=f"{name}, {where}: {what}" + (f" ({at_levels})" if at_levels else ""),
                caption=f"{what}, by {result.variable}{_scale_word(result)}",
                lines=over_values.lines(figures, kinds, across, place, lambda design, value, _: f"{design}, {value}"),
                across=across.ticks(value_text),
                up=up,
                crossings=[],
            )


def _mean(found: Mean) -> over_values.Figure:
    return found.estimate, found.low, found.high
