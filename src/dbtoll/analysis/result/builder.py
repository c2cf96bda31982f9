"""A run folder in, a `Result` out: what `dbtoll analyze RUN --json` prints (docs/SCHEMA.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dbtoll.analysis.attribution.cost_model import CostModel
from dbtoll.analysis.effects import contrasts, interference, overhead_gate, speed_ups, stats
from dbtoll.analysis.effects.comparisons import GEOMEAN, GEOMEAN_SAME_PLANS, RATIO_OF_TOTALS, Effect, compare, missing
from dbtoll.analysis.result import arm_results, bins, provenance, run_warnings, series
from dbtoll.analysis.result.schema import (
    NOT_FINISHED,
    Bounds,
    Comparison,
    ComponentsResult,
    Levels,
    Result,
    drop,
    fractions,
)
from dbtoll.analysis.transactions import devices, windows
from dbtoll.analysis.visits.arrays import nothing
from dbtoll.analysis.visits.metrics import METRICS, QUANTILES
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.reply import THROUGHPUTS
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import SCHEMA_VERSION

RESULT = "result"
"""Under which a run has what is said of it (`Run.derived`): pages of a sweep or a paper ask several times."""


def analyze(folder: Path) -> Result:
    """All that may be said about the run in ``folder``. Raises RunFolderError for a damaged one."""
    return analyze_run(read_run(folder))


def analyze_run(run: Run, max_overhead: float | None = None) -> Result:
    """All that may be said about a run that was read. ``max_overhead``: the gate's limit, instead of the run's own."""
    if RESULT not in run.derived:
        run.derived[RESULT] = _ungated(run)
    result: Result = run.derived[RESULT]
    limit = run.plan.experiment.max_overhead if max_overhead is None else max_overhead
    return result if limit is None else replace(result, gate=overhead_gate.judge(result, limit))


def _ungated(run: Run) -> Result:
    measured = ValidVisits(run)
    comparisons = [_comparison(measured, effect, levels, metric) for levels, metric, effect in all_effects(measured)]
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
        stopped=run.end.reason if run.end else NOT_FINISHED,
        warnings=tuple(run_warnings.warnings(run, arms, comparisons, summaries)),
        arms=arms,
        comparisons=tuple(comparisons),
        contrasts=tuple(contrasts.find_all(measured, comparisons)),
        noise_floor=tuple(run_warnings.noise_floor(comparisons)),
        not_inside_the_interval=tuple(run_warnings.not_inside(measured)),
        series=tuple(series.series(measured)),
        times=tuple(series.times(measured)),
        windows=summaries,
        plans_changed=tuple(series.plans_changed(measured)),
        facts={**run.facts, "engine": provenance.engine(run)},
        disk_models=devices.models(run.facts),
        ledgers=tuple(
            ledger
            for name in measured.arms
            if name in experiment.baselines
            for ledger in CostModel(measured, baseline=name).find_all()
        ),
        main_metric=measured.main_metric,
        rounds_to_decide=experiment.precision.rounds_to_decide,
        speed_ups=tuple(speed_ups.find_all(measured)),
        interference=tuple(interference.find_all(measured)),
        neighbours=tuple(interference.neighbours(measured)),
    )


def all_effects(measured: ValidVisits) -> Iterator[tuple[Levels, str, Effect]]:
    """Every effect that a result has a comparison of, with its levels and its metric."""
    for levels in measured.levels:
        for metric in METRICS:
            for effect in _effects(measured, levels, metric):
                yield levels, metric, effect


def _effects(measured: ValidVisits, levels: Levels, metric: str) -> list[Effect]:
    experiment = measured.run.plan.experiment
    steady = measured.times(levels, metric, False)
    if steady is None:
        if metric != measured.main_metric or levels not in experiment.combinations:
            return []
        # Asked for, and nothing at this level counts: said of every arm, for what is not there cannot be seen to be missing.
        steady = nothing(measured.run.plan.queries, measured.arms)
    # The statement does not matter to the time of connecting, so that has no effects per query.
    effects = compare(
        steady, measured.times(levels, metric, True), experiment.held_against, experiment.copies, experiment.precision,
        per_query=metric in ("run_time", "event_time") or metric in QUANTILES, other_plans=measured.other_plans(levels),
    )  # fmt: skip
    # A sum of percentiles, or of the costs of unlike events, is a quantity of nothing; beside measured queries the mean of what
    # their events cost is one too.
    no_quantities = {RATIO_OF_TOTALS} if metric in QUANTILES or metric == "event_time" else set()
    if metric == "event_time" and measured.main_metric != metric:
        no_quantities |= {GEOMEAN, GEOMEAN_SAME_PLANS}
    return [effect for effect in effects if effect.estimand not in no_quantities]


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
        by_round=bins.by_round(effect.by_round),
        lengthened=effect.decisive.lengthened if effect.decisive else None,
        dependence=effect.dependence,
        throughput_drop=drop(effect.shown) if metric in THROUGHPUTS else None,
    )
