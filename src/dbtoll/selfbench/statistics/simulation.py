"""Do intervals cover, are verdicts seldom wrong? Planted effects in simulated worlds, at fixed rounds and by the stopping rule.

The numbers of a run arise as in one: starts are drawn, visits follow in the order of a plan, and what happens to the machine hits
neighbouring visits alike. Round effects, standard errors, levels and verdicts are those of the analysis (`comparisons`,
`stats`); all experiments of a cell go through them at once, and `tests/sim` holds what comes out against `comparisons.compare` and
`stopping.decide`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dbtoll.analysis.effects import stats, stopping
from dbtoll.analysis.effects.comparisons import round_effects, round_totals
from dbtoll.analysis.effects.stats import Floats, Interval
from dbtoll.defaults import BASELINE
from dbtoll.model.experiment import Precision, Verdict
from dbtoll.model.options import Option
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say

SUMMARY = "the statistics: coverage and false verdicts in independent, dependent and rare-start worlds, by rounds and stopping rule"
OPTIONS = {
    "experiments": Option(
        "integer", 1000, "how many for each effect in each world; the bounds are made for 1000", least=1
    ),
    "seed": Option("integer", 1, "of the simulated worlds", least=0),
}

PRECISION = Precision(target=0.0125, margin=0.02, confidence=0.95, rounds_min=5, rounds_max=20)
LOSS = 0.05
"""The loss whose finding is counted (`Cell.loss_found`)."""
EFFECTS = (0.0, PRECISION.margin, LOSS)
"""With the first a loss is falsely found, with the second, which is not less than the margin, `no difference`."""
STOPPED = "stopping rule"
SETTINGS: Mapping[str, int | None] = {"3 rounds": 3, "5 rounds": 5, "8 rounds": 8, STOPPED: None}
ARMS = (BASELINE, f"{BASELINE} (A/A)", "arm")
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

    ``coverage``: of the geomean's decisive interval; ``coverage_if_independent``: of the one that is shown;
    ``coverage_of_totals``, ``coverage_of_queries``: of single intervals. ``false_verdicts``: verdicts that the truth
    contradicts, of any kind, at the worst effect; ``false_no_difference``: where the true effect is the margin.
    ``families_wrong``: experiments in which any query has a false verdict, at the worst effect. ``loss_found``: `loses` where
    LOSS is true, ``loss_found_if_independent`` by Student's t; ``sameness_found``: `no difference` where nothing is.
    ``aa_alarms``: A/A excludes 0. ``half_width``: median, a fraction; ``lengthened``: median, over that of independent starts.
    """

    coverage: float
    coverage_if_independent: float
    coverage_of_totals: float
    coverage_of_queries: float
    false_verdicts: float
    false_no_difference: float
    families_wrong: float
    loss_found: float
    loss_found_if_independent: float
    sameness_found: float
    aa_alarms: float
    half_width: float
    lengthened: float
    rounds: float


BOUNDS = {
    "coverage_least": Bound(min=0.93),
    "coverage_if_independent_least": Bound(min=0.92),
    "coverage_if_independent_most": Bound(max=0.98),
    "false_verdicts_most": Bound(max=0.05),
    "false_no_difference_most": Bound(max=0.05),
    "families_wrong_most": Bound(max=0.05),
    "aa_alarms_most": Bound(max=0.05),
}


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
        "families_wrong_most": max(
            [cell.families_wrong for cell in promised] + [each["own_levels"] for each in families.values()]
        ),
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
    facts = {"experiments": options["experiments"], "seed": options["seed"], "blocks": BLOCKS, "queries": len(QUERIES)}
    facts |= {
        "effects": EFFECTS,
        "margin": PRECISION.margin,
        "target": PRECISION.target,
        "confidence": PRECISION.confidence,
    }
    return Certificate("simulation", figures, BOUNDS, facts)


def _rounded(cell: Cell) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(cell).items()}


def run(experiments: int = 1000, seed: int = 1, say: Say = lambda text: None) -> dict[tuple[str, str], Cell]:
    """World and setting -> what was seen there. Every world and effect has random numbers of its own."""
    cells = {}
    for place, (name, world) in enumerate(WORLDS.items()):
        seen: dict[str, list[list[Seen]]] = {setting: [] for setting in SETTINGS}
        for number, effect in enumerate(EFFECTS):
            chance = np.random.default_rng([seed, place, number])
            measured = ValidVisits.of(simulate(experiments, effect, world, chance), effect)
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
    """What happens to the machine and how starts arise.

    ``kind``: whether starts are ``independent``, ``dependent``, or such that no interval over a few of them covers (``rare``).
    """

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


def simulate(
    experiments: int,
    effect: float,
    world: World,
    chance: Generator,
    *,
    rounds: int = PRECISION.rounds_max,
    blocks: int = BLOCKS,
    arms: int = len(ARMS),
) -> Floats:
    """Times in ns [experiment, round, block, query, arm]; the last arm has the ``effect``."""
    shape = (experiments, rounds, blocks, len(QUERIES), arms)
    return _times(shape, planted_logs(effect), world, _visit_times(shape, chance), chance)


