"""The claims, each held against what was measured here: its direction, and its size (docs/adr/0019).

docs/method/zhang2014.md has all of the rules, and what was decided before anything was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dbtoll.analysis.reproduction.verdicts import (
    NOT_COUNTED,
    SIZE,
    ClaimOutcome,
    Figure,
    Judged,
    Judgement,
    Rules,
    Test,
    above,
    as_large,
    below,
    compared,
    decide,
    every,
    not_measured,
    unknown,
)
from dbtoll.analysis.sweeps.schema import Point
from dbtoll.analysis.transactions.sessions import ON_CPU, RUN_QUEUE
from dbtoll.model.description import Wait
from dbtoll.papers.zhang2014.parts import DEDICATED, ISOLATED, ON_FASTER, ON_SLOWER, SHARED, Parts, Sweep, tenants_text

RULES = Rules()

NOT_POSSIBLE: ClaimOutcome = "not possible here"

ON_THE_FAST_DEVICE = "the designs on the fast device"
ON_TWO_DEVICES = "logs on the faster and on the slower device"
ON_DISKS = "the designs on hard disks"
LARGER = "databases that outgrow the memory"
OUTGROWN = "all databases that are larger than the memory"
ONE_OPERATION = "single operations with 1 to 16 instances"

AT_EVERY = "at every measured number of tenants"

BUSY = 0.95
"""A disk with this utilisation is saturated."""
WAITS_FOR_CPU = 0.5
"""Who spends more of the time on processors and waiting for one is bound by them."""
HOLDS = 0.8
"""Throughput that is at least so much of another one holds."""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _sized(size: str, figures: Sequence[Figure], apart: str, test: Test = as_large) -> Judgement:
    """The verdict on a size, or why none is possible of this environment: its figures are told all the same."""
    if apart:
        return Judgement(NOT_POSSIBLE, size, tuple(figures), why=apart)
    return decide(size, test, figures)


def _all_above(rule: str, figures: Sequence[Figure] | None, counted: str = "", lacking: str = "") -> Judged:
    """A direction alone, for which every figure has to lie above 0. ``lacking``: see `_unless`."""
    if figures is None:
        return unknown(rule, None, NOT_COUNTED)
    return Judged(_unless(lacking, decide(rule, above, figures, counted=counted)), None)


def _unless(lacking: str, found: Judgement) -> Judgement:
    """A claim about all of something is not reproduced where some of it was not measured. One figure can refute it all the same."""
    if lacking and found.outcome == "reproduced":
        return replace(found, outcome="cannot tell", why=lacking)
    return found


# --- Figure 2: designs over tenants ------------------------------------------------------------------------------------


@RULES.of("Z01")
def _dedicated_is_best(parts: Parts) -> Judged:
    rule = f"a transaction takes longer in every other design than in the dedicated one, {AT_EVERY} beyond one"
    sweep = parts.tenants
    if sweep is None:
        return not_measured(rule, None, ON_THE_FAST_DEVICE)
    figures = every(
        sweep.compared(other, DEDICATED, value, f"{other} over dedicated, {tenants_text(value)}")
        for value in sweep.of_several
        for other in sweep.others(DEDICATED, value)
    )
    same = "with one tenant the shared and the dedicated design are the same"
    return _all_above(rule, figures, counted=same, lacking=sweep.left_out(sweep.of_several))


@RULES.of("Z02")
def _guests_at_the_best_point(parts: Parts) -> Judged:
    rule = "a transaction takes longer in the isolated design than in the dedicated one, at the tenants with which that does most"
    size = f"{SIZE}, a factor of 1.3"
    sweep = parts.tenants
    if sweep is None:
        return not_measured(rule, size, ON_THE_FAST_DEVICE)
    done = {
        value: point.estimate
        for value in sweep.values
        if (point := sweep.throughput(DEDICATED, value)) is not None and point.estimate is not None
    }
    if not done or sweep.isolated is None:
        return unknown(rule, size, NOT_COUNTED)
    best = max(done, key=done.__getitem__)
    name = f"{ISOLATED} over {DEDICATED}, {tenants_text(best)}"
    figure = sweep.compared(sweep.isolated, DEDICATED, best, name, published=0.3)
    if figure is None:
        return unknown(rule, size, NOT_COUNTED)
    return Judged(decide(rule, above, [figure]), _sized(size, [figure], parts.apart))


@RULES.of("Z03")
def _guests_within_twice_the_best(parts: Parts) -> Judged:
    size = f"a transaction takes less than twice as long in the isolated design as in each other one, {AT_EVERY}"
    sweep = parts.tenants
    if sweep is None:
        return not_measured(None, size, ON_THE_FAST_DEVICE)
    isolated = sweep.isolated
    figures = isolated and every(
        sweep.compared(isolated, other, value, f"{ISOLATED} over {other}, {tenants_text(value)}")
        for value in sweep.values
        if isolated in sweep.swept.designs_at[value]
        for other in sweep.others(isolated, value)
    )
    if not figures:
        return unknown(None, size, NOT_COUNTED)
    sized = _sized(size, figures, parts.apart, lambda figure: below(figure, 1.0))
    return Judged(None, _unless(sweep.left_out(sweep.values), sized))


@RULES.of("Z04")
def _shared_is_worst(parts: Parts) -> Judged:
    rule = f"a transaction takes longer in the shared design than in every other one, {AT_EVERY} beyond four"
    sweep = parts.tenants
    if sweep is None:
        return not_measured(rule, None, ON_THE_FAST_DEVICE)
    beyond = [value for value in sweep.values if value > 4]
    if not beyond:
        return unknown(rule, None, "no number of tenants beyond four was measured")
    figures = every(
        sweep.compared(SHARED, other, value, f"shared over {other}, {tenants_text(value)}")
        for value in beyond
        for other in sweep.others(SHARED, value)
    )
    return _all_above(rule, figures, lacking=sweep.left_out(beyond))


# --- Figures 3 to 6: the log's writes and the processors -----------------------------------------------------------------


@RULES.of("Z05")
def _far_apart(parts: Parts) -> Judged:
    size = "of the log's writes in the dedicated design 32 % begin 200 to 400 million blocks from the end of the one before"
    sweep = parts.placement
    if sweep is None:
        return not_measured(None, size, ON_TWO_DEVICES)
    most = sweep.values[-1]
    writes = sweep.log_writes(f"{DEDICATED}, {ON_FASTER}", most)
    if writes is None:
        return unknown(None, size, NOT_COUNTED)
    figure = Figure(
        f"{FAR[0] / 1e6:.0f} to {FAR[1] / 1e6:.0f} million blocks away, {tenants_text(most)}",
        "share", writes.within(FAR[1]) - writes.within(FAR[0]), None, None, published=0.32,
    )  # fmt: skip
    why = "how far apart files lie is the file system's and the size of the disk's: those of the paper are not known"
    return Judged(None, Judgement(NOT_POSSIBLE, size, (figure,), why=why))


FAR = 1 << 27, 1 << 29
"""Blocks: ours are counted in classes that end at powers of two, and these hold what the paper tells of."""


@RULES.of("Z06")
def _more_sequential(parts: Parts) -> Judged:
    rule = (
        "of the writes to the log's own device, the faster one, a larger share begins within 8 KiB of where the one before had "
        "ended in the shared design than in the dedicated one, by intervals that do not meet, at the most tenants"
    )
    sweep = parts.placement
    if sweep is None:
        return not_measured(rule, None, ON_TWO_DEVICES)
    most = sweep.values[-1]
    pair = [(design, f"{design}, {ON_FASTER}") for design in (SHARED, DEDICATED)]
    figures = every(
        sweep.mean(f"{design}, {tenants_text(most)}", writes.near if writes else None, placed, most)
        for design, placed in pair
        for writes in (sweep.log_writes(placed, most),)
    )
    if figures is None:
        return unknown(rule, None, NOT_COUNTED)
    return Judged(decide(rule, above, [_apart("shared more than dedicated", *figures)], figures), None)


def _apart(name: str, first: Figure, second: Figure) -> Figure:
    """The difference of two shares: both intervals' ends bound it."""
    low = None if first.low is None or second.high is None else first.low - second.high
    high = None if first.high is None or second.low is None else first.high - second.low
    return Figure(name, "share", first.estimate - second.estimate, low, high, why=first.why or second.why)


