"""Was only one arm awake, and do the arm's clock and the host's agree?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from dbtoll.analysis.checks.evidence import Evidence, Finding, void_visits
from dbtoll.analysis.visits.units import VisitTotals, share_a_clock, start_spread_ns
from dbtoll.model.machine import Check
from dbtoll.model.neighbours import NEIGHBOUR

BRACKET_BOUND_NS = 10_000_000
"""BIAS: how far the host's time of a visit may lie from the arm's own plus that arm's usual overhead (or 2 % of the
visit, if more). A relay that is scheduled late costs a few ms and does no harm; a clock that stops or steps is found.
"""

BRACKET_BOUND_FRACTION = 0.02

START_BOUND_NS = 10_000_000
"""BIAS: how far the starts of an arm's units may lie apart (or 1 % of what each does, if more): so long some have the machine to
themselves. They are told by one line each, back to back; on a machine with fewer processors than units the last hears it late."""

START_BOUND_FRACTION = 0.01

CLOCK_RATE_BOUND = 0.005
"""How far the rate of the arm's clock may be from the host's."""


def asleep(evidence: Evidence) -> Finding:
    """Void: during such a visit another arm was awake."""
    known = [v for v in evidence.visits if v.asleep_ok is not None]
    if not known:
        return Finding(evidence.arm, Check("others_asleep", None, "it was not watched whether the others slept"))
    disturbed = [v for v in known if v.asleep_ok is False]
    finding = f"another arm used CPU time in {len(disturbed) or 'none'} of {len(known)} visits"
    return void_visits(evidence.arm, "others_asleep", disturbed, finding)


def brackets(evidence: Evidence) -> Finding:
    """Void: the arm's time of a visit and the host's around it must agree but for the usual overhead."""
    times = _bracketed(evidence.visits)
    if not times:
        return Finding(evidence.arm, Check("host_brackets", None, "no visit was bracketed by the host"))
    by_neighbour: dict[str | None, list[int]] = defaultdict(list)
    for visit, _, inside, outside in times:
        by_neighbour[visit.levels.get(NEIGHBOUR)].append(outside - inside)
    # Whoever has to wait for a processor beside a neighbour tells later, and was timed no worse.
    usual_of = {level: median(differences) for level, differences in by_neighbour.items()}
    usual = median(outside - inside for *_, inside, outside in times)
    apart = [abs(outside - inside - usual_of[v.levels.get(NEIGHBOUR)]) for v, _, inside, outside in times]
    void = [
        visit
        for (visit, _, _, outside), far in zip(times, apart, strict=True)
        if far > max(BRACKET_BOUND_NS, BRACKET_BOUND_FRACTION * outside)
    ]
    finding = (
        f"the host's time and the arm's own disagree in {len(void) or 'none'} of {len(times)} visits; as a rule they lie "
        f"{usual / 1e6:.2f} ms apart, at most {max(apart) / 1e6:.2f} ms more or less"
    )
    return void_visits(evidence.arm, "host_brackets", void, finding)


def started_together(evidence: Evidence) -> Finding | None:
    """Void: the units of the arm may not have begun at one moment, so that some worked while others did not.

    Where nobody knows it better than to some ms (`start_spread_ns`), that counts as if they had begun so far apart.
    """
    several = [visit for visit in evidence.visits if len(visit.units) > 1]
    if not several:
        return None
    one_clock = {number: share_a_clock(servers) for number, servers in evidence.starts.items()}
    spreads = [
        (visit, spread)
        for visit in several
        if (spread := start_spread_ns(visit, one_clock=one_clock.get(visit.round, False))) is not None
    ]
    if not spreads:
        return Finding(evidence.arm, Check("started_together", None, "when its units began is not known"))
    apart = [
        visit for visit, spread in spreads if spread > max(START_BOUND_NS, START_BOUND_FRACTION * _length_ns(visit))
    ]
    finding = (
        f"the units may have begun apart in {len(apart) or 'none'} of {len(spreads)} visits; the first and the last began within "
        f"{median(spread for _, spread in spreads) / 1e6:.2f} ms as a rule, within "
        f"{max(spread for _, spread in spreads) / 1e6:.2f} ms at most"
    )
    return void_visits(evidence.arm, "started_together", apart, finding)


def _length_ns(visit: VisitTotals) -> int:
    """Of its shortest unit: of a window without its ramp-up."""
    return min(
        unit.end_ns - unit.start_ns if unit.window is None else int(unit.window["length_ns"]) for unit in visit.units
    )


def clock_rate(evidence: Evidence) -> Finding:
    """Void: a guest's clock that runs faster or slower than the host's distorts every time in that round.

    The slope of host's time over arm's time, visit by visit: the overhead, which is the same for short and long visits,
    is in the intercept. Only where its standard error is small enough to tell. Windows are all of one length, so theirs is the
    plain ratio, and the overhead is its error. An arm on the host's kernel reads the host's clock: nothing there can differ but the
    overhead.
    """
    if evidence.shares_kernel:
        return Finding(evidence.arm, Check("clock_rate", True, "the arm's clock is the host's own"))
    void = brackets(evidence).void_visits
    by_clock: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for visit, unit, inside, outside in _bracketed(evidence.visits):
        if (visit.round, visit.order) not in void:
            by_clock[visit.round, unit].append((inside, outside))
    rates: dict[tuple[int, int], float] = {}
    failed = set()
    for clock, pairs in by_clock.items():
        slope, error = _ratio(pairs) if evidence.in_windows else _slope(pairs)
        if error < CLOCK_RATE_BOUND:
            rates[clock] = 1 / slope
            if abs(slope - 1) - 3 * error > CLOCK_RATE_BOUND:
                failed.add(clock[0])
    if not rates:
        return Finding(evidence.arm, Check("clock_rate", None, "too little awake time to judge the clock's rate"))
    farthest = max(rates.values(), key=lambda rate: abs(rate - 1))
    check = Check("clock_rate", not failed, f"the arm's clock runs at {farthest:.4f} of the host's in its worst round")
    return Finding(evidence.arm, check, tuple(sorted(failed)), frozenset(failed))


def _ratio(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The second over the first, and how far the usual overhead can have moved it."""
    inside, outside = (sum(pair[i] for pair in pairs) for i in (0, 1))
    return outside / inside, len(pairs) * BRACKET_BOUND_NS / inside


def _slope(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Least-squares slope of the second over the first, and its standard error; (1, inf) where it has none."""
    count = len(pairs)
    if count < 3:
        return 1.0, math.inf
    mean_x, mean_y = (sum(pair[i] for pair in pairs) / count for i in (0, 1))
    squares = sum((x - mean_x) ** 2 for x, _ in pairs)
    if squares == 0:
        return 1.0, math.inf
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / squares
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in pairs)
    return slope, math.sqrt(residual / (count - 2) / squares)


def _bracketed(visits: Sequence[VisitTotals]) -> list[tuple[VisitTotals, int, int, int]]:
    """Of each unit of a visit: the visit, the unit's number, its length by its own clock and by the host's, where that is known."""
    return [
        (visit, number, unit.end_ns - unit.start_ns, unit.host_end_ns - unit.host_start_ns)
        for visit in visits
        for number, unit in enumerate(visit.units)
        if unit.host_start_ns is not None and unit.host_end_ns is not None
    ]
