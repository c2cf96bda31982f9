"""What a neighbour costs an arm's other tenants: within the arm, against windows without it (docs/method/neighbours.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Interval
from dbtoll.analysis.result.schema import Bounds, Interference, Levels, NeighbourResult, drop
from dbtoll.analysis.transactions.devices import mean_of
from dbtoll.analysis.visits.metrics import quantile, response_buckets, time_per_transaction_ns
from dbtoll.analysis.visits.units import VisitTotals, merged
from dbtoll.analysis.visits.valid import Bars, ValidVisits, failed_transactions
from dbtoll.model.json import Json
from dbtoll.model.neighbours import FAULTS, IDLE, LOADS, NEIGHBOUR, against
from dbtoll.model.reply import TIME_PER_TRANSACTION

RESPONSE_P99 = "response_p99"
P99 = 0.99
SECOND_NS = 1_000_000_000

Windows = Mapping[tuple[int, int], VisitTotals]
"""Steady windows of an arm at one combination of levels, by round and block."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """``values``: the effect in each round, log scale. ``reason``: why there are none. ``lost``: what is in no response time."""

    arm: str
    level: str
    levels: Levels
    metric: str
    values: list[float]
    windows: int
    unserved: float | None
    reason: str | None = None
    lost: tuple[str, ...] = ()
    shown: Interval | None = None
    decisive: Interval | None = None
    p_holm: float | None = None
    widened_by: float = 0.0


def find_all(measured: ValidVisits) -> Iterator[Interference]:
    """For every arm but second copies, each thing that the neighbour does against the same neighbour without it: of the others'
    throughput, which is theirs to say in a closed loop alone, and of their 99th percentile.

    The unit is the round. What an idle neighbour is found to cost is noise: where that is beyond chance, all else of the arm is
    widened by it. The intervals that decide are adjusted for the number of cells of a metric, as those of queries are.
    """
    experiment = measured.run.plan.experiment
    if NEIGHBOUR not in experiment.factors:
        return
    cells = [
        cell
        for arm in measured.arms
        if arm not in measured.copies
        for levels in measured.levels
        if against(levels.get(NEIGHBOUR, "")) is not None and levels.get(NEIGHBOUR) in experiment.factors[NEIGHBOUR]
        for cell in _of_levels(measured, arm, levels)
    ]
    for metric in dict.fromkeys(cell.metric for cell in cells):
        for cell in _decided(measured, [cell for cell in cells if cell.metric == metric]):
            yield _told(measured, cell)


def _of_levels(measured: ValidVisits, arm: str, levels: Levels) -> Iterator[_Cell]:
    level = levels[NEIGHBOUR]
    reference = against(level)
    assert reference is not None
    others = {name: value for name, value in levels.items() if name != NEIGHBOUR}
    beside, alone = (_windows(measured, arm, {**levels, NEIGHBOUR: each}) for each in (level, reference))
    if level in FAULTS:
        alone = _last_of_rounds(alone)
    both = sorted(beside.keys() & alone.keys())
    open_loop = bool(measured.run.plan.experiment.arm(arm).configuration.workload.options.get("rate"))
    unserved = _unserved([beside[key] for key in both]) if open_loop else None
    metrics = (RESPONSE_P99,) if open_loop else (TIME_PER_TRANSACTION, RESPONSE_P99)
    for metric in metrics:
        of_round = _throughput_effect if metric == TIME_PER_TRANSACTION else _p99_effect
        by_round: dict[int, list[tuple[VisitTotals, VisitTotals]]] = defaultdict(list)
        for number, block in both:
            by_round[number].append((beside[number, block], alone[number, block]))
        values = [of_round(pairs) for pairs in by_round.values()]
        failed = sum(value is None for value in values)
        known = [value for value in values if value is not None]
        reason = None
        if failed:
            many = "s" if failed > 1 else ""
            reason = f"in {failed} round{many} a window of the others brought nothing: there is no figure for how much they lose"
        elif len(known) < 2:
            reason = "no complete round" if not known else "an interval needs two complete rounds, there is one"
        lost = tuple(_lost([beside[key] for key in both])) if metric == RESPONSE_P99 else ()
        yield _Cell(arm, level, others, metric, [] if failed else known, len(both), unserved, reason, lost)


def _windows(measured: ValidVisits, arm: str, levels: Levels) -> Windows:
    return {
        (visit.round, visit.block): visit
        for visit in measured.of(levels)
        if visit.arm == arm and visit.window is not None and not visit.first_execution
    }


def _last_of_rounds(windows: Windows) -> Windows:
    """As if of the first block, of which the fault's window is called: it comes after all of them (`plan.Plan`)."""
    return {(number, 0): windows[number, block] for number, block in sorted(windows)}


