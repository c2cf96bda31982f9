"""Verdicts, reasons and headlines as sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model.experiment import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbtoll.analysis.result.schema import Amount, ArmResult, Comparison, Contrast, Result
    from dbtoll.model.experiment import Experiment
from dbtoll.report.text.names import (
    arm_title,
    baselines,
    differences_text,
    family,
    level_text,
    levels_text,
    metric_text,
    natural_key,
    with_arm_labels,
)
from dbtoll.report.text.numbers import (
    MINUS,
    NOTHING,
    THIN,
    EffectText,
    IntervalText,
    decisive,
    effect,
    is_throughput,
    margin,
    number,
    percent,
)

WORTH_NAMING, MOST = 0.2, 0.5
"""Of an overhead, by the lower bound: what explains less of it is not its cause in a word; what explains more is most of it."""


def verdict_text(verdict: str | None, margin_fraction: float) -> str:
    """The verdict with the margin it speaks of; a dash where there is none."""
    if verdict is None:
        return NOTHING
    return f"no difference within {margin(margin_fraction)}" if verdict == Verdict.NO_DIFFERENCE else str(verdict)


def is_beyond(c: Comparison, margin_fraction: float) -> bool:
    """Whether what the verdict rests on lies beyond the margin, all of it."""
    low = c.low if c.low_decisive is None else c.low_decisive
    high = c.high if c.high_decisive is None else c.high_decisive
    if c.verdict == Verdict.LOSES:
        return low is not None and low > margin_fraction
    return c.verdict == Verdict.GAINS and high is not None and high < -margin_fraction


def verdict_of(c: Comparison, margin_fraction: float) -> str:
    """``loses`` of an interval above 0, ``clearly loses`` of one that lies beyond the margin; ``A/A`` of two copies."""
    if c.is_aa:
        return "A/A"
    return ("clearly " if is_beyond(c, margin_fraction) else "") + verdict_text(c.verdict, margin_fraction)


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
    verdict: str, found: EffectText, margin_fraction: float, reason: str | None, decisive: EffectText | None = None
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


def _would_tell(found: EffectText, margin_fraction: float) -> bool:
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
        by = abs(EffectText(comparison.metric, widened_by, None, None).change.estimate or 0.0)
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
    ``note``: a sentence on what differs beside the environment, and one on the total, where its verdict is another; else empty.
    """

    arm: str
    name: str
    levels: str
    phrase: Phrase
    kind: str
    note: str = ""

    @property
    def subject(self) -> str:
        """``Docker (cold)``, and what joins it to the phrase."""
        join = " " if self.kind in (Verdict.LOSES, Verdict.GAINS) else ": "
        return f"{self.name}{f' ({self.levels})' if self.levels else ''}{join}"

    @property
    def sentence(self) -> str:
        return f"{self.subject}{self.phrase}"


def _headline_of(arm: ArmResult, comparison: Comparison, result: Result, varied: Sequence[str]) -> Headline:
    levels = levels_text(comparison.levels, varied)
    if comparison.is_aa:
        same = (c for c in result.comparisons if (c.levels, c.metric) == (comparison.levels, comparison.metric))
        widened = max((c.widened_by for c in same if comparison.baseline in (c.arm, c.baseline)), default=0.0)
        several = sum(each.copy_of is not None for each in result.arms) > 1
        name = f"{NOISE_FLOOR} of {comparison.baseline}" if several else NOISE_FLOOR
        return Headline(arm.name, name, levels, noise_phrase(comparison, widened), "noise")
    reason = comparison.reason or (_BEYOND_CHANCE if comparison.widened_by else None)
    if arm.outcome == Outcome.FAILED and comparison.verdict == Verdict.CANNOT_TELL:
        reason = "this is what worked, alone"
    phrase = verdict_phrase(comparison.verdict, effect(comparison), result.margin, reason, decisive(comparison))
    if comparison.verdict in (Verdict.LOSES, Verdict.GAINS):
        cause = _cause(comparison, result)
        lead = f"{verdict_of(comparison, result.margin)}: {phrase.lead}"
        phrase = Phrase(lead, f"{phrase.rest}; {cause}" if cause else phrase.rest)
    kind = comparison.verdict or Verdict.CANNOT_TELL
    notes = (differences_text(arm, DIFFERENCES_NAMED), _other_answer(comparison, result))
    return Headline(
        arm.name, _subject(arm, result), levels, phrase, kind, " ".join(_ended(each) for each in notes if each)
    )


