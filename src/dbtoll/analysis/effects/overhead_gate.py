"""The CI gate: whether every arm's overhead is within a limit. The rule of `--max-overhead` (docs/CI.md); pure."""

from __future__ import annotations

from dbtoll.analysis.effects.comparisons import GEOMEAN, missing
from dbtoll.analysis.result.schema import (
    NOT_FINISHED,
    ArmResult,
    Comparison,
    GateCell,
    OverheadGate,
    Result,
)
from dbtoll.model.experiment import GateDecision, Outcome
from dbtoll.store.schema import STOPPED

NOT_ENDED = {STOPPED: "its user stopped the run", NOT_FINISHED: "the run has not ended"}
"""Why a run is not over. Who stops it may have looked at the interval first, so it decides nothing until it goes on."""


def judge(result: Result, limit: float) -> OverheadGate:
    """The decision on every arm and combination of levels, and on all of them. ``limit``: a fraction of the main metric.

    A cell is exceeded where the lower bound of its decisive interval over all statements lies above the limit; within where the
    upper bound does not, nothing of the arm failed and no statement is left out; undecided otherwise. Fewer rounds than a verdict
    needs decide nothing, nor does a run that is not over. The gate is exceeded where any cell is, within where all cells are.
    """
    reason = NOT_ENDED.get(result.stopped)
    arms = {arm.name: arm for arm in result.arms}
    rows = [c for c in result.comparisons if c.estimand == GEOMEAN and c.metric == result.main_metric and not c.is_aa]
    cells = [_cell(c, arms[c.arm], result, limit, reason) for c in rows]
    gated = {cell.arm for cell in cells}
    cells += [_failed(arm) for arm in result.arms if arm.outcome != Outcome.OK and arm.name not in gated]
    if not cells:
        reason = reason or "no arm is compared with the baseline"
    return OverheadGate(limit, _of_all(cells), result.main_metric, GEOMEAN, reason, tuple(cells))


def _of_all(cells: list[GateCell]) -> GateDecision:
    decisions = {cell.decision for cell in cells}
    if GateDecision.EXCEEDED in decisions:
        return GateDecision.EXCEEDED
    return GateDecision.WITHIN if decisions == {GateDecision.WITHIN} else GateDecision.UNDECIDED


def _cell(c: Comparison, arm: ArmResult, result: Result, limit: float, not_ended: str | None) -> GateCell:
    decision, reason = GateDecision.UNDECIDED, None
    may = not not_ended and arm.outcome in (Outcome.OK, Outcome.FAILED) and c.rounds >= result.rounds_to_decide
    # A part that works and loses too much is enough to exceed.
    if may and c.low_decisive is not None and c.low_decisive > limit:
        decision = GateDecision.EXCEEDED
    elif may and arm.outcome == Outcome.OK and not missing(c.left_out) and _at_most(c.high_decisive, limit):
        decision = GateDecision.WITHIN
    else:
        reason = not_ended or _why(c, arm, result)
    return GateCell(
        c.arm, c.baseline, c.levels, decision, c.estimate, c.low_decisive, c.high_decisive, c.rounds, reason
    )


def _at_most(bound: float | None, limit: float) -> bool:
    return bound is not None and bound <= limit


def _why(c: Comparison, arm: ArmResult, result: Result) -> str:
    """Why a cell of a run that is over is undecided."""
    if arm.outcome != Outcome.OK:
        return arm.reason or arm.outcome
    if c.reason:
        return c.reason
    if c.rounds < result.rounds_to_decide:
        return f"a decision needs {result.rounds_to_decide} rounds"
    if lacking := missing(c.left_out):
        return f"without {'; '.join(lacking)}"
    return "it has no upper bound" if c.high_decisive is None else "the limit lies inside the interval"


def _failed(arm: ArmResult) -> GateCell:
    """Of an arm that has no comparison of its own: without a sound baseline, or its copy, no arm is within."""
    return GateCell(
        arm.name,
        arm.against or arm.copy_of,
        {},
        GateDecision.UNDECIDED,
        None,
        None,
        None,
        arm.rounds,
        arm.reason or arm.outcome,
    )
