"""Are the costs that probes found believable?"""

from __future__ import annotations

from dbtoll.analysis.checks.evidence import Evidence, Finding, void_visits
from dbtoll.analysis.visits import metrics


def plausible_costs(evidence: Evidence) -> Finding | None:
    """Void: a probe's visit whose cost of an event is beyond what is believed of any machine."""
    if not evidence.probes:
        return None
    void = []
    known = 0
    for visit in evidence.visits:
        cost_ns, about = metrics.event_time_ns(visit), evidence.probes.get(visit.query)
        if cost_ns is None or about is None:
            continue
        known += 1
        if not about["min_ns"] <= cost_ns <= about["max_ns"]:
            void.append(visit)
    names = ", ".join(sorted({visit.query for visit in void}))
    finding = f"not believed: {names}" if void else f"the costs of all {known} visits lie where they can"
    return void_visits(evidence.arm, "plausible_costs", void, finding)
