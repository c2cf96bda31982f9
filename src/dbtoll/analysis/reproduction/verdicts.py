"""The second half of the answer: a claim held against what was measured here, its direction and its size (docs/adr/0019).

A paper's rules are made of what is here: figures with intervals over rounds, and what has to hold of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dbtoll.analysis.effects import comparisons, stats
from dbtoll.analysis.reproduction.parts import Part
from dbtoll.analysis.result.schema import Comparison, Contrast, fractions

EQUIVALENT = (0.8, 1.25)
"""Of a published figure: what lies within is as large (docs/adr/0019)."""

SIZE = "within 80 to 125 % of the published figure"

NOT_COUNTED = "it was not counted in this run"

ClaimOutcome = Literal["reproduced", "differs", "cannot tell", "not measured", "not possible here"]
"""``not measured``: a part that would tell was not run."""
Unit = Literal["overhead", "share", "r", "times"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Measured here, with its interval; all but ``r`` and ``times`` (so many times as fast) are fractions. ``published``: the
    paper's, by the same estimand.

    ``why``: nothing may rest on it, since.
    """

    name: str
    unit: Unit
    estimate: float
    low: float | None
    high: float | None
    published: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``rule``: by what it was decided. ``counted``: how many queries say what; ``why``: it cannot be told, since."""

    outcome: ClaimOutcome
    rule: str
    figures: tuple[Figure, ...] = ()
    counted: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """None: the claim says nothing of it."""

    direction: Judgement | None
    size: Judgement | None


Rule = Callable[[Any], Judged]
"""From a paper's parts (`Paper.parts`) to the two verdicts on a claim."""


class Rules(dict[str, Rule]):
    """Claim -> the rule by which it is judged."""

    def of(self, identity: str) -> Callable[[Rule], Rule]:
        """Registers a function as the rule of one claim."""

        def register(rule: Rule) -> Rule:
            self[identity] = rule
            return rule

        return register


# --- deciding ----------------------------------------------------------------------------------------------------------

Test = Callable[[Figure], bool | None]
"""Whether a figure's interval lies where the claim says, or where it does not; None: partly here, partly there."""


def above(figure: Figure, bound: float = 0.0) -> bool | None:
    """Whether its interval lies above a bound. A `Test`."""
    low, high = figure.low, figure.high
    return None if low is None or high is None else True if low > bound else False if high < bound else None


def below(figure: Figure, bound: float = 0.0) -> bool | None:
    """Whether its interval lies below a bound. A `Test`."""
    found = above(figure, bound)
    return None if found is None else not found


def within(figure: Figure, least: float, most: float) -> bool | None:
    """Whether its interval lies between two bounds, or wholly outside. A `Test`."""
    low, high = figure.low, figure.high
    if low is None or high is None:
        return None
    return True if least <= low and high <= most else False if high < least or low > most else None


def as_large(figure: Figure) -> bool | None:
    """As the published one, that is."""
    bounds = sorted((figure.published or math.nan) * bound for bound in EQUIVALENT)
    return within(figure, *bounds)


def decide(
    rule: str, test: Test, figures: Sequence[Figure], shown: Sequence[Figure] | None = None, counted: str = ""
) -> Judgement:
    """All of them have to pass; one that does not is enough to differ. ``shown``: those that are told, all unless said."""
    answers = [None if figure.why else test(figure) for figure in figures]
    outcome: ClaimOutcome = (
        "differs" if False in answers else "reproduced" if figures and all(answers) else "cannot tell"
    )
    why = ""
    if outcome == "cannot tell":
        whys = dict.fromkeys(figure.why for figure in figures if figure.why)
        why = "; ".join(whys) or "an interval reaches over the bound" if figures else NOT_COUNTED
    return Judgement(outcome, rule, tuple(figures if shown is None else shown), counted, why)


def unknown(direction: str | None, size: str | None, why: str, outcome: ClaimOutcome = "cannot tell") -> Judged:
    """Where there is nothing to go by: the rules that would have decided, and why they did not."""
    return Judged(*(None if rule is None else Judgement(outcome, rule, why=why) for rule in (direction, size)))