def simulate_in_turn(experiments: int, world: World, chance: Generator, runs: int, rounds: int) -> Floats:
    """Times in ns [experiment, run, query, copy] of two copies that are started once each and run one after the other.

    In the time of ``rounds``: all ``runs`` of all queries of the one in order, then all of the other; which is first is drawn.
    """
    shape = (experiments, 1, runs, len(QUERIES), 2)
    run, query, turn = np.arange(runs)[:, np.newaxis, np.newaxis], np.arange(len(QUERIES))[:, np.newaxis], np.arange(2)
    turn = np.abs(turn - chance.integers(0, 2, (experiments, 1, 1, 1, 1)))
    place = ((turn * runs + run) * len(QUERIES) + query + 0.5) / (2 * runs * len(QUERIES))
    return _times(shape, planted_logs(0.0), world, np.asarray(rounds * place), chance)[:, 0]


def _times(shape: tuple[int, ...], planted: Floats, world: World, at: Floats, chance: Generator) -> Floats:
    experiments, rounds, _, queries, arms = shape
    starts = START_SD * world.starts((experiments, rounds, 1, 1, arms), chance)
    starts = starts + START_SD / 2 * world.starts((experiments, rounds, 1, queries, arms), chance)
    noise = chance.normal(0, 1, shape) * VISIT_SD[:, np.newaxis]
    effects = np.zeros((queries, arms))
    effects[:, -1] = planted
    return np.asarray(np.exp(np.log(BASE_NS)[:, np.newaxis] + effects + starts + noise + world.disturbance(at, chance)))


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
    """What a report would say of one experiment with ``effect``; ``decisive``: what the verdict rests on.

    ``queries_covered``: a share; ``family_wrong``: whether any query has a verdict that the truth contradicts.
    """

    effect: float
    rounds: int
    decisive: Interval
    shown: Interval
    verdict: Verdict
    totals_covered: bool
    queries_covered: float
    family_wrong: bool
    alarm: float

    def covers(self, interval: Interval) -> bool:
        """Whether it holds the true effect."""
        return interval.low <= math.log1p(self.effect) <= interval.high


@dataclass(frozen=True, slots=True)
class ValidVisits:
    """Round effects of all experiments.

    ``queries`` and A/A's ``copies``: [experiment, round, query]; ``totals``: [experiment, round].
    """

    effect: float
    queries: Floats
    copies: Floats
    totals: Floats

    @classmethod
    def of(cls, ns: Floats, effect: float) -> ValidVisits:
        """``ns``: as `simulate` gives them."""
        return cls(effect, round_effects(ns, 2, [0, 1]), round_effects(ns, 1, [0]), round_totals(ns, 2, [0, 1]))

    def seen(self, rounds: int | None) -> list[Seen]:
        """Each experiment after so many ``rounds``, or where the rule stops it."""
        ended = np.full(len(self.queries), rounds) if rounds else self.stopped()
        found: dict[int, Seen] = {}
        for count in np.unique(ended):
            chosen = np.flatnonzero(ended == count)
            found |= zip(chosen.tolist(), self._after(int(count), chosen), strict=True)
        return [found[index] for index in range(len(ended))]

    def stopped(self) -> NDArray[np.intp]:
        """[experiment]: after how many rounds `stopping.decide` ends it, asked at each `stopping.is_due`."""
        # What `stopping.deciding` does to the copy of one original.
        effects = np.stack([self.queries.mean(axis=-1), self.copies.mean(axis=-1) * math.sqrt((1 + 1 / 2) / 2)])
        ended = np.full(len(self.queries), PRECISION.rounds_max)
        going = np.ones(len(self.queries), dtype=bool)
        for rounds in filter(stopping.is_due, range(PRECISION.rounds_min, PRECISION.rounds_max)):
            reach = stats.t_quantile(1 - ALPHA / 2, rounds - 1) * _standard_errors(effects[..., :rounds])
            met = (reach <= math.log1p(PRECISION.target)).all(axis=0)
            ended[going & met] = rounds
            going &= ~met
        return ended

    def _after(self, rounds: int, chosen: NDArray[np.intp]) -> Iterator[Seen]:
        """Of the ``chosen`` experiments, as `comparisons.compare` judges them."""
        queries = self.queries[chosen, :rounds]
        logs = planted_logs(self.effect)
        true_total = math.log(float((BASE_NS * np.exp(logs)).sum() / BASE_NS.sum()))
        for arm, copy, total, *own in zip(
            intervals(queries.mean(axis=-1)),
            intervals(self.copies[chosen, :rounds].mean(axis=-1)),
            intervals(self.totals[chosen, :rounds]),
            *(intervals(queries[..., query]) for query in range(len(QUERIES))),
            strict=True,
        ):
            alarm = max(abs(copy.low), abs(copy.high)) if copy.excludes_zero else 0.0
            decisive, totals = arm.widened(alarm), total.widened(alarm)
            widened = [(each.widened(alarm), log) for each, log in zip(own, logs, strict=True)]
            yield Seen(
                effect=self.effect,
                rounds=rounds,
                decisive=decisive,
                shown=arm.shown.widened(alarm),
                verdict=stats.verdict(decisive, rounds, PRECISION),
                totals_covered=totals.low <= true_total <= totals.high,
                queries_covered=float(np.mean([each.low <= log <= each.high for each, log in widened])),
                family_wrong=any(map(_contradicts, judged(own, rounds, alarm), logs)),
                alarm=alarm,
            )


