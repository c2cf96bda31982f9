"""Figures and verdicts in plain words: the one place where a number becomes text, for terminal, HTML and figures.

Fractions come in (0.01 is 1 %), text goes out. Nothing here decides a verdict: the analysis did.

Digits: an interval is shown with two significant digits of its half-width, and its estimate with as many decimals, so
that no digit is printed which another run would not repeat (the rule of the GUM, JCGM 100:2008, 7.2.6).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model import TIME_PER_TRANSACTION, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dbtoll.analysis.result.builder import ArmResult, Comparison, Contrast, Gate, Result
    from dbtoll.analysis.result.schema import Amount

MINUS = "\N{MINUS SIGN}"
THIN = "\N{NARROW NO-BREAK SPACE}"
NOTHING = "\N{EN DASH}"
"""Stands where a value is missing; a missing value is never 0."""

# Beyond three decimals of a per cent the digits are those of the clock, not of the database.
_DECIMALS_MAX = 3


# --- numbers -----------------------------------------------------------------------------------------------------


def decimals_of(half_width: float | None) -> int:
    """How many decimals of a per cent show two significant digits of ``half_width`` (a fraction); 1 if there is none."""
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        return 1
    return min(_DECIMALS_MAX, max(0, 1 - math.floor(math.log10(half_width * 100))))


def number(value: float, decimals: int = 0, *, plus: bool = False) -> str:
    """``value`` with a typographic minus, ``plus`` for positive ones, and no sign where it rounds to zero."""
    text = f"{abs(value):.{decimals}f}"
    if float(text) == 0:
        return text
    return f"{MINUS if value < 0 else '+' if plus else ''}{text}"


def percent(fraction: float | None, decimals: int = 1, *, plus: bool = True) -> str:
    """``+0.3 %``"""
    return NOTHING if fraction is None else f"{number(fraction * 100, decimals, plus=plus)}{THIN}%"


def margin(fraction: float) -> str:
    """``±2 %``, with no more digits than were asked for."""
    return f"±{fraction * 100:g}{THIN}%"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its bounds, fractions; each may be missing. Formats all three with the same digits."""

    estimate: float | None
    low: float | None
    high: float | None

    @property
    def decimals(self) -> int:
        return decimals_of(None if self.low is None or self.high is None else (self.high - self.low) / 2)

    @property
    def value(self) -> str:
        """``+0.3 %``"""
        return percent(self.estimate, self.decimals)

    @property
    def bounds(self) -> str:
        """``−0.8 … 1.4`` (per cent), empty if there is no interval."""
        if self.low is None or self.high is None:
            return ""
        return f"{number(self.low * 100, self.decimals)} … {number(self.high * 100, self.decimals)}"

    @property
    def text(self) -> str:
        """``+0.3 % (−0.8 … 1.4)``"""
        return f"{self.value} ({self.bounds})" if self.bounds else self.value


_COST_LEAST = 1e-300
"""Of a bound that says nothing: its inverse is still a number."""

