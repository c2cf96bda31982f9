"""The claims, each held against what was measured here: its direction, and its size (docs/adr/0019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dbtoll.analysis.reproduction.published import Row, column, percent_geomean
from dbtoll.analysis.reproduction.verdicts import (
    EQUIVALENT,
    NOT_COUNTED,
    SIZE,
    Figure,
    Judged,
    Judgement,
    Rules,
    above,
    as_large,
    below,
    compared,
    decide,
    effect_figure,
    every,
    extremes,
    largest,
    not_measured,
    over_rounds,
    ratios,
    unknown,
    within,
)
from dbtoll.model.experiment import FEWEST_DRAWS, Verdict
from dbtoll.papers.minhas2008.parts import ONE, OWN, Cost, CountedFigure, Part, Parts
from dbtoll.papers.minhas2008.published import run_times, table

RULES = Rules()

MINOR = 0.1
FAR_FEWER = 0.5

COLD = "the time of cold statements"


def _queries(part: Part, connection: str = OWN) -> list[Figure] | None:
    """Of all queries, with intervals that hold together; None where one has no figure."""
    found = part.queries(connection=connection)
    figures = [compared(part, part.name_of(each), each) for each in found]
    if not found or len(found) < len(part.run.plan.queries) or None in figures:
        return None
    return [figure for figure in figures if figure is not None]


def _whatever_is_cached(figure: Callable[[Cost], Figure | None]) -> Figure | None:
    """Nobody knows how many of the calls find their things in the caches: the interval holds if all do, or none."""
    known = every(figure(cost) for cost in ("ns", "hot_ns", "cold_ns"))
    if known is None:
        return None
    lows, highs = ([getattr(each, bound) for each in known] for bound in ("low", "high"))
    return replace(known[0], low=None if None in lows else min(lows), high=None if None in highs else max(highs))


def _geomean_of(name: str, queries: Sequence[str]) -> float:
    return percent_geomean(run_times(name, queries), "xen", "base") / 100


def _published_queries(name: str, chosen: Callable[[Row], bool] = lambda row: True) -> list[str]:
    return [row["query"] for row in table(name) if chosen(row)]


# --- the claims --------------------------------------------------------------------------------------------------------


@RULES.of("M01")
def _every_query_is_slower(parts: Parts) -> Judged:
    rule = (
        "every query loses, by intervals that hold together; one that gains, or has no difference, is enough to differ"
    )
    size = "every query lies between 80 % of the published least and 125 % of the published most"
    figures, found = _queries(parts.warm), parts.warm.queries(connection=OWN)
    if figures is None:
        return unknown(rule, size, "not every query has a figure")
    printed = sorted((column(table("table1_warm_overhead"), "rel_slowdown_pct") / 100).tolist())
    verdict = {parts.warm.name_of(each): each.verdict for each in found}
    told = {Verdict.LOSES: True, Verdict.GAINS: False, Verdict.NO_DIFFERENCE: False}
    many = [list(verdict.values()).count(each) for each in (Verdict.LOSES, Verdict.GAINS)]
    counted = f"{many[0]} of {len(found)} queries lose, {many[1]} gain"
    ends = [
        replace(each, published=value) for each, value in zip(extremes(figures), (printed[0], printed[-1]), strict=True)
    ]
    within_ends = partial(within, least=EQUIVALENT[0] * printed[0], most=EQUIVALENT[1] * printed[-1])
    return Judged(
        decide(rule, lambda figure: told.get(verdict[figure.name]), figures, [], counted),
        decide(size, within_ends, figures, ends),
    )


@RULES.of("M02")
def _system_time_slows_down_more(parts: Parts) -> Judged:
    rule = "the slowdown of all system time, over that of all user time, is above 1; single queries have few ticks"
    size = f"{SIZE}, of the query whose system time slows down most"
    warm, queries = parts.warm, parts.warm.run.plan.queries
    rounds = _rounds(warm, OWN, queries)
    more = ratios(warm, "system over user", [
        (_slowdown(own, "user_ns", base), _slowdown(own, "system_ns", base)) for base, own in rounds
    ])  # fmt: skip
    both = every(
        ratios(warm, name, [(getattr(base, field), getattr(own, field)) for base, own in rounds])
        for name, field in (("system time", "system_ns"), ("user time", "user_ns"))
    )
    if more is None or both is None:
        return unknown(rule, size, NOT_COUNTED)
    each = every(
        ratios(
            warm, query, [(base.system_ns, own.system_ns) for base, own in _rounds(warm, OWN, [query])], len(queries)
        )
        for query in queries
    )
    direction = decide(rule, above, [more], [*both, more])
    if each is None:
        why = "a query had no tick of system time in a round"
        return Judged(direction, Judgement("cannot tell", size, why=why))
    return Judged(direction, decide(size, as_large, [largest(each, 1.54)]))


def _slowdown(own: CountedFigure, name: str, base: CountedFigure) -> float | None:
    """A count of the arm over the baseline's."""
    counts = getattr(own, name), getattr(base, name)
    return counts[0] / counts[1] if counts[0] and counts[1] else None