def _throughput_effect(pairs: Sequence[tuple[VisitTotals, VisitTotals]]) -> float | None:
    """The midmean of the paired log ratios of a round's blocks; None where somebody did nothing."""
    ratios = []
    for pair in pairs:
        beside, alone = (time_per_transaction_ns(visit) or math.nan for visit in pair)
        ratios.append(math.log(beside / alone))
    return None if any(map(math.isnan, ratios)) else float(stats.midmean(np.array(ratios), 0))


def _p99_effect(pairs: Sequence[tuple[VisitTotals, VisitTotals]]) -> float | None:
    """Of all windows of the round together: a stall that one of them has is in the tail, and no midmean cuts it away."""
    beside, alone = (
        quantile(merged(response_buckets(visit.window) for visit in visits if visit.window is not None), P99)
        for visits in zip(*pairs, strict=True)
    )
    return None if not beside or not alone else math.log(beside / alone)


def _lost(visits: Sequence[VisitTotals]) -> Iterator[str]:
    """What speaks against good news of response times, as they are of what was served: throughput has it as a loss."""
    yield from failed_transactions(visits)
    cut = sum(visit.window["connections_lost"] for visit in visits if visit.window is not None)
    if cut:
        yield f"{cut} connections were lost: what was not done until there were others has no response time"


def _unserved(visits: Sequence[VisitTotals]) -> float | None:
    """Share of the arrivals that nobody had served when their window ended."""
    windows = [visit.window for visit in visits if visit.window is not None]
    left = sum(window["backlog_at_end"] for window in windows)
    answered = sum(count for window in windows for count in _answered(window))
    # What was not served is among the response times, with what it had waited by then.
    return left / answered if answered else None


def _answered(window: Json) -> Iterator[int]:
    for kind in window["transactions"].values():
        for _, count in kind["response_ns"]["buckets"]:
            yield count


def _decided(measured: ValidVisits, cells: Sequence[_Cell]) -> list[_Cell]:
    """With intervals: of an idle neighbour as it is, which is the noise floor; of all others adjusted, and widened by that."""
    precision = measured.run.plan.experiment.precision
    alpha, least = 1 - precision.confidence, precision.rounds_min
    found = [(cell, stats.interval(np.array(cell.values), alpha, least)) for cell in cells]
    floors: dict[tuple[str, str], float] = {}
    for cell, interval in found:
        if cell.level == IDLE and interval and interval.excludes_zero:
            floors[cell.arm, str(cell.levels)] = max(abs(interval.low), abs(interval.high))
    family = [(cell, interval) for cell, interval in found if interval and cell.level != IDLE]
    alarm = max(floors.values(), default=0.0)
    shown = [interval.shown for _, interval in family]
    low, high = math.log1p(-precision.margin) + alarm, math.log1p(precision.margin) - alarm
    alphas = iter(stats.family_alphas(shown, alpha, low, high))
    adjusted = iter(stats.holm_p([each.p for each in shown]))
    decided = []
    for cell, interval in found:
        if interval is None:
            decided.append(cell)
        elif cell.level == IDLE:
            decided.append(replace(cell, shown=interval.shown, decisive=interval))
        else:
            wider = floors.get((cell.arm, str(cell.levels)), 0.0)
            decisive = stats.interval(np.array(cell.values), next(alphas), least)
            assert decisive is not None
            decided.append(
                replace(
                    cell,
                    shown=interval.shown.widened(wider),
                    decisive=decisive.widened(wider),
                    p_holm=next(adjusted),
                    widened_by=wider,
                )
            )
    return decided


