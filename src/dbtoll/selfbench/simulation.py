"""Do the intervals cover, and are verdicts seldom wrong? Planted effects in simulated worlds, at fixed rounds and by the stopping rule.

The numbers of a run arise as in one: starts are drawn, visits follow in the order of a plan, and what happens to the machine hits
neighbouring visits alike. Round effects, standard errors, levels and verdicts are those of the analysis (`compare`, `stats`); all
experiments of a cell go through them at once, and `tests/sim` holds what comes out against `compare.compare` and `stopping.decide`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dbtoll.analysis import stats
from dbtoll.analysis.compare import round_effects, round_totals
from dbtoll.analysis.stats import Errors, Floats, Interval
from dbtoll.model import Option, Precision, Verdict
from dbtoll.selfbench import Bound, Certificate, Say

ABOUT = "the statistics: coverage and false verdicts in independent, dependent and rare-start worlds, by rounds and stopping rule"
OPTIONS = {
    "experiments": Option("integer", 1000, "how many for each effect in each world; the bounds are made for 1000"),
    "seed": Option("integer", 1, "of the simulated worlds"),
}

PRECISION = Precision(target=0.0125, margin=0.02, confidence=0.95, rounds_min=5, rounds_max=20)
LOSS = 0.05
"""The loss whose finding is counted (`Cell.loss_found`)."""
EFFECTS = (0.0, PRECISION.margin, LOSS)
"""With the first a loss is falsely found, with the second, which is not less than the margin, `no difference`."""
STOPPED = "stopping rule"
SETTINGS: Mapping[str, int | None] = {"3 rounds": 3, "5 rounds": 5, "8 rounds": 8, STOPPED: None}
ARMS = ("native", "native (A/A)", "arm")
QUERIES = ("Q1", "Q2", "Q3", "Q4")
BLOCKS = 3
ALPHA = 1 - PRECISION.confidence
LOW, HIGH = math.log1p(-PRECISION.margin), math.log1p(PRECISION.margin)

BASE_NS = np.array([300e6, 40e6, 90e6, 15e6])
SHARE_OF_EFFECT = np.array([0.5, 0.8, 1.2, 1.5])
"""Each query has its own part in the effect; their mean is 1, so the planted effect is that of the geometric mean."""
START_SD = 0.010
"""Of a whole start, and half of it again for each query of that start."""
VISIT_SD = np.array([0.02, 0.03, 0.04, 0.05])


@dataclass(frozen=True, slots=True)
class Cell:
    """What was seen in one world at one setting; shares of the experiments, over EFFECTS where nothing else is said.

    ``coverage``: of the geomean's interval; ``coverage_if_independent``: of Student's t as if starts were independent;
    ``coverage_of_totals``, ``coverage_of_queries``: of single intervals. ``false_verdicts``: verdicts that the truth contradicts, of any
    kind, at the worst effect; ``false_no_difference``: where the true effect is the margin. ``families_wrong``: experiments in which any
    query has a false verdict, at the worst effect. ``loss_found``: `loses` where LOSS is true; ``sameness_found``: `no difference` where
    nothing is. ``aa_alarms``: A/A excludes 0. ``half_width``: median, a fraction; ``lengthened``: median, over that of independent starts.
    """

    coverage: float
    coverage_if_independent: float
    coverage_of_totals: float
    coverage_of_queries: float
    false_verdicts: float
    false_no_difference: float
    families_wrong: float
    loss_found: float
    sameness_found: float
    aa_alarms: float
    half_width: float
    lengthened: float
    rounds: float


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """The certificate: every world at every setting, and the worst of those that the method promises something for."""
    cells = run(options["experiments"], options["seed"], say)
    families = {name: family(options["experiments"], options["seed"], each) for name, each in FAMILIES.items()}
    kinds: dict[str, list[Cell]] = {"independent": [], "dependent": [], "rare": []}
    for (world, _), cell in cells.items():
        kinds[WORLDS[world].kind].append(cell)
    promised = kinds["independent"] + kinds["dependent"]
    plain = [cell.coverage_if_independent for (world, _), cell in cells.items() if world in EXACT]
    figures: dict[str, Any] = {
        "coverage_least": min(cell.coverage for cell in promised),
        "coverage_if_independent_least": min(plain),
        "coverage_if_independent_most": max(plain),
        "false_verdicts_most": max(cell.false_verdicts for cell in promised),
        "false_no_difference_most": max(cell.false_no_difference for cell in promised),
        "families_wrong_most": max([cell.families_wrong for cell in promised] + list(families.values())),
        "aa_alarms_most": max(cell.aa_alarms for cell in promised),
        "false_verdicts_most_rare_starts": max(cell.false_verdicts for cell in kinds["rare"]),
        "coverage_least_rare_starts": min(cell.coverage for cell in kinds["rare"]),
        "worlds": {
            name: {"kind": world.kind, "about": world.about}
            | {setting: _rounded(cells[name, setting]) for setting in SETTINGS}
            for name, world in WORLDS.items()
        },
        "families": families,
    }
    bounds = {
        "coverage_least": Bound(least=0.93),
        "coverage_if_independent_least": Bound(least=0.92),
        "coverage_if_independent_most": Bound(most=0.98),
        "false_verdicts_most": Bound(most=0.05),
        "false_no_difference_most": Bound(most=0.05),
        "families_wrong_most": Bound(most=0.05),
        "aa_alarms_most": Bound(most=0.05),
    }
    facts = {"experiments": options["experiments"], "seed": options["seed"], "blocks": BLOCKS, "queries": len(QUERIES)}
    facts |= {"effects": EFFECTS, "margin": PRECISION.margin, "target": PRECISION.target, "confidence": PRECISION.confidence}
    return Certificate("simulation", figures, bounds, facts)


def _rounded(cell: Cell) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(cell).items()}


def run(experiments: int = 1000, seed: int = 1, say: Say = lambda text: None) -> dict[tuple[str, str], Cell]:
    """World and setting -> what was seen there. Every world and effect has random numbers of its own."""
    cells = {}
    for place, (name, world) in enumerate(WORLDS.items()):
        seen: dict[str, list[Seen]] = {setting: [] for setting in SETTINGS}
        for number, effect in enumerate(EFFECTS):
            chance = np.random.default_rng([seed, place, number])
            measured = Measured.of(simulate(experiments, effect, world, chance), effect)
            for setting, rounds in SETTINGS.items():
                seen[setting].append(measured.seen(rounds))
        for setting, each in seen.items():
            cells[name, setting] = _cell(each)
        told = (f"{setting} {cells[name, setting].false_verdicts:.1%}" for setting in SETTINGS)
        say(f"{name}: false verdicts after {', '.join(told)}")
    return cells


# --- the worlds ----------------------------------------------------------------------------------------------------

Disturbance = Callable[[Floats, Generator], Floats]
"""From the times [experiment, …] of all visits (in rounds since the start) to what the machine adds to their logs."""

Starts = Callable[[tuple[int, ...], Generator], Floats]
"""Deviations of starts in units of START_SD, of shape [experiment, round, …, arm] and mean 0 over all that may be drawn."""


def _quiet(times: Floats, chance: Generator) -> Floats:
    return np.zeros_like(times)


def _drift(times: Floats, chance: Generator) -> Floats:
    """A trend of up to 20 % over 20 rounds, and a wave of 4 % with a period of two to six rounds."""
    shape = (len(times), 1, 1, 1, 1)
    trend = chance.uniform(-0.01, 0.01, shape)
    period, phase = chance.uniform(2, 6, shape), chance.uniform(0, 2 * np.pi, shape)
    return np.asarray(trend * times + 0.04 * np.sin(2 * np.pi * times / period + phase))


def _steps(times: Floats, chance: Generator) -> Floats:
    """A neighbour that comes and goes: the level jumps (sd 10 %) at random times, on average every half round."""
    count = 2 * PRECISION.rounds_max
    result = np.empty_like(times)
    for index in range(len(times)):
        at = np.sort(chance.uniform(0, PRECISION.rounds_max, count))
        levels = chance.normal(0, 0.10, count + 1)
        result[index] = levels[np.searchsorted(at, times[index])]
    return result


def _outliers(times: Floats, chance: Generator) -> Floats:
    """Three visits in a hundred take longer, by 30 % on average and sometimes by a multiple."""
    return np.where(chance.random(times.shape) < 0.03, chance.exponential(0.3, times.shape), 0.0)


def _normal(shape: tuple[int, ...], chance: Generator) -> Floats:
    return chance.normal(0, 1, shape)


def _of_scale(factor: float, starts: Starts = _normal) -> Starts:
    return lambda shape, chance: factor * starts(shape, chance)


def _heavy(shape: tuple[int, ...], chance: Generator) -> Floats:
    return chance.standard_t(2, shape)


def _noisy_rounds(shape: tuple[int, ...], chance: Generator) -> Floats:
    """All arms of a round are as noisy as the round is: some are ten times as noisy as others."""
    scale = np.exp(chance.normal(0, 0.8, (*shape[:2], *(1 for _ in shape[2:]))))
    return np.asarray(scale * chance.normal(0, 1, shape))


def _noisy_arm(shape: tuple[int, ...], chance: Generator) -> Floats:
    starts = chance.normal(0, 1, shape)
    starts[..., -1] *= 10
    return starts


def _carried_over(coefficient: float) -> Starts:
    """An AR(1) of each arm's own: a start is as the one before it, by ``coefficient``."""

    def starts(shape: tuple[int, ...], chance: Generator) -> Floats:
        values = chance.normal(0, 1, shape)
        for index in range(1, shape[1]):
            values[:, index] *= math.sqrt(1 - coefficient**2)
            values[:, index] += coefficient * values[:, index - 1]
        return values

    return starts


