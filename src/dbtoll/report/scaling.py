"""Speed-ups by arm and number of threads, for tables and the figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.analysis.effects.comparisons import GEOMEAN, QUERY
from dbtoll.analysis.result.schema import varied_factors
from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Result, SpeedUp


@dataclass(frozen=True, slots=True)
class AtLevels:
    """The speed-ups at one combination of the other factors' levels. ``threads``: the fewest first; all are over these."""

    title: str
    threads: list[int]
    arms: list[str]
    queries: list[str]
    found: dict[tuple[str, str, int], SpeedUp]

    def geomean(self, arm: str, threads: int) -> SpeedUp | None:
        """Of all queries together."""
        return self.found.get((arm, GEOMEAN, threads))

    def of_query(self, arm: str, query: str, threads: int) -> SpeedUp | None:
        """Of one query."""
        return self.found.get((arm, QUERY + query, threads))

    @property
    def reasons(self) -> list[str]:
        """Why an arm has no figure over all queries, or one without some of them."""
        said = []
        for arm in self.arms:
            whys = [
                f"no figure, because {each.reason}"
                if each.estimate is None and each.high is None
                else f"without {'; '.join(each.left_out)}"
                for n in self.threads[1:]
                if (each := self.geomean(arm, n)) and (each.left_out or each.reason)
            ]
            said += [f"{arm}: {why}" for why in dict.fromkeys(whys)]
        return said


def groups(result: Result) -> list[AtLevels]:
    """For each combination of the other levels; empty where the number of threads is not varied."""
    varied = varied_factors(each.levels for each in result.speed_ups)
    by_levels: dict[str, list[SpeedUp]] = {}
    for each in result.speed_ups:
        by_levels.setdefault(names.levels_text(each.levels, varied), []).append(each)
    return [
        AtLevels(
            title=title,
            threads=[found[0].against, *sorted({each.threads for each in found})],
            arms=list(dict.fromkeys(each.arm for each in found)),
            queries=list(dict.fromkeys(query for each in found if (query := names.query_of(each.estimand)))),
            found={(each.arm, each.estimand, each.threads): each for each in found},
        )
        for title, found in by_levels.items()
    ]


def speed_text(each: SpeedUp | None) -> str:
    """``1.83× (1.78 … 1.88)``; ``at most 1.5×`` where nobody knows how slow it is."""
    if each is None or (each.estimate is None and each.high is None):
        return numbers.NOTHING
    bounds = [value for value in (each.low, each.high) if value is not None]
    half = (bounds[1] - bounds[0]) / 2 if len(bounds) == 2 else 0.0
    # Never without a decimal: what is slower than before would be 0.
    decimals = min(3, max(1, 1 - math.floor(math.log10(half)))) if half > 0 else 2
    told = [numbers.number(value, decimals) for value in (each.estimate, *bounds) if value is not None]
    if each.estimate is None:
        return f"at most {told[0]}×"
    return f"{told[0]}×" + (f" ({' … '.join(told[1:])})" if len(bounds) == 2 else "")
