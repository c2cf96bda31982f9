"""Whether every arm's overhead is within a limit: exit code and sentence of `--max-overhead`."""

from __future__ import annotations

from dbtoll.analysis.compare import GEOMEAN
from dbtoll.analysis.shape import ArmResult, Comparison, Result
from dbtoll.model import Outcome

WITHIN, EXCEEDED, CANNOT_TELL = 0, 1, 2
"""Exit codes."""


def judge(result: Result, limit: float) -> tuple[int, str]:
    """By the intervals over all statements, at all levels: exceeded where a lower bound lies above ``limit`` (a fraction),
    within where all upper bounds lie below.

    Nothing is decided by fewer rounds than a verdict needs; an arm of which anything failed is never within.
    """
    arms = {arm.name: arm for arm in result.arms}
    rows = [c for c in result.comparisons if c.estimand == GEOMEAN and c.metric == result.main_metric and not c.is_aa]
    over, unclear = [], {}
    for c in rows:
        if _decided(c, arms[c.arm], result) and c.low is not None and c.low > limit:
            over.append(c.arm)
        elif c.high is None or c.high > limit or not _decided(c, arms[c.arm], result):
            unclear[c.arm] = c.reason
    unclear |= {arm.name: arm.reason for arm in result.arms if arm.outcome != Outcome.OK}
    shown = f"{limit * 100:g} %"
    if over:
        names = sorted(set(over))
        return (
            EXCEEDED,
            f"gate: exceeded: {' and '.join(names)} {'loses' if len(names) == 1 else 'lose'} more than {shown}",
        )
    if unclear or not rows:
        why = "; ".join(f"{name}{f' ({reason})' if reason else ''}" for name, reason in sorted(unclear.items()))
        return CANNOT_TELL, f"gate: cannot tell whether all stay within {shown}: {why or 'there is no arm'}"
    return WITHIN, f"gate: every arm is within {shown}"


def _decided(comparison: Comparison, arm: ArmResult, result: Result) -> bool:
    """Whether its interval may decide anything. A part that works and loses too much is enough to exceed."""
    return comparison.rounds >= result.rounds_to_decide and arm.outcome in (Outcome.OK, Outcome.FAILED)
