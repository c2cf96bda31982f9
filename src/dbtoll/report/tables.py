"""A Result as tables: in the terminal (80 columns are enough, colour only repeats what the words say) and in Markdown."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model.experiment import Outcome, Verdict
from dbtoll.report import attribution, neighbours, scaling, transactions
from dbtoll.report.absolute import Absolutes
from dbtoll.report.text import names, numbers, sentences, warnings
from dbtoll.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from dbtoll.analysis.result.schema import Comparison, Result
    from dbtoll.report.transactions import AtLevels

_STYLES = {
    Verdict.LOSES: "red",
    Verdict.GAINS: "blue",
    Verdict.NO_DIFFERENCE: "green",
    Verdict.CANNOT_TELL: "yellow",
    Outcome.FAILED: "red",
    Outcome.INVALID: "red",
    Outcome.UNSUPPORTED: "yellow",
}

_EXTREMES = 3
"""So many worst and best queries are named in the terminal; the report has all."""


def _text(text: str, style: str = "") -> Text:
    # Never rich markup: an arm may be called "[red]".
    return Text(printable(text), style=style)


# --- terminal ----------------------------------------------------------------------------------------------------


def terminal(result: Result, report: Path | None = None) -> RenderableType:
    """What `run`, `compare`, `analyze` and `report` print at the end. ``report``: where the HTML is, None if not made."""
    whole = names.with_arm_labels(result)
    result = neighbours.undisturbed(whole)
    parts: list[RenderableType] = [_text(result.question, "bold")]
    if result.expected:
        parts.append(_text(f"expected: {result.expected}", "dim"))
    parts.append(Text())
    parts += [_headline(h) for h in sentences.headlines(result)]
    groups = transactions.groups(result)
    parts += [Text(), *(_transactions(groups) if groups else _arms_tables(result))]
    probing = result.main_metric == "event_time"
    if probing:
        parts += [_costs(result), Text()]
    parts += list(_speed_ups(result))
    parts += list(_interference(whole))
    care = warnings.cautions(result)
    for title, lines in (
        (
            "Why",
            [
                f"{each.arm}{f' ({each.levels})' if each.levels else ''}: {each.sentence}"
                for each in attribution.bills(result)
            ],
        ),
        ("What a factor's level costs", sentences.contrasts(result)),
        (f"Worst and best {'probes' if probing else 'queries'}", [] if groups else list(_extremes(result))),
        ("Plans that changed", sentences.changed_plans(result)),
        ("Read with care", [caution.brief.sentence for caution in care.all]),
        ("Not inside the interval", list(map(numbers.typeset, result.not_inside_the_interval))),
    ):
        if lines:
            parts += [_text(title, "bold"), *(_item(line) for line in lines), Text()]
    if allowance := sentences.allowance(result):
        parts.append(_text(f"{allowance}.", "dim"))
    if result.stopped:
        parts.append(_text(f"stopped: {result.stopped}"))
    if report is not None:
        parts.append(_text(f"report:  {report}"))
    return Group(*parts)


def plain(result: Result, width: int = 100) -> str:
    """The headlines and the tables of the arms as text without colour, for a log."""
    whole = names.with_arm_labels(result)
    result = neighbours.undisturbed(whole)
    groups = transactions.groups(result)
    parts = [
        *map(_headline, sentences.headlines(result)),
        Text(),
        *(_transactions(groups) if groups else _arms_tables(result)),
        *_interference(whole),
    ]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n") + "\n"


def _headline(headline: sentences.Headline) -> RenderableType:
    line = _text(headline.subject, "bold")
    line.append_text(_text(headline.phrase.lead, _STYLES.get(headline.kind, "")))  # type: ignore[call-overload]
    line.append_text(_text(headline.phrase.rest))
    note = [Padding(_text(headline.note, "dim"), (0, 0, 0, 2))] if headline.note else []
    return Padding(Group(line, *note), (0, 0, 0, 2))


def _item(line: str) -> RenderableType:
    return Padding(_text(line), (0, 0, 0, 2))


def _arms_tables(result: Result) -> Iterator[RenderableType]:
    """For each metric and combination of levels one row per arm, the baseline first: both estimands over all queries, the time of
    all queries (the sum of their medians), and the verdict.

    An arm without a figure has no row: its headline says why.
    """
    varied, absolutes = varied_factors(c.levels for c in result.comparisons), Absolutes(result)
    several_metrics = len({c.metric for c in result.comparisons}) > 1
    totals = {(c.arm, c.metric, str(c.levels)): c for c in result.comparisons if c.estimand == "ratio_of_totals"}
    groups: dict[str, list[Comparison]] = {}
    for c in result.comparisons:
        if c.estimand == "geomean" and c.rounds:
            parts = [names.levels_text(c.levels, varied), names.metric_text(c.metric) if several_metrics else ""]
            groups.setdefault(", ".join(part for part in parts if part), []).append(c)
    for where, comparisons in groups.items():
        first = comparisons[0]
        baseline = _root(comparisons)
        own = {
            arm: absolutes.text(arm, first.levels, first.metric, "ratio_of_totals")
            for arm in (baseline, *(c.arm for c in comparisons))
        }
        times = own if any(own.values()) else None
        several = len({c.baseline for c in comparisons}) > 1
        order = [arm.name for arm in result.arms]
        heads = ["arm", *(["against"] if several else []), *(["time"] if times else [])]
        table = _table(*heads, "geometric mean", "total", "verdict", right=[len(heads) - 1] if times else [])
        if times:
            against = [numbers.NOTHING] if several else []
            row = (baseline, *against, times[baseline], numbers.NOTHING, numbers.NOTHING, "baseline")
            table.add_row(*map(_text, row))
        for c in sorted(comparisons, key=lambda c: order.index(c.arm)) if several else comparisons:
            total = totals.get((c.arm, c.metric, str(c.levels)))
            table.add_row(
                _text(c.arm),
                *([_text(c.baseline)] if several else []),
                *([_text(times[c.arm])] if times else []),
                _text(numbers.effect(c).text),
                _text(numbers.effect(total).text if total else numbers.NOTHING),
                _text(sentences.verdict_of(c, result.margin), _STYLES.get(c.verdict, "") if not c.is_aa else "dim"),
            )
        if where:
            yield _text(where, "bold")
        yield from (table, Text())


def _root(comparisons: Sequence[Comparison]) -> str:
    """The baseline that is held against none itself."""
    held = {c.arm for c in comparisons}
    return next((c.baseline for c in comparisons if c.baseline not in held), comparisons[0].baseline)


def _speed_ups(result: Result) -> Iterator[RenderableType]:
    """How many times as fast each arm is with more threads, of all queries together."""
    for group in scaling.groups(result):
        where = f", {group.title}" if group.title else ""
        yield _text(f"Times as fast as with {numbers.plural(group.threads[0], 'thread')}{where}", "bold")
        table = _table("arm", *(numbers.plural(n, "thread") for n in group.threads[1:]))
        for arm in group.arms:
            table.add_row(_text(arm), *(_text(scaling.speed_text(group.geomean(arm, n))) for n in group.threads[1:]))
        yield from (table, *map(_item, group.reasons), Text())


def _interference(result: Result) -> Iterator[RenderableType]:
    """What neighbours cost the other tenants of each arm, and what they did."""
    for matrix in neighbours.matrices(result):
        yield _text(f"Beside a neighbour: {matrix.title}", "bold")
        table = _table("the neighbour", *matrix.arms)
        for label, cells in matrix.rows:
            shown = (
                _text(cell.text if cell else numbers.NOTHING, _STYLES.get(cell.found.verdict, "") if cell else "")
                for cell in cells
            )
            table.add_row(_text(label), *shown)
        yield from (table, *map(_item, matrix.reasons), Text())
    if lines := neighbours.did_lines(result):
        yield _text("What the neighbour did", "bold")
        yield from (_item(f"{title}: {arm}: {did}") for title, its in lines for arm, did in its)
        yield Text()


def _costs(result: Result) -> RenderableType:
    """What an event of each probe takes in each arm: the median of the visits' medians."""
    cells = {(t.query, t.arm): t.median_ns for t in result.times}
    arms = [arm.name for arm in result.arms if any(t.arm == arm.name for t in result.times)]
    table = _table("an event of", *arms, right=range(1, len(arms) + 1))
    for query in dict.fromkeys(t.query for t in result.times):
        table.add_row(_text(query), *(_text(numbers.time_of(cells.get((query, arm)))) for arm in arms))
    return table


