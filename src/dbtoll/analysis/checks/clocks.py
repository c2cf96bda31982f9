"""Was only one arm awake, and do the arm's clock and the host's agree?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from dbtoll.analysis.checks.evidence import Evidence, Finding, void_visits
from dbtoll.model.machine import Check
from dbtoll.store.schema import Visit

BRACKET_BOUND_NS = 10_000_000
"""BIAS: how far the host's time of a visit may lie from the arm's own plus that arm's usual overhead (or 2 % of the
visit, if more). A relay that is scheduled late costs a few ms and does no harm; a clock that stops or steps is found.
"""

BRACKET_BOUND_FRACTION = 0.02

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
    usual = median(outside - inside for _, inside, outside in times)
    apart = [abs(outside - inside - usual) for _, inside, outside in times]
    void = [
        visit
        for (visit, _, outside), far in zip(times, apart, strict=True)
        if far > max(BRACKET_BOUND_NS, BRACKET_BOUND_FRACTION * outside)
    ]
    finding = (
        f"the host's time and the arm's own disagree in {len(void) or 'none'} of {len(times)} visits; as a rule they lie "
        f"{usual / 1e6:.2f} ms apart, at most {max(apart) / 1e6:.2f} ms more or less"
    )
    return void_visits(evidence.arm, "host_brackets", void, finding)


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
    by_round: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for visit, inside, outside in _bracketed(evidence.visits):
        if (visit.round, visit.order) not in void:
            by_round[visit.round].append((inside, outside))
    rates: dict[int, float] = {}
    failed = []
    for number, pairs in by_round.items():
        slope, error = _ratio(pairs) if evidence.in_windows else _slope(pairs)
        if error < CLOCK_RATE_BOUND:
            rates[number] = 1 / slope
            if abs(slope - 1) - 3 * error > CLOCK_RATE_BOUND:
                failed.append(number)
    if not rates:
        return Finding(evidence.arm, Check("clock_rate", None, "too little awake time to judge the clock's rate"))
    farthest = max(rates.values(), key=lambda rate: abs(rate - 1))
    check = Check("clock_rate", not failed, f"the arm's clock runs at {farthest:.4f} of the host's in its worst round")
    return Finding(evidence.arm, check, tuple(failed), frozenset(failed))


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


def _bracketed(visits: Sequence[Visit]) -> list[tuple[Visit, int, int]]:
    """Visit, its length by the arm's clock and by the host's, where the host took it."""
    return [
        (visit, visit.end_ns - visit.start_ns, visit.host_end_ns - visit.host_start_ns)
        for visit in visits
        if visit.host_start_ns is not None and visit.host_end_ns is not None
    ]