TIMES_FROM = 2.0
"""A change of +200 % is said as three times: from there on people think in factors."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What an arm costs against its baseline, as people say it; the one form of headline, table and picture.

    ``estimate``, ``low`` and ``high`` are overheads as the analysis has them (cost / baseline cost - 1, fractions), each may be
    missing. A time is shown as it is: ``+24 %`` takes 24 % longer. Of throughput it is shown how much more or less is done in the
    same time: an overhead of 685 % per transaction is ``-87 %``. From `TIMES_FROM` on all three are factors.
    """

    metric: str
    estimate: float | None
    low: float | None
    high: float | None

    @property
    def change(self) -> Interval:
        """Of the quantity that is shown: what is done in the same time, or the time; minus 1."""
        if not is_throughput(self.metric):
            return Interval(self.estimate, self.low, self.high)
        costs = (None if each is None else max(1 + each, _COST_LEAST) for each in (self.estimate, self.high, self.low))
        return Interval(*(None if cost is None else 1 / cost - 1 for cost in costs))

    @property
    def is_bound(self) -> bool:
        """Whether it is only known that the cost is no less than ``low``."""
        return self.estimate is None and self.low is not None and self.high is None

    @property
    def value(self) -> str:
        """``+24.0 %``, ``−87 %``, ``10.8×``; ``at least 24 % longer``, ``at least −3 %``."""
        if self.is_bound:
            return self._size if (self.low or 0) >= 0 else f"at least {percent(self.low)}"
        return f"{self._factors[0]}×" if self._is_factor and self.estimate is not None else self.change.value

    @property
    def bounds(self) -> str:
        """``21.0 … 27.0``, in the form of `value`; empty if there is no interval."""
        if self.low is None or self.high is None:
            return ""
        return " … ".join(self._factors[-2:]) if self._is_factor else self.change.bounds

    @property
    def text(self) -> str:
        """``+24.0 % (21.0 … 27.0)``"""
        return f"{self.value} ({self.bounds})" if self.bounds else self.value

    @property
    def inside(self) -> str:
        """``(+0.3 %, −0.8 … 1.4)``: behind a verdict that does not itself name the figure."""
        return f"({self.value}, {self.bounds})" if self.bounds else f"({self.value})"

    @property
    def said(self) -> str:
        """``takes 24.0 % longer``, ``takes 10.8 times as long``, ``does 87 % less``, ``takes at least 24 % longer``."""
        return f"{_verb(self.metric)} {self._size}" if self._known else NOTHING

    @property
    def said_bounds(self) -> str:
        """Those of `said`, in the same direction: ``21.0 … 27.0``."""
        change = self.change
        if change.estimate is None or change.estimate >= 0 or change.low is None or change.high is None:
            return self.bounds
        return Interval(None, -change.high, -change.low).bounds

    @property
    def _size(self) -> str:
        change, before = self._known[0], "at least " if self.is_bound else ""
        more, less, as_much = (
            ("more", "less", "as much") if is_throughput(self.metric) else ("longer", "less time", "as long")
        )
        if self._is_factor:
            return f"{before}{self._factors[0]} times {as_much}"
        return f"{before}{percent(abs(change), self.change.decimals, plus=False)} {more if change >= 0 else less}"

    @property
    def _is_factor(self) -> bool:
        return bool(self._known) and self._known[0] >= TIMES_FROM

    @property
    def _factors(self) -> tuple[str, ...]:
        return figures(*(1 + each for each in self._known))

    @property
    def _known(self) -> list[float]:
        change = self.change
        return [each for each in (change.estimate, change.low, change.high) if each is not None]


def effect(found: Comparison) -> Effect:
    """Of a comparison, with its own interval."""
    return Effect(found.metric, found.estimate, found.low, found.high)


def decisive(found: Comparison) -> Effect:
    """What its verdict rests on."""
    return Effect(found.metric, found.estimate, found.low_decisive, found.high_decisive)


def _verb(metric: str) -> str:
    if is_throughput(metric):
        return "does"
    if metric.startswith("response_p"):
        return "answers take"
    return "an event takes" if metric == "event_time" else "takes"


def p_value(p: float | None) -> str:
    """``0.031``; below a thousandth only that: the tails of a t over a few rounds carry no more."""
    if p is None:
        return NOTHING
    return "<\N{NARROW NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"


def figure(value: float, low: float | None = None, high: float | None = None) -> str:
    """``27 700 (27 100 … 28 300)``: any quantity, by the same rule of digits; three significant ones without bounds."""
    text, *bounds = figures(value) if low is None or high is None else figures(value, low, high)
    return f"{text} ({' … '.join(bounds)})" if bounds else text


def figures(*values: float) -> tuple[str, ...]:
    """A value, or with its two bounds, or these alone: each with the same digits."""
    half = (values[-1] - values[-2]) / 2 if len(values) > 1 else math.nan
    if math.isnan(half):
        digits = 2 - math.floor(math.log10(abs(values[0]))) if values[0] else 0
    else:
        digits = min(_DECIMALS_MAX, 1 - math.floor(math.log10(half))) if half > 0 and math.isfinite(half) else 0
    return tuple(_rounded(each, digits) for each in values)