def not_measured(direction: str | None, size: str | None, what: str) -> Judged:
    """Where the part that would tell was not run. ``what`` it would have measured."""
    return unknown(direction, size, f"{what} was not measured", "not measured")


# --- figures -----------------------------------------------------------------------------------------------------------

Scale = Callable[[float], float]


def over_rounds(
    part: Part, name: str, unit: Unit, values: Sequence[float], scale: Scale, of_many: int = 1
) -> Figure | None:
    """``values``: one per round, brought to ``unit`` by ``scale``. ``of_many``: intervals that hold together (Bonferroni)."""
    known = np.array(values, dtype=float)
    if not len(known) or not np.isfinite(known).all():
        return None
    precision = part.run.plan.experiment.precision
    found = stats.interval(known, (1 - precision.confidence) / of_many, precision.rounds_min)
    why = part.too_few(len(known)) or part.barred
    if found is None:
        return Figure(name, unit, scale(float(known.mean())), None, None, why=why)
    estimate, low, high = (scale(value) for value in (found.estimate, found.low, found.high))
    return Figure(name, unit, estimate, low, high, why=why)


def compared(
    part: Part, name: str, found: Comparison | Contrast | None, published: float | None = None
) -> Figure | None:
    """With the interval that decides; of queries these hold together. ``published``: a fraction, as the overhead."""
    if found is None or found.estimate is None:
        return None
    why = part.too_few(found.rounds) or found.reason or part.barred
    return Figure(name, "overhead", found.estimate, found.low_decisive, found.high_decisive, published, why)


def effect_figure(part: Part, name: str, found: comparisons.Effect | None, of_many: int = 1) -> Figure | None:
    """The same of an effect that is not in the result. ``of_many``: intervals that hold together (Bonferroni)."""
    decisive = fractions(found.decisive) if found else None
    if found is not None and of_many > 1 and found.by_round:
        precision = part.run.plan.experiment.precision
        values = np.array([value for _, value in found.by_round])
        together = stats.interval(values, (1 - precision.confidence) / of_many, precision.rounds_min)
        decisive = fractions(together.widened(found.widened_by)) if together else None
    if found is None or decisive is None:
        return None
    why = found.reason or part.too_few(found.rounds) or "; ".join(found.left_out) or part.barred
    return Figure(name, "overhead", decisive.estimate, decisive.low, decisive.high, why=why)


def extremes(figures: Sequence[Figure]) -> list[Figure]:
    """The least and the most of them, named so."""
    ordered = sorted(figures, key=lambda figure: figure.estimate)
    return [
        replace(ordered[0], name=f"least, {ordered[0].name}"),
        replace(ordered[-1], name=f"most, {ordered[-1].name}"),
    ]


def largest(figures: Sequence[Figure], published: float) -> Figure:
    """Of figures whose intervals hold together: so the largest lies between the greatest of their bounds."""
    most = max(figures, key=lambda figure: figure.estimate)
    why = next((figure.why for figure in figures if figure.why), "")
    low, high = (
        None if None in bounds else max(bound for bound in bounds if bound is not None)
        for bounds in ([figure.low for figure in figures], [figure.high for figure in figures])
    )
    return Figure(f"most, {most.name}", most.unit, most.estimate, low, high, published, why)


def ratios(
    part: Part, name: str, pairs: Iterable[tuple[float | None, float | None]], of_many: int = 1
) -> Figure | None:
    """Of pairs [round] of baseline and arm: how much more the arm has; None where one is not known or 0."""
    logs = [math.log(own / base) if base and own else math.nan for base, own in pairs]
    return over_rounds(part, name, "overhead", logs, math.expm1, of_many)


def every(figures: Iterable[Figure | None]) -> list[Figure] | None:
    """None where one of them is missing."""
    found = list(figures)
    known = [figure for figure in found if figure is not None]
    return known if known and len(known) == len(found) else None