def _now_and_then(share: float, slower: float) -> Starts:
    """A ``share`` of the arm's boots is slower, all of its queries alike."""

    def starts(shape: tuple[int, ...], chance: Generator) -> Floats:
        values = chance.normal(0, 1, shape)
        if shape[-2] == 1:  # the whole start's, not its queries' own
            is_slow = chance.random((*shape[:-1],)) < share
            values[..., -1] += (is_slow - share) * math.log1p(slower) / START_SD
        return values

    return starts


@dataclass(frozen=True, slots=True)
class World:
    """What happens to the machine and how starts arise. ``kind``: whether starts are ``independent``, ``dependent``, or of a kind that no
    interval over a few of them can cover (``rare``)."""

    kind: str
    about: str
    disturbance: Disturbance = _quiet
    starts: Starts = _normal


EXACT = ("none", "drift", "steps", "outliers")
"""Here Student's t over independent rounds covers at its nominal rate: what checks the rest of the machinery."""

WORLDS: dict[str, World] = {
    "none": World("independent", "starts vary by 1 %, visits by 2 to 5 %"),
    "drift": World("independent", "a trend of up to 20 % and a wave of 4 %", _drift),
    "steps": World("independent", "the machine's level jumps by 10 %, twice a round", _steps),
    "outliers": World("independent", "3 visits in 100 take 30 % longer and more", _outliers),
    "noisy rounds": World("independent", "some rounds are ten times as noisy as others", starts=_noisy_rounds),
    "heavy tails": World("independent", "starts by Student's t with 2 degrees of freedom", starts=_heavy),
    "noisy arm": World("independent", "the arm's starts vary ten times as much", starts=_noisy_arm),
    "carried over 0.5": World("dependent", "a start is half as the one before", starts=_carried_over(0.5)),
    "carried over 0.8": World("dependent", "0.8 of it", starts=_carried_over(0.8)),
    "carried over 0.8, large": World(
        "dependent", "the same, starts vary by 3 %", starts=_of_scale(3, _carried_over(0.8))
    ),
    "rare slow boot": World("rare", "one boot of the arm in ten is 50 % slower", starts=_now_and_then(0.1, 0.5)),
    "two kinds of boots": World("rare", "every other boot of the arm is 10 % slower", starts=_now_and_then(0.5, 0.1)),
}


