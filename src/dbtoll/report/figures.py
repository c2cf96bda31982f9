"""Where each mark of a figure lies. The templates draw it as SVG; text and colour are theirs.

Why inline SVG by our own templates and not a plotting library: a library lays a figure out once, in fixed units and
fixed colours. Shrunk to a phone its text is 5 px high, so it would have to be embedded twice, and in the dark its paper
stays white. Here every horizontal place is a per cent of the width (SVG allows that for x, width and cx), so one figure
fits 320 and 1400 px with text of constant size, takes its colours from the page's custom properties (dark, print), and
each row is a row of a table that carries its numbers as text for a screen reader. The price is the axis arithmetic below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from dbtoll.model import Verdict
from dbtoll.report import words

if TYPE_CHECKING:
    from dbtoll.analysis.result.builder import Comparison, Result, SeriesPoint
    from dbtoll.report.transactions import AtLevels

_LOG_FROM = math.log1p(words.TIMES_FROM)
"""An axis that must hold what is said as a factor is logarithmic: a linear one squeezes everything else against zero."""

_TICKS_MAX = 6
"""As many labels as fit beside each other on a phone."""

_PINNED_SHARE, _MOST, _TIMES_MOST = 0.01, 0.8, 3.0
"""The run-order axis holds all but this share of the visits, or three times what holds four fifths of them if that is
less; the others are drawn at its edge: stalled visits must not hide the drift of all."""


# --- axes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """``x``: place in per cent of the width."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis over changes (`words.Effect.change`) between ``low`` and ``high``; ``log`` makes equal factors equally wide.

    ``of_throughput``: to the right is more; else it is longer.
    """

    low: float
    high: float
    log: bool
    of_throughput: bool = False

    def place(self, change: float) -> float:
        """Per cent of the width, 0 to 100; outside values lie on the edge."""
        value, low, high = (math.log1p(max(e, -0.999)) if self.log else e for e in (change, self.low, self.high))
        return round(min(100.0, max(0.0, 100 * (value - low) / (high - low))), 2)

    @property
    def ticks(self) -> list[Tick]:
        if self.log:
            factors = _log_factors(1 + self.low, 1 + self.high)
            return [Tick(self.place(f - 1), "1" if f == 1 else f"{f:g}×") for f in factors]
        step = _step((self.high - self.low) / (_TICKS_MAX - 1))
        decimals = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [
            Tick(self.place(i * step), words.number(i * step * 100, decimals, plus=True))
            for i in range(first, last + 1)
        ]

    @property
    def title(self) -> str:
        if not self.log:
            return "difference in per cent"
        return f"times as {'much' if self.of_throughput else 'long'} (logarithmic)"

    @property
    def ends(self) -> tuple[str, str]:
        """What lies to the left and to the right."""
        return ("← less done", "more done →") if self.of_throughput else ("← faster", "slower →")

    @property
    def length(self) -> float:
        """On the log scale, so that both kinds can be set against each other."""
        return math.log1p(self.high) - math.log1p(max(self.low, -0.999))


def _step(at_least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``at_least``."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= at_least * (1 - 1e-9))


def _log_factors(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 1.5, 2, 3, 4, 5, 7), (1, 1.5, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        factors = [
            m * 10.0**d for d in decades for m in mantissas if low <= m * 10.0**d * (1 + 1e-9) and m * 10.0**d <= high
        ]
        nearest = min((b / a for a, b in pairwise(factors)), default=math.inf)
        if len(factors) <= _TICKS_MAX and math.log(nearest) * _TICKS_MAX >= math.log(high / low):
            return factors
    return factors[:: math.ceil(len(factors) / _TICKS_MAX)]


def axis_for(changes: Iterable[float], margin: float, *, of_throughput: bool = False) -> Axis:
    """An axis that holds ``changes``, zero and the margin, with some air."""
    values = [*changes, -margin, margin]
    low, high = min(values), max(values)
    if math.log1p(high) >= _LOG_FROM:
        lowest, highest = math.log1p(max(low, -0.999)), math.log1p(high)
        air = 0.04 * (highest - lowest)
        return Axis(math.expm1(lowest - air), math.expm1(highest + air), True, of_throughput)
    air = 0.04 * (high - low)
    return Axis(low - air, high + air, False, of_throughput)


_SHARED_UP_TO = 6.0
"""Panels side by side have one axis unless the longest of their own is more than so many times the shortest."""


def shared_axis(panels: Iterable[Sequence[float]], margin: float) -> Axis | None:
    """One axis for all panels; None where it would squeeze one of them."""
    held = [list(effects) for effects in panels]
    lengths = [axis_for(effects, margin).length for effects in held]
    if not lengths or max(lengths) > _SHARED_UP_TO * min(lengths):
        return None
    return axis_for([effect for effects in held for effect in effects], margin)


# --- interval plots ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch in per cent of the width."""

    x1: float
    x2: float

    @property
    def width(self) -> float:
        return round(self.x2 - self.x1, 2)


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One comparison: its interval (thick), what its verdict rests on (thin), A/A's behind both, and each round's effect (dots)."""

    label: str
    group: str
    comparison: Comparison
    effect: words.Effect
    verdict: str
    kind: str
    point: float | None
    span: Span | None
    decisive: Span | None
    noise: Span | None
    rounds: list[float]


@dataclass(frozen=True, slots=True)
class Forest:
    """Intervals under each other on one axis."""

    title: str
    axis: Axis
    zero: float
    margin: Span
    rows: list[ForestRow]
    has_decisive: bool
    has_noise: bool

    @property
    def label_characters(self) -> int:
        """How wide the column of labels has to be."""
        return max((len(row.label) for row in self.rows), default=0)

    @property
    def figure_characters(self) -> int:
        """How wide the column of figures has to be."""
        return max((len(row.effect.text) for row in self.rows), default=0)


Entry = tuple[str, str, "Comparison"]
"""Label, group and comparison of a row."""


def changes_of(entries: Iterable[Entry]) -> list[float]:
    """What an axis has to hold: the estimates, their own intervals and rounds.

    What decides may run off its edge, and rounds that lie far out are drawn there.
    """
    found = []
    for *_, c in entries:
        change = words.effect(c).change
        found += [v for v in (change.estimate, change.low, change.high) if v is not None]
        found += [v for each in c.by_round if not each.far_out and (v := _change(c, each.effect)) is not None]
    return found


def forest(title: str, entries: Sequence[Entry], result: Result, axis: Axis | None = None) -> Forest:
    """``entries`` from top to bottom; a group's name is shown where it changes. ``axis``: None for one of its own."""
    of_throughput = bool(entries) and words.is_throughput(entries[0][2].metric)
    axis = axis or axis_for(changes_of(entries), result.margin, of_throughput=of_throughput)
    noise = {(str(c.levels), c.metric, c.estimand, c.baseline): c for c in result.comparisons if c.is_aa}
    rows = []
    for label, group, c in entries:
        effect = words.effect(c)
        aa = None if c.is_aa else noise.get((str(c.levels), c.metric, c.estimand, c.baseline))
        rows.append(
            ForestRow(
                label=label,
                group=group,
                comparison=c,
                effect=effect,
                verdict="A/A" if c.is_aa else words.verdict_text(c.verdict, result.margin),
                kind="noise" if c.is_aa else kind_of(c.verdict),
                point=None if effect.change.estimate is None else axis.place(effect.change.estimate),
                span=_span(axis, effect),
                decisive=_span(axis, words.decisive(c)),
                noise=_span(axis, words.effect(aa)) if aa else None,
                rounds=[axis.place(v) for each in c.by_round if (v := _change(c, each.effect)) is not None],
            )
        )
    return Forest(
        title=title,
        axis=axis,
        zero=axis.place(0.0),
        margin=Span(axis.place(-result.margin), axis.place(result.margin)),
        rows=rows,
        has_decisive=any(r.decisive for r in rows),
        has_noise=any(r.noise for r in rows),
    )