def _rounds(part: Part, connection: str, queries: Sequence[str]) -> list[tuple[CountedFigure, CountedFigure]]:
    """Sums over queries of baseline and arm, of each round that has all."""
    sides = [[part.by_round(arm, connection, query) for query in queries] for arm in (part.baseline, part.arm)]
    rounds = set.intersection(*(set(each) for side in sides for each in side)) if queries else set()
    return [(_sum([each[n] for each in sides[0]]), _sum([each[n] for each in sides[1]])) for n in sorted(rounds)]


def _sum(counts: Sequence[CountedFigure]) -> CountedFigure:
    def total(name: str) -> float | None:
        values = [getattr(each, name) for each in counts]
        return None if None in values else sum(values)

    return CountedFigure(*(total(name) for name in CountedFigure.__slots__))


@RULES.of("M03")
def _system_calls_are_slower(parts: Parts) -> Judged:
    rule = "the time in system calls (counts times probed costs) is longer in every query but Q13, by intervals that hold together"
    size = f"{SIZE}, of the query whose calls slow down most"
    warm, queries = parts.warm, parts.warm.run.plan.queries

    def slowdown(query: str, cost: Cost) -> Figure | None:
        return ratios(warm, query, warm.calls_by_round(query, cost).values(), len(queries))

    figures = every(_whatever_is_cached(partial(slowdown, query)) for query in queries)
    if figures is None:
        return unknown(rule, size, NOT_COUNTED)
    but_q13 = [figure for figure in figures if figure.name != "Q13"]
    return Judged(decide(rule, above, but_q13, extremes(but_q13)), decide(size, as_large, [largest(figures, 8.71)]))


@RULES.of("M04")
def _system_calls_are_minor(parts: Parts) -> Judged:
    size = f"minor: below {MINOR:.0%} of system time in every query on both sides, by intervals that hold together"
    warm, queries = parts.warm, parts.warm.run.plan.queries

    def share(index: int, arm: str, query: str, cost: Cost) -> Figure | None:
        calls, counted = warm.calls_by_round(query, cost), warm.by_round(arm, OWN, query)
        shares = [
            calls[number][index] / system_ns if (system_ns := counted[number].system_ns) else math.nan
            for number in sorted(set(calls) & set(counted))
        ]
        return over_rounds(warm, f"{query} in {arm}", "share", shares, float, 2 * len(queries))

    figures = [
        _whatever_is_cached(partial(share, index, arm, query))
        for index, arm in enumerate((warm.baseline, warm.arm))
        for query in queries
    ]
    known = every(figures)
    if known is None:
        return unknown(None, size, f"{NOT_COUNTED}, or a query had no tick of system time in a round")
    return Judged(None, decide(size, lambda figure: below(figure, MINOR), known, extremes(known)))


@RULES.of("M05")
def _page_faults_go_with_slowdown(parts: Parts) -> Judged:
    rule = "r over queries is above 0, by Fisher's interval"
    warm = parts.warm
    rates_of = [(each, *warm.fault_rate(warm.name_of(each))) for each in warm.queries(connection=OWN)]
    known = [
        (rate, each.estimate, warm.too_few(min(each.rounds, counted)))
        for each, rate, counted in rates_of
        if rate is not None and each.estimate is not None
    ]
    if len(known) < max(FEWEST_DRAWS, len(warm.run.plan.queries)):
        return unknown(rule, SIZE, "not every query has a figure" if known else NOT_COUNTED)
    rates, slowdowns = np.array([each[:2] for each in known]).T
    from scipy import stats as distributions  # takes a second, and each page asks each paper whether it is its

    found = distributions.pearsonr(rates, slowdowns)
    bounds = found.confidence_interval(warm.result.confidence)
    why = next((each[2] for each in known if each[2]), warm.barred)
    figure = Figure(
        f"over {len(known)} queries", "r", float(found.statistic), float(bounds.low), float(bounds.high), why=why
    )
    return Judged(decide(rule, above, [figure]), decide(SIZE, as_large, [replace(figure, published=0.916)]))