def _rounded(value: float, digits: int) -> str:
    """``digits`` after the point; before it, where they are negative."""
    return count(round(value, digits)) if digits <= 0 else number(value, digits)


_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def time_of(ns: float | None) -> str:
    """Three significant digits: ``14.2 ms``, ``1.41 s``, ``1 234 s``."""
    if ns is None:
        return NOTHING
    # 999.6 µs is 1.00 ms: the unit is chosen by the value as it will be printed.
    scale, unit = next((u for u in _TIME_UNITS if abs(ns) / u[0] >= 0.9995), _TIME_UNITS[-1])
    value = ns / scale
    decimals = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005))) if value else 0
    return f"{count(value) if decimals == 0 else number(value, decimals)}{THIN}{unit}"


def round_time(ns: float) -> str:
    """A round one, on an axis: ``2 ms``."""
    scale, unit = next((u for u in _TIME_UNITS if ns / u[0] >= 0.9995), _TIME_UNITS[-1])
    return f"{ns / scale:g}{THIN}{unit}"


def milliseconds(value_ms: float | None) -> str:
    """A time in ms with the unit that fits it."""
    return time_of(None if value_ms is None else value_ms * 1e6)


def published_s(value_s: float | None) -> str:
    """Seconds with two decimals, as the papers print them: ``14.19 s``."""
    return NOTHING if value_s is None else f"{value_s:.2f}{THIN}s"


def published_percent(value_percent: float | None) -> str:
    """Per cent with two decimals, as the papers print them: ``+7.82 %``."""
    return NOTHING if value_percent is None else f"{number(value_percent, 2, plus=True)}{THIN}%"


def span(seconds: float | None) -> str:
    """How long something lasted, for people: ``45 s``, ``5 min``, ``2 h 5 min``."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 120:
        return f"{whole}{THIN}s"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes}{THIN}min"
    hours, rest = divmod(minutes, 60)
    return f"{hours}{THIN}h" + (f" {rest}{THIN}min" if rest else "")


def count(value: float) -> str:
    """A whole number in groups of three: ``12 345``."""
    return f"{abs(round(value)):,}".replace(",", THIN) if value >= 0 else f"{MINUS}{count(-value)}"


def size_of(size_bytes: int) -> str:
    """``4 GiB``, ``287 MiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g}{THIN}{unit}"
    return f"{size_bytes}{THIN}B"


def plural(n: int, one: str, many: str | None = None) -> str:
    """``1 round``, ``5 rounds``"""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


# --- names -------------------------------------------------------------------------------------------------------

_ENVIRONMENTS = {
    "native": "Native",
    "docker": "Docker",
    "qemu": "QEMU",
    "uml": "User Mode Linux",
    "xen": "Xen",
    "libvirt": "libvirt",
    "ssh": "SSH",
    "fake": "Fake",
}


def spoken(arm: str) -> str:
    """An arm's name at the head of a sentence: ``docker:runsc`` is "Docker with runsc"; a name made up stays as it is.

    Everywhere else an arm goes by its own name, so that what a table calls it can be found in the specification.
    """
    name = arm.removesuffix(EMULATED)
    match = re.fullmatch(r"([a-z]+)(?::([\w.-]+))?", name)
    if not match or match[1] not in _ENVIRONMENTS:
        return arm
    return _ENVIRONMENTS[match[1]] + (f" with {match[2]}" if match[2] else "") + arm[len(name) :]


EMULATED = " (emulated)"


def shown(arm: str, *, emulated: bool) -> str:
    """What every table and picture calls an arm: ``qemu (emulated)`` for one whose times are those of an emulator."""
    return arm + EMULATED if emulated and not arm.endswith(EMULATED) else arm