def simulate(experiments: int, effect: float, world: World, chance: Generator) -> Floats:
    """Times in ns [experiment, round, block, query, arm], as many rounds as there may be."""
    rounds, queries, arms = PRECISION.rounds_max, len(QUERIES), len(ARMS)
    shape = (experiments, rounds, BLOCKS, queries, arms)
    starts = START_SD * world.starts((experiments, rounds, 1, 1, arms), chance)
    starts = starts + START_SD / 2 * world.starts((experiments, rounds, 1, queries, arms), chance)
    noise = chance.normal(0, 1, shape) * VISIT_SD[:, np.newaxis]
    planted = np.zeros((queries, arms))
    planted[:, -1] = planted_logs(effect)
    disturbed = world.disturbance(_visit_times(shape, chance), chance)
    return np.asarray(np.exp(np.log(BASE_NS)[:, np.newaxis] + planted + starts + noise + disturbed))


def planted_logs(effect: float) -> Floats:
    """[query]: the true effect of the arm on each query."""
    return np.asarray(math.log1p(effect) * SHARE_OF_EFFECT)


def _visit_times(shape: tuple[int, ...], chance: Generator) -> Floats:
    """When each visit happens, in rounds since the start: queries in random order, arms in random order within each."""
    experiments, rounds, blocks, queries, arms = shape
    query_rank = _ranks((experiments, rounds, blocks, queries, 1), -2, chance)
    arm_rank = _ranks(shape, -1, chance)
    block = np.arange(blocks)[:, np.newaxis, np.newaxis]
    place = (block * queries + query_rank) * arms + arm_rank
    begun = np.arange(rounds)[:, np.newaxis, np.newaxis, np.newaxis]
    # The first tenth of a round is for the starts.
    return np.asarray(begun + 0.1 + 0.9 * (place + 0.5) / (blocks * queries * arms))


