"""The interference matrix: what neighbours cost the other tenants of each arm, and what they did, for tables and the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model.neighbours import LOADS, NEIGHBOUR, NONE, against
from dbtoll.report.text import names, numbers
from dbtoll.report.text.numbers import EffectText

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dbtoll.analysis.result.schema import Interference, NeighbourResult, Result

_DEEPEST = math.log(10)
"""A cost that is ten times as large has the full colour."""


@dataclass(frozen=True, slots=True)
class Cell:
    """``shade``: how deep its colour is, per cent; ``kind``: which colour."""

    found: Interference
    effect: EffectText
    shade: int
    kind: str

    @property
    def has_figure(self) -> bool:
        """Else its reason is all that is known."""
        return self.found.estimate is not None

    @property
    def verdict(self) -> str:
        """What the interval that decides allows to say."""
        return str(self.found.verdict)

    @property
    def unserved(self) -> str:
        """``12 % not served``, where that is a part of what was lost."""
        share = self.found.unserved
        return f"{numbers.percent(share, 1, plus=False)} not served" if share and share >= 0.001 else ""

    @property
    def rests_on(self) -> str:
        """The bounds of the interval that decides."""
        decisive = EffectText(self.found.metric, self.found.estimate, self.found.low_decisive, self.found.high_decisive)
        return decisive.bounds or numbers.NOTHING

    @property
    def text(self) -> str:
        """``−24 % (−27 … −21), loses``."""
        if not self.has_figure:
            return "no figure"
        return ", ".join(filter(None, [self.effect.text, self.verdict, self.unserved]))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Of one metric at one combination of the other factors' levels: what neighbours do downwards, arms across."""

    title: str
    arms: list[str]
    rows: list[tuple[str, list[Cell | None]]]

    @property
    def reasons(self) -> list[str]:
        """Why a cell has no figure, or no verdict."""
        places: dict[str, list[str]] = {}
        for label, cells in self.rows:
            for cell in cells:
                if cell and cell.found.reason:
                    places.setdefault(cell.found.reason, []).append(f"{cell.found.arm}, {label}")
        many = sum(cell is not None for _, cells in self.rows for cell in cells)
        return [why if len(its) == many else f"{'; '.join(its)}: {why}" for why, its in places.items()]


def matrices(result: Result) -> list[Matrix]:
    """For each metric and combination of the other levels; empty where no neighbour is varied."""
    varied = varied_factors(each.levels for each in result.interference)
    grouped: dict[str, list[Interference]] = {}
    for each in result.interference:
        parts = [_METRICS.get(each.metric, each.metric), names.levels_text(each.levels, varied)]
        grouped.setdefault(", ".join(filter(None, parts)), []).append(each)
    found = []
    for title, cells in grouped.items():
        by_place = {(each.level, each.arm): _cell(each) for each in cells}
        arms = list(dict.fromkeys(each.arm for each in cells))
        levels = dict.fromkeys((each.level, each.against) for each in cells)
        rows = [(row_text(*level), [by_place.get((level[0], arm)) for arm in arms]) for level in levels]
        found.append(Matrix(title, arms, rows))
    return found


_METRICS = {
    "time_per_transaction": "throughput of the others",
    "response_p99": "99th percentile of the others' response times",
}


def row_text(level: str, reference: str) -> str:
    """``computes``; ``under 4 times the others' load`` is held against the same neighbour under the same load,
    and says so."""
    text = names.NEIGHBOURS.get(level, level.replace("_", " "))
    return f"{text}, against the same load" if level in LOADS and level != reference else text


def _cell(each: Interference) -> Cell:
    cost = math.log1p(each.estimate) if each.estimate is not None else 0.0
    return Cell(
        each,
        EffectText(each.metric, each.estimate, each.low, each.high),
        shade=round(60 * min(1.0, abs(cost) / _DEEPEST)),
        kind="loses" if cost > 0 else "gains",
    )


def did_lines(result: Result) -> list[tuple[str, list[tuple[str, str]]]]:
    """What each neighbour did itself, by what it does: arm, and ``fsyncs 412/s, on 0.10 processors``. Without second copies."""
    varied = varied_factors(each.levels for each in result.neighbours)
    copies = {arm.name for arm in result.arms if arm.copy_of}
    found: dict[str, list[tuple[str, str]]] = {}
    for each in result.neighbours:
        if each.arm not in copies:
            others = names.levels_text(each.levels, varied)
            title = names.NEIGHBOURS.get(each.level, each.level.replace("_", " "))
            found.setdefault(title, []).append((f"{each.arm}{f' ({others})' if others else ''}", _did(each, result)))
    return list(found.items())


def _did(each: NeighbourResult, result: Result) -> str:
    if each.throughput is not None:
        unit = next((windows.unit for windows in result.windows if windows.arm == each.arm), "")
        text = f"{numbers.figure(each.throughput.estimate)} {unit}".strip()
        return f"{text}, 99th percentile {numbers.time_of(each.p99_ns)}"
    parts = [_rate(name, mean.estimate) for name, mean in each.did_per_s.items()]
    if each.processors is not None:
        parts.append(f"its own process on {numbers.number(each.processors.estimate, 2)} processors")
    return ", ".join(parts)


def _rate(name: str, per_s: float) -> str:
    if name.startswith("bytes_"):
        return f"{numbers.size_of(round(per_s))}/s {name.removeprefix('bytes_')}"
    return f"{numbers.figure(per_s) if per_s else '0'} {name.replace('_', ' ')}/s"


def undisturbed(result: Result) -> Result:
    """The same without what was measured while a neighbour did something: of that the matrix tells."""

    def kept(levels: Mapping[str, str]) -> bool:
        return against(levels.get(NEIGHBOUR, NONE)) is None

    if not result.interference:
        return result
    return replace(
        result,
        comparisons=tuple(each for each in result.comparisons if kept(each.levels)),
        noise_floor=tuple(each for each in result.noise_floor if kept(each.levels)),
        warnings=tuple(each for each in result.warnings if kept(each.levels)),
        windows=tuple(each for each in result.windows if kept(each.levels)),
    )