def labelled(result: Result) -> Result:
    """The same with every arm called as `shown` says. Of a result that has been labelled already it changes nothing."""
    names = {arm.name: shown(arm.name, emulated=arm.emulated) for arm in result.arms}
    if all(name == label for name, label in names.items()):
        return result

    def label(name: str) -> str:
        return names.get(name, name)

    return replace(
        result,
        arms=tuple(replace(each, name=label(each.name)) for each in result.arms),
        comparisons=tuple(
            replace(each, arm=label(each.arm), baseline=label(each.baseline)) for each in result.comparisons
        ),
        contrasts=tuple(replace(each, arm=label(each.arm)) for each in result.contrasts),
        series=tuple(replace(each, arm=label(each.arm)) for each in result.series),
        times=tuple(replace(each, arm=label(each.arm)) for each in result.times),
        windows=tuple(replace(each, arm=label(each.arm)) for each in result.windows),
        plans_changed=tuple(replace(each, arm=label(each.arm)) for each in result.plans_changed),
        ledgers=tuple(replace(each, arm=label(each.arm), baseline=label(each.baseline)) for each in result.ledgers),
    )


_PROPER = {
    "postgres": "PostgreSQL",
    "mariadb": "MariaDB",
    "monetdb": "MonetDB",
    "duckdb": "DuckDB",
    "hyper": "HyPer",
    "tpch": "TPC-H",
    "tpcc": "TPC-C",
    "tatp": "TATP",
    "sql": "own queries",
    "probes": "micro-probes",
    "none": "no server",
}


def proper(name: str) -> str:
    """An engine or workload as it calls itself."""
    return _PROPER.get(name, name)


def is_tpc(workload: str) -> bool:
    """Whether the report must say that it is derived from a TPC benchmark."""
    return workload.startswith("tpc")


_LEVELS = {
    ("connection", "one"): "one connection",
    ("connection", "per_statement"): "a connection per statement",
    ("connection", "per_visit"): "a new connection for a few runs",
    ("temperature", "warm"): "warm",
    ("temperature", "cold"): "cold",
    ("placement", "inside"): "the driver inside",
    ("placement", "outside"): "the driver outside",
    ("foreign_keys", "no"): "no foreign keys",
    ("foreign_keys", "yes"): "foreign keys",
    ("interaction", "statement"): "a round trip per statement",
    ("interaction", "pipelined"): "pipelined",
    ("interaction", "procedure"): "procedures",
    ("isolation", "read_committed"): "read committed",
    ("isolation", "repeatable_read"): "repeatable read",
    ("isolation", "serializable"): "serializable",
    ("durability", "device"): "commits on the device",
    ("durability", "system"): "commits in the system's memory",
    ("durability", "server"): "commits in the server's memory",
    ("protocol", "simple"): "simple protocol",
    ("protocol", "extended"): "extended protocol",
    ("protocol", "prepared"): "prepared statements",
}


def levels_text(levels: Mapping[str, str], varied: Iterable[str] | None = None) -> str:
    """``warm, one connection``; only the factors in ``varied`` (all if None). Empty if there are none."""
    shown = [(f, level) for f, level in levels.items() if varied is None or f in varied]
    return ", ".join(_LEVELS.get(pair, f"{pair[0].replace('_', ' ')} {pair[1].replace('_', ' ')}") for pair in shown)


_ESTIMANDS = {
    "geomean": "geometric mean of all queries",
    "geomean_same_plans": "geometric mean of the queries with the same plans",
    "ratio_of_totals": "total of all queries",
}


def estimand_text(estimand: str, metric: str = "run_time") -> str:
    """``query:Q9`` is "Q9", ``geomean`` is "geometric mean of all queries"; of transactions all of them together."""
    if estimand == "geomean" and is_throughput(metric):
        return "all transactions"
    text = _ESTIMANDS.get(estimand) or estimand.removeprefix("query:")
    asked = "transactions" if metric.startswith("response_p") else "probes" if metric == "event_time" else "queries"
    return text.replace("queries", asked)


