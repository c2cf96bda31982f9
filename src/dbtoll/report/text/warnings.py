"""What is to be kept in mind when a result is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.model.experiment import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dbtoll.analysis.result.schema import CheckResult, Result
from dbtoll.report.text.names import with_arm_labels
from dbtoll.report.text.numbers import plural


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing that a reader of the figures has to know. ``arms``: whom it is about; empty if it is about all."""

    arms: tuple[str, ...]
    text: str

    @property
    def sentence(self) -> str:
        return f"{' and '.join(self.arms)}: {self.text}" if self.arms else self.text


@dataclass(frozen=True, slots=True)
class Cautions:
    """Each fact once. ``left_out``: what is not in the figures; ``labels``: what is in them and was not as it should be."""

    left_out: tuple[Caution, ...]
    labels: tuple[Caution, ...]

    def __bool__(self) -> bool:
        return bool(self.left_out or self.labels)


def cautions(result: Result) -> Cautions:
    """From the checks that failed, the starts that do not count and the warnings of a result.

    An arm without any figure is not in it: its headline says why.
    """
    result = with_arm_labels(result)
    left_out = [Caution((), warning) for warning in result.warnings]
    left_out += [Caution((a.name,), a.reason) for a in result.arms if a.outcome == Outcome.OK and a.reason]
    labels: list[Caution] = []
    checked = [(a, check) for a in result.arms if a.outcome in (Outcome.OK, Outcome.INVALID) for check in a.checks]
    order = list(dict.fromkeys(check.name for _, check in checked))
    for arm, check in sorted(checked, key=lambda found: order.index(found[1].name)):
        if check.passed is False and not (arm.reason and check.finding in arm.reason):
            text = f"{lost}: {check.finding}" if (lost := check_cost(check)) else check.finding
            (left_out if check.voids else labels).append(Caution((arm.name,), text))
    return Cautions(tuple(_merged(left_out)), tuple(_merged(labels)))


def check_cost(check: CheckResult) -> str:
    """What a check that failed took out of the figures: ``1 visit left out``; empty if nothing."""
    if check.passed is not False or not check.voids:
        return ""
    if check.void_rounds:
        return f"{plural(len(check.void_rounds), 'round')} left out"
    if check.void_visits:
        return f"{plural(check.void_visits, 'visit')} left out"
    return "no verdict over all queries"


def _merged(cautions: Iterable[Caution]) -> list[Caution]:
    """What is said of several arms in the same words is said once."""
    arms: dict[str, tuple[str, ...]] = {}
    for caution in cautions:
        arms[caution.text] = arms.get(caution.text, ()) + caution.arms
    return [Caution(names, text) for text, names in arms.items()]