def _change(comparison: Comparison, effect: float) -> float | None:
    """A round's effect as the figure's axis has it."""
    return words.Effect(comparison.metric, effect, None, None).change.estimate


def _span(axis: Axis, effect: words.Effect) -> Span | None:
    """To the axis's end where there is no bound."""
    low, high = effect.change.low, effect.change.high
    if low is None and high is None:
        return None
    return Span(0.0 if low is None else axis.place(low), 100.0 if high is None else axis.place(high))


def kind_of(verdict: str | None) -> str:
    """The class that a verdict has in the style sheet."""
    return {Verdict.LOSES: "loses", Verdict.GAINS: "gains", Verdict.NO_DIFFERENCE: "same"}.get(verdict, "unknown")  # type: ignore[call-overload,no-any-return]


# --- run order ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOrderPanel:
    """One arm's visits in the order in which they were made, in a box of 1000 x 1000.

    ``path``: a dot each. ``middles``: the median of each round, over the time that it took.
    """

    arm: str
    path: str
    middles: str
    visits: int
    pinned: int


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The same axes for all panels. ``time_ticks`` and ``rounds`` (where each begins) in per cent of the width."""

    panels: list[RunOrderPanel]
    limit: float
    time_ticks: list[Tick]
    rounds: list[float]


def run_order(series: Sequence[SeriesPoint], arms: Sequence[str]) -> RunOrder | None:
    """None if nothing was measured."""
    if not series:
        return None
    sizes = sorted(abs(s.log_deviation) for s in series)
    nearly_all, most = (sizes[math.floor((len(sizes) - 1) * share)] for share in (1 - _PINNED_SHARE, _MOST))
    limit = max(0.02, 1.1 * min(nearly_all, _TIMES_MOST * most))
    end_s = max(s.elapsed_s for s in series) or 1.0
    panels = []
    for arm in arms:
        own = [s for s in series if s.arm == arm]
        if not own:
            continue
        # A path of zero-length strokes with round caps: each is a dot of constant size however the box is stretched.
        dots = (f"M{1000 * s.elapsed_s / end_s:.0f} {_height(s.log_deviation, limit)}h0" for s in own)
        pinned = sum(abs(s.log_deviation) > limit for s in own)
        middles = "".join(_middle(visits, end_s, limit) for visits in _by_round(own).values())
        panels.append(RunOrderPanel(arm, "".join(dots), middles, len(own), pinned))
    begins: dict[int, float] = {}
    for s in series:
        begins[s.round] = min(begins.get(s.round, s.elapsed_s), s.elapsed_s)
    return RunOrder(
        panels=panels,
        limit=math.expm1(limit),
        time_ticks=_time_ticks(end_s),
        rounds=[round(100 * t / end_s, 2) for _, t in sorted(begins.items())],
    )


def _height(log_deviation: float, limit: float) -> int:
    return round(500 - 490 * max(-1.0, min(1.0, log_deviation / limit)))


def _by_round(series: Iterable[SeriesPoint]) -> dict[int, list[SeriesPoint]]:
    rounds: dict[int, list[SeriesPoint]] = {}
    for s in series:
        rounds.setdefault(s.round, []).append(s)
    return rounds


def _middle(visits: Sequence[SeriesPoint], end_s: float, limit: float) -> str:
    begin, end = (1000 * pick(s.elapsed_s for s in visits) / end_s for pick in (min, max))
    return f"M{begin:.0f} {_height(median(s.log_deviation for s in visits), limit)}H{end:.0f}"


def _time_ticks(end_s: float) -> list[Tick]:
    steps_s = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
    step = next((s for s in steps_s if end_s / s <= _TICKS_MAX - 1), 86400 * math.ceil(end_s / 86400 / _TICKS_MAX))
    return [Tick(round(100 * t / end_s, 2), words.span(t) if t else "0") for t in range(0, math.floor(end_s) + 1, step)]


# --- response times ----------------------------------------------------------------------------------------------

_TAIL_TICKS = (0.5, 0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True)
class Curve:
    """One arm's in a box of 1000 x 1000. ``kind``: its number among the arms, which is its colour and dash."""

    arm: str
    kind: int
    path: str


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """One transaction: from left to right the response time, upwards the share that took no longer."""

    title: str
    curves: list[Curve]