def query_of(estimand: str) -> str | None:
    """The query of a per-query estimand, None for those over all queries."""
    return estimand.removeprefix("query:") if estimand.startswith("query:") else None


def metric_text(metric: str) -> str:
    """What is shown of a metric: ``run_time`` is "run time", of ``time_per_transaction`` it is "throughput" (`Effect`)."""
    if metric.startswith("run_time_"):
        return f"run {metric.removeprefix('run_time_')} on a new connection"
    if metric.startswith("response_p"):
        percentile = metric.removeprefix("response_p")
        return "median response time" if percentile == "50" else f"response time, {percentile}th percentile"
    names = {
        "run_time": "run time", "connect_time": "time to connect", "event_time": "cost of an event",
        TIME_PER_TRANSACTION: "throughput",
    }  # fmt: skip
    return names.get(metric, metric.replace("_", " "))


_GATES = {
    "same_server": "the same server and settings",
    "same_resources": "the same processors, memory and kernel",
    "commit_reaches_device": "a commit reaches the device",
    "plausible_costs": "costs that can be believed",
    "consistent": "the data and the mix of transactions are as specified",
    "path": "outside terminals come by a network",
    "driver_cpu_share": "the driver's share of the time",
    "pressure": "waiting for processors, memory and disks",
    "host_brackets": "the host's clock and the arm's",
    "clock_rate": "rate of the arm's clock",
    "others_asleep": "the other arms asleep",
    "steal": "time stolen by a hypervisor",
}


def gate_text(gate: str) -> str:
    """A check's name for people."""
    return _GATES.get(gate, gate.replace("_", " "))


def transaction_text(name: str) -> str:
    """``new_order`` is "new order"."""
    return name.replace("_", " ")


def causes(counts: Mapping[str, int]) -> str:
    """``29 (conflict 27, deadlock 2)``, the most frequent first; ``0`` if there are none."""
    named = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{cause.replace('_', ' ')} {count(many)}" for cause, many in named)
    return f"{count(sum(counts.values()))} ({listed})" if listed else "0"


def is_throughput(metric: str) -> bool:
    """Whether the metric, a cost as all are, is the inverse of what is done in a second: then people speak of that."""
    return metric == TIME_PER_TRANSACTION


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts Q2 before Q10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]


# --- verdicts and sentences --------------------------------------------------------------------------------------


def verdict_text(verdict: str | None, margin_fraction: float) -> str:
    """The verdict with the margin it speaks of; a dash where there is none."""
    if verdict is None:
        return NOTHING
    return f"no difference within {margin(margin_fraction)}" if verdict == Verdict.NO_DIFFERENCE else str(verdict)


@dataclass(frozen=True, slots=True)
class Phrase:
    """What follows the colon of a headline: ``lead`` is the verdict itself, ``rest`` its figures and reason."""

    lead: str
    rest: str = ""

    def __str__(self) -> str:
        return self.lead + self.rest


def meaning(metric: str, baseline: str) -> str:
    """What a figure says, for the line under the headlines."""
    if is_throughput(metric):
        return f"{MINUS}10{THIN}% means that 10{THIN}% less is done than in {baseline} in the same time."
    if metric.startswith("response_p"):
        return f"+10{THIN}% means that the {metric_text(metric)} is 10{THIN}% longer than in {baseline}."
    what = "an event" if metric == "event_time" else "the same work"
    return f"+10{THIN}% means that {what} takes 10{THIN}% longer than in {baseline}."


def verdict_phrase(
    verdict: str, found: Effect, margin_fraction: float, reason: str | None, decisive: Effect | None = None
) -> Phrase:
    """The verdict with its figures. ``decisive``: what it rests on, said where ``found`` alone would have told."""
    if found.is_bound and verdict == Verdict.LOSES:
        return Phrase(found.said, f": {reason or _NO_REASON}")
    if found.estimate is None and not found.is_bound:
        return Phrase("no figure", f": {reason or _NO_REASON}")
    match verdict:
        case Verdict.LOSES | Verdict.GAINS:
            return Phrase(found.said, f" ({found.said_bounds})" if found.said_bounds else "")
        case Verdict.NO_DIFFERENCE:
            return Phrase(f"no difference within {margin(margin_fraction)}", f" {found.inside}")
        case _:
            reason = reason or "more rounds would be needed"
            if decisive and decisive.bounds and _would_tell(found, margin_fraction):
                reason = f"{decisive.bounds} if starts depend on each other; {reason}"
            return Phrase("cannot tell", f" {found.inside}: {reason}")


