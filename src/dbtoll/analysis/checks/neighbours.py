"""Did the neighbour do what the others' windows were to be measured beside?"""

from __future__ import annotations

from dbtoll.analysis.checks.evidence import Evidence, Finding, void_visits
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.model.machine import Check
from dbtoll.model.reply import ended_well


def neighbour_acted(evidence: Evidence) -> Finding | None:
    """Void: a visit whose neighbour did nothing, or ended too early; None where no neighbour was to do anything."""
    beside = [visit for visit in evidence.visits if visit.neighbour is not None]
    if not beside:
        return None
    idle = [(visit, why) for visit in beside if (why := _did_nothing(visit)) is not None]
    finding = f"it did nothing, or not to the end, in {len(idle) or 'none'} of {len(beside)} visits"
    if not idle:
        return Finding(evidence.arm, Check("neighbour_acted", True, finding))
    return void_visits(
        evidence.arm, "neighbour_acted", [visit for visit, _ in idle], f"{finding}; the first: {idle[0][1]}"
    )


def _did_nothing(visit: VisitTotals) -> str | None:
    """Why it counts as if it had done nothing."""
    assert visit.neighbour is not None
    unit = visit.neighbour.unit
    if unit is None or unit.window is None:
        return visit.neighbour.problem
    return unit.problem or (None if ended_well(unit.window) else "none of its transactions ended well")