def _standard_errors(values: Floats) -> Floats:
    """[…]: of effects […, round], with the allowance for looks."""
    return np.asarray(stats.errors(values).standard * _for_looks(values.shape[-1]))


def _for_looks(rounds: int) -> float:
    return math.sqrt(stats.look_factor(rounds, PRECISION.rounds_min))


def intervals(values: Floats) -> list[Interval]:
    """Of each experiment's effects [experiment, round] what `stats.interval` says."""
    rounds = values.shape[-1]
    found = stats.errors(values)
    columns = (values.mean(axis=-1), found.standard * _for_looks(rounds), found.lengthened)
    return [
        stats.around(mean, error, rounds, ALPHA, times)
        for mean, error, times in zip(*(column.tolist() for column in columns), strict=True)
    ]


def judged(found: Sequence[Interval], rounds: int, alarm: float) -> list[Verdict]:
    """Of the queries of one arm, as `comparisons.compare` judges them."""
    return _read_off(found, stats.family_alphas(found, ALPHA, LOW + alarm, HIGH - alarm), rounds, alarm)


def _read_off(found: Sequence[Interval], alphas: Sequence[float], rounds: int, alarm: float) -> list[Verdict]:
    drawn = [stats.around(each.estimate, each.error, rounds, alpha) for each, alpha in zip(found, alphas, strict=True)]
    return [stats.verdict(each.widened(alarm), rounds, PRECISION) for each in drawn]


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


def _cell(seen: Sequence[Sequence[Seen]]) -> Cell:
    """``seen``: by effect, in the order of EFFECTS."""
    nothing, at_margin, loss = seen
    everything = [each for experiments in seen for each in experiments]

    def share(found: Iterable[float]) -> float:
        return float(np.mean(list(found)))

    def said(experiments: Sequence[Seen], verdict: Verdict) -> float:
        return share(each.verdict == verdict for each in experiments)

    return Cell(
        coverage=share(each.covers(each.decisive) for each in everything),
        coverage_if_independent=share(each.covers(each.shown) for each in everything),
        coverage_of_totals=share(each.totals_covered for each in everything),
        coverage_of_queries=share(each.queries_covered for each in everything),
        false_verdicts=max(
            share(_contradicts(each.verdict, math.log1p(each.effect)) for each in experiments) for experiments in seen
        ),
        false_no_difference=said(at_margin, Verdict.NO_DIFFERENCE),
        families_wrong=max(share(each.family_wrong for each in experiments) for experiments in seen),
        loss_found=said(loss, Verdict.LOSES),
        loss_found_if_independent=share(each.shown.low > 0 for each in loss),
        sameness_found=said(nothing, Verdict.NO_DIFFERENCE),
        aa_alarms=share(each.alarm > 0 for each in everything),
        half_width=math.expm1(float(np.median([each.decisive.half_width for each in everything]))),
        lengthened=float(np.median([each.decisive.lengthened for each in everything])),
        rounds=share(each.rounds for each in everything),
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


def family(experiments: int, seed: int, truths: Floats) -> dict[str, float]:
    """How often any of many queries has a false verdict after 20 rounds.

    Starts are known to be independent here: what allows for dependence would hide what a level does. ``holm_alone``: the same where
    "no difference" is read off the interval at Holm's level for "it is 0".
    """
    rounds = PRECISION.rounds_max
    chance = np.random.default_rng([seed, len(WORLDS), round(float(truths.sum()) * 1e6)])
    values = truths[:, np.newaxis] + chance.normal(0, FAMILY_SD, (experiments, len(truths), rounds))
    means, errors = values.mean(axis=-1), values.std(axis=-1, ddof=1) / math.sqrt(rounds)
    wrong = {"own_levels": 0, "holm_alone": 0}
    for of_queries in zip(means.tolist(), errors.tolist(), strict=True):
        found = [stats.around(mean, error, rounds, ALPHA) for mean, error in zip(*of_queries, strict=True)]
        levels = {
            "own_levels": stats.family_alphas(found, ALPHA, LOW, HIGH),
            "holm_alone": stats.holm_alphas([each.p for each in found], ALPHA),
        }
        for name, alphas in levels.items():
            wrong[name] += any(map(_contradicts, _read_off(found, alphas, rounds, 0.0), truths))
    return {name: count / experiments for name, count in wrong.items()}
