"""How much narrower dbtoll's estimates are than those of the papers' protocol, in equal time with equally many starts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution

from dbtoll.analysis import compare
from dbtoll.analysis.samples import METRICS, collect
from dbtoll.model import Experiment, Option, Round
from dbtoll.plan import Plan
from dbtoll.runner import preparation
from dbtoll.runner.rounds import Budget, RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench import Bound, Certificate, Say
from dbtoll.selfbench.rig import experiment
from dbtoll.store.reader import Run
from dbtoll.store.schema import Record, Visit

ABOUT = "precision: half_width_ratio, the spread of dbtoll's A/A estimates over that of the papers' protocol"
OPTIONS = {
    "repetitions": Option("integer", 12, "how often each protocol is run, in turn; at least 10"),
    "starts": Option("integer", 5, "fresh starts of each copy in one run of either protocol"),
    "blocks": Option("integer", 2, "blocks after each start"),
    "scale": Option("number", 0.05, "scale factor of TPC-H"),
    "queries": Option("list", ["Q1", "Q3", "Q4", "Q6", "Q9", "Q12", "Q14", "Q18"], "queries"),
}

SPEC = """
[engine]
name = "postgres"
profile = "minhas2008"
[workload]
name = "tpch"
scale = {scale}
indexes = "minhas2008"
queries = {queries}
[[arm]]
name = "native"
stack = "native"
"""


class Quiet:
    """A watch that shows nothing."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        """Nothing."""

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return None


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Both protocols run in turn on the same two copies of a native arm, order alternating.

    dbtoll: rounds of both copies, interleaved visits, its own estimate of the A/A effect (geometric mean over queries).
    The papers': all starts of one copy, then all of the other; times of a query averaged over all runs of a copy; the geometric
    mean over queries of the ratio of averages. Equal starts, equal visits, the same statements.
    """
    text = SPEC.format(scale=options["scale"], queries=[str(query) for query in options["queries"]])
    asked = experiment(text)
    estimates: dict[str, list[float]] = {"dbtoll": [], "papers": []}
    seconds: dict[str, list[float]] = {"dbtoll": [], "papers": []}
    watch = Quiet(say)
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), watch) as prepared:
        plan = Plan(asked, prepared.queries, options["blocks"], {})
        for repetition in range(options["repetitions"]):
            whole = [plan.round(repetition * options["starts"] + i) for i in range(options["starts"])]
            protocols = {"dbtoll": whole, "papers": arm_after_arm(asked, whole)}
            for name in list(protocols) if repetition % 2 == 0 else reversed(protocols):
                begin = time.monotonic()
                visits = measured(prepared, protocols[name], watch)
                seconds[name].append(time.monotonic() - begin)
                estimates[name].append(ESTIMATORS[name](asked, visits))
            say(
                f"{repetition + 1} of {options['repetitions']}: "
                + ", ".join(f"{name} {math.expm1(each[-1]):+.2%}" for name, each in estimates.items())
            )
        told = {"host": prepared.facts["host"], "estimates": estimates, "seconds": seconds, "specification": text}
    ratio, low, high = ratio_of_spreads(estimates["dbtoll"], estimates["papers"])
    figures = {
        "half_width_ratio": ratio,
        "half_width_ratio_interval": [low, high],
        "sd_dbtoll": statistics.stdev(estimates["dbtoll"]),
        "sd_papers": statistics.stdev(estimates["papers"]),
        "seconds": {name: statistics.fmean(each) for name, each in seconds.items()},
        "repetitions": options["repetitions"],
    }
    return Certificate("precision", figures, {"half_width_ratio": Bound(most=0.5)}, told)


def arm_after_arm(asked: Experiment, rounds: Sequence[Round]) -> list[Round]:
    """The same starts and visits, but all of one arm before all of the other."""
    result = []
    for arm in (each.name for each in asked.arms):
        for round_ in rounds:
            phases = tuple(
                replace(
                    phase,
                    blocks=tuple(
                        replace(block, visits=tuple(visit for visit in block.visits if visit.arm == arm))
                        for block in phase.blocks
                    ),
                )
                for phase in round_.phases
            )
            result.append(Round(round_.index, (arm,), phases))
    return result


def measured(prepared: preparation.Prepared, rounds: Sequence[Round], watch: Quiet) -> list[Visit]:
    """The steady visits of these rounds."""
    records: list[Record] = []
    for round_ in rounds:
        run = RoundRun(
            prepared.ground, prepared.inputs, round_, records.append, watch, Budget(math.inf), None, seen_plans=set()
        )
        run.measure()
    return [record for record in records if isinstance(record, Visit) and not record.first_touch]


def by_dbtoll(asked: Experiment, visits: Sequence[Visit]) -> float:
    """The mean over rounds of dbtoll's effect of the copy against the original; log scale."""
    arms = [arm.name for arm in asked.arms]
    queries = list(dict.fromkeys(visit.query for visit in visits))
    times = collect(visits, queries, arms, METRICS["run_time"])
    assert times is not None
    (pair,) = compare.pairs(arms, asked.baseline, [arms[1]])
    return float(np.mean(compare.geomean_rounds(times, pair)))


def by_the_papers(asked: Experiment, visits: Sequence[Visit]) -> float:
    """Mean over queries of the log ratio of the averages of all runs of a copy."""
    means: dict[tuple[str, str], list[int]] = {}
    for visit in visits:
        for timing in visit.executions:
            means.setdefault((visit.arm, visit.query), []).append(timing.end_ns - timing.start_ns)
    original, copy = (arm.name for arm in asked.arms)
    queries = sorted({query for _, query in means})
    return statistics.fmean(
        math.log(statistics.fmean(means[copy, query]) / statistics.fmean(means[original, query])) for query in queries
    )


ESTIMATORS = {"dbtoll": by_dbtoll, "papers": by_the_papers}


def ratio_of_spreads(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of standard deviations with its 95 % interval from the F distribution (Snedecor and Cochran, ch. 6)."""
    ratio = statistics.variance(ours) / statistics.variance(theirs)
    low = ratio / float(f_distribution.ppf(0.975, len(ours) - 1, len(theirs) - 1))
    high = ratio / float(f_distribution.ppf(0.025, len(ours) - 1, len(theirs) - 1))
    return math.sqrt(ratio), math.sqrt(low), math.sqrt(high)