@RULES.of("M06")
def _a_fault_costs_more(parts: Parts) -> Judged:
    rule = "a fault on a new page, as probed, is dearer"
    size = f"{SIZE}, of the ratio of the two costs: the costs themselves are the processors'"
    figure = compared(
        parts.warm, "difference", parts.warm.comparison("query:fault_anonymous", "event_time", connection=OWN)
    )
    if figure is None:
        return unknown(rule, size, "it was not probed in this run")
    beside = replace(figure, published=3.5 / 1.67 - 1)
    return Judged(decide(rule, above, [figure]), decide(size, as_large, [beside]))


@RULES.of("M07")
def _one_connection_costs_less(parts: Parts) -> Judged:
    rule = "a connection for each query costs more than one connection, by the contrast of the two"
    size = f"{SIZE}, of the geometric mean of the ten queries of Table 4"
    warm = parts.warm
    found = next((c for c in warm.result.contrasts if c.arm == warm.arm and c.factor == "connection"), None)
    difference = compared(warm, "one for each query over one connection", found)
    ten = _published_queries("table4_single_connection")
    one = effect_figure(warm, "one connection", warm.geomean(ONE, ten))
    return Judged(
        decide(rule, above, every([difference]) or []),
        decide(
            size,
            as_large,
            [replace(one, published=_geomean_of("table4_single_connection", ten))] if one else [],
        ),
    )


@RULES.of("M08")
def _later_runs_fault_less(parts: Parts) -> Judged:
    rule = "on both sides later runs have fewer page faults than the first on a connection, all queries together"
    size = f"far fewer: less than {FAR_FEWER:.0%} of the first run's on both sides; that later runs are alike is not judged"
    warm, queries = parts.warm, parts.warm.run.plan.queries
    figures = []
    for arm in (warm.baseline, warm.arm):
        sides = [[warm.by_round(arm, connection, query) for query in queries] for connection in (OWN, ONE)]
        common = set.intersection(*(set(each) for side in sides for each in side))
        sums = [[_sum([each[number] for each in side]).faults for number in sorted(common)] for side in sides]
        logs = [math.log(later / first) if first and later else math.nan for first, later in zip(*sums, strict=True)]
        figures.append(over_rounds(warm, f"later over first, {arm}", "share", logs, math.exp, 2))
    known = every(figures)
    if known is None:
        return unknown(rule, size, NOT_COUNTED)
    return Judged(
        decide(rule, lambda figure: below(figure, 1.0), known),
        decide(size, lambda figure: below(figure, FAR_FEWER), known),
    )


def _cold_queries(parts: Parts, queries: Sequence[str], name: str, *, faster: bool = False) -> Judged:
    """Of the paper's queries, whatever they do here: those that come out so would be chosen by the outcome."""
    rule = f"{name} are {'faster' if faster else 'slower'}, by their geometric mean"
    size = f"{SIZE}, of their geometric mean"
    if parts.cold is None:
        return not_measured(rule, size, COLD)
    figure = effect_figure(parts.cold, name, parts.cold.geomean(OWN, queries))
    if figure is None:
        return unknown(rule, size, "not every one of them has a figure")
    beside = replace(figure, published=_geomean_of("table5_cold_overhead", queries))
    return Judged(decide(rule, below if faster else above, [figure]), decide(size, as_large, [beside]))


@RULES.of("M09")
def _slower_on_average_cold(parts: Parts) -> Judged:
    return _cold_queries(parts, _published_queries("table5_cold_overhead"), "all cold queries together")


@RULES.of("M10")
def _slower_cold(parts: Parts) -> Judged:
    slower = _published_queries("table5_cold_overhead", lambda row: float(row["rel_slowdown_pct"]) > 0)
    return _cold_queries(parts, slower, f"the paper's {len(slower)} slower queries")


@RULES.of("M11")
def _faster_cold(parts: Parts) -> Judged:
    faster = _published_queries("table5_cold_overhead", lambda row: float(row["rel_slowdown_pct"]) < 0)
    return _cold_queries(parts, faster, f"the paper's {len(faster)} faster queries", faster=True)


