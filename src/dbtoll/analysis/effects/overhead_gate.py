"""Whether every arm's overhead is within a limit: exit code and sentence of `--max-overhead`."""

from __future__ import annotations

from dbtoll.analysis.effects.comparisons import GEOMEAN, missing
from dbtoll.analysis.result.schema import ArmResult, Comparison, Result
from dbtoll.model.experiment import Outcome
from dbtoll.model.reply import TIME_PER_TRANSACTION

WITHIN, EXCEEDED, CANNOT_TELL = 0, 1, 2
"""Exit codes."""


def judge(result: Result, limit: float) -> tuple[int, str]:
    """By the decisive intervals over all statements, at all levels: exceeded where a lower bound lies above ``limit`` (a
    fraction), within where all upper bounds lie below.

    Nothing is decided by fewer rounds than a verdict needs, nor where the baseline did not work; an arm of which anything failed,
    or of which a statement is left out, is never within.
    """
    arms = {arm.name: arm for arm in result.arms}
    rows = [c for c in result.comparisons if c.estimand == GEOMEAN and c.metric == result.main_metric and not c.is_aa]
    over, unclear = [], {}
    for c in rows:
        decided = _decided(c, arms[c.arm], result)
        if decided and c.low_decisive is not None and c.low_decisive > limit:
            over.append(c.arm)
        elif not decided or c.high_decisive is None or c.high_decisive > limit or missing(c.left_out):
            unclear[c.arm] = c.reason or _interval(c)
    unclear |= {arm.name: arm.reason for arm in result.arms if arm.outcome != Outcome.OK}
    names = sorted(set(over))
    if names:
        sentence = f"exceeded: {' and '.join(names)} {_bounded(result.main_metric, limit, 'more than', len(names))}"
        return EXCEEDED, f"gate: {sentence}"
    if unclear or not rows:
        why = "; ".join(f"{name}{f' ({reason})' if reason else ''}" for name, reason in sorted(unclear.items()))
        all_arms = _bounded(result.main_metric, limit, "at most", 2)
        return CANNOT_TELL, f"gate: cannot tell whether all {all_arms}: {why or 'there is no arm'}"
    return WITHIN, f"gate: every arm {_bounded(result.main_metric, limit, 'at most', 1)}"


def _bounded(metric: str, limit: float, how: str, arms: int) -> str:
    """``takes more than 5 % longer``; of throughput, whose limit is of the time per transaction, ``does more than 4.76 % less``."""
    if metric == TIME_PER_TRANSACTION:
        return f"{'does' if arms == 1 else 'do'} {how} {limit / (1 + limit) * 100:.3g} % less"
    return f"{'takes' if arms == 1 else 'take'} {how} {limit * 100:g} % longer"


def _interval(c: Comparison) -> str | None:
    """Of the metric, as the limit is."""
    bounds = [f"{bound * 100:+.3g}" for bound in (c.low_decisive, c.high_decisive) if bound is not None]
    return f"{' … '.join(bounds)} %, starts that depend on each other allowed for" if bounds else None


def _decided(comparison: Comparison, arm: ArmResult, result: Result) -> bool:
    """Whether its interval may decide anything. A part that works and loses too much is enough to exceed."""
    return comparison.rounds >= result.rounds_to_decide and arm.outcome in (Outcome.OK, Outcome.FAILED)
