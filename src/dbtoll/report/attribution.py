"""The explained ledger as people read it: a sentence, a stacked bar and a table for each arm (docs/method/ledgers.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.analysis.attribution.items import CACHES, FAULTS_BY_KIND, TRANSLATION, USER_MODE
from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model.experiment import Verdict
from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Amount, Forecast, LedgerItem, LedgerResult, Result

UNEXPLAINED = "unexplained"
COLOURS = (
    "page faults", *(kind.name for kind in FAULTS_BY_KIND.values()),
    USER_MODE, CACHES, TRANSLATION,
    "files: read", "files: written", "files: sizes asked for", "files: opened", "files: looked up", "files: made durable",
    "other system calls", "processes started", "round trips", "switches", "device: pages read",
)  # fmt: skip
"""An item has the same colour in every bill."""

NAMED_SHARE = 0.02
"""Of the overhead: an item that is less is not named in the sentence."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar, in per cent of its width; ``kind``: its colour's number, None for what is not explained."""

    name: str
    x: float
    width: float
    kind: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table: overhead, each family of items and the rest, as per cent of the baseline's time; then the prediction."""

    query: str
    overhead: str
    items: tuple[str, ...]
    unexplained: str
    predicted: str


@dataclass(frozen=True, slots=True)
class Bill:
    """What one arm loses, itemised. ``zero``: where nothing lies, per cent of the bar's width (items may also gain). ``several``:
    it has units that may be of several servers."""

    arm: str
    levels: str
    sentence: str
    segments: tuple[Segment, ...]
    zero: float
    names: tuple[str, ...]
    lines: tuple[Line, ...]
    accounted: tuple[tuple[str, str, str], ...]
    """The other ledger: state, time and share."""
    assumed: tuple[str, ...]
    several: bool


def bills(result: Result) -> list[Bill]:
    """One for each arm that differs from the baseline by more than its two copies do from each other."""
    varied = varied_factors(each.levels for each in result.ledgers)
    copies = {c.arm for c in result.comparisons if c.is_aa}
    several = {arm.name for arm in result.arms if arm.units > 1}
    return [
        _bill(each, names.levels_text(each.levels, varied), several=each.arm in several)
        for each in result.ledgers
        if each.arm not in copies
    ]


def _bill(ledger: LedgerResult, levels: str, *, several: bool) -> Bill:
    parts = [*((entry.amount, _kind(entry.amount.name)) for entry in ledger.items), (ledger.unexplained, None)]
    parts.sort(key=lambda part: (part[1] is None, -abs(part[0].ns)))
    gains = sum(-amount.ns for amount, _ in parts if amount.ns < 0)
    width = sum(abs(amount.ns) for amount, _ in parts) or 1.0
    zero = 100 * gains / width
    return Bill(
        arm=ledger.arm,
        levels=levels,
        sentence=sentence(ledger),
        segments=tuple(_segments(parts, width, zero, ledger)),
        zero=round(zero, 2),
        names=tuple(_families(ledger)),
        lines=tuple(_lines(ledger)),
        accounted=tuple(_accounted(ledger)),
        assumed=ledger.assumed,
        several=several,
    )


def _accounted(ledger: LedgerResult) -> Iterator[tuple[str, str, str]]:
    whole_ns = sum(amount.ns for amount in ledger.accounted)
    for amount in ledger.accounted:
        yield amount.name, _signed_time(amount.ns), _share(amount, whole_ns)
    if ledger.accounted:
        yield "together", _signed_time(whole_ns), ""


def _signed_time(ns: float) -> str:
    return (numbers.MINUS if ns < 0 else "") + numbers.time_of(abs(ns))


def _kind(name: str) -> int:
    return COLOURS.index(name) if name in COLOURS else len(COLOURS)


def _segments(
    parts: Sequence[tuple[Amount, int | None]], width: float, zero: float, ledger: LedgerResult
) -> Iterator[Segment]:
    right, left = zero, zero
    for amount, kind in parts:
        wide = 100 * abs(amount.ns) / width
        if amount.ns >= 0:
            x, right = right, right + wide
        else:
            left -= wide
            x = left
        text = _share(amount, ledger.overhead.ns) if ledger.verdict == Verdict.LOSES else _time(amount)
        yield Segment(amount.name, round(x, 2), round(wide, 2), kind, text)


