"""How often two identical things are said to differ, whether such comparisons are biased, and whether starts are independent.

The null hypothesis holds by construction: both arms are native arms of one image, each round starts both afresh from copies of
the same pages, and the order of starts and of visits is drawn anew for each round. So a round's effect is symmetric around 0, and
if starts are independent, Student's t over the rounds of one comparison has (exactly for normal effects) a uniform two-sided p.

That nothing was found says little where little could be found. So the bias is held to a margin by two one-sided tests, and beside
each test stands its power: the chance to find what it is there to find.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy import stats as distributions

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.comparisons import geomean_rounds, pairs
from dbtoll.analysis.effects.stats import Floats, Interval
from dbtoll.analysis.visits.arrays import collect
from dbtoll.analysis.visits.metrics import METRICS, main_metric
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.defaults import BASELINE
from dbtoll.errors import Invalid
from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.plan import Plan
from dbtoll.runner.run import ready
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet, measured
from dbtoll.selfbench.support.tenants import of_tenants

SUMMARY = "real A/A comparisons on fresh copies and starts: false_alarms, bias within a margin, uniformity_p, and the power of each"
OPTIONS = {
    "comparisons": Option(
        "integer", 60, "independent comparisons; with fewer the certificate does not hold (of tenants 20)", least=1
    ),
    "rounds": Option("integer", 5, "fresh starts of both copies in each comparison", least=2),
    "blocks": Option("integer", 3, "blocks after each start", least=1),
    "scale": Option("number", 0.02, "scale factor of TPC-H"),
    "queries": Option("list", ["Q1", "Q6", "Q12", "Q14"], "queries, joined by +"),
    "tenants": Option("integer", 0, "of TPC-C, each with a server in one machine; 0: TPC-H instead", least=0),
    "burn": Option("flag", False, "with a second process burning the processors that are not the arms'"),
}

LEVEL = 0.05
COMPARISONS = 60
COMPARISONS_OF_TENANTS = 20
"""A start of many servers takes longer than one of a single one."""
BIAS_MARGIN = 0.005
"""Within which the mean of all comparisons has to be shown to lie: half of the usual target."""
WORSE_RATE, WORSE_ERROR = 0.2, 1.5
"""What the powers are about: one comparison in five a false alarm; a standard error that is two thirds of what it should be."""
KEPT_ENDING_S = 10.0


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """One comparison after the other; each has rounds of its own, so nothing is used twice."""
    asked = of_tenants([(BASELINE, "dedicated")], options["tenants"]) if options["tenants"] else _of_queries(options)
    found: list[Floats] = []
    watch = Quiet(say)
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), watch) as prepared:
        plan = Plan(asked, prepared.queries, options["blocks"], {})
        with burning(prepared.context.host, wanted=options["burn"]) as burnt:
            for number in range(options["comparisons"]):
                first = number * options["rounds"]
                visits = measured(prepared, [plan.round(first + i) for i in range(options["rounds"])], watch)
                found.append(effects_of(asked, visits))
                say(f"{number + 1} of {options['comparisons']}: {_shown(_over(found[-1]))}")
        effects = [[float(effect) for effect in each] for each in found]
        told = {"host": prepared.facts["host"], "effects": effects, "burnt": burnt}
    fewest = COMPARISONS_OF_TENANTS if options["tenants"] else COMPARISONS
    alarms = Bound(max=most_alarms(max(len(found), fewest)))
    bounds = BOUNDS | {"false_alarms": alarms, "false_alarms_if_independent": alarms, "comparisons": Bound(min=fewest)}
    return Certificate("aa", {**figures(found), "burn": options["burn"]}, bounds, told)


def _of_queries(options: Mapping[str, Any]) -> Experiment:
    return available.over(
        [BASELINE],
        {"name": "postgres", "profile": "serial"},
        {
            "name": "tpch",
            "scale": options["scale"],
            "indexes": "dates",
            "queries": [str(query) for query in options["queries"]],
        },
    )


def figures(found: Sequence[Floats]) -> dict[str, Any]:
    """What the comparisons say; ``found``: of each its effects by round, log scale.

    ``false_alarms``: the interval that decides excludes 0; ``…_if_independent``: Student's t does, whose rate is LEVEL if
    starts are independent, and ``uniformity_p`` is of its p-values. ``bias``: mean of all comparisons with the 90 % interval of
    two one-sided tests, fractions; ``bias_at_most``: its far end. Powers: `most_alarms` is exceeded if the rate is WORSE_RATE;
    the test of uniformity fails (at 1 %) if standard errors are too small by WORSE_ERROR; the bias is shown to lie within
    BIAS_MARGIN if it is 0.
    """
    count, rounds = len(found), len(found[0])
    plain = [_certain(stats.independent_interval(each, LEVEL)) for each in found]
    means = np.array([each.estimate for each in plain])
    bias = stats.independent_interval(means, 2 * LEVEL)
    alarms = sum(each.excludes_zero for each in plain)
    rate = distributions.binomtest(alarms, count).proportion_ci(method="exact")
    return {
        "comparisons": count,
        "false_alarms": sum(_over(each).excludes_zero for each in found),
        "false_alarms_if_independent": alarms,
        "false_alarm_rate_if_independent": [alarms / count, float(rate.low), float(rate.high)],
        "false_alarms_power": float(distributions.binom.sf(most_alarms(count), count, WORSE_RATE)),
        "bias": [math.expm1(value) for value in (bias.estimate, bias.low, bias.high)] if bias else None,
        "bias_at_most": math.expm1(max(abs(bias.low), abs(bias.high))) if bias else None,
        "bias_power": stats.equivalence_power(bias.error, bias.degrees, BIAS_MARGIN, LEVEL) if bias else None,
        "uniformity_p": uniformity_p([each.p for each in plain]),
        "uniformity_power": uniformity_power(count, rounds),
        "half_width": math.expm1(sum(_over(each).half_width for each in found) / count),
        "half_width_if_independent": math.expm1(sum(each.half_width for each in plain) / count),
    }


def most_alarms(comparisons: int) -> int:
    """What an honest instrument exceeds in one certificate of a hundred: 7 for 60 comparisons."""
    return int(distributions.binom.ppf(0.99, comparisons, LEVEL))


BOUNDS = {
    "comparisons": Bound(min=COMPARISONS),
    "false_alarms": Bound(max=most_alarms(COMPARISONS)),
    "false_alarms_if_independent": Bound(max=most_alarms(COMPARISONS)),
    "bias_at_most": Bound(max=BIAS_MARGIN),
    "uniformity_p": Bound(min=0.01),
}


def uniformity_p(p_values: list[float]) -> float | None:
    """Of the Kolmogorov-Smirnov test that the p-values are uniform (Conover 1999, ch. 6)."""
    return float(distributions.kstest(p_values, "uniform").pvalue) if p_values else None


@lru_cache
def uniformity_power(comparisons: int, rounds: int, trials: int = 500) -> float:
    """Chance that `uniformity_p` is below 1 % if all standard errors are too small by WORSE_ERROR; by simulation."""
    chance = np.random.default_rng(comparisons)
    t = WORSE_ERROR * chance.standard_t(rounds - 1, (trials, comparisons))
    p_values = 2 * distributions.t.sf(abs(t), rounds - 1)
    return float(np.mean([(uniformity_p(list(each)) or 1.0) < 0.01 for each in p_values]))


def effects_of(asked: Experiment, visits: list[VisitTotals]) -> Floats:
    """[round]: the copy against the original over all queries, or by the time for a transaction.

    Raises Invalid when a start failed: there is nothing to count then."""
    arms = [arm.name for arm in asked.arms]
    times = collect(
        visits, list(dict.fromkeys(visit.query for visit in visits)), arms, METRICS[main_metric(visits, asked)]
    )
    (pair,) = (pair for pair in pairs(arms, asked.held_against, asked.copies) if pair.is_aa)
    effects = geomean_rounds(times, pair) if times else np.empty(0)
    if len(effects) < 2:
        raise Invalid("a comparison has no interval: a copy did not start or did not answer", "run it again")
    return effects


def _over(effects: Floats) -> Interval:
    return _certain(stats.interval(effects, LEVEL, len(effects)))


def _certain(found: Interval | None) -> Interval:
    assert found is not None
    return found


@contextmanager
def burning(host: Machine, *, wanted: bool) -> Iterator[Json]:
    """One process that computes for as long as the context lasts, kept to the rig's processors as all that the host's agent
    starts; how much CPU time it took is in what is yielded, in the end.
    """
    told: Json = {}
    if not wanted:
        yield told
        return
    process = host.spawn(["sh", "-c", "while :; do :; done"])
    try:
        yield told
        seen = host.counters(tree_of=process.pid)["processes"]
        told["cpu_s"] = (seen["user_ns"] + seen["system_ns"]) / 1e9
    finally:
        process.signal(9)
        process.wait(KEPT_ENDING_S)


def _shown(interval: Interval) -> str:
    return f"{math.expm1(interval.estimate):+.2%} ({math.expm1(interval.low):+.2%} … {math.expm1(interval.high):+.2%})"
