"""How often two identical things are said to differ, and whether the p-values of such comparisons are uniform.

The null hypothesis holds by construction: both arms are native arms of one image, each round starts both afresh from copies of
the same pages, and the order of starts and of visits is drawn anew for each round. So a round's effect is symmetric around 0,
and Student's t over the rounds of one comparison has (nearly: exactly for normal effects) a uniform two-sided p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy import stats as distributions

from dbtoll.analysis.compare import GEOMEAN, compare
from dbtoll.analysis.samples import METRICS, collect
from dbtoll.analysis.stats import Interval
from dbtoll.errors import Invalid
from dbtoll.interfaces import Machine
from dbtoll.model import Experiment, Json, Option
from dbtoll.plan import Plan
from dbtoll.runner.run import ready
from dbtoll.selfbench import Bound, Certificate, Say, here
from dbtoll.selfbench.precision import Quiet, measured
from dbtoll.store.schema import Visit

ABOUT = "false alarms: comparisons, false_alarms, uniformity_p of real A/A comparisons on independent copies and starts"
OPTIONS = {
    "comparisons": Option("integer", 24, "independent comparisons"),
    "rounds": Option("integer", 5, "fresh starts of both copies in each comparison"),
    "blocks": Option("integer", 3, "blocks after each start"),
    "scale": Option("number", 0.02, "scale factor of TPC-H"),
    "queries": Option("list", ["Q1", "Q6", "Q12", "Q14"], "queries, joined by +"),
    "burn": Option("flag", False, "with a second process burning the processors that are not the arms'"),
}

LEVEL = 0.05
KEPT_ENDING_S = 10.0


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """One comparison after the other; each has rounds of its own, so nothing is used twice.

    A false alarm: the interval of the overall effect, before any widening, excludes 0.
    """
    queries = [str(query) for query in options["queries"]]
    asked = here.over(
        [here.BASELINE],
        {"name": "postgres", "profile": "minhas2008"},
        {"name": "tpch", "scale": options["scale"], "indexes": "minhas2008", "queries": queries},
    )
    found: list[Interval] = []
    watch = Quiet(say)
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), watch) as prepared:
        plan = Plan(asked, prepared.queries, options["blocks"], {})
        with burning(prepared.ground.host, wanted=options["burn"]) as burnt:
            for number in range(options["comparisons"]):
                first = number * options["rounds"]
                visits = measured(prepared, [plan.round(first + i) for i in range(options["rounds"])], watch)
                found.append(overall(asked, visits))
                say(f"{number + 1} of {options['comparisons']}: {_shown(found[-1])}")
        told = {"host": prepared.facts["host"], "intervals": [_as_json(each) for each in found], "burnt": burnt}
    alarms = sum(each.excludes_zero for each in found)
    figures = {
        "comparisons": len(found),
        "false_alarms": alarms,
        "uniformity_p": uniformity_p([each.p for each in found]),
        "half_width": math.expm1(sum(each.half_width for each in found) / len(found)) if found else None,
        "burn": options["burn"],
    }
    bounds = {
        "comparisons": Bound(least=20),
        "false_alarms": Bound(most=most_alarms(max(len(found), 20))),
        "uniformity_p": Bound(least=0.01),
    }
    return Certificate("aa", figures, bounds, told)


def most_alarms(comparisons: int) -> int:
    """What an honest instrument exceeds in one certificate of a hundred: 4 for 20 to 24 comparisons."""
    return int(distributions.binom.ppf(0.99, comparisons, LEVEL))


def uniformity_p(p_values: list[float]) -> float | None:
    """Of the Kolmogorov–Smirnov test that the p-values are uniform (Conover 1999, ch. 6)."""
    return float(distributions.kstest(p_values, "uniform").pvalue) if p_values else None


def overall(asked: Experiment, visits: list[Visit]) -> Interval:
    """The copy against the original over all queries. Raises Invalid when a start failed: there is nothing to count then."""
    arms = [arm.name for arm in asked.arms]
    copies = [arm.name for arm in asked.arms if arm.copy_of]
    times = collect(visits, list(dict.fromkeys(visit.query for visit in visits)), arms, METRICS["run_time"])
    effects = compare(times, None, asked.baseline, copies, asked.precision, per_query=False) if times else []
    for effect in effects:
        if effect.estimand == GEOMEAN and effect.is_aa and effect.shown:
            return effect.shown
    raise Invalid("a comparison has no interval: a copy did not start or did not answer", "run it again")


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


def _as_json(interval: Interval) -> Json:
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "p": interval.p}