@RULES.of("Z07")
def _waits_for_the_log(parts: Parts) -> Judged:
    size = f"{SIZE}: 70 % of the sessions' time in the shared design with 16 tenants; of the closed engine nothing can be said"
    sweep = parts.tenants
    if sweep is None or WAITING not in sweep.values:
        return not_measured(None, size, f"{ON_THE_FAST_DEVICE}, {tenants_text(WAITING)}")
    share = sweep.shares(SHARED, WAITING).get(Wait.LOG_INSERT_LOCK)
    figure = sweep.mean(f"{SHARED}, {tenants_text(WAITING)}", share, SHARED, WAITING, 0.7)
    if figure is None:
        return unknown(None, size, NOT_COUNTED)
    return Judged(None, decide(size, as_large, [figure]))


WAITING = 16
"""Tenants with which the paper says how long sessions wait."""


@RULES.of("Z08")
def _bound_by_processors(parts: Parts) -> Judged:
    rule = (
        "in the dedicated design the sessions spend more than half of their time on processors or waiting for one with 8 and 16 "
        "tenants, and less than 30 % with 32"
    )
    sweep = parts.tenants
    if sweep is None:
        return not_measured(rule, None, ON_THE_FAST_DEVICE)
    wanted = [value for value in (8, 16, 32) if value in sweep.values]
    if not wanted:
        return not_measured(rule, None, "8, 16 or 32 tenants")
    figures = every(_processors(sweep, value) for value in wanted)
    if figures is None:
        return unknown(rule, None, NOT_COUNTED)
    bounds = {figure.name: 0.3 if value == 32 else WAITS_FOR_CPU for figure, value in zip(figures, wanted, strict=True)}

    def shifts(figure: Figure) -> bool | None:
        bound = bounds[figure.name]
        return below(figure, bound) if bound == 0.3 else above(figure, bound)

    lacking = [str(value) for value in (8, 16, 32) if value not in wanted]
    unmeasured = f"{' and '.join(lacking)} tenants were not measured" if lacking else ""
    return Judged(_unless(unmeasured, decide(rule, shifts, figures)), None)


