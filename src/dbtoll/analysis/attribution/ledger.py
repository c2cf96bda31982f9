"""The explained ledger: an arm's extra time as events that were counted times what one of them costs there.

Pure numerics, all times in ns. No measured time of the arm enters anything but ``overhead_ns``, the difference that is to be
explained; what is not is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats


@dataclass(frozen=True, slots=True)
class CostRange:
    """An estimate with its bounds; these are None where there are too few rounds for any."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Costs:
    """What one event costs in one arm, per round [round]: in a row of its like, and alone in the midst of other work.

    ``alone``: which share of the events come so, a fraction, or [round]; where nobody looked, half of them may.
    """

    hot_ns: Floats
    cold_ns: Floats
    alone: Floats | float = 0.5

    @property
    def ns(self) -> Floats:
        """Of an event on average."""
        return self.hot_ns + self.alone * (self.cold_ns - self.hot_ns)

    @classmethod
    def known(cls, ns: float, rounds: int = 1) -> Costs:
        """The same in every round and whatever the caches hold."""
        same = np.full(rounds, float(ns))
        return cls(same, same)


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of event of one query, per round [round]: how many in the arm and in the baseline, and what each costs there."""

    name: str
    count: Floats
    baseline_count: Floats
    cost: Costs
    baseline_cost: Costs

    @property
    def hot_ns(self) -> Floats:
        """What it explains if the events find their things in the caches."""
        return self.count * self.cost.hot_ns - self.baseline_count * self.baseline_cost.hot_ns

    @property
    def cold_ns(self) -> Floats:
        """What it explains if they do not."""
        return self.count * self.cost.cold_ns - self.baseline_count * self.baseline_cost.cold_ns

    @property
    def explained_ns(self) -> Floats:
        """By the costs in between."""
        return self.count * self.cost.ns - self.baseline_count * self.baseline_cost.ns

    @property
    def doubt_ns(self) -> float:
        """How far the mean over the rounds may lie from what it would be if the costs were known."""
        return float(abs(np.mean(self.cold_ns) - np.mean(self.hot_ns)) / 2)


MOST_BY_CLOCK = 0.5
"""Of an arm's time, what events may cost that come by the clock. BIAS: more is taken for so much, lest a wrong cost makes the time
endless."""


def predicted_ns(baseline_ns: Floats, explained_ns: Floats, by_clock: Floats) -> Floats:
    """How long an execution takes in an arm by its ledger alone, per round, ns: of this time, and not of the measured one, some
    events come by the clock, so that the ledger does not use what it shall explain.

    ``explained_ns``: what the events explain that an execution has however long it takes. ``by_clock``: what those cost that
    come in one ns of it, a fraction. The time T = baseline + explained + by_clock T is (baseline + explained) / (1 - by_clock).
    It is the only one: the right side is a contraction of T where by_clock < 1, so repeating it leads there from any start.
    """
    return np.maximum(baseline_ns + explained_ns, 0.0) / (1 - np.clip(by_clock, 0.0, MOST_BY_CLOCK))


@dataclass(frozen=True, slots=True)
class Ledger:
    """Of one query in one arm: the items and what they leave unexplained add up to the overhead, in every round.

    ``baseline_ns``: what the query takes in the baseline; of no use but to say what share of it something is.
    ``rounds``: their numbers.
    """

    query: str
    overhead_ns: Floats
    items: tuple[Item, ...]
    baseline_ns: Floats
    rounds: tuple[int, ...] = ()

    @property
    def unexplained_ns(self) -> Floats:
        """[round]"""
        explained: Floats = np.zeros_like(self.overhead_ns)
        for item in self.items:
            explained = explained + item.explained_ns
        return self.overhead_ns - explained

    @property
    def doubt_ns(self) -> float:
        """Of what is unexplained: whatever the caches hold, they hold it for all items, so their doubts add up."""
        return sum(item.doubt_ns for item in self.items)

    def cost_ranges(self, alpha: float) -> dict[str, CostRange]:
        """As `totals`, of this query."""
        return totals([self], alpha)


def cost_range(values: Floats, alpha: float, doubt: float = 0.0) -> CostRange:
    """The mean over rounds, its t interval at level 1 - ``alpha``, longer by ``doubt`` on both sides."""
    found = stats.independent_interval(values, alpha)
    if found is None:
        return CostRange(float(np.mean(values)), None, None)
    return CostRange(found.estimate, found.low - doubt, found.high + doubt)


def totals(ledgers: Sequence[Ledger], alpha: float) -> dict[str, CostRange]:
    """``overhead``, each item by its name, ``unexplained``, of the sums over queries, which are all of the same rounds: t intervals
    over rounds, longer by the doubts about the caches."""
    names = dict.fromkeys(item.name for each in ledgers for item in each.items)
    sums = {name: [item for each in ledgers for item in each.items if item.name == name] for name in names}
    found = {"overhead": cost_range(np.sum([each.overhead_ns for each in ledgers], axis=0), alpha)}
    for name, items in sums.items():
        found[name] = cost_range(
            np.sum([item.explained_ns for item in items], axis=0), alpha, sum(item.doubt_ns for item in items)
        )
    unexplained = np.sum([each.unexplained_ns for each in ledgers], axis=0)
    return {**found, "unexplained": cost_range(unexplained, alpha, sum(each.doubt_ns for each in ledgers))}


def explained_fraction(ledgers: Iterable[Ledger]) -> float:
    """Ratio of sums: what all items of all queries explain, of what all queries lose."""
    ledgers = list(ledgers)
    overhead = sum(float(np.mean(each.overhead_ns)) for each in ledgers)
    return 1 - sum(float(np.mean(each.unexplained_ns)) for each in ledgers) / overhead


def unexplained_fraction(ledgers: Sequence[Ledger], alpha: float) -> CostRange:
    """Sum over queries of |unexplained| over the sum of |overhead|, each of the means over rounds.

    Its interval by the delete-one jackknife over rounds (Efron, Stein: The Jackknife Estimate of Variance, Annals of Statistics 9,
    1981) with Student's t, longer on both sides by the doubts about what events cost; and downwards by what noise alone leaves
    over, since absolute values do not cancel: of each query sqrt(2/pi) standard errors, the mean of a normal without its sign.
    BIAS: where costs explain too much, what disturbs the arm makes the fraction smaller (`dbtoll selfbench unexplained`).
    """
    unexplained = np.array([each.unexplained_ns for each in ledgers])
    overhead = np.array([each.overhead_ns for each in ledgers])

    def fraction(chosen: np.ndarray) -> float:
        return float(np.abs(unexplained[:, chosen].mean(axis=1)).sum() / np.abs(overhead[:, chosen].mean(axis=1)).sum())

    rounds = unexplained.shape[1]
    everything = np.arange(rounds)
    whole = fraction(everything)
    if rounds < 2:
        return CostRange(whole, None, None)
    left_out = np.array([fraction(np.delete(everything, one)) for one in everything])
    error = float(np.sqrt((rounds - 1) / rounds * ((left_out - left_out.mean()) ** 2).sum()))
    lost_ns = float(np.abs(overhead.mean(axis=1)).sum())
    doubt = sum(each.doubt_ns for each in ledgers) / lost_ns
    noise = float((unexplained.std(axis=1, ddof=1) / np.sqrt(rounds)).sum()) * math.sqrt(2 / math.pi) / lost_ns
    reach = stats.t_quantile(1 - alpha / 2, rounds - 1) * error + doubt
    return CostRange(whole, max(0.0, whole - reach - noise), whole + reach)