def _would_tell(found: Effect, margin_fraction: float) -> bool:
    if found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0 or (found.low > -margin_fraction and found.high < margin_fraction)


NOISE_FLOOR = "Noise floor"
NOISE_LEAD = "two identical copies differ by"


def noise_phrase(comparison: Comparison, widened_by: float = 0.0) -> Phrase:
    """What the second copy of the baseline shows (A/A). ``widened_by``: fraction added to every interval, 0 if none."""
    found = effect(comparison)
    if found.estimate is None:
        return Phrase("not known", f": {comparison.reason or _NO_REASON}")
    rest = f" ({found.bounds})" if found.bounds else ""
    if widened_by:
        by = abs(Effect(comparison.metric, widened_by, None, None).change.estimate or 0.0)
        rest += f": more than chance, so {percent(by, found.change.decimals, plus=False)} was added to every interval"
    return Phrase(f"{NOISE_LEAD} {found.value}", rest)


_BEYOND_CHANCE = "two identical copies differ by more than chance here, which more rounds need not remove"
"""Why nothing can be told where A/A's difference was added."""

_NO_REASON = "the run does not say why"

_NOT_OK = {
    Outcome.UNSUPPORTED: "not possible here",
    Outcome.FAILED: "failed",
    Outcome.INVALID: "void, a check failed",
}


def arms_not_ok(result: Result) -> dict[str, str]:
    """Arm -> ``failed``, for tables in which its figures stand without a verdict."""
    return {arm.name: _NOT_OK[arm.outcome] for arm in result.arms if arm.outcome != Outcome.OK}


