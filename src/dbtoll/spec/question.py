"""The question of a specification that asks none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dbtoll import defaults, registry
from dbtoll.model.experiment import Arm, ComponentSpec
from dbtoll.text import listed

_NAMED_MAX = 4
"""Arms that it names; more are counted."""


def default_question(arms: Sequence[Arm], baseline: str, engine: ComponentSpec, workload: ComponentSpec) -> str:
    """``How much does PostgreSQL lose on TPC-H in docker and uml, against native?``"""
    others = [arm.name for arm in arms if arm.name != baseline and arm.copy_of is None]
    where = f"in {listed(others) if len(others) <= _NAMED_MAX else f'{len(others)} arms'}, against {baseline}"
    if workload.name == defaults.PROBES:
        return f"What does an event cost {where}?" if others else f"What does an event cost in {baseline}?"
    found = registry.find("workloads", workload.name)
    asked = str(found.description.title)
    given = workload.options.get(found.primary or "")
    if given and found.options[found.primary].kind == "path":
        asked += f" of {Path(given).resolve().name}"
    title = registry.find("engines", engine.name).description.title
    if not others:
        return f"How far do two copies of {baseline} differ with {title} on {asked}?"
    return f"How much does {title} lose on {asked} {where}?"
