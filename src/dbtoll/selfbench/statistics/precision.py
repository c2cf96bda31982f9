"""How wide an interval is in dbtoll's protocol and in the papers', in equal time: in simulated worlds and on this machine.

The papers that are reproduced start each arm once, run all that is asked of it, then the next arm. Such a protocol has no
interval over starts; what it would need is the half-width that covers the truth in 95 % of all experiments. Between two copies of
one thing the truth is 0, so how far the estimates of many experiments lie from it tells that half-width, for either protocol.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution

from dbtoll.analysis.effects import comparisons, stats
from dbtoll.analysis.effects.stats import Floats, Interval
from dbtoll.analysis.visits.arrays import collect
from dbtoll.analysis.visits.metrics import METRICS
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.experiment import Experiment
from dbtoll.model.options import Option
from dbtoll.model.plan import Round
from dbtoll.plan import Plan
from dbtoll.runner.run import ready
from dbtoll.selfbench.statistics import simulation
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.selfbench.support.quiet_run import Quiet, measured

SUMMARY = "half_width_ratio: an interval of dbtoll that covers, over one of the papers' protocol (arm after arm, one server life)"
OPTIONS = {
    "repetitions": Option(
        "integer", 12, "how often each protocol is run on this machine, in turn; 0: simulated worlds alone", least=0
    ),
    "experiments": Option("integer", 1000, "of each protocol in each simulated world", least=1),
    "seed": Option("integer", 1, "of the simulated worlds", least=0),
    "starts": Option("integer", 5, "fresh starts of each copy in one run of dbtoll", least=1),
    "blocks": Option("integer", 2, "blocks after each start", least=1),
    "scale": Option("number", 0.05, "scale factor of TPC-H"),
    "queries": Option("list", ["Q1", "Q3", "Q4", "Q6", "Q9", "Q12", "Q14", "Q18"], "queries"),
}

LEVEL = 0.05
DBTOLL, BY_MEAN, BY_MIDMEAN = "dbtoll", "papers, mean", "papers, midmean"
REACH = 1.959964
"""A normal distribution has 95 % within so many standard deviations."""
LOCATIONS: dict[str, comparisons.Location] = {BY_MEAN: comparisons.mean, BY_MIDMEAN: stats.midmean}
WORLDS = {"quiet": "none", "drifting": "drift", "stepping": "steps", "spiky": "outliers"}
"""Those of `simulation` by what they are called here."""

SPEC = """
[engine]
name = "postgres"
profile = "serial"
[workload]
name = "tpch"
scale = {scale}
indexes = "dates"
queries = {queries}
[[arm]]
name = "native"
stack = "native"
"""

BOUNDS = {
    "coverage_least": Bound(min=0.93),
    "half_width_ratio_drifting": Bound(max=0.5),
    "half_width_ratio_stepping": Bound(max=0.5),
}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """The table of the simulated worlds, and the same of this machine if ``repetitions`` are asked for."""
    rounds, blocks = options["starts"], options["blocks"]
    table = {
        name: told(simulated(simulation.WORLDS[world], options["experiments"], options["seed"], rounds, blocks))
        for name, world in WORLDS.items()
    }
    facts: dict[str, Any] = {name: options[name] for name in ("experiments", "seed", "starts", "blocks")}
    figures: dict[str, Any] = {
        "coverage_least": min(each[DBTOLL]["coverage"] for each in table.values()),
        "half_width_ratio_drifting": table["drifting"][BY_MIDMEAN]["half_width_ratio"],
        "half_width_ratio_stepping": table["stepping"][BY_MIDMEAN]["half_width_ratio"],
    }
    if options["repetitions"]:
        found, about = on_this_machine(options, say)
        table["this machine"] = told(found)
        figures |= {"half_width_ratio_here": table["this machine"][BY_MIDMEAN]["half_width_ratio"]}
        facts |= about
    return Certificate("precision", figures | {"worlds": table}, BOUNDS, facts)


def told(found: Mapping[str, Sequence[Interval]]) -> dict[str, dict[str, Any]]:
    """Of each protocol's experiments between two copies of one thing; half-widths as fractions.

    ``half_width``: that covers the truth in 95 % of experiments, by the spread of the estimates about 0, which is the truth;
    ``printed``: median of what the protocol's own data say, ``coverage``: how often that covers. Of dbtoll that is what
    decides, of the papers Student's t over the runs within one server life, which none of them claims to be more.
    ``half_width_ratio``: dbtoll's ``half_width`` over the protocol's, with its 95 % interval; ``printed_ratio``: of dbtoll's
    ``printed`` over the protocol's ``half_width``.
    """
    spreads = {name: math.sqrt(float(np.mean([each.estimate**2 for each in own]))) for name, own in found.items()}
    printed = {name: float(np.median([each.half_width for each in own])) for name, own in found.items()}
    table: dict[str, dict[str, Any]] = {}
    for name, own in found.items():
        covers = REACH * spreads[name]
        table[name] = {
            "half_width": math.expm1(covers),
            "printed": math.expm1(printed[name]),
            "coverage": sum(each.low <= 0 <= each.high for each in own) / len(own),
        }
        if name != DBTOLL:
            ratio, low, high = ratio_of_spreads(spreads[DBTOLL], spreads[name], len(own))
            table[name] |= {
                "half_width_ratio": ratio,
                "half_width_ratio_interval": [low, high],
                "printed_ratio": printed[DBTOLL] / covers,
            }
    return table


def ratio_of_spreads(ours: float, theirs: float, count: int) -> tuple[float, float, float]:
    """Of root mean squares about a known mean, each of ``count`` values, with its 95 % interval (F: Snedecor, Cochran, ch. 6)."""
    quantile = math.sqrt(float(f_distribution.ppf(1 - LEVEL / 2, count, count)))
    ratio = ours / theirs
    return ratio, ratio / quantile, ratio * quantile


def of_one_life(logs: Floats, location: comparisons.Location) -> Interval:
    """The papers' estimate, and Student's t over the runs of one server life. ``logs``: [run, query, copy], one start of each.

    Mean over queries of the log ratio of the locations of the times; its error is of the means of logs, which differ little.
    """
    runs = len(logs)
    places = np.log(location(np.exp(logs), 0))
    error = math.sqrt(float((np.var(logs, axis=0, ddof=1) / runs).sum())) / logs.shape[1]
    return stats.around(float((places[:, 1] - places[:, 0]).mean()), error, runs, LEVEL)


# --- in simulated worlds -------------------------------------------------------------------------------------------


def simulated(
    world: simulation.World, experiments: int, seed: int, rounds: int, blocks: int
) -> dict[str, list[Interval]]:
    """Protocol -> an interval of each experiment, in time for ``rounds`` of ``blocks`` of two copies."""
    chance = np.random.default_rng([seed, rounds, blocks])
    ours = simulation.simulate(experiments, 0.0, world, chance, rounds=rounds, blocks=blocks, arms=2)
    effects = comparisons.round_effects(ours, 1, [0]).mean(axis=-1)
    found = {DBTOLL: simulation.intervals(effects)}
    # One start of each copy; runs in the order of time, first all of the one and then all of the other.
    logs = np.log(simulation.simulate_in_turn(experiments, world, chance, rounds * blocks, rounds))
    return found | {name: [of_one_life(each, location) for each in logs] for name, location in LOCATIONS.items()}


# --- on this machine -----------------------------------------------------------------------------------------------


def on_this_machine(options: Mapping[str, Any], say: Say) -> tuple[dict[str, list[Interval]], dict[str, Any]]:
    """Protocol -> an interval of each repetition, and facts. Both protocols in turn, order alternating, on two native copies.

    Equal visits of the same statements; the papers' protocol has one start of each copy, and what it saves by that.
    """
    text = SPEC.format(scale=options["scale"], queries=[str(query) for query in options["queries"]])
    asked = experiment(text)
    found: dict[str, list[Interval]] = {DBTOLL: [], **{name: [] for name in LOCATIONS}}
    seconds: dict[str, list[float]] = {"dbtoll": [], "papers": []}
    watch = Quiet(say)
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, ready(asked, Path(folder), watch) as prepared:
        plan = Plan(asked, prepared.queries, options["blocks"], {})
        life = Plan(asked, prepared.queries, options["starts"] * options["blocks"], {})

        def ours(number: int) -> Iterator[tuple[str, Interval]]:
            first = number * options["starts"]
            visits = measured(prepared, [plan.round(first + i) for i in range(options["starts"])], watch)
            yield DBTOLL, by_dbtoll(asked, visits)

        def theirs(number: int) -> Iterator[tuple[str, Interval]]:
            logs = runs_of(asked, measured(prepared, arm_after_arm(asked, [life.round(number)]), watch))
            for name, location in LOCATIONS.items():
                yield name, of_one_life(logs, location)

        protocols: dict[str, Callable[[int], Iterator[tuple[str, Interval]]]] = {"dbtoll": ours, "papers": theirs}
        for repetition in range(options["repetitions"]):
            for name in list(protocols) if repetition % 2 == 0 else reversed(protocols):
                begin = time.monotonic()
                for protocol, interval in protocols[name](repetition):
                    found[protocol].append(interval)
                seconds[name].append(time.monotonic() - begin)
            say(
                f"{repetition + 1} of {options['repetitions']}: "
                + ", ".join(f"{name} {math.expm1(each[-1].estimate):+.2%}" for name, each in found.items())
            )
        about = {"host": prepared.facts["host"], "seconds": seconds, "specification": text}
    about["estimates"] = {name: [each.estimate for each in own] for name, own in found.items()}
    return found, about


def arm_after_arm(asked: Experiment, rounds: Sequence[Round]) -> list[Round]:
    """The same visits, but all of one arm before all of the other."""
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


def by_dbtoll(asked: Experiment, visits: Sequence[VisitTotals]) -> Interval:
    """dbtoll's effect of the copy against the original, over rounds; log scale."""
    arms = [arm.name for arm in asked.arms]
    queries = list(dict.fromkeys(visit.query for visit in visits))
    times = collect(visits, queries, arms, METRICS["run_time"])
    assert times is not None
    (pair,) = comparisons.pairs(arms, asked.held_against, asked.copies)
    effects = comparisons.geomean_rounds(times, pair)
    found = stats.interval(effects, LEVEL, len(effects))
    assert found is not None
    return found


def runs_of(asked: Experiment, visits: Sequence[VisitTotals]) -> Floats:
    """[run, query, copy]: logs of the times of all executions, as many of each as all have."""
    times: dict[tuple[str, str], list[float]] = {}
    for visit in visits:
        for timing in visit.executions:
            times.setdefault((visit.query, visit.arm), []).append(math.log(timing.end_ns - timing.start_ns))
    queries = sorted({query for query, _ in times})
    least = min(len(each) for each in times.values())
    return np.array(
        [[[times[query, arm.name][run] for arm in asked.arms] for query in queries] for run in range(least)]
    )
