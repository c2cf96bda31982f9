"""The claims of minhas2008, each held against what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy import stats as distributions

from dbtoll.analysis import stats
from dbtoll.analysis.reproduction.parts import ONE, OWN, Counted, Part, Parts, mean, of
from dbtoll.analysis.shape import Comparison, EffectResult
from dbtoll.model import Verdict

STRONGLY = 0.5
"""A correlation coefficient above it is called strong (Cohen: Statistical Power Analysis, 1988, §3.2)."""
MINOR = 0.1
SAME_READS = 0.05
FEWEST_FOR_A_CORRELATION = 4

Outcome = Literal["reproduced", "differs", "cannot tell", "not possible here"]
Told = tuple[str, Outcome, str]
CLAIMS: dict[str, Callable[[Parts], Told]] = {}


def _claim(identity: str) -> Callable[[Callable[[Parts], Told]], Callable[[Parts], Told]]:
    def register(answer: Callable[[Parts], Told]) -> Callable[[Parts], Told]:
        CLAIMS[identity] = answer
        return answer

    return register


def percent(value: float) -> str:
    """``+12.3 %``"""
    return f"{value * 100:+.{1 if abs(value) < 1 else 0}f} %"


def _shown(effect: EffectResult | Comparison) -> str:
    if effect.estimate is None or effect.low is None or effect.high is None:
        return "no figure"
    return f"{percent(effect.estimate)} ({effect.low * 100:.1f} … {effect.high * 100:.1f})"


def _above(low: float, high: float, bound: float = 0.0) -> Outcome:
    """Whether what has this interval is above the bound."""
    return "reproduced" if low > bound else "differs" if high < bound else "cannot tell"


NOT_COUNTED: Told = ("nothing", "cannot tell", "it was not counted in this run")
NO_COLD_RUN: Told = ("nothing", "cannot tell", "cold statements were not measured")


@_claim("M01")
def _every_query_is_slower(parts: Parts) -> Told:
    queries = parts.warm.queries(OWN)
    if not queries:
        return NOT_COUNTED
    verdicts = [each.verdict for each in queries]
    estimates = [each.estimate or 0.0 for each in queries]
    told = (
        f"{verdicts.count(Verdict.LOSES)} of {len(queries)} queries lose, {verdicts.count(Verdict.GAINS)} gain; "
        f"{percent(min(estimates))} to {percent(max(estimates))}"
    )
    if verdicts.count(Verdict.LOSES) == len(queries):
        return told, "reproduced", "every one loses, by intervals adjusted over all queries"
    if Verdict.GAINS in verdicts or Verdict.NO_DIFFERENCE in verdicts:
        return told, "differs", "not every one loses"
    return told, "cannot tell", "more rounds would be needed for some of them"


@_claim("M02")
def _system_time_slows_down_more(parts: Parts) -> Told:
    """Per round: all system time of the arm over the baseline's, over the same of user time."""
    warm = parts.warm
    found = _rounds(warm, OWN)
    values = [
        math.log(own.system_ns / base.system_ns) - math.log(own.user_ns / base.user_ns)
        for base, own in found
        if own.system_ns and base.system_ns and own.user_ns and base.user_ns
    ]
    interval = stats.interval(np.array(values), 1 - warm.result.confidence, 2)
    if interval is None:
        return NOT_COUNTED
    system, user = (
        mean([getattr(own, name) / getattr(base, name) for base, own in found if getattr(base, name)])
        for name in ("system_ns", "user_ns")
    )
    told = f"system time {percent((system or 1) - 1)}, user time {percent((user or 1) - 1)}, all queries together"
    return told, _above(interval.low, interval.high), "the interval of their ratio over rounds"


def _rounds(part: Part, connection: str) -> list[tuple[Counted, Counted]]:
    """Sums over queries of baseline and arm, of each round that has all."""
    queries = part.run.plan.queries
    sides = [[part.by_round(arm, connection, query) for query in queries] for arm in (part.baseline, part.arm)]
    rounds = set.intersection(*(set(each) for side in sides for each in side)) if queries else set()
    return [(_sum([each[n] for each in sides[0]]), _sum([each[n] for each in sides[1]])) for n in sorted(rounds)]


def _sum(counts: Sequence[Counted]) -> Counted:
    def total(name: str) -> float | None:
        values = [getattr(each, name) for each in counts]
        return None if None in values else sum(values)

    return Counted(*(total(name) for name in Counted.__slots__))