@dataclass(frozen=True, slots=True)
class Curves:
    """Response times of all transactions and arms at one combination of levels, on the same axes.

    Both are logarithmic: each step up leaves a tenth of the transactions, so that the tail has as much room as all
    others. ``share_ticks`` in per cent of the height, from the top.
    """

    panels: list[CurvePanel]
    time_ticks: list[Tick]
    share_ticks: list[Tick]


def curves(group: AtLevels, arms: Sequence[str]) -> Curves | None:
    """``arms``: of the whole result, so that an arm has the same colour at all levels. None without any response time."""
    points = [
        (name, each.arm, [(q.value_ns, -math.log10(1 - q.fraction)) for q in kind.quantiles])
        for name in group.transactions
        for each, kind in group.of(name)
    ]
    times = [ns for *_, own in points for ns, _ in own]
    if not times:
        return None
    low, high = math.log(min(times) / 1.1), math.log(max(times) * 1.1)
    top = max(tail for *_, own in points for _, tail in own) * 1.03

    def place(ns: float) -> float:
        return (math.log(ns) - low) / (high - low)

    panels = [
        CurvePanel(
            words.transaction_text(name),
            [
                Curve(
                    arm,
                    arms.index(arm),
                    "M" + "L".join(f"{1000 * place(ns):.0f} {1000 - 1000 * tail / top:.0f}" for ns, tail in own),
                )
                for transaction, arm, own in points
                if transaction == name and own
            ],
        )
        for name in group.transactions
    ]
    marks = _time_marks(math.exp(low), math.exp(high))
    return Curves(
        panels=[panel for panel in panels if panel.curves],
        time_ticks=[Tick(round(100 * place(ns), 2), words.round_time(ns)) for ns in marks],
        share_ticks=[
            Tick(round(100 - 100 * tail / top, 2), f"{share * 100:g}{words.THIN}%")
            for share in _TAIL_TICKS
            if (tail := -math.log10(1 - share)) < top
        ],
    )


