"""What stands beside the figures: warnings, the noise floor, and what is not inside the interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dbtoll.analysis.compare import GEOMEAN
from dbtoll.analysis.measured import Measured
from dbtoll.analysis.shape import ArmResult, Comparison, Levels, NoiseFloor
from dbtoll.analysis.stats import FEWEST_DRAWS
from dbtoll.store.reader import Attempt, Run
from dbtoll.store.schema import Start


def warnings(run: Run, arms: Sequence[ArmResult], comparisons: Sequence[Comparison]) -> list[str]:
    """What a reader of the figures has to know and no arm's outcome, reason or gate already says, a sentence each."""
    measured = {arm.name for arm in arms if arm.rounds}
    return [*_of_run(run), *_of_comparisons([c for c in comparisons if c.arm in measured])]


def _of_run(run: Run) -> Iterator[str]:
    if run.end is None:
        yield "the run has no end: it goes on, or was killed; `dbtoll run --resume` finishes it"
    if run.unfinished_line:
        yield f"history.ndjson:{run.lines + 1}: an unfinished last line is left out (its writer was killed)"
    incomplete = [attempt for attempt in run.attempts if not attempt.complete]
    if incomplete:
        rounds = ", ".join(f"{a.round} ({_plain_reason(a)})" for a in incomplete)
        yield f"rounds that were begun but not completed do not count: {rounds}"
    if not run.counted:
        yield "there is no complete round: nothing can be said"
    elif len(run.counted) < FEWEST_DRAWS:
        many = "s" if len(run.counted) > 1 else ""
        yield f"only {len(run.counted)} complete round{many}: no verdict rests on fewer than {FEWEST_DRAWS}"


def _plain_reason(attempt: Attempt) -> str:
    return (attempt.end.reason if attempt.end else None) or "interrupted"


def _of_comparisons(comparisons: Sequence[Comparison]) -> Iterator[str]:
    for comparison in comparisons:
        if comparison.estimand == GEOMEAN and comparison.left_out:
            where = f"{_plain(comparison.levels)}, {comparison.metric.replace('_', ' ')}"
            yield f"{comparison.arm} ({where}): over all queries but these: {'; '.join(comparison.left_out)}"
    for floor in noise_floor(comparisons):
        if floor.excludes_zero:
            yield (
                f"two identical copies differ by more than chance in {floor.metric.replace('_', ' ')} "
                f"({_plain(floor.levels)}): {floor.low:+.1%} … {floor.high:+.1%}; every interval there is longer by "
                "the far bound"
            )


def _plain(levels: Levels) -> str:
    return ", ".join(f"{name} {level.replace('_', ' ')}" for name, level in levels.items()) or "all"


def noise_floor(comparisons: Sequence[Comparison]) -> list[NoiseFloor]:
    """What two copies of the same thing show: A/A's geomean per levels and metric."""
    return [
        NoiseFloor(c.levels, c.metric, c.estimate, c.low, c.high, c.low > 0 or c.high < 0)
        for c in comparisons
        if c.is_aa and c.estimand == GEOMEAN and c.estimate is not None and c.low is not None and c.high is not None
    ]


def not_inside(measured: Measured) -> list[str]:
    """The levels of the hierarchy with fewer than five independent draws (DESIGN §5)."""
    run = measured.run
    found = []
    rounds = len({visit.round for visit in measured.visits})
    if rounds < FEWEST_DRAWS:
        found.append(f"server starts and copies of the dataset: {rounds} drawn, fewer than {FEWEST_DRAWS}")
    for arm in measured.arms:
        ids = {s.facts["boot_id"] for s in run.records(Start) if s.arm == arm and "boot_id" in s.facts}
        if 0 < len(ids) < FEWEST_DRAWS:
            found.append(f"boots of {arm}: {len(ids)} drawn, fewer than {FEWEST_DRAWS}")
    found.append("the machine: one; another may differ in hardware, kernel and neighbours")
    found.append("the host's boot: one")
    found.append("the system image: one build, the same in every arm")
    found.append("the dataset: generated and loaded once; every start gets a copy of the same pages")
    sets = run.plan.experiment.parameter_sets
    if sets < FEWEST_DRAWS:
        found.append(f"the queries' parameters: {sets} drawn, fewer than {FEWEST_DRAWS}")
    return found
