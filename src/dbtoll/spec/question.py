"""The question of a specification that asks none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dbtoll import defaults, registry
from dbtoll.model.experiment import Arm, ComponentSpec
from dbtoll.spec.differences import sides
from dbtoll.text import listed

_NAMED_MAX = 4
"""Arms, and values of an arm, that it names; more are counted."""


def default_question(arms: Sequence[Arm], baseline: str) -> str:
    """``How much does PostgreSQL lose on TPC-H in docker and uml, against native?``, or of arms that differ in more than that
    ``How much does new (PostgreSQL 17) lose on TPC-H, against old (PostgreSQL 15)?``"""
    known = {arm.name: arm for arm in arms}
    if baseline not in known:
        return ""  # a fault, which is told
    configuration = known[baseline].configuration
    others = [arm for arm in arms if arm.name != baseline and arm.copy_of is None]
    asked = _asked(configuration.workload)
    if any(arm.configuration != configuration for arm in others):
        return _of_unlike_arms(others, known[baseline], asked)
    names = [arm.name for arm in others]
    where = f"in {listed(names) if len(names) <= _NAMED_MAX else f'{len(names)} arms'}, against {baseline}"
    if configuration.workload.name == defaults.PROBES:
        return f"What does an event cost {where}?" if others else f"What does an event cost in {baseline}?"
    title = registry.find("engines", configuration.engine.name).description.title
    if not others:
        return f"How far do two copies of {baseline} differ with {title} on {asked}?"
    return f"How much does {title} lose on {asked} {where}?"


def _of_unlike_arms(others: Sequence[Arm], baseline: Arm, asked: str) -> str:
    told, its = [], list[str]()
    for arm in others:
        own, of_baseline = sides(arm.configuration, baseline.configuration)
        told.append(f"{arm.name} ({_few(own)})" if own else arm.name)
        its = list(dict.fromkeys([*its, *of_baseline]))
    which = listed(told) if len(told) <= _NAMED_MAX else f"each of {len(told)} arms"
    many = len(others) > 1 and len(told) <= _NAMED_MAX
    return f"How much {'do' if many else 'does'} {which} lose on {asked}, against {baseline.name} ({_few(its)})?"


def _few(values: Sequence[str]) -> str:
    more = len(values) - _NAMED_MAX
    return ", ".join(values[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _asked(workload: ComponentSpec) -> str:
    found = registry.find("workloads", workload.name)
    asked = str(found.description.title)
    given = workload.options.get(found.primary or "")
    if given and found.options[found.primary].kind == "path":
        asked += f" of {Path(given).resolve().name}"
    return asked
