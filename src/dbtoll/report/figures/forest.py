"""Intervals below one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.model.experiment import Verdict
from dbtoll.report.absolute import Absolutes
from dbtoll.report.figures.axis import Axis, axis_for
from dbtoll.report.text import numbers, sentences

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Comparison, Result, RoundEffect


@dataclass(frozen=True, slots=True)
class IntervalMark:
    """A stretch in per cent of the width."""

    x1: float
    x2: float

    @property
    def width(self) -> float:
        return round(self.x2 - self.x1, 2)


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One comparison: its interval (thick), what its verdict rests on (thin), A/A's behind both, and the rounds' effects (dots)."""

    label: str
    absolute: str
    group: str
    comparison: Comparison
    effect: numbers.EffectText
    verdict: str
    kind: str
    point: float | None
    span: IntervalMark | None
    decisive: IntervalMark | None
    noise: IntervalMark | None
    rounds: list[float]


@dataclass(frozen=True, slots=True)
class Forest:
    """Intervals under each other on one axis."""

    title: str
    axis: Axis
    zero: float
    margin: IntervalMark
    rows: list[ForestRow]
    has_decisive: bool
    has_noise: bool
    rounds_together: int
    """Of how many rounds three dots are at most: their median and the two that lie farthest apart. 1: each round has one."""

    @property
    def label_characters(self) -> int:
        """How wide the column of labels has to be."""
        return max((len(row.label) for row in self.rows), default=0)

    @property
    def absolute_characters(self) -> int:
        """The same of absolute figures; 0 where there are none."""
        return max((len(row.absolute) for row in self.rows), default=0)

    @property
    def figure_characters(self) -> int:
        """How wide the column of figures has to be."""
        return max((len(row.effect.text) for row in self.rows), default=0)


ForestEntry = tuple[str, str, "Comparison"]
"""Label, group and comparison of a row."""


def changes_of(entries: Iterable[ForestEntry]) -> list[float]:
    """What an axis has to hold: the estimates, their own intervals and rounds.

    What decides may run off its edge, and rounds that lie far out are drawn there.
    """
    found = []
    for *_, c in entries:
        change = numbers.effect(c).change
        found += [v for v in (change.estimate, change.low, change.high) if v is not None]
        usual = (each for each in c.by_round if not each.far_out)
        found += [v for each in usual for end in each.ends if (v := _change(c, end)) is not None]
    return found


def forest(title: str, entries: Sequence[ForestEntry], result: Result, axis: Axis | None = None) -> Forest:
    """``entries`` from top to bottom; a group's name is shown where it changes. ``axis``: None for one of its own."""
    of_throughput = bool(entries) and numbers.is_throughput(entries[0][2].metric)
    axis = axis or axis_for(changes_of(entries), result.margin, of_throughput=of_throughput)
    noise = {(str(c.levels), c.metric, c.estimand, c.baseline): c for c in result.comparisons if c.is_aa}
    rows, absolutes = [], Absolutes(result)
    for label, group, c in entries:
        effect = numbers.effect(c)
        copies = [noise.get((str(c.levels), c.metric, c.estimand, name)) for name in (c.baseline, c.arm)]
        aa = None if c.is_aa else max(filter(None, copies), key=_reach, default=None)
        rows.append(
            ForestRow(
                label=label,
                absolute=absolutes.of(c),
                group=group,
                comparison=c,
                effect=effect,
                verdict=sentences.verdict_of(c, result.margin),
                kind="noise" if c.is_aa else kind_of(c.verdict),
                point=None if effect.change.estimate is None else axis.place(effect.change.estimate),
                span=_span(axis, effect),
                decisive=_span(axis, numbers.decisive(c)),
                noise=_span(axis, numbers.effect(aa)) if aa else None,
                rounds=[axis.place(v) for each in c.by_round for v in _marks(c, each)],
            )
        )
    return Forest(
        title=title,
        axis=axis,
        zero=axis.place(0.0),
        margin=IntervalMark(axis.place(-result.margin), axis.place(result.margin)),
        rows=rows,
        has_decisive=any(r.decisive for r in rows),
        has_noise=any(r.noise for r in rows),
        rounds_together=max((each.rounds for *_, c in entries for each in c.by_round), default=1),
    )


def _reach(aa: Comparison) -> float:
    """How far what two copies show goes from 0, of the copies on either side."""
    return max(abs(bound) for bound in (aa.low or 0.0, aa.high or 0.0))


def _marks(comparison: Comparison, each: RoundEffect) -> list[float]:
    """Of one round its effect; of several their median and the two that lie farthest apart."""
    values = {each.effect, *each.ends}
    return [v for value in sorted(values) if (v := _change(comparison, value)) is not None]


def _change(comparison: Comparison, effect: float) -> float | None:
    """A round's effect as the figure's axis has it."""
    return numbers.EffectText(comparison.metric, effect, None, None).change.estimate


def _span(axis: Axis, effect: numbers.EffectText) -> IntervalMark | None:
    """To the axis's end where there is no bound."""
    low, high = effect.change.low, effect.change.high
    if low is None and high is None:
        return None
    return IntervalMark(0.0 if low is None else axis.place(low), 100.0 if high is None else axis.place(high))


def kind_of(verdict: str | None) -> str:
    """The class that a verdict has in the style sheet."""
    return {Verdict.LOSES: "loses", Verdict.GAINS: "gains", Verdict.NO_DIFFERENCE: "same"}.get(verdict, "unknown")  # type: ignore[call-overload,no-any-return]
