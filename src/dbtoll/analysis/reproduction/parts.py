"""The runs that a reproduction goes by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from dbtoll.analysis.attribution.cost_model import CostModel
from dbtoll.analysis.effects import comparisons, stats
from dbtoll.analysis.reproduction import ENVIRONMENT
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.analysis.result.schema import ArmResult, Comparison, Levels, Result
from dbtoll.analysis.visits.arrays import TimeArray, collect
from dbtoll.analysis.visits.metrics import METRICS, levels_key
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.store.reader import Run


@dataclass(frozen=True)
class Part:
    """One of them: its result, and the arm that is set against the baseline. A paper may add what it needs of a run."""

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

    @property
    def arms(self) -> tuple[str, ...]:
        """All that are compared with the baseline."""
        arms = self.run.plan.experiment.arms
        return tuple(
            arm.name for arm in arms if arm.copy_of is None and arm.name != self.baseline and arm.clock == "time"
        )

    @cached_property
    def arm(self) -> str:
        """The one in the place of the paper's environment; where none is called so, the first."""
        asked = self.run.plan.experiment.variables.get(ENVIRONMENT)
        return asked if asked in self.arms else self.arms[0]

    @property
    def about(self) -> ArmResult:
        """What is said of that arm."""
        return next(each for each in self.result.arms if each.name == self.arm)

    @property
    def title(self) -> str:
        """That arm as it is shown."""
        return self.about.label

    def too_few(self, rounds: int) -> str:
        """Why nothing rests on so many rounds; empty where they are enough."""
        return stats.too_few(rounds, self.run.plan.experiment.precision) or ""

    @property
    def barred(self) -> str:
        """Why no claim rests on this part: something of the arm, or of what it is set against, did not work; empty if it did."""
        bars = self.book.measured.bars(self.arm)
        return bars.all_of_them or "; ".join(bars.good_news)

    def of(self, arm: str) -> Part:
        """The same run by another of its arms."""
        other = type(self)(self.run)
        other.__dict__.update(result=self.result, book=self.book, _effects=self._effects, arm=arm)
        return other

    def levels(self, **wanted: str) -> Levels | None:
        """The first combination that has these; None where there is none."""
        return next((each for each in self.book.measured.levels if wanted.items() <= each.items()), None)

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

    def times(self, queries: Collection[str], levels: Levels, *, first_execution: bool = False) -> TimeArray | None:
        """Run times of those queries, of steady visits or of first executions. None where one of them was not measured."""
        names = [name for name in self.run.plan.queries if name in queries]
        chosen = [
            visit
            for visit in self.book.measured.of(levels)
            if visit.first_execution is first_execution and visit.query in queries
        ]
        found = collect(chosen, names, self.book.measured.arms, METRICS["run_time"])
        return found if len(names) == len(set(queries)) else None

    def effect(
        self, estimand: str, queries: Collection[str], *, against: str | None = None, **levels: str
    ) -> comparisons.Effect | None:
        """The arm's over some of the queries alone, first executions beside it. ``against``: another arm in the baseline's place,
        which has no copy."""
        at = self.levels(**levels)
        found = () if at is None else self._effects_of(tuple(queries), at, against)
        return next((each for each in found if (each.arm, each.estimand) == (self.arm, estimand)), None)

    @cached_property
    def _effects(self) -> dict[object, Sequence[comparisons.Effect]]:
        """Those that were asked for, of all arms."""
        return {}

    def _effects_of(
        self, queries: Collection[str], levels: Levels, against: str | None
    ) -> Sequence[comparisons.Effect]:
        key = (queries, levels_key(levels), against)
        if key not in self._effects:
            experiment, steady = self.run.plan.experiment, self.times(queries, levels)
            held, copies = experiment.held_against, experiment.copies
            if against is not None:
                held, copies = {arm: against for arm in self.arms if arm != against}, {}
            self._effects[key] = () if steady is None else comparisons.compare(
                steady, self.times(queries, levels, first_execution=True), held, copies, experiment.precision, per_query=True
            )  # fmt: skip
        return self._effects[key]