@_claim("M03")
def _system_calls_are_slower(parts: Parts) -> Told:
    return _probe(parts, "system_call", "a system call takes")


def _probe(parts: Parts, name: str, words: str) -> Told:
    found = parts.warm.comparison(OWN, f"query:{name}", "event_time")
    if found is None or found.estimate is None or found.low is None or found.high is None:
        return "nothing", "cannot tell", "it was not probed in this run"
    arms = (parts.warm.baseline, parts.warm.arm)
    each = " and ".join(f"{(parts.warm.book.cost_ns(arm, name) or math.nan) / 1e3:.2f} us in {arm}" for arm in arms)
    told = f"{words} {each}: {_shown(found)}"
    return told, _above(found.low, found.high), "the direction, by a probe of one event; the size is another machine's"


@_claim("M04")
def _system_calls_are_minor(parts: Parts) -> Told:
    warm = parts.warm
    totals = [0.0, 0.0, 0.0, 0.0]
    for query in warm.run.plan.queries:
        in_calls = warm.calls_ns(query)
        base, own = (warm.counted(arm, OWN, query) for arm in (warm.baseline, warm.arm))
        if in_calls is None or base is None or own is None or base.system_ns is None or own.system_ns is None:
            return NOT_COUNTED
        for index, value in enumerate((*in_calls, base.system_ns, own.system_ns)):
            totals[index] += value
    if not totals[2] or not totals[3]:
        return NOT_COUNTED
    shares = totals[0] / totals[2], totals[1] / totals[3]
    told = f"{shares[0]:.0%} of system time in {warm.baseline}, {shares[1]:.0%} in {warm.arm}, all queries together"
    outcome: Outcome = "reproduced" if max(shares) < MINOR else "differs"
    return told, outcome, f"minor: below {MINOR:.0%} on both sides"


@_claim("M05")
def _page_faults_go_with_slowdown(parts: Parts) -> Told:
    warm = parts.warm
    known = [
        (rate, each.estimate)
        for each in warm.queries(OWN)
        if (rate := warm.fault_rate(each.estimand.removeprefix("query:"))) is not None and each.estimate is not None
    ]
    if len(known) < FEWEST_FOR_A_CORRELATION:
        return NOT_COUNTED
    rates, slowdowns = np.array(known).T
    found = distributions.pearsonr(rates, slowdowns)
    bounds = found.confidence_interval(warm.result.confidence)
    told = f"r = {found.statistic:.2f} ({bounds.low:.2f} … {bounds.high:.2f}) over {len(known)} queries"
    return told, _above(bounds.low, bounds.high, STRONGLY), f"strongly: above {STRONGLY}, by Fisher's interval"


@_claim("M06")
def _a_fault_costs_more(parts: Parts) -> Told:
    return _probe(parts, "fault_anonymous", "a minor fault on a new page takes")


@_claim("M07")
def _one_connection_costs_less(parts: Parts) -> Told:
    warm = parts.warm
    one, own = (warm.comparison(connection, "geomean") for connection in (ONE, OWN))
    found = next((c for c in warm.result.contrasts if c.arm == warm.arm and c.factor == "connection"), None)
    if one is None or own is None or found is None or found.low is None or found.high is None:
        return NOT_COUNTED
    told = f"{_shown(one)} on one connection, {_shown(own)} on one for each query"
    return (
        told,
        _above(found.low, found.high),
        "that it is lower, by the contrast of the two; the size is another machine's",
    )


@_claim("M08")
def _later_runs_fault_less(parts: Parts) -> Told:
    warm = parts.warm
    shares = []
    for arm in (warm.baseline, warm.arm):
        first, later = (
            [warm.counted(arm, connection, query) for query in warm.run.plan.queries] for connection in (OWN, ONE)
        )
        sums = [mean([of(each, "faults") for each in side]) for side in (first, later)]
        if sums[0] is None or sums[1] is None or not sums[0]:
            return NOT_COUNTED
        shares.append(sums[1] / sums[0])
    told = f"later runs have {shares[0]:.0%} of a first run's page faults in {warm.baseline}, {shares[1]:.0%} in {warm.arm}"
    return told, "reproduced" if max(shares) < 0.5 else "differs", "far fewer: less than half, all queries together"