def _processors(sweep: Sweep, tenants: int) -> Figure | None:
    """BIAS: both shares' ends are added, as if they erred together."""
    shares = sweep.shares(DEDICATED, tenants)
    found = every(sweep.mean(name, shares.get(name), DEDICATED, tenants) for name in (ON_CPU, RUN_QUEUE))
    if found is None:
        return None
    low, high = (
        None if None in ends else sum(end for end in ends if end is not None)
        for ends in ([each.low for each in found], [each.high for each in found])
    )
    return Figure(tenants_text(tenants), "share", sum(each.estimate for each in found), low, high, why=found[0].why)


# --- Tables 2 and 4: placement -------------------------------------------------------------------------------------------


@RULES.of("Z09")
def _log_on_the_faster(parts: Parts) -> Judged:
    rule = f"in the dedicated design a transaction takes longer with the log on the slower device, {AT_EVERY}"
    sweep = parts.placement
    if sweep is None:
        return not_measured(rule, None, ON_TWO_DEVICES)
    slower, faster = f"{DEDICATED}, {ON_SLOWER}", f"{DEDICATED}, {ON_FASTER}"
    figures = every(sweep.compared(slower, faster, value, tenants_text(value)) for value in sweep.values)
    return _all_above(rule, figures)


# --- Figures 12 and 13: single operations --------------------------------------------------------------------------------

SMALL, LARGE = ("lookups_60k", "lookups_200k"), ("lookups_4m", "lookups_40m")
PRIMES = "primes"
TIMES = "_x"
"""Between the name of a probe and its number of instances (docs/method/probes.md)."""


def _probed(parts: Parts, name: str, instances: int, published: float | None = None) -> Figure | None:
    assert parts.probes is not None
    part = parts.probes
    known = name if instances == 1 else f"{name}{TIMES}{instances}"
    shown = f"{name}, {instances} {'instance' if instances == 1 else 'instances'}"
    return compared(part, shown, part.comparison(f"query:{known}", "event_time"), published)


@RULES.of("Z10")
def _primes(parts: Parts) -> Judged:
    rule = "the search for prime numbers takes longer in the isolated machine than in the baseline, with 8 and with 16 instances"
    size = f"in Xen by less than 5 %; in VMware {SIZE}, 25 %"
    if parts.probes is None:
        return not_measured(rule, size, ONE_OPERATION)
    printed = {"xen": 0.05, "vmware": 0.25}.get(parts.environment)
    figures = every(_probed(parts, PRIMES, each, printed) for each in (8, 16))
    if figures is None:
        return unknown(rule, size, NOT_COUNTED)
    apart = parts.apart or ("" if printed else f"{parts.environment} is neither")
    sized = _sized(size, figures, apart, as_large if parts.environment == "vmware" else lambda each: below(each, 0.05))
    return Judged(decide(rule, above, figures), sized)


@RULES.of("Z11")
def _small_arrays(parts: Parts) -> Judged:
    rule = (
        "each look-up in a small array (60 and 200 KB) loses more than each in a large one (4 and 40 MB), of one instance; by how "
        "much is not asked"
    )
    if parts.probes is None:
        return not_measured(rule, None, ONE_OPERATION)
    small, large = (every(_probed(parts, each, 1) for each in names) for names in (SMALL, LARGE))
    if small is None or large is None:
        return unknown(rule, None, NOT_COUNTED)
    pairs = [_apart(f"{one.name} more than {other.name}", one, other) for one in small for other in large]
    return Judged(decide(rule, above, pairs, [*small, *large]), None)