def _table(*heads: str, right: Iterable[int] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, head in enumerate(heads):
        table.add_column(_text(head), overflow="fold", justify="right" if index in right else "left")
    return table


def _transactions(groups: Sequence[AtLevels]) -> Iterator[RenderableType]:
    """For each combination of levels: throughput, what the driver took, response times, throughput over time, outcomes."""
    for group in groups:
        if group.title:
            yield from (_text(f"{group.title[:1].upper()}{group.title[1:]}", "bold"), Text())
        table = _table("arm", group.unit, "difference")
        table.columns[1].no_wrap = True
        cost = _table("arm", "round trips", "driver's CPU", "null server", "of a CPU", "bound", right=range(1, 6))
        for arm in group.arms:
            table.add_row(*map(_text, (arm.arm, arm.throughput, arm.difference)))
            driver = arm.windows.driver
            cost.add_row(
                _text(arm.arm),
                _text(transactions.round_trips(arm.windows)),
                *map(_text, (transactions.driver_time(driver), transactions.null_time(driver))),
                *map(_text, (transactions.share(driver.share), transactions.driver_bound(arm))),
            )
        yield from (table, Text(), _text("What the driver took for a transaction", "bold"), cost, Text())
        times = _table("response time", "arm", "median", "95th", "99th", "longest", right=range(2, 6))
        for name in group.transactions:
            for index, (arm, kind) in enumerate(group.of(name)):
                said = (kind.p50_ns, kind.p95_ns, kind.p99_ns, kind.max_ns)
                times.add_row(
                    _text("" if index else names.transaction_text(name)),
                    _text(arm.arm),
                    *(_text(numbers.time_of(t)) for t in said),
                )
        yield from (times, Text(), _text("Throughput within a window", "bold"))
        most = max((max(arm.windows.series, default=0.0) for arm in group.arms), default=0.0)
        for arm in group.arms:
            yield _item(f"{arm.arm}: {transactions.steadiness_text(arm.windows)}")
            yield _item(transactions.bars(arm.windows.series, most))
        if group.of_several_units:
            yield from (Text(), _text("Units", "bold"), *map(_item, transactions.unit_lines(group)))
        yield from (
            Text(),
            _text("What became of the transactions", "bold"),
            *map(_item, transactions.outcome_lines(group)),
            Text(),
        )


def _extremes(result: Result) -> Iterator[str]:
    varied, absolutes = varied_factors(c.levels for c in result.comparisons), Absolutes(result)
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for c in result.comparisons:
        if names.query_of(c.estimand) and not c.is_aa and _has_figure(c) and c.metric == result.main_metric:
            groups.setdefault((c.arm, names.levels_text(c.levels, varied)), []).append(c)
    for (arm, levels), queries in groups.items():
        # What ran into the timeout took longer than anybody knows.
        ordered = sorted(queries, key=lambda c: math.inf if c.estimate is None else c.estimate, reverse=True)
        worst, best = ordered[:_EXTREMES], ordered[_EXTREMES:][-_EXTREMES:]
        where = f"{arm}{f' ({levels})' if levels else ''}"
        yield f"{where}: worst {_listed(worst, absolutes)}" + (
            f"; best {_listed(reversed(best), absolutes)}" if best else ""
        )


def _has_figure(c: Comparison) -> bool:
    return c.estimate is not None or c.low is not None


def _listed(comparisons: Iterable[Comparison], absolutes: Absolutes) -> str:
    """``Q9 +25.1 % (23.1 … 27.1) of 528 ms``: the time is the baseline's."""
    told = ((c, absolutes.of_baseline(c)) for c in comparisons)
    return ", ".join(
        f"{names.query_of(c.estimand)} {numbers.effect(c).text}{f' of {time}' if time else ''}" for c, time in told
    )


# --- Markdown ----------------------------------------------------------------------------------------------------


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """A Markdown table; columns in ``right`` are set to the right. Cells are escaped."""
    to_the_right = set(right)
    rule = ["---:" if i in to_the_right else "---" for i in range(len(head))]
    lines = [[markdown_text(h) for h in head], rule, *([markdown_text(c) for c in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_MARKDOWN = re.compile(r"[\\|*`\[\]~#]|(?<!\w)_|_(?!\w)")
"""What means something in a line of Markdown; an underline inside a word does not (CommonMark 6.2)."""


def markdown_text(text: str) -> str:
    """Text of a specification, a server or a host as one line of Markdown that shows it as it is."""
    line = printable(text.replace("\n", " ")).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\g<0>", line)


def markdown_arms(result: Result) -> str:
    """The table of the terminal, for docs: every arm, metric and combination of levels over all queries."""
    result = names.with_arm_labels(result)
    varied = varied_factors(c.levels for c in result.comparisons)
    head = ["arm", *varied, "metric", "estimand", "effect (interval)", "verdict"]
    rows = [
        [
            c.arm,
            *(names.levels_text(c.levels, [factor]) for factor in varied),
            names.metric_text(c.metric),
            names.estimand_text(c.estimand, c.metric),
            numbers.effect(c).text,
            sentences.verdict_of(c, result.margin),
        ]
        for c in result.comparisons
        if names.query_of(c.estimand) is None
    ]
    return markdown_table(head, rows, right=[len(varied) + 3])


def markdown_throughput(result: Result) -> str:
    """Every arm and combination of levels: throughput and its difference, what the driver took, whether it was steady."""
    not_ok = sentences.arms_not_ok(result)
    rows = [
        [
            f"{each.arm} ({not_ok[each.arm]})" if each.arm in not_ok else each.arm,
            group.title or numbers.NOTHING,
            f"{each.throughput} {group.unit}",
            each.difference,
            transactions.round_trips(each.windows),
            transactions.driver_time(each.windows.driver),
            transactions.driver_bound(each),
            transactions.steadiness_word(each.windows),
        ]
        for group in transactions.groups(names.with_arm_labels(result))
        for each in group.arms
    ]
    head = ["arm", "levels", "throughput", "difference", "round trips", "driver CPU", "its bound", "in a window"]
    return markdown_table(head, rows, right=range(2, 7))


def markdown_interference(result: Result) -> str:
    """The matrices of neighbours, one table for each metric, and why a cell says nothing; empty where no neighbour is varied."""
    parts = []
    for matrix in neighbours.matrices(names.with_arm_labels(result)):
        rows = [[label, *(cell.text if cell else numbers.NOTHING for cell in cells)] for label, cells in matrix.rows]
        table = markdown_table(["the neighbour", *matrix.arms], rows, right=range(1, len(matrix.arms) + 1))
        reasons = "".join(f"- {markdown_text(why)}\n" for why in matrix.reasons)
        parts.append("\n".join(filter(None, [f"Beside a neighbour, {markdown_text(matrix.title)}:\n", table, reasons])))
    return "\n".join(parts)
