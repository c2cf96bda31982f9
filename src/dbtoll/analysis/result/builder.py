"""A run folder in, a `Result` out: what `dbtoll analyze RUN --json` prints (docs/SCHEMA.md)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dbtoll.analysis.attribution.cost_model import CostModel
from dbtoll.analysis.effects import contrasts, stats
from dbtoll.analysis.effects.comparisons import GEOMEAN, GEOMEAN_SAME_PLANS, RATIO_OF_TOTALS, Effect, compare, missing
from dbtoll.analysis.result import arm_results, run_warnings, series
from dbtoll.analysis.result.schema import (
    Bounds,
    Comparison,
    ComponentsResult,
    Levels,
    Result,
    RoundEffect,
    drop,
    fractions,
)
from dbtoll.analysis.transactions import windows
from dbtoll.analysis.visits.arrays import nothing
from dbtoll.analysis.visits.metrics import METRICS, QUANTILES, main_metric
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import SCHEMA_VERSION


def analyze(folder: Path) -> Result:
    """All that may be said about the run in ``folder``. Raises RunFolderError for a damaged one."""
    return analyze_run(read_run(folder))


def analyze_run(run: Run) -> Result:
    """All that may be said about a run that was read."""
    measured = ValidVisits(run)
    comparisons = [
        comparison
        for levels in measured.levels
        for metric in METRICS
        for comparison in _comparisons(measured, levels, metric)
    ]
    experiment = run.plan.experiment
    arms = tuple(arm_results.arm(measured, arm) for arm in experiment.arms)
    summaries = tuple(windows.find_all(measured))
    return Result(
        run=run.begin.run,
        schema_version=SCHEMA_VERSION,
        confidence=experiment.precision.confidence,
        margin=experiment.precision.margin,
        target=experiment.precision.target,
        question=experiment.question,
        expected=experiment.expected,
        stopped=run.end.reason if run.end else "not finished",
        warnings=tuple(run_warnings.warnings(run, arms, comparisons, summaries)),
        arms=arms,
        comparisons=tuple(comparisons),
        contrasts=tuple(contrasts.find_all(measured, comparisons)),
        noise_floor=tuple(run_warnings.noise_floor(comparisons)),
        not_inside_the_interval=tuple(run_warnings.not_inside(measured)),
        series=tuple(series.series(measured)),
        times=tuple(series.times(measured)),
        windows=summaries,
        plans_changed=tuple(series.plans_changed(run)),
        facts=run.facts,
        ledgers=tuple(CostModel(measured).find_all()),
        main_metric=main_metric(measured.visits, experiment),
        rounds_to_decide=stats.rounds_to_decide(experiment.precision),
    )


def _comparisons(measured: ValidVisits, levels: Levels, metric: str) -> list[Comparison]:
    experiment = measured.run.plan.experiment
    steady = measured.times(levels, metric, False)
    if steady is None:
        if metric != main_metric(measured.visits, experiment) or levels not in experiment.combinations:
            return []
        # Asked for, and nothing at this level counts: said of every arm, for what is not there cannot be seen to be missing.
        steady = nothing(measured.run.plan.queries, measured.arms)
    # The statement does not matter to the time of connecting, so that has no effects per query.
    effects = compare(
        steady, measured.times(levels, metric, True), experiment.baseline, measured.copies, experiment.precision,
        per_query=metric in ("run_time", "event_time") or metric in QUANTILES, other_plans=measured.other_plans,
    )  # fmt: skip
    # A sum of percentiles, or of the costs of unlike events, is a quantity of nothing; beside measured queries the mean of what
    # their events cost is one too.
    no_quantities = {RATIO_OF_TOTALS} if metric in QUANTILES or metric == "event_time" else set()
    if metric == "event_time" and main_metric(measured.visits, experiment) != metric:
        no_quantities |= {GEOMEAN, GEOMEAN_SAME_PLANS}
    return [_comparison(measured, effect, levels, metric) for effect in effects if effect.estimand not in no_quantities]


def _comparison(measured: ValidVisits, effect: Effect, levels: Levels, metric: str) -> Comparison:
    bars = measured.bars(effect.arm, effect.query)
    shown, decisive = Bounds.of(effect.shown), Bounds.of(None if bars.all_of_them else effect.decisive)
    verdict = bars.allow(effect.verdict)
    few = stats.too_few(effect.rounds, measured.run.plan.experiment.precision)
    barred = () if verdict == effect.verdict or bars.all_of_them else bars.good_news
    reasons = [effect.reason or bars.all_of_them or few, *barred]
    reasons += [f"without {'; '.join(lacking)}"] if effect.shown and (lacking := missing(effect.left_out)) else []
    return Comparison(
        arm=effect.arm,
        baseline=effect.baseline,
        is_aa=effect.is_aa,
        levels=levels,
        metric=metric,
        estimand=effect.estimand,
        estimate=shown.estimate,
        low=shown.low,
        high=shown.high,
        p=effect.shown.p if effect.shown else None,
        p_holm=effect.p_holm,
        low_decisive=decisive.low,
        high_decisive=decisive.high,
        verdict=verdict,
        rounds=effect.rounds,
        first_execution=fractions(effect.first_execution),
        reason="; ".join(reason for reason in reasons if reason) or None,
        left_out=effect.left_out,
        components=ComponentsResult(effect.components.between_rounds, effect.components.within_rounds),
        widened_by=math.expm1(effect.widened_by),
        by_round=_by_round(effect),
        lengthened=effect.decisive.lengthened if effect.decisive else None,
        dependence=effect.dependence,
        throughput_drop=drop(effect.shown) if metric == TIME_PER_TRANSACTION else None,
    )


def _by_round(effect: Effect) -> tuple[RoundEffect, ...]:
    outlying = stats.far_out(np.array([value for _, value in effect.by_round]))
    return tuple(
        RoundEffect(number, math.expm1(min(value, 700.0)), bool(far))
        for (number, value), far in zip(effect.by_round, outlying, strict=True)
    )