def _ranks(shape: tuple[int, ...], axis: int, chance: Generator) -> NDArray[np.intp]:
    return chance.random(shape).argsort(axis=axis).argsort(axis=axis)


# --- the experiments -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What a report would say of each experiment [experiment], all with one effect at one setting."""

    effect: float
    shown: list[Interval]
    plain: list[Interval]
    verdicts: list[Verdict]
    totals_covered: Floats
    queries_covered: Floats
    families_wrong: Floats
    alarms: Floats
    rounds: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Measured:
    """Round effects of all experiments: ``queries`` and ``copy_queries`` [experiment, round, query], ``totals`` [experiment, round]."""

    effect: float
    queries: Floats
    copy_queries: Floats
    totals: Floats

    @classmethod
    def of(cls, ns: Floats, effect: float) -> Measured:
        """``ns``: as `simulate` gives them."""
        return cls(effect, round_effects(ns, 2, [0, 1]), round_effects(ns, 1, [0]), round_totals(ns, 2, [0, 1]))

    def seen(self, rounds: int | None) -> Seen:
        """After so many ``rounds``, or where the rule stops."""
        ended = np.full(len(self.queries), rounds) if rounds else self.stopped()
        parts = [self._after(int(count), np.flatnonzero(ended == count)) for count in np.unique(ended)]
        order = np.argsort(np.concatenate([np.flatnonzero(ended == count) for count in np.unique(ended)]))

        def joined(name: str) -> Any:
            values = [value for part in parts for value in part[name]]
            return [values[place] for place in order]

        lists = {name: joined(name) for name in ("shown", "plain", "verdicts")}
        arrays = {
            name: np.array(joined(name))
            for name in ("totals_covered", "queries_covered", "families_wrong", "alarms")
        }
        return Seen(effect=self.effect, rounds=ended, **lists, **arrays)

    def stopped(self) -> NDArray[np.intp]:
        """[experiment]: after how many rounds `stopping.decide` ends it."""
        arm, copy = self.queries.mean(axis=-1), self.copy_queries.mean(axis=-1)
        ended = np.full(len(arm), PRECISION.rounds_max)
        going = np.ones(len(arm), dtype=bool)
        # What `stopping.deciding` does to the copy of one original.
        effects = np.stack([arm, copy * math.sqrt((1 + 1 / 2) / 2)])
        for rounds in range(PRECISION.rounds_min, PRECISION.rounds_max):
            reach = _reach(stats.errors(effects[..., :rounds]), rounds, ALPHA)
            met = (reach <= math.log1p(PRECISION.target)).all(axis=0)
            ended[going & met] = rounds
            going &= ~met
        return ended

    def _after(self, rounds: int, chosen: NDArray[np.intp]) -> dict[str, Sequence[Any]]:
        """Of the ``chosen`` experiments, as `compare.compare` judges them."""
        queries = self.queries[chosen, :rounds]
        shown = intervals(queries.mean(axis=-1), rounds)
        floor = intervals(self.copy_queries[chosen, :rounds].mean(axis=-1), rounds)
        totals = intervals(self.totals[chosen, :rounds], rounds)
        by_query = [intervals(queries[..., query], rounds) for query in range(len(QUERIES))]
        alarms = [max(abs(each.low), abs(each.high)) if each.excludes_zero else 0.0 for each in floor]
        logs = planted_logs(self.effect)
        total = math.log(float((BASE_NS * np.exp(logs)).sum() / BASE_NS.sum()))
        shown, totals = ([each.widened(by) for each, by in zip(found, alarms, strict=True)] for found in (shown, totals))
        by_experiment = list(zip(*by_query, strict=True))
        return {
            "shown": shown,
            "plain": [_plain(each.widened(-by)) for each, by in zip(shown, alarms, strict=True)],
            "verdicts": [stats.verdict(each, rounds, PRECISION.margin) for each in shown],
            "totals_covered": [each.low <= total <= each.high for each in totals],
            "queries_covered": [
                np.mean([each.low - by <= log <= each.high + by for each, log in zip(found, logs, strict=True)])
                for found, by in zip(by_experiment, alarms, strict=True)
            ],
            "families_wrong": [
                any(map(_contradicts, judged(found, rounds, by), logs))
                for found, by in zip(by_experiment, alarms, strict=True)
            ],
            "alarms": [by > 0 for by in alarms],
        }


