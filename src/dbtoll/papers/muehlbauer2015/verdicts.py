"""The claims, each held against what was measured here: its direction, and its size (docs/adr/0019).

docs/method/muehlbauer2015.md has all of the rules, and what was decided before anything was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dbtoll.analysis.effects.comparisons import Effect
from dbtoll.analysis.reproduction.verdicts import (
    NOT_COUNTED,
    SIZE,
    ClaimOutcome,
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
    largest,
    not_measured,
    over_rounds,
    unknown,
    within,
)
from dbtoll.papers.muehlbauer2015 import published
from dbtoll.papers.muehlbauer2015.parts import (
    CONTAINER,
    HYPER,
    IN_MEMORY,
    MONETDB,
    REMOTE,
    SYSTEMS,
    TRANSACTIONS,
    Part,
    Parts,
)

RULES = Rules()

NOT_POSSIBLE: ClaimOutcome = "not possible here"
SAME_PLANS = "the total of the queries whose plans are the same everywhere, at most threads"

TRANSLATION = ("chase_4k_pages",)
"""Probes: of accesses to memory that miss the translation buffer nearly always."""
FAULTS = ("fault_anonymous", "fault_file", "fault_shared", "fault_shared_read", "fault_copy")
CALLS = ("system_call", "system_call_read", "system_call_write", "system_call_stat", "system_call_seek")
BUS = ("memory_read", "memory_copy")

MICRO = 0.10
"""Of misses of the translation buffer and of page faults: up to."""
MICRO_CALLS = 0.60
"""Of system calls: up to."""


def _without(effect: Effect | None) -> str:
    """Why there is no figure."""
    return (effect and effect.reason) or "no query that has the same plan everywhere has a figure"


def _sized(size: str, figures: Sequence[Figure], apart: str) -> Judgement:
    """The verdict on a size, or why none is possible of this arm: its figures are told all the same."""
    if apart:
        return Judgement(NOT_POSSIBLE, size, tuple(figures), why=apart)
    return decide(size, as_large, figures)


# --- Figures 2 and 3 ---------------------------------------------------------------------------------------------------


def _loses(role: str, environment: str, title: str, parts: Parts) -> Judged:
    """A system in the guest against bare metal, by the claim's environment."""
    rule = f"longer than in the baseline, by {SAME_PLANS}"
    size = f"{SIZE}, of the same total; the published one of all runs but the first, over the same queries"
    part = parts.get(role)
    if part is None:
        return not_measured(rule, size, f"{SYSTEMS[role]} on TPC-H")
    instead = part.stands_for or part.arm
    if environment == "virtualbox" and instead != environment:
        return unknown(rule, size, f"the guest here is {part.arm}, not {title}", NOT_POSSIBLE)
    if environment == "kvm" and instead == "virtualbox":
        return unknown(rule, size, f"the guest here is VirtualBox, not {title}", NOT_POSSIBLE)
    effect = part.total(part.most)
    figure = effect_figure(part, part.arm, effect)
    if figure is None:
        return unknown(rule, size, _without(effect))
    queries, changed = part.same_plans(part.most), part.changed_plans(part.most)
    printed = published.overhead(SYSTEMS[role], published.MOST, environment, queries=queries)
    counted = f"{len(queries)} queries" + (f", without {', '.join(changed)}: their plans differ" if changed else "")
    counted += f"; {part.title} in the place of {title}" if part.apart else ""
    direction = decide(rule, above, [figure], counted=counted)
    return Judged(direction, _sized(size, [replace(figure, published=printed)], part.apart))


for _claim, _role, _environment, _title in (
    ("H01", "hyper", "kvm", "KVM"),
    ("H02", "hyper", "virtualbox", "VirtualBox"),
    ("H03", "monetdb", "kvm", "KVM"),
    ("H04", "monetdb", "virtualbox", "VirtualBox"),
):
    RULES.of(_claim)(partial(_loses, _role, _environment, _title))


