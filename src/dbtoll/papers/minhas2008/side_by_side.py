"""Any run of TPC-H in the layout of Tables 1, 4 and 5, as far as it has their levels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dbtoll.analysis.effects.comparisons import QUERY
from dbtoll.analysis.reproduction.tables import Cell, Column, PublishedTable, compared
from dbtoll.analysis.result.schema import Comparison, Levels, Result
from dbtoll.papers.minhas2008.parts import ONE, OWN
from dbtoll.papers.minhas2008.published import table


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of our levels a published table is about."""

    name: str
    file: str
    title: str
    levels: Levels


LAYOUTS = (
    Layout("Table 1", "table1_warm_overhead", "warm, a connection per query", {"cache": "warm", "connection": OWN}),
    Layout("Table 4", "table4_single_connection", "warm, one connection", {"cache": "warm", "connection": ONE}),
    Layout("Table 5", "table5_cold_overhead", "cold, a connection per query", {"cache": "cold", "connection": OWN}),
)  # fmt: skip


def tables(result: Result) -> Iterator[PublishedTable]:
    """Each of them for each arm that has figures of its kind: a table is set beside its own kind only."""
    for layout in LAYOUTS:
        for arm in result.arms:
            ours = [
                c
                for c in result.comparisons
                if c.arm == arm.name and c.metric == "run_time" and not c.is_aa and _within(c.levels, layout.levels)
            ]
            if any(c.estimate is not None or c.low is not None for c in ours):
                yield _table(result, layout, ours)


def _table(result: Result, layout: Layout, ours: list[Comparison]) -> PublishedTable:
    """The paper's queries in its order, then ours alone. Ours: medians, the effect Holm-adjusted."""
    levels, arm, baseline = ours[0].levels, ours[0].arm, ours[0].baseline
    found = {c.estimand.removeprefix(QUERY): c for c in ours if c.levels == levels and c.estimand.startswith(QUERY)}
    medians = {
        (row.arm, row.query): row.median_ns / 1e6
        for row in result.times
        if row.levels == levels and row.median_ns is not None
    }
    printed = {row["query"]: row for row in table(layout.file)}
    rows: list[tuple[Cell, ...]] = []
    for query in [*printed, *(name for name in found if name not in printed)]:
        row = printed.get(query)
        rows.append(
            (
                query,
                *(
                    float(row[name]) if row else None
                    for name in ("base_runtime_s", "xen_runtime_s", "rel_slowdown_pct")
                ),
                medians.get((baseline, query)),
                medians.get((arm, query)),
                *compared("run_time", found.get(query)),
            )
        )
    columns = (
        Column("base", "s", False, decimals=2),
        Column("Xen", "s", False, decimals=2),
        Column("slowdown", "percent", False, decimals=2),
        Column(baseline, "ms", True),
        Column(arm, "ms", True),
        Column("difference", "difference", True),
        Column("verdict", "verdict", True),
    )
    return PublishedTable(layout.name, layout.title, columns, tuple(rows), arm=arm)


def _within(levels: Levels, asked: Levels) -> bool:
    return all(levels.get(factor) == level for factor, level in asked.items())