def intervals(values: Floats, rounds: int) -> list[Interval]:
    """Of each experiment's effects [experiment, round] what `stats.interval` says."""
    found = stats.errors(values)
    factor = math.sqrt(stats.look_factor(rounds, PRECISION.rounds_min))
    return [
        stats.around(float(mean), float(error) * factor, rounds, ALPHA, float(lengthened))
        for mean, error, lengthened in zip(values.mean(axis=-1), found.standard, found.lengthened, strict=True)
    ]


def judged(found: Sequence[Interval], rounds: int, alarm: float) -> list[Verdict]:
    """Of the queries of one arm, as `compare.compare` judges them."""
    alphas = stats.family_alphas(found, ALPHA, LOW + alarm, HIGH - alarm)
    drawn = [stats.around(each.estimate, each.error, rounds, alpha) for each, alpha in zip(found, alphas, strict=True)]
    return [stats.verdict(each.widened(alarm), rounds, PRECISION.margin) for each in drawn]


def _reach(found: Errors, rounds: int, alpha: float) -> Floats:
    factor = math.sqrt(stats.look_factor(rounds, PRECISION.rounds_min))
    return np.asarray(stats.t_quantile(1 - alpha / 2, rounds - 1) * factor * found.standard)


def _plain(shown: Interval) -> Interval:
    """As if starts were independent."""
    reach = shown.half_width / shown.lengthened
    return Interval(shown.estimate, shown.estimate - reach, shown.estimate + reach, shown.p)


def _contradicts(verdict: Verdict, truth: float) -> bool:
    """Whether the true effect (log scale) contradicts what is said; `cannot tell` never is."""
    match verdict:
        case Verdict.LOSES:
            return truth <= 0
        case Verdict.GAINS:
            return truth >= 0
        case Verdict.NO_DIFFERENCE:
            return truth <= LOW or truth >= HIGH
    return False


def _cell(seen: Sequence[Seen]) -> Cell:
    """``seen``: by effect, in the order of EFFECTS."""
    none, at_margin, loss = seen

    def said(each: Seen, verdict: Verdict) -> float:
        return each.verdicts.count(verdict) / len(each.verdicts)

    def covered(found: Sequence[Interval], effect: float) -> float:
        return float(np.mean([each.low <= math.log1p(effect) <= each.high for each in found]))

    everything = [interval for each in seen for interval in each.shown]
    return Cell(
        coverage=float(np.mean([covered(each.shown, each.effect) for each in seen])),
        coverage_if_independent=float(np.mean([covered(each.plain, each.effect) for each in seen])),
        coverage_of_totals=float(np.mean([each.totals_covered.mean() for each in seen])),
        coverage_of_queries=float(np.mean([each.queries_covered.mean() for each in seen])),
        false_verdicts=max(
            float(np.mean([_contradicts(verdict, math.log1p(each.effect)) for verdict in each.verdicts]))
            for each in seen
        ),
        false_no_difference=said(at_margin, Verdict.NO_DIFFERENCE),
        families_wrong=max(float(each.families_wrong.mean()) for each in seen),
        loss_found=said(loss, Verdict.LOSES),
        sameness_found=said(none, Verdict.NO_DIFFERENCE),
        aa_alarms=float(np.mean([each.alarms.mean() for each in seen])),
        half_width=math.expm1(float(np.median([each.half_width for each in everything]))),
        lengthened=float(np.median([each.lengthened for each in everything])),
        rounds=float(np.mean([each.rounds.mean() for each in seen])),
    )


# --- many queries --------------------------------------------------------------------------------------------------

FAMILY = 22
"""Queries of TPC-H."""
FAMILIES: dict[str, Floats] = {
    "all 22 at the margin": np.full(FAMILY, HIGH),
    "half at the margin, half nothing": np.repeat([HIGH, 0.0], FAMILY // 2),
    "half at the margin, half 20 %": np.repeat([HIGH, math.log1p(0.2)], FAMILY // 2),
    "none": np.zeros(FAMILY),
}
"""True effects of the queries, log scale."""
FAMILY_SD = 0.004
"""Of a query's round effect: so little that what is not at the margin is told apart from it."""


def family(experiments: int, seed: int, truths: Floats) -> float:
    """How often any of many queries has a false verdict after 20 independent rounds."""
    rounds = PRECISION.rounds_max
    chance = np.random.default_rng([seed, len(WORLDS), len(truths), round(float(truths.sum()) * 1e6)])
    values = truths[:, np.newaxis] + chance.normal(0, FAMILY_SD, (experiments, len(truths), rounds))
    wrong = 0
    for found in zip(*(intervals(values[:, query], rounds) for query in range(len(truths))), strict=True):
        wrong += any(map(_contradicts, judged(found, rounds, 0.0), truths))
    return wrong / experiments