@RULES.of("H05")
def _docker_costs_nothing(parts: Parts) -> Judged:
    size = f"the container loses and gains less than the experiment's margin on both systems, by {SAME_PLANS}"
    figures, margins = [], []
    for role, system in SYSTEMS.items():
        part = parts.get(role)
        if part is None:
            return not_measured(None, size, f"{system} on TPC-H")
        if CONTAINER not in part.arms:
            return unknown(None, size, f"no arm is called {CONTAINER}", NOT_POSSIBLE)
        docker = part.of(CONTAINER)
        effect = docker.total(docker.most)
        if (figure := effect_figure(docker, system, effect)) is None:
            return unknown(None, size, f"{system}: {_without(effect)}")
        printed = published.overhead(system, published.MOST, "docker", queries=docker.same_plans(docker.most))
        figures.append(replace(figure, published=printed))
        margins.append(part.run.plan.experiment.precision.margin)
    margin = min(margins)
    return Judged(None, decide(size, lambda figure: within(figure, -margin, margin), figures))


@RULES.of("H06")
def _one_thread_is_closer(parts: Parts) -> Judged:
    rule = (
        "the gap between the two systems' overheads, (1 + MonetDB's) / (1 + HyPer's), is nearer to 1 on the fewest threads than on "
        "the most: its logarithm is the smaller one, by intervals of both runs that hold together; queries whose plans are the "
        "same in all"
    )
    runs = [parts.get(role) for role in SYSTEMS]
    hyper, monetdb = runs
    if hyper is None or monetdb is None:
        return not_measured(rule, None, f"{HYPER} or {MONETDB} on TPC-H")
    numbers = sorted(set(hyper.threads) & set(monetdb.threads))
    if len(numbers) < 2:
        return unknown(rule, None, "there are no two numbers of threads that both systems were measured with")
    few, most = numbers[0], numbers[-1]
    same = [set(part.same_plans(number)) for part in (hyper, monetdb) for number in (few, most)]
    queries = [query for query in hyper.run.plan.queries if all(query in each for each in same)]

    def apart(name: str, *terms: tuple[int, int]) -> Figure | None:
        return _difference(name, _logs(monetdb, queries, *terms), _logs(hyper, queries, *terms))

    gaps = [
        apart(f"gap on the {which}, {_threads(number)}", (number, 1))
        for which, number in (("fewest", few), ("most", most))
    ]
    sides = [apart("wider on the most", (most, 1), (few, -1)), apart("both gaps together", (most, 1), (few, 1))]
    known, shown = every(sides), every(gaps)
    if known is None or shown is None:
        return unknown(rule, None, "no query that has the same plan everywhere has a figure")
    wider, both = known
    # Of two numbers the first is the smaller one in size where their difference and their sum have the same sign.
    sign = above(both)
    if sign is False:
        wider = replace(wider, estimate=-wider.estimate, low=_negative(wider.high), high=_negative(wider.low))
    elif sign is None:
        wider = replace(wider, why=wider.why or "the two gaps may cancel: which one is the larger cannot be told")
    told = [
        replace(_ratio(gap), published=_published_gap(number, hyper.stands_for or "kvm", queries))
        for gap, number in zip(shown, (1, published.MOST), strict=True)
    ]
    note = f"{hyper.title} in the place of KVM" if hyper.apart else ""
    return Judged(decide(rule, above, [wider], [*told, _ratio(replace(wider, name="wider on the most"))], note), None)


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def _negative(bound: float | None) -> float | None:
    return None if bound is None else -bound


def _published_gap(threads: int, environment: str, queries: Sequence[str]) -> float | None:
    monetdb, hyper = (published.overhead(system, threads, environment, queries=queries) for system in (MONETDB, HYPER))
    return None if monetdb is None or hyper is None else (1 + monetdb) / (1 + hyper) - 1


def _logs(part: Part, queries: Sequence[str], *terms: tuple[int, int]) -> Figure | None:
    """The sum over (threads, sign) of the arm's log overheads of a round. Its interval is one of two that hold together."""
    effects = [(part.total(threads, queries), sign) for threads, sign in terms]
    rounds = [dict(effect.by_round) if effect else {} for effect, _ in effects]
    common = sorted(set.intersection(*map(set, rounds)))
    values = [sum(sign * each[number] for each, (_, sign) in zip(rounds, effects, strict=True)) for number in common]
    found = over_rounds(part, part.arm, "overhead", values, float, 2)
    if found is None or found.low is None or found.high is None:
        return found
    alarm = sum(effect.widened_by for effect, _ in effects if effect)
    return replace(found, low=found.low - alarm, high=found.high + alarm)


