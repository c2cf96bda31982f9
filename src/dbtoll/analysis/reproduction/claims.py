"""A paper's claims, and what its own tables say about them.

This is the first half of the answer: what the published data support, by the paper's own estimand and by dbtoll's beside it.
What is measured now is the other (`dbtoll.analysis.reproduction.verdicts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dbtoll.analysis.effects.stats import Floats


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of a paper's claims.csv, as it stands there."""

    id: str
    where: str
    claim: str
    published_value: str
    unit: str
    checkable_from_published_tables: str
    kind: str
    estimand: str
    tolerance: str


class Support(StrEnum):
    """What the published tables say."""

    SUPPORTED = "supported"
    IN_PART = "supported in part"
    NOT_SUPPORTED = "not supported"
    NOT_CHECKABLE = "cannot be checked from the published tables"


@dataclass(frozen=True, slots=True)
class Figure:
    """One computed number."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """``computed`` by the paper's estimand, ``dbtoll`` by dbtoll's (empty where the claim is not about an overhead)."""

    support: Support
    computed: tuple[Figure, ...]
    dbtoll: tuple[Figure, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class CheckedClaim:
    """A claim with what its own tables say about it."""

    claim: Claim
    finding: ClaimFinding


Check = Callable[[Claim], ClaimFinding]


class Checks(dict[str, Check]):
    """Claim -> what answers it from the published tables."""

    def of(self, identity: str) -> Callable[[Check], Check]:
        """Registers a function as the answer to one claim."""

        def register(check: Check) -> Check:
            self[identity] = check
            return check

        return register


def supported(holds: bool) -> Support:
    """One way or the other."""
    return Support.SUPPORTED if holds else Support.NOT_SUPPORTED


def is_stated(value: float, stated: str, tolerance: float) -> bool:
    """Whether a computed value is the stated one: printed figures are rounded, so a little more than half a unit."""
    return abs(value - float(stated)) <= tolerance * 1.0001


def percent(name: str, value: float) -> Figure:
    """A figure in per cent."""
    return Figure(name, float(value), "percent")


def geomean_percent(ratios: Floats) -> float:
    """Geometric mean of ratios, less 1, in per cent."""
    return float(np.expm1(np.log(ratios).mean())) * 100