def outcome_phrase(outcome: str, reason: str | None) -> Phrase:
    """Why an arm has no figure: ``void, a check failed: a commit does not reach the device``."""
    return Phrase(_NOT_OK.get(Outcome(outcome), outcome), f": {reason or _NO_REASON}")


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence on one arm.

    ``name``: what it opens with. ``kind``: a Verdict, an Outcome or ``noise``. ``levels``: empty where nothing varies.
    """

    arm: str
    name: str
    levels: str
    phrase: Phrase
    kind: str

    @property
    def sentence(self) -> str:
        return f"{self.name}{f' ({self.levels})' if self.levels else ''}: {self.phrase}"


def _headline_of(arm: ArmResult, comparison: Comparison, result: Result, varied: Sequence[str]) -> Headline:
    levels = levels_text(comparison.levels, varied)
    if comparison.is_aa:
        same = (c for c in result.comparisons if (c.levels, c.metric) == (comparison.levels, comparison.metric))
        widened = max((c.widened_by for c in same), default=0.0)
        return Headline(arm.name, NOISE_FLOOR, levels, noise_phrase(comparison, widened), "noise")
    reason = comparison.reason or (_BEYOND_CHANCE if comparison.widened_by else None)
    if arm.outcome == Outcome.FAILED and comparison.verdict == Verdict.CANNOT_TELL:
        reason = "this is what worked, alone"
    phrase = verdict_phrase(comparison.verdict, effect(comparison), result.margin, reason, decisive(comparison))
    if comparison.verdict == Verdict.LOSES and (cause := _cause(comparison, result)):
        phrase = Phrase(phrase.lead, f"{phrase.rest}; {cause}")
    return Headline(arm.name, spoken(arm.name), levels, phrase, comparison.verdict or Verdict.CANNOT_TELL)


WORTH_NAMING, MOST = 0.2, 0.5
"""Of an overhead, by the lower bound: what explains less of it is not its cause in a word; what explains more is most of it."""


def family(item: str) -> str:
    """Items of a ledger that are of one kind have one beginning: ``page faults: new pages``."""
    return item.partition(":")[0]


def _cause(comparison: Comparison, result: Result) -> str:
    """``mostly page faults (91 %, 85 … 97)``: the largest family of items of the ledger; empty where none is shown to be large."""
    here = (each for each in result.ledgers if (each.arm, each.levels) == (comparison.arm, comparison.levels))
    ledger = next(here, None)
    if ledger is None or ledger.verdict != Verdict.LOSES:
        return ""
    shares: dict[str, list[Amount]] = {}
    for entry in ledger.items:
        shares.setdefault(family(entry.amount.name), []).append(entry.amount)
    found = {name: _share_of(amounts, ledger.overhead.ns) for name, amounts in shares.items()}
    largest = max(found, key=lambda name: found[name].estimate or 0.0, default="")
    others = [each.high for name, each in found.items() if name != largest]
    share = found.get(largest)
    if share is None or share.low is None or share.low < WORTH_NAMING:
        return ""
    if share.low >= MOST:
        lead = "mostly"
    elif all(high is not None and high < share.low for high in others):
        lead = "the largest part"
    else:
        lead = "in part"
    bounds = " … ".join(number(100 * each) for each in (share.low, share.high) if each is not None)
    return f"{lead} {largest} ({percent(share.estimate, 0, plus=False)}, {bounds})"


def _share_of(amounts: Sequence[Amount], whole_ns: float) -> Interval:
    """Of a family of items: its bounds are the sums of theirs, as if all were wrong in the same direction."""
    sums = [[getattr(each, name) for each in amounts] for name in ("ns", "low_ns", "high_ns")]
    return Interval(*(None if None in values else sum(values) / whole_ns for values in sums))


def headlines(result: Result) -> list[Headline]:
    """A sentence per arm (and levels, where they vary) over all queries' run time, in the order of the arms; A/A last.

    What failed of an arm is said before any figure of it; one that has none gets the reason alone. The baseline itself has
    nothing to be compared with.
    """
    result = labelled(result)
    varied = varied_factors(c.levels for c in result.comparisons)
    said: list[Headline] = []
    for arm in result.arms:
        if arm.outcome != Outcome.OK:
            said.append(Headline(arm.name, spoken(arm.name), "", outcome_phrase(arm.outcome, arm.reason), arm.outcome))
        said += [
            _headline_of(arm, c, result, varied)
            for c in result.comparisons
            if c.arm == arm.name
            and (arm.outcome == Outcome.OK or (arm.outcome == Outcome.FAILED and c.low is not None))
            and c.estimand == "geomean"
            and c.metric == result.main_metric
        ]
    return [h for h in said if h.kind != "noise"] + [h for h in said if h.kind == "noise"]


def allowance(result: Result) -> str:
    """What the verdicts allow for, and what that costs; empty where there is no interval."""
    lengths = [
        c.lengthened for c in result.comparisons if c.estimand == "geomean" and c.lengthened is not None and not c.is_aa
    ]
    if not lengths:
        return ""
    least, most = (f"{each:.1f}" for each in (min(lengths), max(lengths)))
    times = least if least == most else f"{least} to {most}"
    return (
        "Verdicts (and the thin lines) allow for starts that depend on the ones before them, as far as the rounds do not exclude "
        f"it: they rest on intervals {times} times as long; more rounds exclude more"
    )


def contrasts(result: Result) -> list[str]:
    """``QEMU: a connection per statement, not one connection, beyond what that does to native: takes 31 % longer (28 … 34)``"""
    varied = varied_factors(c.levels for c in result.comparisons)
    known = (each for each in result.contrasts if each.estimate is not None or each.low is not None)
    return [_contrast(each, result, varied) for each in known]


def _contrast(each: Contrast, result: Result, varied: Sequence[str]) -> str:
    others = levels_text(each.levels, varied)
    level, against = (_LEVELS.get((each.factor, name), name.replace("_", " ")) for name in (each.level, each.against))
    found = Effect(result.main_metric, each.estimate, each.low, each.high)
    rests_on = Effect(result.main_metric, each.estimate, each.low_decisive, each.high_decisive)
    reason = each.reason or (_BEYOND_CHANCE if each.widened_by else None)
    return (
        f"{spoken(each.arm)}{f' ({others})' if others else ''}: {level}, not {against}, beyond what that does to "
        f"{each.baseline}: {verdict_phrase(each.verdict, found, result.margin, reason, rests_on)}"
    )


def changed_plans(result: Result) -> list[str]:
    """A line per arm whose server chose other plans, and what remains of its effect without those queries."""
    result = labelled(result)
    varied = varied_factors(c.levels for c in result.comparisons)
    queries: dict[str, list[str]] = {}
    for change in result.plans_changed:
        if change.query not in queries.setdefault(change.arm, []):
            queries[change.arm].append(change.query)
    lines = []
    for arm, changed in queries.items():
        lines.append(f"{arm}: {', '.join(sorted(changed, key=natural_key))}")
        has_figures = any(c.arm == arm and c.estimate is not None for c in result.comparisons)
        for c in result.comparisons:
            if has_figures and (c.arm, c.estimand) == (arm, "geomean_same_plans"):
                where = f" ({levels})" if (levels := levels_text(c.levels, varied)) else ""
                text = effect(c).text if c.estimate is not None else f"no figure: {c.reason}"
                lines.append(f"{arm}{where}, the other queries alone: {text}")
    return lines


# --- what to read with care --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing that a reader of the figures has to know. ``arms``: whom it is about; empty if it is about all."""

    arms: tuple[str, ...]
    text: str

    @property
    def sentence(self) -> str:
        return f"{' and '.join(self.arms)}: {self.text}" if self.arms else self.text


