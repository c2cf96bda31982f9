"""Tables of comparisons and ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dbtoll.report.text import names

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Amount, Comparison, Result


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


def result_rows(result: Result, factors: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each comparison."""
    result = names.with_arm_labels(result)
    emulated = {arm.name for arm in result.arms if arm.emulated}
    for comparison in result.comparisons:
        yield _result(result, comparison, factors) | {"emulated": comparison.arm in emulated}


def _result(result: Result, c: Comparison, factors: Sequence[str]) -> dict[str, Any]:
    first, drop = c.first_execution, c.throughput_drop
    return {
        "run": result.run,
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