@RULES.of("M12")
def _waiting_for_the_disk(parts: Parts) -> Judged:
    size = f"{SIZE}, of both shares, each a mean over queries"
    cold = parts.cold
    if cold is None:
        return not_measured(None, size, COLD)
    figures = []
    for arm, printed in ((cold.baseline, 0.77), (cold.arm, 0.79)):
        queries = [cold.by_round(arm, OWN, query) for query in cold.run.plan.queries]
        shares = [
            float(np.mean([_share(each[number]) for each in queries]))
            for number in sorted(set.intersection(*map(set, queries)))
        ]
        figure = over_rounds(cold, arm, "share", shares, float, 2)
        figures.append(replace(figure, published=printed) if figure else None)
    known = every(figures)
    return unknown(None, size, NOT_COUNTED) if known is None else Judged(None, decide(size, as_large, known))


def _share(counted: CountedFigure) -> float:
    return math.nan if counted.iowait_ns is None or not counted.elapsed_ns else counted.iowait_ns / counted.elapsed_ns


@RULES.of("M13")
def _the_host_reads_more(parts: Parts) -> Judged:
    rule = "the host's reads over the guest's are more in queries that gain here than in the others (means of logs)"
    size = "arm and baseline read the same: all their reads differ by less than the experiment's margin"
    cold = parts.cold
    if cold is None:
        return not_measured(rule, size, COLD)
    pairs = _rounds(cold, OWN, cold.run.plan.queries)
    if not pairs or any(own.outer_read_bytes is None for _, own in pairs):
        why = "reads are not counted at two levels: the arm shares its parent's devices"
        return unknown(rule, size, why, "not possible here")
    same = ratios(cold, "arm over baseline", [(base.read_bytes, own.read_bytes) for base, own in pairs])
    margin = cold.run.plan.experiment.precision.margin
    alike = (
        Judgement("cannot tell", size, why="nothing was read in a round")
        if same is None
        else decide(size, lambda figure: within(figure, -margin, margin), [same])
    )
    gaining = [cold.name_of(each) for each in cold.queries(connection=OWN) if each.verdict == Verdict.GAINS]
    others = [query for query in cold.run.plan.queries if query not in gaining]
    if not gaining or not others:
        why = "no query is shown to gain" if others else "every query gains"
        return Judged(Judgement("cannot tell", rule, why=f"{why}, so none can be set against others"), alike)
    means = [_host_over_guest(cold, queries) for queries in (gaining, others)]
    logs = [means[0][number] - means[1][number] for number in sorted(set(means[0]) & set(means[1]))]
    more = over_rounds(cold, "those that gain over the others", "overhead", logs, math.expm1)
    return Judged(decide(rule, above, every([more]) or []), alike)


def _host_over_guest(part: Part, queries: Sequence[str]) -> dict[int, float]:
    """Round -> mean over queries of log(host's reads / guest's)."""
    found = [part.by_round(part.arm, OWN, query) for query in queries]
    return {
        number: float(np.mean([_log_reads(each[number]) for each in found]))
        for number in set.intersection(*map(set, found))
    }


def _log_reads(counted: CountedFigure) -> float:
    outer, inner = counted.outer_read_bytes, counted.read_bytes
    return math.log(outer / inner) if outer and inner else math.nan


@RULES.of("M14")
def _without_reading_ahead(parts: Parts) -> Judged:
    rule = "some query gains with read-ahead in the guest; without it every interval excludes a gain of the experiment's margin"
    if parts.unread is None:
        why = "the arm has no kernel of its own whose read-ahead could be off, or it was not run"
        return unknown(rule, None, why, "not possible here")
    figures, found = _queries(parts.unread), parts.unread.queries(connection=OWN)
    if figures is None:
        return unknown(rule, None, "not every query has a figure")
    before = (
        0 if parts.cold is None else sum(each.verdict == Verdict.GAINS for each in parts.cold.queries(connection=OWN))
    )
    gaining = {parts.unread.name_of(each) for each in found if each.verdict == Verdict.GAINS}
    margin = parts.unread.run.plan.experiment.precision.margin

    def excluded(figure: Figure) -> bool | None:
        return False if figure.name in gaining else (figure.low is not None and figure.low > -margin) or None

    out = sum(not figure.why and excluded(figure) is True for figure in figures)
    counted = f"{before} gain with read-ahead; without it {len(gaining)} of {len(found)} gain, {out} are shown not to"
    judged = decide(rule, excluded, figures, [], counted)
    if judged.outcome == "reproduced" and not before:
        judged = replace(
            judged, outcome="cannot tell", why="none gains with read-ahead either, so its end could not show"
        )
    return Judged(judged, None)