DIFFERENCES_NAMED = 4
"""In a headline; the table has all of them."""


def _subject(arm: ArmResult, result: Result) -> str:
    """``Docker``; ``new against old`` where it differs in more than the environment, or arms have unlike baselines."""
    title = arm_title(arm.name, result)
    shown = arm.against and (arm.differences or len(baselines(result)) > 1)
    return f"{title} against {arm.against}" if shown else title


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(".") else f"{sentence[:1].upper()}{sentence[1:]}."


def _other_answer(geomean: Comparison, result: Result) -> str:
    """What the total says, where its verdict is another than that of the geometric mean; else empty."""
    key = (geomean.arm, geomean.levels, geomean.metric)
    totals = (c for c in result.comparisons if c.estimand == "ratio_of_totals")
    total = next((c for c in totals if (c.arm, c.levels, c.metric) == key), None)
    if total is None or total.verdict == geomean.verdict or total.estimate is None or geomean.estimate is None:
        return ""
    found, verdict = effect(total), verdict_of(total, result.margin)
    if total.verdict in (Verdict.LOSES, Verdict.GAINS):
        said = f"{verdict}: {found.said}" + (f" ({found.said_bounds})" if found.said_bounds else "")
    else:
        said = f"{verdict} {found.inside}"
    return f"All queries weigh alike here; your total time, in which long ones weigh more, has another answer: {said}."


def _cause(comparison: Comparison, result: Result) -> str:
    """``most of it: page faults (91 %, 85 … 97)``: the ledger's largest family of items; empty where none is shown to be large."""
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
        lead = "most of it:"
    elif all(high is not None and high < share.low for high in others):
        lead = "the largest part:"
    else:
        lead = "in part:"
    bounds = " … ".join(number(100 * each) for each in (share.low, share.high) if each is not None)
    return f"{lead} {largest} ({percent(share.estimate, 0, plus=False)}, {bounds})"


def _share_of(amounts: Sequence[Amount], whole_ns: float) -> IntervalText:
    """Of a family of items: its bounds are the sums of theirs, as if all were wrong in the same direction."""
    sums = [[getattr(each, name) for each in amounts] for name in ("ns", "low_ns", "high_ns")]
    return IntervalText(*(None if None in values else sum(values) / whole_ns for values in sums))


def headlines(result: Result) -> list[Headline]:
    """A sentence per arm (and levels, where they vary) over all queries' run time, in the order of the arms; A/A last.

    What failed of an arm is said before any figure of it; one that has none gets the reason alone. The baseline itself has
    nothing to be compared with.
    """
    result = with_arm_labels(result)
    varied = varied_factors(c.levels for c in result.comparisons)
    said: list[Headline] = []
    for arm in result.arms:
        if arm.outcome != Outcome.OK:
            said.append(
                Headline(arm.name, _subject(arm, result), "", outcome_phrase(arm.outcome, arm.reason), arm.outcome)
            )
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
    level, against = (level_text(each.factor, name) for name in (each.level, each.against))
    found = EffectText(result.main_metric, each.estimate, each.low, each.high)
    rests_on = EffectText(result.main_metric, each.estimate, each.low_decisive, each.high_decisive)
    reason = each.reason or (_BEYOND_CHANCE if each.widened_by else None)
    return (
        f"{arm_title(each.arm, result)}{f' ({others})' if others else ''}: {level}, not {against}, beyond what that does to "
        f"{each.baseline}: {verdict_phrase(each.verdict, found, result.margin, reason, rests_on)}"
    )


def buffer_pools(experiment: Experiment) -> Iterator[str]:
    """How those of designs for tenants are dealt to their servers, and whether they are equal in sum."""
    dealt = {
        arm.name: (arm.layout.all_servers, pool)
        for arm in experiment.arms
        if arm.copy_of is None and arm.design and (pool := arm.configuration.resources.buffer_pool_bytes) is not None
    }
    if dealt:
        equal = len({pool for _, pool in dealt.values()}) == 1
        said = ", ".join(f"{name} {servers} of {pool // servers >> 20} MiB" for name, (servers, pool) in dealt.items())
        yield f"buffer pools, {'' if equal else 'NOT '}equal in sum: {said}"


def changed_plans(result: Result) -> list[str]:
    """A line per arm whose server chose other plans, and what remains of its effect without those queries."""
    result = with_arm_labels(result)
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