def _time_marks(low_ns: float, high_ns: float) -> list[float]:
    """Round times on a logarithmic axis: as many as fit on a narrow panel."""
    decades = range(math.floor(math.log10(low_ns)), math.ceil(math.log10(high_ns)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        marks = [m * 10.0**d for d in decades for m in mantissas if low_ns <= m * 10.0**d <= high_ns]
        if len(marks) < _TICKS_MAX:
            return marks
    return marks[:: math.ceil(len(marks) / (_TICKS_MAX - 1))]


# --- throughput over time ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OverTimePanel:
    """One arm's throughput within a window, in a box of 1000 x 1000; ``first``: in the first window after a start."""

    arm: str
    path: str
    first: str


@dataclass(frozen=True, slots=True)
class OverTime:
    """The same axes for all arms; ``most``: transactions a second at the top, above all curves, where its label has room."""

    panels: list[OverTimePanel]
    most: float
    time_ticks: list[Tick]


def over_time(group: AtLevels) -> OverTime | None:
    """None if nothing was measured."""
    highest = max(
        (max((*arm.windows.series, *arm.windows.first_series), default=0.0) for arm in group.arms), default=0.0
    )
    if highest <= 0:
        return None
    most = _ceiling(1.2 * highest)
    panels = [
        OverTimePanel(arm.arm, _line(arm.windows.series, most), _line(arm.windows.first_series, most))
        for arm in group.arms
    ]
    return OverTime(panels, most, _time_ticks(group.arms[0].windows.length_ns / 1e9))


def _ceiling(value: float) -> float:
    """The next number of two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def _line(series: Sequence[float], most: float) -> str:
    """A point in the middle of each interval."""
    places = (1000 * (index + 0.5) / len(series) for index in range(len(series)))
    points = [f"{x:.0f} {1000 - 1000 * value / most:.0f}" for x, value in zip(places, series, strict=True)]
    return "M" + "L".join(points) if points else ""
