"""The runs that a reproduction goes by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dbtoll.analysis.attribution.cost_model import CostModel
from dbtoll.analysis.effects import comparisons, stats
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.analysis.result.schema import Comparison, Result
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.store.reader import Run


@dataclass(frozen=True)
class Part:
    """One of them: its result, and the one arm that is set against the baseline. A paper may add what it needs of a run."""

    run: Run

    @cached_property
    def result(self) -> Result:
        return analyze_run(self.run)

    @cached_property
    def book(self) -> CostModel:
        return CostModel(ValidVisits(self.run))

    @property
    def baseline(self) -> str:
        return self.run.plan.experiment.baseline

    @cached_property
    def arm(self) -> str:
        """The one that is compared."""
        arms = self.run.plan.experiment.arms
        return next(
            arm.name for arm in arms if arm.copy_of is None and arm.name != self.baseline and arm.clock == "time"
        )

    def too_few(self, rounds: int) -> str:
        """Why nothing rests on so many rounds; empty where they are enough."""
        return stats.too_few(rounds, self.run.plan.experiment.precision) or ""

    @cached_property
    def barred(self) -> str:
        """Why no claim rests on this part: something of the arm, or of what it is set against, did not work; empty if it did."""
        bars = self.book.measured.bars(self.arm)
        return bars.all_of_them or "; ".join(bars.good_news)

    def comparison(self, estimand: str, metric: str = "run_time", **levels: str) -> Comparison | None:
        """The arm's by that estimand; of factors that are not named, at the first level. None where there is none."""
        for each in self.result.comparisons:
            if (each.arm, each.estimand, each.metric) == (self.arm, estimand, metric) and all(
                each.levels.get(factor, level) == level for factor, level in levels.items()
            ):
                return each
        return None

    def queries(self, **levels: str) -> list[Comparison]:
        """The comparisons of single queries."""
        found = (self.comparison(comparisons.QUERY + name, **levels) for name in self.run.plan.queries)
        return [each for each in found if each is not None]

    @staticmethod
    def name_of(comparison: Comparison) -> str:
        """The query that it is about."""
        return comparison.estimand.removeprefix(comparisons.QUERY)
