"""What stands beside the figures: warnings, the noise floor, and what is not inside the interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.comparisons import GEOMEAN
from dbtoll.analysis.result.schema import (
    ArmResult,
    Comparison,
    EffectResult,
    NoiseFloor,
    RoundEffect,
    RunWarning,
    WarningKind,
    WindowsResult,
)
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.experiment import FEWEST_DRAWS
from dbtoll.model.json import Json
from dbtoll.model.layout import ONE_UNIT
from dbtoll.model.reply import THROUGHPUTS
from dbtoll.store.reader import Attempt, Run
from dbtoll.store.schema import Start

INCOMPLETE_MAX = 20
"""Rounds that are named where they were begun and not completed."""

LEAST_COST = 1e-12
"""Of the baseline's: an overhead of -100 % in floats is infinitely much more."""


def warnings(
    run: Run, arms: Sequence[ArmResult], comparisons: Sequence[Comparison], windows: Sequence[WindowsResult] = ()
) -> list[RunWarning]:
    """What a reader of the figures has to know and no arm's outcome, reason or check already says."""
    measured = {arm.name for arm in arms if arm.rounds}
    return [*_of_run(run), *_of_comparisons([c for c in comparisons if c.arm in measured]), *_of_windows(windows)]


def _of_run(run: Run) -> Iterator[RunWarning]:
    if run.end is None:
        yield RunWarning(WarningKind.NO_END, "the run has no end: it goes on, or was killed")
    if run.unfinished_line:
        text = f"history.ndjson:{run.lines + 1}: an unfinished last line is left out (its writer was killed)"
        yield RunWarning(WarningKind.UNFINISHED_LINE, text)
    incomplete = [attempt for attempt in run.attempts if not attempt.complete]
    if incomplete:
        rounds = ", ".join(f"{a.round} ({_plain_reason(a)})" for a in incomplete[:INCOMPLETE_MAX])
        more = len(incomplete) - INCOMPLETE_MAX
        rounds += f", and {more} more" if more > 0 else ""
        text = f"rounds that were begun but not completed do not count: {rounds}"
        yield RunWarning(WarningKind.INCOMPLETE_ROUNDS, text)
    if lacks := run.host.get("without_root"):
        yield RunWarning(WarningKind.WITHOUT_ROOT, f"measured without root: {_without_root(lacks)}")
    for factor, levels in run.plan.experiment.unsupported.items():
        for level, why in levels.items():
            engines = " or ".join(each.title for each in run.descriptions.engines.values())
            text = f"unsupported by {engines}: {factor} {level} ({why})"
            yield RunWarning(WarningKind.UNSUPPORTED, text)
    if not run.counted:
        yield RunWarning(WarningKind.NO_ROUND, "there is no complete round: nothing can be said")
    elif few := stats.too_few(len(run.counted), run.plan.experiment.precision):
        yield RunWarning(WarningKind.FEW_ROUNDS, few)


def _without_root(lacks: Json) -> str:
    """``lacks``: facts of the host."""
    if lacks.get("control_groups") == "none":
        return (
            "no control groups, so no memory limit; arms are kept to their processors by affinity and sleep by SIGSTOP"
        )
    memory = "memory is limited" if lacks.get("memory_limit") else "no memory limit"
    return f"control groups that the session manager gave; {memory}; processors by {lacks.get('processors')}"


def _plain_reason(attempt: Attempt) -> str:
    return (attempt.end.reason if attempt.end else None) or "interrupted"


def _of_comparisons(comparisons: Sequence[Comparison]) -> Iterator[RunWarning]:
    for comparison in comparisons:
        if comparison.estimand == GEOMEAN and comparison.left_out and comparison.low is not None:
            what = {"run_time": "queries", "connect_time": "queries", "event_time": "probes"}.get(
                comparison.metric, "transactions"
            )
            text = f"over all {what} but these: {'; '.join(comparison.left_out)}"
            yield _of_comparison(WarningKind.QUERIES_LEFT_OUT, text, comparison)
        if comparison.estimand == GEOMEAN:
            yield from _of_starts(comparison)
    for floor in noise_floor(comparisons):
        if floor.excludes_zero:
            of = f" of {floor.arm}" if len({each.arm for each in noise_floor(comparisons)}) > 1 else ""
            low, high = sorted((_change(floor.metric, floor.low), _change(floor.metric, floor.high)))
            text = f"two identical copies{of} differ by more than chance in {_metric(floor.metric)}: {low:+.1%} … {high:+.1%}"
            yield RunWarning(WarningKind.COPIES_DIFFER, text, levels=floor.levels, metric=floor.metric)


def _of_comparison(kind: WarningKind, text: str, about: Comparison) -> RunWarning:
    return RunWarning(kind, text, about.arm, about.levels, about.metric)


def _of_starts(comparison: Comparison) -> Iterator[RunWarning]:
    metric = comparison.metric
    usual = [_change(metric, end) for each in comparison.by_round if not each.far_out for end in each.ends]
    if outlying := [each for each in comparison.by_round if each.far_out]:
        rounds = ", ".join(_far_out(metric, each) for each in outlying)
        others = f"; all others between {min(usual):+.1%} and {max(usual):+.1%}" if usual else ""
        yield _of_comparison(WarningKind.FAR_OUT_STARTS, f"starts that lie far out, {rounds}{others}", comparison)
    if comparison.dependence:
        text = (
            f"starts depend on the ones before them, or drift (autocorrelation about {comparison.dependence:.1f}); "
            f"its verdict rests on an interval that is {comparison.lengthened:.1f} times as long for it"
        )
        yield _of_comparison(WarningKind.DEPENDENT_STARTS, text, comparison)