def _told(measured: ValidVisits, cell: _Cell) -> Interference:
    precision = measured.run.plan.experiment.precision
    bars = measured.bars_within(cell.arm)
    bars = Bars(bars.all_of_them, (*bars.good_news, *cell.lost))
    rounds = len(cell.values)
    shown, decisive = Bounds.of(cell.shown), Bounds.of(None if bars.all_of_them else cell.decisive)
    found = stats.verdict(cell.decisive, rounds, precision)
    verdict = bars.allow(found)
    barred = "; ".join(bars.good_news) if verdict is not found else ""
    few = stats.too_few(rounds, precision)
    reference = against(cell.level)
    assert reference is not None
    is_throughput = cell.metric == TIME_PER_TRANSACTION
    return Interference(
        arm=cell.arm,
        level=cell.level,
        against=reference,
        levels=cell.levels,
        metric=cell.metric,
        estimate=shown.estimate,
        low=shown.low,
        high=shown.high,
        p=cell.shown.p if cell.shown else None,
        p_holm=cell.p_holm,
        low_decisive=decisive.low,
        high_decisive=decisive.high,
        verdict=verdict,
        rounds=rounds,
        windows=cell.windows,
        reason=cell.reason or bars.all_of_them or few or barred or None,
        throughput_drop=drop(cell.shown) if is_throughput else None,
        throughput_drop_decisive=drop(cell.decisive) if is_throughput and not bars.all_of_them else None,
        unserved=cell.unserved,
        widened_by=math.expm1(cell.widened_by),
    )


# --- what it did itself ----------------------------------------------------------------------------------------------------


def neighbours(measured: ValidVisits) -> Iterator[NeighbourResult]:
    """What the neighbour of every arm did at each level at which it did anything for a while; means over rounds."""
    alpha = 1 - measured.run.plan.experiment.precision.confidence
    unit = measured.run.descriptions.workload.throughput_unit
    for levels in measured.levels:
        if levels.get(NEIGHBOUR) in FAULTS:
            continue
        for arm in measured.arms:
            visits = [
                visit
                for visit in measured.of(levels)
                if visit.arm == arm and visit.neighbour is not None and not visit.first_execution
            ]
            if visits:
                yield _did(arm, levels, visits, alpha, unit.seconds)


def _did(arm: str, levels: Levels, visits: Sequence[VisitTotals], alpha: float, seconds: float) -> NeighbourResult:
    level = levels[NEIGHBOUR]
    rounds: dict[int, list[VisitTotals]] = defaultdict(list)
    for visit in visits:
        rounds[visit.round].append(visit)
    others = {name: value for name, value in levels.items() if name != NEIGHBOUR}
    if level in LOADS:
        windows = [w for visit in visits if (w := _own_window(visit)) is not None]
        buckets = merged(map(response_buckets, windows))
        by_round = [
            sum(map(_committed, own)) * SECOND_NS * seconds / sum(window["length_ns"] for window in own)
            for its in rounds.values()
            if (own := [w for visit in its if (w := _own_window(visit)) is not None])
        ]
        return NeighbourResult(
            arm=arm,
            level=level,
            levels=others,
            windows=len(windows),
            throughput=mean_of(by_round, alpha),
            p99_ns=quantile(buckets, P99) if buckets else None,
        )
    names = dict.fromkeys(name for visit in visits if visit.neighbour for name in visit.neighbour.did)
    return NeighbourResult(
        arm=arm,
        level=level,
        levels=others,
        windows=len(visits),
        did_per_s={
            name: mean for name in names if (mean := mean_of([_per_s(its, name) for its in rounds.values()], alpha))
        },
        processors=mean_of([_processors(its) for its in rounds.values()], alpha),
    )


def _own_window(visit: VisitTotals) -> Json | None:
    return visit.neighbour.unit.window if visit.neighbour and visit.neighbour.unit else None


def _committed(window: Json) -> int:
    counted = window["throughput_transaction"]
    return sum(kind["committed"] for name, kind in window["transactions"].items() if counted in (None, name))


def _per_s(visits: Sequence[VisitTotals], name: str) -> float:
    told = [visit.neighbour for visit in visits if visit.neighbour is not None]
    elapsed_ns = sum(each.elapsed_ns or 0 for each in told)
    return sum(each.did.get(name, 0) for each in told) * SECOND_NS / elapsed_ns if elapsed_ns else 0.0


def _processors(visits: Sequence[VisitTotals]) -> float:
    """How many it had, on the mean of the time."""
    told = [visit.neighbour for visit in visits if visit.neighbour is not None]
    elapsed_ns = sum(each.elapsed_ns or 0 for each in told)
    return sum(each.cpu_ns or 0 for each in told) / elapsed_ns if elapsed_ns else 0.0