@_claim("M09")
def _cold_costs_less(parts: Parts) -> Told:
    if parts.cold is None:
        return NO_COLD_RUN
    cold, warm = parts.cold.comparison(OWN, "geomean"), parts.warm.comparison(OWN, "geomean")
    if cold is None or warm is None or cold.low is None or cold.high is None or warm.low is None or warm.high is None:
        return NOT_COUNTED
    told = f"{_shown(cold)} cold, {_shown(warm)} warm"
    return (
        told,
        _above(warm.low - cold.high, warm.high - cold.low),
        "that it is less than warm, by their intervals; the size is another machine's",
    )


def _cold_queries(parts: Parts, wanted: Verdict, words: str) -> Told:
    if parts.cold is None:
        return NO_COLD_RUN
    queries = parts.cold.queries(OWN)
    chosen = [each.estimate or 0.0 for each in queries if each.verdict == wanted]
    told = f"{len(chosen)} of {len(queries)} queries {words}"
    if chosen:
        return f"{told}, on average by {percent(sum(chosen) / len(chosen))}", "reproduced", "there are such queries"
    unclear = any(each.verdict == Verdict.CANNOT_TELL for each in queries)
    return told, "cannot tell" if unclear else "differs", "none is shown to, by intervals adjusted over all queries"


@_claim("M10")
def _slower_cold(parts: Parts) -> Told:
    return _cold_queries(parts, Verdict.LOSES, "lose when cold")


@_claim("M11")
def _faster_cold(parts: Parts) -> Told:
    return _cold_queries(parts, Verdict.GAINS, "gain when cold")


@_claim("M12")
def _waiting_for_the_disk(parts: Parts) -> Told:
    if parts.cold is None:
        return NO_COLD_RUN
    shares = []
    for arm in (parts.cold.baseline, parts.cold.arm):
        found = [parts.cold.counted(arm, OWN, query) for query in parts.cold.run.plan.queries]
        known = [
            each.iowait_ns / each.elapsed_ns
            for each in found
            if each and each.iowait_ns is not None and each.elapsed_ns
        ]
        if not known:
            return NOT_COUNTED
        shares.append(sum(known) / len(known))
    told = f"{shares[0]:.0%} of cold run time in {parts.cold.baseline}, {shares[1]:.0%} in {parts.cold.arm}"
    outcome: Outcome = "reproduced" if min(shares) > 0.5 else "differs"
    return told, outcome, "most of it: more than half; this disk is not theirs"


@_claim("M13")
def _the_host_reads_more(parts: Parts) -> Told:
    cold = parts.cold
    if cold is None:
        return NO_COLD_RUN
    same, ratios = [], {True: [], False: []}  # type: ignore[var-annotated]
    for each in cold.queries(OWN):
        query = each.estimand.removeprefix("query:")
        base, own = (cold.counted(arm, OWN, query) for arm in (cold.baseline, cold.arm))
        if base and own and base.read_bytes and own.read_bytes and own.outer_read_bytes is not None:
            same.append(abs(own.read_bytes / base.read_bytes - 1) < SAME_READS)
            ratios[each.verdict == Verdict.GAINS].append(own.outer_read_bytes / own.read_bytes)
    if not same:
        return (
            "nothing",
            "not possible here",
            "reads are not counted at two levels: the arm shares its parent's devices",
        )
    everything = ratios[True] + ratios[False]
    told = (
        f"arm and baseline read the same for {sum(same)} of {len(same)} queries; the host read "
        f"{min(everything):.2f} to {max(everything):.2f} times as much as the arm"
    )
    if not ratios[True]:
        return told, "cannot tell", "no query is shown to gain, so there is nothing that prefetching would explain"
    more = np.mean(ratios[True]) > np.mean(ratios[False] or [1.0])
    return (
        told,
        "reproduced" if more and sum(same) > len(same) / 2 else "differs",
        "means of the ratios of faster and slower",
    )


@_claim("M14")
def _without_reading_ahead(parts: Parts) -> Told:
    if parts.unread is None:
        return (
            "nothing",
            "not possible here",
            "the arm has no kernel of its own whose read-ahead could be off, or it was not run",
        )
    queries = parts.unread.queries(OWN)
    gaining = sum(each.verdict == Verdict.GAINS for each in queries)
    before = 0 if parts.cold is None else sum(each.verdict == Verdict.GAINS for each in parts.cold.queries(OWN))
    told = f"{gaining} of {len(queries)} queries gain without read-ahead in the guest, {before} with it"
    if gaining:
        return told, "differs", "some still gain"
    if not before:
        return told, "cannot tell", "none gains with read-ahead either, so its end could not show"
    return told, "reproduced", "none gains any more"
