"""What is to be kept in mind when a result is read: what was found, what it means for the figures, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from dbtoll.analysis.checks.catalog import CATALOG
from dbtoll.analysis.result.schema import WarningKind, varied_factors
from dbtoll.model.experiment import Outcome
from dbtoll.report.text.names import levels_text, metric_text, with_arm_labels
from dbtoll.report.text.numbers import plural, typeset
from dbtoll.text import listed

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import CheckResult, Result, RunWarning


@dataclass(frozen=True, slots=True)
class Advice:
    """``consequence`` for the figures, and a ``hint``: what to do about it. Sentences."""

    consequence: str = ""
    hint: str = ""


ADVICE: Mapping[WarningKind, Advice] = {
    WarningKind.NO_END: Advice("The figures are of the rounds so far.", "`dbtoll run FOLDER --resume` finishes it."),
    WarningKind.NO_ROUND: Advice("There is no figure.", "Give it a larger budget."),
    WarningKind.FEW_ROUNDS: Advice("There is no verdict.", "Go on with `dbtoll run FOLDER --resume --budget`."),
    WarningKind.COPIES_DIFFER: Advice(
        "Every interval there is longer by the far bound, so that small differences cannot be told.",
        "Repeat the run on a quieter machine; more rounds need not help.",
    ),
    WarningKind.UNSUPPORTED: Advice("It was not run, in no arm.", "Another engine may have it."),
    WarningKind.QUERIES_LEFT_OUT: Advice(
        "The figures over all of them say nothing of these.", "Look at their reasons; a longer timeout or budget may do."
    ),
    WarningKind.INCOMPLETE_ROUNDS: Advice("They are in no figure.", "If there are many, look why they ended."),
    WarningKind.DRIVER_BOTTLENECK: Advice(
        "What the server can do is more, so a difference may be hidden.", "Give the driver more processors, or use fewer terminals."
    ),
    WarningKind.NOT_STEADY: Advice("Its throughput depends on how long the window is.", "Take a longer ramp_up or window."),
    WarningKind.OPEN_LOOP: Advice(
        "As long as an arm keeps up, its throughput says nothing; what it loses is in the response times.",
        "To compare throughputs, leave out `rate`.",
    ),
    WarningKind.DEPENDENT_STARTS: Advice(
        "Verdicts allow for it by longer intervals.", "More rounds help, or a machine that drifts less."
    ),
    WarningKind.FAR_OUT_STARTS: Advice(
        "They are counted, for a slow start is a start; the interval is longer for it.",
        "If one round hit all arms, look for what ran beside it; more rounds narrow the interval.",
    ),
    WarningKind.WITHOUT_ROOT: Advice(
        "All arms of this run have that in common; a run as root may come out otherwise, above all where memory is short.",
        "With `sudo ./dbtoll` nothing of it is missing.",
    ),
    WarningKind.UNFINISHED_LINE: Advice("It was of no complete round.", "No action is needed."),
}  # fmt: skip
"""What matters most first."""

SHOWN = 3
"""Cautions that stand open; the others are in a fold."""
_BRIEF_CHARACTERS, _BRIEF_FINDINGS = 100, 1
"""Of a finding, and findings of a caution, before the rest is left to the fold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``text``, of the ``arms`` and ``where`` in them that it is about; both empty if it is about all."""

    text: str
    arms: tuple[str, ...] = ()
    where: str = ""

    @property
    def who(self) -> str:
        return listed(self.arms) + (f" ({self.where})" if self.where else "")

    @property
    def sentence(self) -> str:
        return f"{self.who}: {self.text}" if self.who else self.text


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing that a reader of the figures has to know: all ``findings`` that are of one kind, and what to think of them."""

    findings: tuple[Finding, ...]
    advice: Advice

    @property
    def sentence(self) -> str:
        """All of it: ``docker: 2 visits left out: … . These visits are not in the figures. No action is needed if …``"""
        found = "; ".join(each.sentence for each in self.findings)
        return " ".join(filter(None, (found + self.stop, self.advice.consequence, self.advice.hint)))

    @property
    def stop(self) -> str:
        """What ends the findings, before the consequence."""
        return "" if self.findings[-1].text.endswith((".", "…")) else "."

    @property
    def brief(self) -> Caution:
        """The same with as much of the findings as one line has room for."""
        kept = [Finding(_shortened(each.text), each.arms, each.where) for each in self.findings[:_BRIEF_FINDINGS]]
        if more := len(self.findings) - len(kept):
            kept[-1] = Finding(f"{kept[-1].text}; and {more} more of the kind", kept[-1].arms, kept[-1].where)
        return Caution(tuple(kept), self.advice)