def _difference(name: str, first: Figure | None, second: Figure | None) -> Figure | None:
    """Of two runs, which share no rounds: both intervals hold together, so their ends bound it. Log scale."""
    if first is None or second is None:
        return None
    low = None if first.low is None or second.high is None else first.low - second.high
    high = None if first.high is None or second.low is None else first.high - second.low
    why = "; ".join(dict.fromkeys(each.why for each in (first, second) if each.why))
    return Figure(name, "overhead", first.estimate - second.estimate, low, high, why=why)


def _log(figure: Figure | None) -> Figure | None:
    """To the log scale."""
    if figure is None:
        return None
    low, high = (None if bound is None else math.log1p(bound) for bound in (figure.low, figure.high))
    return replace(figure, estimate=math.log1p(figure.estimate), low=low, high=high)


def _ratio(figure: Figure) -> Figure:
    """From the log scale."""
    low, high = (None if bound is None else math.expm1(bound) for bound in (figure.low, figure.high))
    return replace(figure, estimate=math.expm1(figure.estimate), low=low, high=high)


# --- Section 2 ---------------------------------------------------------------------------------------------------------


@RULES.of("H07")
def _micro_benchmarks(parts: Parts) -> Judged:
    rule = (
        "the dearest of each kind of event (access that misses the translation buffer, page fault, system call), as probed, costs "
        "more than in the baseline, by intervals that hold together over all probes"
    )
    size = (
        f"{SIZE}: of the dearer of buffer misses and page faults {MICRO:.0%}, "
        f"of the system call that slows down most {MICRO_CALLS:.0%}"
    )
    part = parts.get("probes")
    if part is None:
        return not_measured(rule, size, "what single events cost")

    def dearest(kinds: Sequence[str], published_most: float, name: str) -> Figure | None:
        found = [compared(part, each, part.comparison(f"query:{each}", "event_time")) for each in kinds]
        known = every(found)
        if known is None:
            return None
        most = largest(known, published_most)
        return replace(most, name=f"{name}, {most.name}")

    kinds = [
        dearest(TRANSLATION, MICRO, "buffer miss"),
        dearest(FAULTS, MICRO, "page fault"),
        dearest(CALLS, MICRO_CALLS, "system call"),
    ]
    both = [dearest((*TRANSLATION, *FAULTS), MICRO, "buffer miss or page fault"), kinds[-1]]
    known, sized = every(kinds), every(both)
    if known is None or sized is None:
        return unknown(rule, size, NOT_COUNTED)
    note = f"{part.title} in the place of the paper's guests" if part.apart else ""
    return Judged(decide(rule, above, known, counted=note), _sized(size, sized, part.apart))


@RULES.of("H08")
def _write_load(parts: Parts) -> Judged:
    rule = "MonetDB writes more to memory in Q1 than HyPer does"
    size = "MonetDB writes about 3 GB/s, HyPer a few MB/s"
    why = (
        "what crosses the memory bus is counted by the memory controller (uncore events, or resctrl's memory bandwidth), which "
        "dbtoll does not read; no other counter tells of it"
    )
    return unknown(rule, size, why, NOT_POSSIBLE)


# --- Figures 4 and 5, Table 2 ------------------------------------------------------------------------------------------


@RULES.of("H09")
def _memory_in_place_of_the_disk(parts: Parts) -> Judged:
    rule = f"with MonetDB's files in memory the guest takes less time than with them on its disk, by {SAME_PLANS}"
    size = f"with its files in memory VirtualBox loses what KVM does: {SIZE}, of KVM's overhead"
    part = parts.get("storage")
    if part is None or IN_MEMORY not in part.arms:
        return not_measured(rule, size, "MonetDB with its files in memory")
    memory = part.of(IN_MEMORY)
    queries = [query for query in memory.same_plans(memory.most) if query in part.same_plans(part.most)]
    effect = memory.total(memory.most, queries, against=part.arm)
    gained = effect_figure(memory, f"{IN_MEMORY} against disk", effect)
    against_native = effect_figure(memory, IN_MEMORY, memory.total(memory.most, queries))
    if gained is None or against_native is None:
        return unknown(rule, size, _without(effect))
    note = f"{part.title} in the place of VirtualBox" if part.stands_for != "virtualbox" else ""
    direction = decide(rule, below, [replace(gained, why=gained.why or part.barred)], counted=note)
    apart = part.apart or ("" if part.stands_for == "virtualbox" else f"the guest here is {part.arm}, not VirtualBox")
    kvm = published.overhead(MONETDB, published.MOST, "kvm", queries=queries)
    return Judged(direction, _sized(size, [replace(against_native, published=kvm)], apart))


