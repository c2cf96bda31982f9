"""minhas2008 measured again: its tables and figures with this machine's beside them, its claims each with a verdict.

Of each claim it is said what the published data support (`analysis.claims`), and whether what is measured here has the same
direction and the same size (docs/adr/0019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dbtoll.analysis import claims
from dbtoll.analysis.claims import CheckedClaim
from dbtoll.analysis.reproduction import tables, verdicts
from dbtoll.analysis.reproduction.parts import Part, Parts
from dbtoll.analysis.reproduction.tables import Reproduced
from dbtoll.analysis.reproduction.verdicts import Judged
from dbtoll.store.reader import Run

PAPER = "minhas2008"


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim: what its own tables say (``checked``), and what was ``judged`` of what was measured here."""

    checked: CheckedClaim
    judged: Judged


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Everything, of one environment."""

    arm: str
    baseline: str
    tables: tuple[Reproduced, ...]
    claims: tuple[ClaimResult, ...]


def reproduce(runs: Sequence[Run]) -> Reproduction:
    """Of runs of the three shipped specifications ``reproduce-*.toml``, of which only the warm one is needed."""
    parts = [Part(run) for run in runs]
    warm = next(part for part in parts if not part.is_cold)
    cold = next((part for part in parts if part.is_cold and part.reads_ahead), None)
    unread = next((part for part in parts if part.is_cold and not part.reads_ahead), None)
    found = Parts(warm, cold, unread)
    checked = [each for each in claims.check_all() if each.claim.paper == PAPER]
    return Reproduction(
        arm=warm.arm,
        baseline=warm.baseline,
        tables=tuple(tables.find_all(found)),
        claims=tuple(ClaimResult(each, verdicts.CLAIMS[each.claim.id](found)) for each in checked),
    )
