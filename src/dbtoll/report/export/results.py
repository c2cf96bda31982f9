"""Tables of comparisons, their rounds and ledgers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.result import bins
from dbtoll.analysis.result.builder import all_effects
from dbtoll.analysis.result.provenance import Provenance
from dbtoll.report.export.columns import arm_cells
from dbtoll.report.text import names

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Amount, Comparison, Result
    from dbtoll.analysis.visits.valid import ValidVisits


PROVENANCE_COLUMNS = {field.name: "VARCHAR" for field in fields(Provenance)}
"""In every row, so that the rows of many runs are one table."""

CONFIGURATION_COLUMNS = {"server": "VARCHAR", "differences": "VARCHAR"}
"""Of the arm: what its server calls itself, and what else than the environment it has other than its baseline."""

COMPARISON_COLUMNS = {
    "metric": "VARCHAR",
    "estimand": "VARCHAR",
    "estimate": "DOUBLE",
    "low": "DOUBLE",
    "high": "DOUBLE",
    "p": "DOUBLE",
    "p_holm": "DOUBLE",
    "low_decisive": "DOUBLE",
    "high_decisive": "DOUBLE",
    "verdict": "VARCHAR",
    "rounds": "BIGINT",
    "first_execution_estimate": "DOUBLE",
    "first_execution_low": "DOUBLE",
    "first_execution_high": "DOUBLE",
    "reason": "VARCHAR",
    "left_out": "VARCHAR",
    "between_rounds": "DOUBLE",
    "within_rounds": "DOUBLE",
    "widened_by": "DOUBLE",
    "lengthened": "DOUBLE",
    "dependence": "DOUBLE",
    "throughput_drop_estimate": "DOUBLE",
    "throughput_drop_low": "DOUBLE",
    "throughput_drop_high": "DOUBLE",
}

ROUND_COLUMNS = {
    "metric": "VARCHAR",
    "estimand": "VARCHAR",
    "round": "BIGINT",
    "effect": "DOUBLE",
    "far_out": "BOOLEAN",
}

LEDGER_COLUMNS = {
    "query": "VARCHAR",
    "kind": "VARCHAR",
    "item": "VARCHAR",
    "ns": "DOUBLE",
    "low_ns": "DOUBLE",
    "high_ns": "DOUBLE",
    "count": "DOUBLE",
    "cost_ns": "DOUBLE",
    "baseline_count": "DOUBLE",
    "baseline_cost_ns": "DOUBLE",
}


def result_rows(result: Result, factors: Sequence[str], provenance: Provenance) -> Iterator[dict[str, Any]]:
    """A row for each comparison."""
    result, of_run = names.with_arm_labels(result), asdict(provenance)
    arms = {arm.name: arm for arm in result.arms}
    for comparison in result.comparisons:
        arm = arms[comparison.arm]
        own = {
            "emulated": arm.emulated,
            "server": arm.server or None,
            "differences": names.differences_text(arm) or None,
        }
        yield {**of_run, **_result(comparison, factors), **own}


def _result(c: Comparison, factors: Sequence[str]) -> dict[str, Any]:
    first, drop = c.first_execution, c.throughput_drop
    return {
        "arm": c.arm,
        "baseline": c.baseline,
        "is_aa": c.is_aa,
        **{factor: c.levels.get(factor) for factor in factors},
        **{name: getattr(c, name) for name in COMPARISON_COLUMNS if hasattr(c, name)},
        "first_execution_estimate": first.estimate if first else None,
        "first_execution_low": first.low if first else None,
        "first_execution_high": first.high if first else None,
        "left_out": "; ".join(c.left_out) or None,
        "between_rounds": c.components.between_rounds,
        "within_rounds": c.components.within_rounds,
        "throughput_drop_estimate": drop.estimate if drop else None,
        "throughput_drop_low": drop.low if drop else None,
        "throughput_drop_high": drop.high if drop else None,
    }


def round_rows(measured: ValidVisits, factors: Sequence[str], emulated: Collection[str]) -> Iterator[dict[str, Any]]:
    """A row for each round of each comparison, of those whose interval is formed from rounds."""
    for levels, metric, effect in all_effects(measured):
        outlying = stats.far_out(np.array([value for _, value in effect.by_round]))
        for (number, value), far_out in zip(effect.by_round, outlying.tolist(), strict=True):
            yield {
                "run": measured.run.begin.run,
                **arm_cells(effect.arm, emulated=effect.arm in emulated),
                "baseline": effect.baseline,
                "is_aa": effect.is_aa,
                **{factor: levels.get(factor) for factor in factors},
                "metric": metric,
                "estimand": effect.estimand,
                "round": number,
                "effect": bins.fraction(value),
                "far_out": far_out,
            }


def ledger_rows(result: Result, factors: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row per item of each query; ``kind`` keeps the two ledgers apart."""
    result = names.with_arm_labels(result)
    emulated = {arm.name for arm in result.arms if arm.emulated}
    for ledger in result.ledgers:
        head = {
            "run": result.run,
            "arm": ledger.arm,
            "emulated": ledger.arm in emulated,
            "baseline": ledger.baseline,
            **{factor: ledger.levels.get(factor) for factor in factors},
        }
        for query in ledger.queries:
            of_query = {**head, "query": query.query}
            for entry in query.items:
                counts = {name: getattr(entry, name) for name in LEDGER_COLUMNS if hasattr(entry, name)}
                yield of_query | {"kind": "explained", **_booked(entry.amount), **counts}
            for amount in (query.overhead, query.unexplained):
                yield of_query | {"kind": "explained", **_booked(amount)}
            for amount in query.accounted:
                yield of_query | {"kind": "accounted", **_booked(amount)}


def _booked(amount: Amount) -> dict[str, Any]:
    return {"item": amount.name, "ns": amount.ns, "low_ns": amount.low_ns, "high_ns": amount.high_ns}