@dataclass(frozen=True, slots=True)
class Cautions:
    """Each fact once. ``left_out``: what is not in the figures; ``labels``: what is in them and was not as it should be."""

    left_out: tuple[Caution, ...]
    labels: tuple[Caution, ...]

    def __bool__(self) -> bool:
        return bool(self.left_out or self.labels)


def cautions(result: Result) -> Cautions:
    """From the checks that failed, the starts that do not count and the warnings of a result.

    An arm without any figure is not in it: its headline says why.
    """
    result = labelled(result)
    left_out = [Caution((), warning) for warning in result.warnings]
    left_out += [Caution((a.name,), a.reason) for a in result.arms if a.outcome == Outcome.OK and a.reason]
    labels: list[Caution] = []
    checked = [(a, gate) for a in result.arms if a.outcome in (Outcome.OK, Outcome.INVALID) for gate in a.gates]
    order = list(dict.fromkeys(gate.name for _, gate in checked))
    for arm, gate in sorted(checked, key=lambda found: order.index(found[1].name)):
        if gate.passed is False and not (arm.reason and gate.finding in arm.reason):
            text = f"{lost}: {gate.finding}" if (lost := gate_cost(gate)) else gate.finding
            (left_out if gate.voids else labels).append(Caution((arm.name,), text))
    return Cautions(tuple(_merged(left_out)), tuple(_merged(labels)))


def gate_cost(gate: Gate) -> str:
    """What a check that failed took out of the figures: ``1 visit left out``; empty if nothing."""
    if gate.passed is not False or not gate.voids:
        return ""
    if gate.void_rounds:
        return f"{plural(len(gate.void_rounds), 'round')} left out"
    if gate.void_visits:
        return f"{plural(gate.void_visits, 'visit')} left out"
    return "no verdict over all queries"


def _merged(cautions: Iterable[Caution]) -> list[Caution]:
    """What is said of several arms in the same words is said once."""
    arms: dict[str, tuple[str, ...]] = {}
    for caution in cautions:
        arms[caution.text] = arms.get(caution.text, ()) + caution.arms
    return [Caution(names, text) for text, names in arms.items()]
