"""Is it the same server with the same resources, answers and plans in every arm?"""

from __future__ import annotations

from collections import defaultdict

from dbtoll.analysis.checks import same_settings
from dbtoll.analysis.checks.evidence import Evidence, Finding, label, plan_key
from dbtoll.analysis.checks.same_settings import Difference
from dbtoll.model.machine import Check
from dbtoll.store.executions import outcomes


def same_server(evidence: Evidence) -> Finding:
    """Void: a start whose server has another version or other settings than the baseline's, unless the arm asked for that.

    What a server made of what it found in its machine (`EngineDescription.auto_tuned_settings`) is a label, and so are settings
    where each server has another part of the arm's memory, as its layout asks.
    """
    different: dict[int, list[Difference]] = {}
    wanted: dict[int, list[Difference]] = {}
    compared = 0
    for number, expected in evidence.expected.items():
        servers = evidence.starts[number]
        if any(map(same_settings.tells_of_server, (*servers, expected))):
            compared += 1
            found = [
                each
                for facts in servers
                for each in same_settings.of_servers(facts, expected, evidence.engine, evidence.server)
            ]
            if unasked := list(dict.fromkeys(each for each in found if not each.asked)):
                different[number] = unasked
            if asked := list(dict.fromkeys(each for each in found if each.asked)):
                wanted[number] = asked
    if not compared:
        return Finding(evidence.arm, Check("same_server", None, "the server says nothing of its version and settings"))
    if not different and wanted:
        finding = f"{same_settings.told(wanted)}; all else is the baseline's"
        return Finding(evidence.arm, Check("same_server", True, finding))
    if not different:
        settings = len(evidence.starts[min(evidence.expected)][0].get("settings") or {})
        finding = f"the version and all {settings} settings that are not the built-in ones are the baseline's"
        return Finding(evidence.arm, Check("same_server", True, finding))
    void = frozenset(number for number, found in different.items() if any(each.voids for each in found))
    finding = "other than in the baseline: " + same_settings.told(different)
    finding += f"; {same_settings.told(wanted)}" if wanted else ""
    return Finding(evidence.arm, Check("same_server", False, finding, voids=bool(void)), tuple(different), void)


def same_resources(evidence: Evidence) -> Finding:
    """Void: a start with more or fewer processors than the baseline's, unless the specification asked for them.

    Whatever else differs is a label, as are wanted differences: each is named.
    """
    different: dict[int, list[Difference]] = {}
    for number, expected in evidence.expected.items():
        servers = evidence.starts[number]
        found = [each for facts in servers for each in same_settings.of_resources(facts, expected, evidence.asked)]
        if found:
            different[number] = list(dict.fromkeys(found))
    if not any("cpus_allowed" in facts for facts in evidence.expected.values()):
        return Finding(
            evidence.arm, Check("same_resources", None, "what the machines see was not recorded", voids=False)
        )
    if not different:
        check = Check("same_resources", True, "processors, memory and kernel are the baseline's", voids=False)
        return Finding(evidence.arm, check)
    void = frozenset(number for number, found in different.items() if any(each.voids for each in found))
    finding = "other than in the baseline: " + same_settings.told(different)
    return Finding(evidence.arm, Check("same_resources", False, finding, voids=bool(void)), tuple(different), void)


def equal_answers(evidence: Evidence) -> Finding | None:
    """Wrong answers take their query out of every comparison, and the arm gets no verdict over all queries.

    Transactions have no reference answers: the state that they leave behind is checked (check ``consistent``).
    """
    if not evidence.asks_statements:
        return None
    visits = evidence.of_statements
    wrong: dict[str, int] = defaultdict(int)
    rounds = set()
    executions = 0
    for visit in visits:
        executions += len(visit.executions)
        if bad := outcomes(visit.executions).get("wrong_answer", 0):
            wrong[visit.query] += bad
            rounds.add(visit.round)
    if not executions:
        return Finding(evidence.arm, Check("equal_answers", None, "nothing was executed"))
    if not wrong:
        check = Check("equal_answers", True, f"none of {executions} executions was found to answer wrongly")
        return Finding(evidence.arm, check)
    text = ", ".join(f"{query} ({count})" for query, count in wrong.items())
    problem = next((visit.problem for visit in visits if visit.query in wrong and visit.problem), None)
    finding = f"wrong answers: {text} of {executions} executions" + (f"; first: {problem}" if problem else "")
    return Finding(evidence.arm, Check("equal_answers", False, finding), tuple(sorted(rounds)))


def same_plans(evidence: Evidence) -> Finding | None:
    """A label: an overhead that comes with a changed plan is not the environment's own. Each unit's are the baseline's first one's,
    which the baseline's other units are held against too."""
    if not evidence.asks_statements:
        return None
    if evidence.baseline_plans is None:
        return Finding(evidence.arm, Check("same_plans", None, "plans of unlike engines are not compared", voids=False))
    compared = [f for f in evidence.fingerprints if plan_key(f) in evidence.baseline_plans]
    if not compared:
        return Finding(evidence.arm, Check("same_plans", None, "no plan fingerprints were taken", voids=False))
    changed = [f for f in compared if f.fingerprint != evidence.baseline_plans[plan_key(f)]]
    units: dict[str, set[int]] = defaultdict(set)
    for each in changed:
        units[each.query].add(each.unit)
    several = any(each.unit for each in compared)
    named = [_in_units(query, units[query]) if several else query for query in sorted(units, key=_natural)]
    finding = f"other plans than the baseline: {', '.join(named)}" if named else f"{len(compared)} plans are equal"
    return label(evidence.arm, "same_plans", {f.round for f in changed}, finding)


def _in_units(query: str, units: set[int]) -> str:
    return f"{query} (unit{'s' if len(units) > 1 else ''} {', '.join(map(str, sorted(units)))})"


def _natural(query: str) -> tuple[str, int]:
    letters = query.rstrip("0123456789")
    return letters, int(query[len(letters) :] or 0)
