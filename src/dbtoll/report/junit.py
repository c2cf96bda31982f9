"""The CI gate as JUnit XML: a test suite for the run, a test case for each arm and combination of levels.

There is no one schema. This is what Ant writes (the schema of Windy Road), which Jenkins and GitLab read, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from dbtoll.model.experiment import GateDecision, Outcome
from dbtoll.report import tables
from dbtoll.report.text import gate, names, warnings
from dbtoll.store.schema import Visit
from dbtoll.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dbtoll.analysis.result.provenance import Provenance
    from dbtoll.analysis.result.schema import GateCell, OverheadGate, Result
    from dbtoll.store.reader import Run

HOST = "localhost"
"""What the schema asks for where no name is told: a machine is described in the properties, without its name."""


def junit(result: Result, run: Run, provenance: Provenance) -> bytes:
    """The document, UTF-8. ``result`` has a gate; ValueError otherwise.

    A cell within the limit passes, one above it is a ``failure``. An undecided one is ``skipped``, or an ``error`` where its arm
    did not work. Where there is no cell there is one test case, an ``error``. Its time is that of the arm's visits.
    """
    if result.gate is None:
        raise ValueError("without a limit there is no gate")
    labelled = names.with_arm_labels(result)
    decided = labelled.gate or result.gate
    not_ok = {arm.name for arm in labelled.arms if arm.outcome != Outcome.OK}
    seconds = _seconds(run)
    cases = [
        _case(cell, decided, provenance, seconds[each.arm, str(each.levels)], broken=cell.arm in not_ok)
        for cell, each in zip(decided.cells, result.gate.cells, strict=True)
    ] or [_nothing(decided, provenance)]
    counts = Counter(child.tag for case in cases for child in case)
    suite = _element(
        "testsuite",
        name=f"dbtoll {provenance.run_name}",
        package="dbtoll",
        id="0",
        hostname=HOST,
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{run.elapsed_s:.3f}",
    )
    if provenance.date:
        suite.set("timestamp", provenance.date)
    properties = ElementTree.SubElement(suite, "properties")
    told = {**asdict(provenance), "limit": f"{decided.limit:g}", "decision": decided.decision}
    properties.extend(_element("property", name=name, value=value) for name, value in told.items() if value is not None)
    suite.extend(cases)
    _add(suite, "system-out", f"gate: {gate.sentence(result)}\n\n{tables.plain(result)}")
    _add(suite, "system-err", "".join(f"{each.sentence}\n" for each in warnings.of_run(result)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(
    cell: GateCell, decided: OverheadGate, provenance: Provenance, took_s: float, *, broken: bool
) -> ElementTree.Element:
    """Its name has no figure in it, so that a CI system knows it again in the next run."""
    name = f"{gate.cell_name(cell, decided)}: {names.metric_text(decided.metric)}"
    case = _element("testcase", name=name, classname=_class(provenance), time=f"{took_s:.3f}")
    said = gate.cell_text(cell, decided)
    if cell.decision == GateDecision.EXCEEDED:
        _end(case, "failure", f"more than {gate.limit_text(decided)}: {said}", type=cell.decision)
    elif cell.decision == GateDecision.UNDECIDED and broken:
        _end(case, "error", said, type=cell.decision)
    elif cell.decision == GateDecision.UNDECIDED:
        _end(case, "skipped", said)
    return case


def _nothing(decided: OverheadGate, provenance: Provenance) -> ElementTree.Element:
    case = _element("testcase", name="gate", classname=_class(provenance), time="0.000")
    _end(case, "error", decided.reason or "nothing was compared", type=decided.decision)
    return case


def _class(provenance: Provenance) -> str:
    return f"dbtoll.{provenance.workload}.{provenance.engine}"


def _seconds(run: Run) -> Mapping[tuple[str, str], float]:
    """Arm and levels -> how long its visits took."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for visit in run.records(Visit):
        found[visit.arm, str(visit.levels)] += max(unit.end_ns - unit.start_ns for unit in visit.units) / 1e9
    return found


def _element(tag: str, **attributes: str) -> ElementTree.Element:
    # What XML 1.0 has no letter for (most controls) is replaced; the writer escapes the rest.
    return ElementTree.Element(tag, {name: printable(value) for name, value in attributes.items()})


def _add(parent: ElementTree.Element, tag: str, text: str) -> ElementTree.Element:
    child = _element(tag)
    child.text = printable(text, lines=True)
    parent.append(child)
    return child


def _end(case: ElementTree.Element, tag: str, text: str, **attributes: str) -> None:
    """What is no success: with its text as ``message``, too, of which some systems show one and some the other."""
    _add(case, tag, text).attrib.update({"message": printable(text.replace("\n", " ")), **attributes})
