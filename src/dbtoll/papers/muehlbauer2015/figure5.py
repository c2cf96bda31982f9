"""Figure 5 (HyPer) with the throughput of any run of its workloads beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dbtoll.analysis.reproduction.tables import Cell, Column, Difference, PublishedTable, Quantity, Unit
from dbtoll.analysis.result.schema import ArmResult, Comparison, Levels, Result, WindowsResult
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.papers.muehlbauer2015.published import table

BARE = "bare"
COUNTERPARTS = {"docker": "docker", "qemu": "kvm", "libvirt": "kvm", "virtualbox": "virtualbox"}
"""Our environment -> what the paper measured of that kind; a sandbox in place of Docker's runtime is another."""

PRINTED, PRINTED_DIFFERENCE, ARM, MEASURED, MEASURED_DIFFERENCE, VERDICT = range(1, 7)
"""Places in a row, whose head is the environment as the paper calls it: None for an arm of which it has no kind."""


def tables(result: Result, workload: str) -> Iterator[PublishedTable]:
    """For each combination of levels: bare first, the paper's environments, then ours alone.

    None for a workload that the figure does not have (it has tpcc and tatp), and for an open loop: its is the schedule's. Published
    differences are the overheads in time per transaction computed from the printed transactions a second.
    """
    if any(each.rate for each in result.windows):
        return
    printed = {
        row["environment"]: float(row["transactions_per_s"])
        for row in table("oltp_throughput")
        if row["benchmark"] == workload
    }
    at_levels: dict[str, Levels] = {str(each.levels): each.levels for each in result.windows} if printed else {}
    for levels in at_levels.values():
        windows = {each.arm: each for each in result.windows if each.levels == levels}
        unit: Unit = "tpmC" if any(each.unit == "tpmC" for each in windows.values()) else "transactions/s"
        yield PublishedTable(
            name="Figure 5",
            title="throughput of TPC-C and TATP",
            columns=(
                Column("transactions/s", "count", False),
                Column("difference", "difference", False, mark="point"),
                Column("arm", "text", True),
                Column(unit, unit, True),
                Column("difference", "difference", True, mark="point"),
                Column("verdict", "verdict", True),
            ),
            rows=tuple(_rows(result, levels, printed, windows)),
            rows_are="environment",
            levels=levels,
        )


def _rows(
    result: Result, levels: Levels, printed: Mapping[str, float], windows: Mapping[str, WindowsResult]
) -> Iterator[tuple[Cell, ...]]:
    comparisons = {c.arm: c for c in result.comparisons if c.metric == TIME_PER_TRANSACTION and c.levels == levels}
    baseline = next((c.baseline for c in comparisons.values()), None)
    labels = {arm.name: arm.label for arm in result.arms}
    arms: dict[str | None, list[str | None]] = {environment: [] for environment in printed}
    for arm in result.arms:
        if arm.name == baseline:
            arms[BARE].append(arm.name)
        elif arm.name in comparisons and not comparisons[arm.name].is_aa:
            arms.setdefault(counterpart(arm), []).append(arm.name)
    for environment, names in arms.items():
        published = None if environment is None else printed[environment]
        for name in names or [None]:
            yield (
                environment,
                published,
                None
                if published is None or environment == BARE
                else Difference(TIME_PER_TRANSACTION, printed[BARE] / published - 1),
                name and labels[name],
                *_ours(name, windows.get(name or ""), comparisons.get(name or "")),
            )


def _ours(arm: str | None, windows: WindowsResult | None, comparison: Comparison | None) -> tuple[Cell, Cell, Cell]:
    """Throughput, difference and verdict, or in its place why there is none."""
    rate = windows and windows.throughput
    throughput = Quantity(rate.estimate, rate.low, rate.high) if rate else None
    if comparison is None:
        return throughput, None, "not measured in this run" if arm is None else "baseline"
    if comparison.estimate is None or comparison.low is None or comparison.high is None:
        return throughput, None, comparison.reason
    difference = Difference(TIME_PER_TRANSACTION, comparison.estimate, comparison.low, comparison.high)
    return throughput, difference, comparison.verdict


def counterpart(arm: ArmResult) -> str | None:
    """The paper's environment of that kind; None where it has none."""
    environment, _, options = arm.stack.split("//")[-1].partition(":")
    return None if "runsc" in options else COUNTERPARTS.get(environment)