def _share(amount: Amount, of_ns: float) -> str:
    """``78 % (70 … 86)`` of the overhead."""
    scale = 1 / of_ns if of_ns else 0.0
    low, high = (None if each is None else each * scale for each in (amount.low_ns, amount.high_ns))
    shown = numbers.IntervalText(
        amount.ns * scale, *(sorted((low, high)) if low is not None and high is not None else (None, None))
    )
    bounds = f" ({shown.bounds})" if shown.bounds else ""
    return f"{numbers.percent(shown.estimate, shown.decimals, plus=False)}{bounds}"


def sentence(ledger: LedgerResult) -> str:
    """The largest item first, in plain words; nothing of what it loses by where it is not shown to lose."""
    many = len(ledger.queries)
    asked = f"{numbers.plural(many, 'query', 'queries')}, once each" if many > 1 else "an execution"
    overhead = _time(ledger.overhead)
    match ledger.verdict:
        case Verdict.LOSES:
            return _itemised(ledger, f"Of the {overhead} that it takes longer for {asked}")
        case Verdict.GAINS:
            return f"It takes no longer than {ledger.baseline} for {asked}: {overhead}. There is no loss to explain."
        case Verdict.NO_DIFFERENCE:
            return f"It takes as long as {ledger.baseline} for {asked}, within the margin: {overhead}. There is no loss to explain."
    return (
        f"Whether it takes longer than {ledger.baseline} for {asked}, cannot be told from "
        f"{numbers.plural(ledger.rounds, 'round')} beside the noise floor: {overhead}. So nothing is said of what it loses by."
    )


def _itemised(ledger: LedgerResult, lead: str) -> str:
    overhead_ns = ledger.overhead.ns
    ordered = sorted(ledger.items, key=lambda entry: -entry.amount.ns)
    named = [entry for entry in ordered if entry.amount.ns > NAMED_SHARE * overhead_ns]
    told = "; ".join(_told(entry, overhead_ns) for entry in named) or "no item that was counted explains any of it"
    return f"{lead}: {told}. Not explained: {_share(ledger.unexplained, overhead_ns)}."


def _told(entry: LedgerItem, overhead_ns: float) -> str:
    share = _share(entry.amount, overhead_ns)
    if entry.amount.name in (CACHES, TRANSLATION):
        return f"{share} {entry.amount.name}"
    if entry.amount.name == USER_MODE:
        return f"{share} {entry.amount.name}, {numbers.figure(entry.cost_ns)} times as slow"
    return (
        f"{share} {entry.amount.name} ({numbers.count(round(entry.count))} at {numbers.time_of(entry.cost_ns)} each, against "
        f"{numbers.count(round(entry.baseline_count))} at {numbers.time_of(entry.baseline_cost_ns)})"
    )


def _time(amount: Amount) -> str:
    """``−1.20 ms (−4.10 ms … 1.70 ms)``"""
    if amount.low_ns is None or amount.high_ns is None:
        return _signed_time(amount.ns)
    return f"{_signed_time(amount.ns)} ({_signed_time(amount.low_ns)} … {_signed_time(amount.high_ns)})"


def _predicted(effect: Forecast | None) -> str:
    """``+935 % (801 … 1069)`` of the baseline's time, as all of its table."""
    return numbers.NOTHING if effect is None else numbers.IntervalText(effect.estimate, effect.low, effect.high).text


def _lines(ledger: LedgerResult) -> Iterator[Line]:
    for each in sorted(ledger.queries, key=lambda query: names.natural_key(query.query)):
        baseline_ns = each.overhead.ns / each.measured if each.measured else 0.0

        def points(ns: float, interval: numbers.IntervalText, baseline_ns: float = baseline_ns) -> str:
            return numbers.percent(ns / baseline_ns, interval.decimals) if baseline_ns else numbers.NOTHING

        def with_interval(amount: Amount, baseline_ns: float = baseline_ns) -> str:
            low, high = (
                None if ns is None or not baseline_ns else ns / baseline_ns for ns in (amount.low_ns, amount.high_ns)
            )
            return points(amount.ns, numbers.IntervalText(None, low, high))

        sums = {
            name: sum(entry.amount.ns for entry in each.items if names.family(entry.amount.name) == name)
            for name in _families(ledger)
        }
        yield Line(
            query=each.query,
            overhead=with_interval(each.overhead),
            items=tuple(points(ns, numbers.IntervalText(None, None, None)) for ns in sums.values()),
            unexplained=with_interval(each.unexplained),
            predicted=_predicted(each.predicted),
        )


def _families(ledger: LedgerResult) -> list[str]:
    return list(dict.fromkeys(names.family(entry.amount.name) for entry in ledger.items))