# --- Figures 16 and 17, Table 8: memory that is outgrown, hard disks -----------------------------------------------------


def _less(name: str, less: Point | None, more: Point | None, why: str) -> Figure | None:
    """The throughput of one run over that of another: they share no rounds, so the ends of both intervals bound it."""
    if less is None or more is None or less.estimate is None or more.estimate is None:
        return None
    low = None if less.low is None or more.high is None else less.low / more.high
    high = None if less.high is None or more.low is None else less.high / more.low
    return Figure(name, "times", less.estimate / more.estimate, low, high, why=why or less.reason or more.reason or "")


@RULES.of("Z12")
def _holds_and_falls(parts: Parts) -> Judged:
    rule = (
        f"in both designs throughput with the second smallest databases is at least {_percent(HOLDS)} of that with the smallest, "
        "where both fit into the memory beside the buffer pools and a tenth for the servers, and less than that with the largest, "
        "which does not"
    )
    sweep = parts.size
    if sweep is None:
        return not_measured(rule, None, LARGER)
    if sweep.values[:2] != sweep.fitting[:2] or not sweep.outgrown:
        return unknown(
            rule, None,
            f"{len(sweep.fitting)} sizes that fit into the memory and {len(sweep.outgrown)} that outgrow it were measured",
        )  # fmt: skip
    first, second, last = sweep.values[0], sweep.values[1], sweep.values[-1]
    figures = every(
        _less(
            f"{design}, {value} warehouses over {first}",
            sweep.throughput(design, value),
            sweep.throughput(design, first),
            sweep.why(design, value) or sweep.why(design, first),
        )
        for design in (SHARED, DEDICATED)
        for value in (second, last)
    )
    if figures is None:
        return unknown(rule, None, NOT_COUNTED)
    falls = {figure.name for figure in figures if f", {last} " in figure.name}

    def as_claimed(figure: Figure) -> bool | None:
        return below(figure, HOLDS) if figure.name in falls else above(figure, HOLDS)

    return Judged(decide(rule, as_claimed, figures), None)


@RULES.of("Z13")
def _one_pool_is_best(parts: Parts) -> Judged:
    rule = f"a transaction takes longer in the dedicated design than in the shared one, with {OUTGROWN}"
    sweep = parts.size
    if sweep is None or not sweep.outgrown:
        return not_measured(rule, None, LARGER)
    figures = every(
        sweep.compared(DEDICATED, SHARED, value, f"dedicated over shared, {value} warehouses")
        for value in sweep.outgrown
    )
    return _all_above(rule, figures)


@RULES.of("Z14")
def _disks_want_one_server(parts: Parts) -> Judged:
    rule = (
        "on hard disks a transaction takes longer in the dedicated design than in the shared one, with several tenants"
    )
    sweep = parts.disks
    if sweep is None:
        return not_measured(rule, None, ON_DISKS)
    figures = every(
        sweep.compared(DEDICATED, SHARED, value, f"dedicated over shared, {tenants_text(value)}")
        for value in sweep.of_several
    )
    return _all_above(rule, figures)


@RULES.of("Z15")
def _the_data_disk_is_busy(parts: Parts) -> Judged:
    rule = (
        f"in the dedicated design, Table 8a, the data's device is busy for at least {_percent(BUSY)} of the time with {OUTGROWN}, "
        "and the log's for less"
    )
    sweep = parts.size
    if sweep is None or not sweep.outgrown:
        return not_measured(rule, None, LARGER)
    busy, less = [], []
    for value in sweep.outgrown:
        data, log = (sweep.device(DEDICATED, value, role) for role in ("data", "log"))
        pair = every(
            sweep.mean(f"{value} warehouses, {role}", each.utilisation if each else None, DEDICATED, value)
            for role, each in (("data", data), ("log", log))
        )
        if pair is None:
            return unknown(rule, None, NOT_COUNTED)
        busy += pair[:1]
        less.append(_apart(f"{value} warehouses, log more than data", pair[1], pair[0]))
    saturated = {figure.name for figure in busy}

    def as_claimed(figure: Figure) -> bool | None:
        return above(figure, BUSY) if figure.name in saturated else below(figure)

    return Judged(decide(rule, as_claimed, [*busy, *less]), None)