@dataclass(frozen=True, slots=True)
class Cautions:
    """Each fact once. ``left_out``: what is not in the figures; ``labels``: what is in them and was not as it should be."""

    left_out: tuple[Caution, ...]
    labels: tuple[Caution, ...]

    def __bool__(self) -> bool:
        return bool(self.left_out or self.labels)

    @property
    def all(self) -> tuple[Caution, ...]:
        """Those that matter most first."""
        return (*self.left_out, *self.labels)

    @property
    def shown(self) -> tuple[Caution, ...]:
        """The first, a line each."""
        return tuple(caution.brief for caution in self.all[:SHOWN])

    @property
    def folded(self) -> tuple[Caution, ...]:
        """What does not stand among them, or not in full."""
        return tuple(each for index, each in enumerate(self.all) if index >= SHOWN or each.brief != each)


def cautions(result: Result) -> Cautions:
    """From the checks that failed, the starts that do not count and the warnings of a result.

    An arm without any figure is not in it: its headline says why.
    """
    result = with_arm_labels(result)
    left_out = of_run(result)
    excluded = [Finding(typeset(a.reason), (a.name,)) for a in result.arms if a.outcome == Outcome.OK and a.reason]
    if excluded:
        left_out.append(Caution(_merged(excluded), Advice("They are in no figure.", "If there are many, look why.")))
    labels: list[Caution] = []
    checked = [(a, check) for a in result.arms if a.outcome in (Outcome.OK, Outcome.INVALID) for check in a.checks]
    order = list(dict.fromkeys(check.name for _, check in checked))
    failed = [
        (a.name, check)
        for a, check in sorted(checked, key=lambda found: (order.index(found[1].name), found[1].voids))
        if check.passed is False and not (a.reason and check.finding in a.reason)
    ]
    for (name, voids), same in groupby(failed, key=lambda found: (found[1].name, found[1].voids)):
        findings = [
            Finding(typeset(f"{lost}: {check.finding}" if (lost := check_cost(check)) else check.finding), (arm,))
            for arm, check in same
        ]
        (left_out if voids else labels).append(Caution(_merged(findings), _advice_of_check(name)))
    return Cautions(tuple(left_out), tuple(labels))


def of_run(result: Result) -> list[Caution]:
    """The warnings, those of a kind together. A level is said where levels vary, a metric where it is not the main one."""
    varied = varied_factors([*(c.levels for c in result.comparisons), *(each.levels for each in result.windows)])
    found = {
        kind: _merged(_finding(each, varied, result) for each in result.warnings if each.kind == kind)
        for kind in ADVICE
    }
    return [Caution(findings, ADVICE[kind]) for kind, findings in found.items() if findings]


def _finding(warning: RunWarning, varied: Sequence[str], result: Result) -> Finding:
    metric, arms = "", () if warning.arm is None else (warning.arm,)
    if arms and warning.metric not in (None, result.main_metric):  # what is about all arms names its metric
        metric = metric_text(warning.metric or "")
    parts = (levels_text(warning.levels, varied), metric)
    return Finding(typeset(warning.text), arms, ", ".join(filter(None, parts)))


def _advice_of_check(name: str) -> Advice:
    described = CATALOG.get(name)
    return Advice(described.consequence, described.hint) if described else Advice()


def check_cost(check: CheckResult) -> str:
    """What a check that failed took out of the figures: ``1 visit left out``; empty if nothing."""
    if check.passed is not False or not check.voids:
        return ""
    if check.void_rounds:
        return f"{plural(len(check.void_rounds), 'round')} left out"
    if check.void_visits:
        return f"{plural(check.void_visits, 'visit')} left out"
    return "no verdict over all queries"


def _merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """What is said of several arms in the same words is said once."""
    arms: dict[tuple[str, str], tuple[str, ...]] = {}
    for each in findings:
        key = (each.text, each.where)
        arms[key] = arms.get(key, ()) + each.arms
    return tuple(Finding(text, names, where) for (text, where), names in arms.items())


def _shortened(text: str) -> str:
    """Its beginning, to the last semicolon, else the last comma, else the last space, that one line has room for."""
    if len(text) <= _BRIEF_CHARACTERS:
        return text
    room = text[:_BRIEF_CHARACTERS]
    end = next((end for mark in ("; ", ", ", " ") if (end := room.rfind(mark)) > _BRIEF_CHARACTERS // 3), len(room))
    return f"{room[:end]} …"
