"""The parts of a result beside the comparisons: arms with their checks, times, the run-order series, changed plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dbtoll.analysis.result import differences
from dbtoll.analysis.result.schema import ArmResult, CheckResult
from dbtoll.analysis.visits.metrics import levels_key
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.experiment import Arm, Outcome
from dbtoll.store.schema import Start

FEWEST_FOR_A_MEDIAN = 3


def arm(measured: ValidVisits, arm: Arm) -> ArmResult:
    """What became of an arm, with its checks."""
    run = measured.run
    outside = [record for record in run.outside if isinstance(record, Start) and record.arm == arm.name]
    starts = [record for record in run.records(Start) if record.arm == arm.name]
    visits = [visit for visit in (*measured.visits, *measured.instructions) if visit.arm == arm.name]
    rounds = {visit.round for visit in visits}
    begun = [start for start in starts if start.outcome == "ok" and start.round in rounds]
    boot_ids = {facts["boot_id"] for start in begun for facts in start.servers if "boot_id" in facts}
    checks = tuple(
        CheckResult(
            f.check.name,
            f.check.passed,
            f.check.finding,
            f.check.voids,
            f.rounds_failed,
            tuple(sorted(f.void_rounds)),
            len(f.void_visits),
        )
        for f in measured.findings
        if f.arm == arm.name
    )
    outcome, reason = _outcome(measured, arm.name, bool(rounds), [*outside, *starts], checks)
    return ArmResult(
        name=arm.name,
        # Runs from before the plan kept the text have only the options' values.
        stack=", ".join(filter(None, [arm.text or _stack_text(arm), arm.layout.text])),
        outcome=outcome,
        reason=reason,
        rounds=len(rounds),
        boots=len(boot_ids) if boot_ids else len(begun) * arm.layout.machines,
        blocks=len({(v.round, levels_key(v.levels), v.block) for v in visits if not v.first_execution}),
        checks=checks,
        emulated=arm.name in measured.emulated,
        units=len(arm.layout.units),
        against=arm.against,
        copy_of=arm.copy_of,
        server=differences.server(run, arm.name),
        differences=differences.of_arm(run, arm),
        storage=next(filter(None, (_storage(start.facts.get("storage")) for start in begun)), None),
    )


def _outcome(
    measured: ValidVisits, arm: str, counted: bool, starts: Sequence[Start], checks: Sequence[CheckResult]
) -> tuple[Outcome, str | None]:
    if invalid := measured.invalid(arm):
        return Outcome.INVALID, invalid
    failures = measured.failures(arm)
    if counted:
        return (Outcome.FAILED, "; ".join(failures)) if failures else (Outcome.OK, None)
    for check in checks:
        if check.passed is False and check.voids:
            return Outcome.INVALID, f"{check.name}: {check.finding}"
    bad = [start for start in starts if start.outcome != "ok"]
    if bad:
        return Outcome(bad[-1].outcome), bad[-1].reason
    return Outcome.FAILED, "it has no complete round"


def _stack_text(arm: Arm) -> str:
    return "//".join(_step_text(step.environment, step.options) for step in arm.stack)


def _storage(told: Any) -> str | None:
    """``image: ext4, cache none``; None where nothing was told."""
    if not isinstance(told, dict) or not told.get("kind"):
        return None
    cache = told.get("cache")
    return f"{told['kind']}: {told.get('file_system') or 'not known'}" + (f", cache {cache}" if cache else "")


def _step_text(environment: str, options: Mapping[str, object]) -> str:
    words = [f"{key}={value}" for key, value in sorted(options.items())]
    return environment + (":" + ",".join(words) if words else "")
