"""What the CI gate decided, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model.experiment import GateDecision
from dbtoll.report.text.names import levels_text, with_arm_labels
from dbtoll.report.text.numbers import EffectText, is_throughput
from dbtoll.text import listed, noun

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import GateCell, OverheadGate, Result

_OF_METRIC = {"response_p50": " to answer (median)", "event_time": " for an event"}


def sentence(result: Result) -> str:
    """``exceeded: docker takes more than 5 % longer; docker: +24.9 % (20.2 … 29.8), 8 rounds``; empty where there is no gate."""
    gate = with_arm_labels(result).gate
    if gate is None:
        return ""
    if gate.decision == GateDecision.WITHIN:
        return f"within: every arm {_keeps(gate, 'at most')}"
    cells = [cell for cell in gate.cells if cell.decision == gate.decision]
    why = gate.reason or "; ".join(f"{cell_name(cell, gate)}: {cell_text(cell, gate)}" for cell in cells)
    if gate.decision == GateDecision.EXCEEDED:
        arms = list(dict.fromkeys(cell.arm for cell in cells))
        return f"exceeded: {listed(arms)} {_keeps(gate, 'more than', len(arms))}; {why}"
    return f"undecided: cannot tell whether every arm {_keeps(gate, 'at most')}; {why}"


def cell_name(cell: GateCell, gate: OverheadGate) -> str:
    """``docker``, with its levels where some vary: ``docker (cold)``."""
    levels = levels_text(cell.levels, varied_factors(each.levels for each in gate.cells if each.levels))
    several = len({each.baseline for each in gate.cells if each.estimate is not None}) > 1
    arm = f"{cell.arm} against {cell.baseline}" if several and cell.baseline else cell.arm
    return f"{arm} ({levels})" if levels and cell.levels else arm


def cell_text(cell: GateCell, gate: OverheadGate) -> str:
    """``+24.9 % (20.2 … 29.8), 8 rounds``, and why it is undecided where it is."""
    found = effect(cell, gate)
    parts = []
    if cell.estimate is not None or cell.low is not None:
        parts.append(f"{found.text}, {cell.rounds} {noun(cell.rounds, 'round')}")
    if cell.reason:
        parts.append(cell.reason)
    return "; ".join(parts)


def effect(cell: GateCell, gate: OverheadGate) -> EffectText:
    """With the interval that the decision rests on."""
    return EffectText(gate.metric, cell.estimate, cell.low, cell.high)


def limit_text(gate: OverheadGate) -> str:
    """``5 % longer``; of throughput, whose limit is of the time per transaction, ``4.76 % less``."""
    if is_throughput(gate.metric):
        return f"{gate.limit / (1 + gate.limit) * 100:.3g} % less"
    return f"{gate.limit * 100:g} % longer{_OF_METRIC.get(gate.metric, '')}"


def _keeps(gate: OverheadGate, how: str, arms: int = 1) -> str:
    verb = ("does" if arms == 1 else "do") if is_throughput(gate.metric) else ("takes" if arms == 1 else "take")
    return f"{verb} {how} {limit_text(gate)}"