@RULES.of("H10")
def _transactions_drop(parts: Parts) -> Judged:
    rule = "the guest does less on TPC-C or on TATP, whichever loses more, by intervals that hold together"
    size = f"{SIZE}, of the larger of the two overheads in time per transaction; the published one is of the same kind of guest"
    figures, apart, note = [], "", ""
    stood_for = "virtualbox"
    for role, title in TRANSACTIONS.items():
        part = parts.get(role)
        if part is None:
            return not_measured(rule, size, f"HyPer on {title}")
        effect = part.transactions()
        figures.append(effect_figure(part, title, effect, len(TRANSACTIONS)))
        apart, stood_for = part.apart, part.stands_for or stood_for
        note = f"{part.title} in the place of KVM and VirtualBox" if part.apart else ""
    known = every(figures)
    if known is None:
        return unknown(rule, size, "not both have a figure")
    printed = max(published.transactions_overhead(role, stood_for) for role in TRANSACTIONS)
    most = largest(known, printed)
    return Judged(
        decide(rule, above, [most], [*known, replace(most, published=None)], note), _sized(size, [most], apart)
    )


@RULES.of("H11")
def _another_host(parts: Parts) -> Judged:
    size = (
        f"{SIZE}, of both systems' speed-up from one thread to the most that both have (geometric mean of the queries), and of "
        "what the host costs TPC-C over what it costs TATP, (1 + TPC-C's overhead) / (1 + TATP's): times are the processors'"
    )
    wanted = {role: f"{system} on TPC-H" for role, system in SYSTEMS.items()}
    wanted |= {role: f"{HYPER} on {title}" for role, title in TRANSACTIONS.items()}
    remote = {role: part for role in wanted if (part := parts.get(REMOTE + role)) is not None}
    if not remote:
        return not_measured(None, size, "another host, which --set host=ssh:HOST names,")
    figures = []
    for role in SYSTEMS:
        if (part := remote.get(role)) is None:
            continue
        common = sorted(set(part.threads) & set(published.threads_of(SYSTEMS[role], "gce")))
        if common[:1] != [1] or len(common) < 2:
            return unknown(None, size, "the host was not measured with one thread and with 2, 4 or 8")
        most = common[-1]
        figure, printed = part.speed_up(most), published.speed_ups(SYSTEMS[role], "gce")[most]
        figures.append(figure and replace(figure, name=f"{SYSTEMS[role]}, {_threads(most)}", published=printed))
    if missing := [what for role, what in wanted.items() if role not in remote]:
        shown = tuple(figure for figure in figures if figure is not None)
        why = f"not measured on that host: {', '.join(missing)}"
        return Judged(None, Judgement("not measured", size, shown, why=why))
    figures.append(_unlike(*(remote[role] for role in TRANSACTIONS)))
    known = every(figures)
    if known is None:
        return unknown(None, size, "one of the workloads has no figure on that host")
    return Judged(None, decide(size, as_large, known))


def _unlike(*parts: Part) -> Figure | None:
    """So many times as dear that host makes TPC-C as it makes TATP. The speed of its processors, which is in both, is not in it."""
    first, second = (
        _log(effect_figure(part, title, part.transactions(), len(TRANSACTIONS)))
        for part, title in zip(parts, TRANSACTIONS.values(), strict=True)
    )
    found = _difference(f"{HYPER}, {' over '.join(TRANSACTIONS.values())}", first, second)
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    printed = published.transactions_elsewhere()
    return replace(found, unit="times", estimate=math.exp(found.estimate), low=low, high=high, published=printed)