def _far_out(metric: str, each: RoundEffect) -> str:
    low, *high = sorted(_change(metric, end) for end in each.ends)
    if not high:
        return f"round {each.round}: {low:+.1%}"
    return f"some of {each.rounds} rounds from round {each.round} on: {low:+.1%} … {high[0]:+.1%}"


def _of_windows(windows: Sequence[WindowsResult]) -> Iterator[RunWarning]:
    if rates := {each.rate for each in windows if each.rate}:
        text = f"{rates.pop():g} transactions arrive in a second whatever the arm does (an open loop)"
        yield RunWarning(WarningKind.OPEN_LOOP, text)
    for each in windows:
        if each.steadiness.steady is False:
            text = f"not steady: throughput {' and '.join(_moves(each))}; {each.steadiness.reason}"
            yield RunWarning(WarningKind.NOT_STEADY, text, each.arm, each.levels)
        if each.driver.bottleneck:
            text = f"the driver was the bottleneck: {each.driver.bottleneck}"
            yield RunWarning(WarningKind.DRIVER_BOTTLENECK, text, each.arm, each.levels)


def _moves(each: WindowsResult) -> Iterator[str]:
    """``rises by 12 % (8 … 15) within a window``; what is within chance is left out."""
    trend, beginning = each.steadiness.trend, each.steadiness.beginning
    if trend and (trend.low > 0 or trend.high < 0):
        yield f"{'rises' if trend.estimate > 0 else 'falls'} by {_size(trend)} within a window"
    if beginning and (beginning.low > 0 or beginning.high < 0):
        yield f"is {_size(beginning)} {'higher' if beginning.estimate > 0 else 'lower'} in a window's first tenth than after it"


def _size(effect: EffectResult) -> str:
    low, high = sorted(abs(bound) for bound in (effect.low, effect.high))
    return f"{abs(effect.estimate):.0%} ({low:.0%} … {high:.0%})"


def _metric(metric: str) -> str:
    return "throughput" if metric in THROUGHPUTS else metric.replace("_", " ")


def _change(metric: str, overhead: float) -> float:
    """Of the quantity that is named: of throughput, how much more or less is done in the same time."""
    return 1 / max(1 + overhead, LEAST_COST) - 1 if metric in THROUGHPUTS else overhead


def noise_floor(comparisons: Sequence[Comparison]) -> list[NoiseFloor]:
    """What two copies of the same thing show: A/A's geomean per arm, levels and metric."""
    return [
        NoiseFloor(
            c.baseline,
            c.levels,
            c.metric,
            c.estimate,
            c.low,
            c.high,
            (c.low_decisive or 0) > 0 or (c.high_decisive or 0) < 0,
        )
        for c in comparisons
        if c.is_aa and c.estimand == GEOMEAN and c.estimate is not None and c.low is not None and c.high is not None
    ]


def not_inside(measured: ValidVisits) -> list[str]:
    """The levels of the hierarchy with fewer than five independent draws (DESIGN §5)."""
    run = measured.run
    found = []
    of_arms = {arm: len({visit.round for visit in measured.visits if visit.arm == arm}) for arm in measured.arms}
    # Of the arm that has the fewest; one that has none has no interval either.
    rounds = min((number for number in of_arms.values() if number), default=0)
    fewest = [arm for arm, number in of_arms.items() if number == rounds]
    whose = f" of {', '.join(fewest)}" if len(set(of_arms.values())) > 1 else ""
    if rounds < FEWEST_DRAWS:
        found.append(f"server starts and copies of the dataset{whose}: {rounds} drawn, fewer than {FEWEST_DRAWS}")
    for arm in measured.arms:
        ids = {s.facts["boot_id"] for s in run.records(Start) if s.arm == arm and "boot_id" in s.facts}
        if 0 < len(ids) < FEWEST_DRAWS:
            found.append(f"boots of {arm}: {len(ids)} drawn, fewer than {FEWEST_DRAWS}")
    if rounds:
        missed = (
            f"one that is slow one time in ten has been missed with a chance of {0.9**rounds:.0%} ({rounds} rounds)"
        )
        found.append(f"rare starts{whose}: {missed}")
    if with_units := [arm.name for arm in run.plan.experiment.arms if arm.layout != ONE_UNIT and arm.copy_of is None]:
        found.append(f"units of {', '.join(with_units)}: they start together, so those of one round are one draw")
    found.append("the machine: one; another may differ in hardware, kernel and neighbours")
    found.append("the host's boot: one")
    several = len(run.plan.experiment.configurations) > 1
    found.append(f"the system image: one build{' of each' if several else ', the same in every arm'}")
    loaded = "loaded once for each configuration" if several else "loaded once"
    found.append(f"the dataset: generated and {loaded}; every start gets a copy of the same pages")
    sets = run.plan.experiment.parameter_sets
    if sets < FEWEST_DRAWS:
        found.append(f"the queries' parameters: {sets} drawn, fewer than {FEWEST_DRAWS}")
    return found
