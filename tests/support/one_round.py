"""One round of an experiment, measured in this process: what a test may look into and meddle with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dbtoll import spec
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import Result
from dbtoll.plan import Plan
from dbtoll.runner.budget import Budget
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.schema import PlanFile, RoundBegin, RoundEnd
from dbtoll.store.writer import RunWriter


def measure_one_round(text: str, folder: Path, *, blocks: int = 1, copies: bool = False) -> Result:
    """What is said of it. ``text``: a specification. ``folder``: is made. ``copies``: the A/A copies too."""
    folder.mkdir()
    asked, watch = spec.parse(text, "one round"), Quiet(lambda _: None)
    if not copies:
        asked = replace(asked, arms=tuple(arm for arm in asked.arms if arm.copy_of is None))
    with ready(asked, folder, watch) as prepared:
        plan_file = PlanFile(experiment=asked, queries=prepared.queries, blocks=blocks)
        with RunWriter.create(folder, spec=b"", plan=plan_file, facts=prepared.facts) as writer:
            writer.append(RoundBegin(round=0, attempt=0, elapsed_s=0.0))
            plan = Plan(asked, prepared.queries, blocks, {}).round(0)
            RoundRun(
                prepared.context, prepared.inputs, plan, writer.append, watch, Budget(float("inf")), None, set()
            ).measure()
            writer.append(RoundEnd(round=0, attempt=0, complete=True, elapsed_s=1.0))
    return results.analyze(folder)
