"""dbtoll's own run in the layout of the published tables: Tables 1, 4 and 5 of minhas2008, Figure 5 of muehlbauer2015."""

from __future__ import annotations

from dataclasses import dataclass

from dbtoll.analysis.published import table
from dbtoll.analysis.result.schema import ArmResult, Comparison, EffectResult, Levels, Result
from dbtoll.errors import UsageError
from dbtoll.model.experiment import Verdict
from dbtoll.model.reply import TIME_PER_TRANSACTION

_OWN = "per_statement"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of our levels a published table is about."""

    name: str
    title: str
    levels: Levels


MINHAS2008 = {
    1: Layout("table1_warm_overhead", "warm, a connection per query", {"cache": "warm", "connection": _OWN}),
    4: Layout("table4_single_connection", "warm, one connection", {"cache": "warm", "connection": "persistent"}),
    5: Layout("table5_cold_overhead", "cold, a connection per query", {"cache": "cold", "connection": _OWN}),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One query. Published: as printed. Ours: medians in ms, the effect as fractions, Holm-adjusted.

    None where the paper has no such query, or we have no such figure; ``reason`` then says why.
    """

    query: str
    published_base_s: float | None
    published_arm_s: float | None
    published_percent: float | None
    base_ms: float | None
    arm_ms: float | None
    effect: EffectResult | None
    verdict: Verdict | None
    reason: str | None


def minhas2008(result: Result, number: int, arm: str) -> tuple[Layout, tuple[Line, ...]]:
    """Table ``number`` (1, 4 or 5) with the figures of ``arm``, its queries in the paper's order, then ours alone.

    UsageError if the run has no such levels: a table is compared with its own kind only.
    """
    layout = MINHAS2008[number]
    ours = _ours(result, layout, arm)
    if not ours:
        raise UsageError(
            f"run {result.run} has no figures of {arm} for Table {number} of minhas2008 ({layout.title})",
            "measure with these levels in the specification's [factors]",
        )
    levels, baseline = ours[0].levels, ours[0].baseline
    comparisons = {
        c.estimand.removeprefix("query:"): c for c in ours if c.levels == levels and c.estimand.startswith("query:")
    }
    medians = {
        (row.arm, row.query): row.median_ns / 1e6
        for row in result.times
        if row.levels == levels and row.median_ns is not None
    }
    printed = {row["query"]: row for row in table(f"minhas2008/{layout.name}")}
    lines = []
    for query in [*printed, *(name for name in comparisons if name not in printed)]:
        row, comparison = printed.get(query), comparisons.get(query)
        lines.append(
            Line(
                query=query,
                published_base_s=float(row["base_runtime_s"]) if row else None,
                published_arm_s=float(row["xen_runtime_s"]) if row else None,
                published_percent=float(row["rel_slowdown_pct"]) if row else None,
                base_ms=medians.get((baseline, query)),
                arm_ms=medians.get((arm, query)),
                effect=_adjusted(comparison) if comparison else None,
                verdict=comparison.verdict if comparison else None,
                reason=comparison.reason if comparison else "not measured in this run",
            )
        )
    return layout, tuple(lines)


def is_measured(result: Result, number: int, arm: str) -> bool:
    """Whether the run has figures of ``arm`` for Table ``number``."""
    return bool(_ours(result, MINHAS2008[number], arm))


def _ours(result: Result, layout: Layout, arm: str) -> list[Comparison]:
    of_arm = (c for c in result.comparisons if c.arm == arm and c.metric == "run_time")
    return [c for c in of_arm if _within(c.levels, layout.levels)]


def _within(levels: Levels, asked: Levels) -> bool:
    return all(levels.get(factor) == level for factor, level in asked.items())


def _adjusted(comparison: Comparison) -> EffectResult | None:
    if comparison.estimate is None or comparison.low_decisive is None or comparison.high_decisive is None:
        return None
    return EffectResult(comparison.estimate, comparison.low_decisive, comparison.high_decisive)


# --- Figure 5 of muehlbauer2015 ----------------------------------------------------------------------------------

_FIGURE5 = "muehlbauer2015/oltp_throughput"
_BARE = "bare"
_COUNTERPARTS = {"docker": "docker", "qemu": "kvm", "libvirt": "kvm", "virtualbox": "virtualbox"}
"""Our environment -> what the paper measured of that kind; a sandbox in place of Docker's runtime is another."""


@dataclass(frozen=True, slots=True)
class ThroughputLine:
    """One environment. Published: transactions a second as printed, and the overhead in time per transaction computed from them.

    ``environment``: as the paper calls it, None for an arm of which it has no kind; ``arm``: ours, None if we have none.
    ``reason``: why we have no figure.
    """

    environment: str | None
    arm: str | None
    published_per_s: float | None
    published_overhead: float | None
    overhead: EffectResult | None
    verdict: Verdict | None
    reason: str | None


def muehlbauer2015(result: Result, workload: str, levels: Levels) -> tuple[ThroughputLine, ...]:
    """Figure 5 (HyPer) with the throughput of this run at ``levels``: bare first, the paper's environments, then ours alone.

    Empty for a workload that the figure does not have (it has tpcc and tatp), and for an open loop: its is the schedule's.
    """
    if any(each.rate for each in result.windows):
        return ()
    printed = {
        row["environment"]: float(row["transactions_per_s"]) for row in table(_FIGURE5) if row["benchmark"] == workload
    }
    if not printed:
        return ()
    comparisons = {c.arm: c for c in result.comparisons if c.metric == TIME_PER_TRANSACTION and c.levels == levels}
    baseline = next((c.baseline for c in comparisons.values()), None)
    arms: dict[str | None, list[str | None]] = {environment: [] for environment in printed}
    for arm in result.arms:
        if arm.name == baseline:
            arms[_BARE].append(arm.name)
        elif arm.name in comparisons and not comparisons[arm.name].is_aa:
            arms.setdefault(_counterpart(arm), []).append(arm.name)
    return tuple(
        _throughput_line(printed, environment, name, comparisons.get(name or ""))
        for environment, names in arms.items()
        for name in names or [None]
    )


def _counterpart(arm: ArmResult) -> str | None:
    environment, _, options = arm.stack.split("//")[-1].partition(":")
    return None if "runsc" in options else _COUNTERPARTS.get(environment)


def _throughput_line(
    printed: dict[str, float], environment: str | None, arm: str | None, comparison: Comparison | None
) -> ThroughputLine:
    published = printed.get(environment or "")
    overhead = None
    if comparison and comparison.estimate is not None and comparison.low is not None and comparison.high is not None:
        overhead = EffectResult(comparison.estimate, comparison.low, comparison.high)
    return ThroughputLine(
        environment=environment,
        arm=arm,
        published_per_s=published,
        published_overhead=None if published is None or environment == _BARE else printed[_BARE] / published - 1,
        overhead=overhead,
        verdict=comparison.verdict if comparison else None,
        reason="not measured in this run" if arm is None else comparison.reason if comparison else None,
    )
