"""One round of an experiment, measured in this process: what a test may look into and meddle with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from dbtoll import spec
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import Result
from dbtoll.errors import Unavailable
from dbtoll.plan import Plan
from dbtoll.runner.budget import Budget
from dbtoll.runner.preparation import driver_calibration
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.spec.stack import write_stack
from dbtoll.store.schema import PlanFile, RoundBegin, RoundEnd
from dbtoll.store.writer import RunWriter
from tests.support.lacking import lacking


def measure_one_round(text: str, folder: Path, *, blocks: int = 1, copies: bool = False) -> Result:
    """What is said of it. ``text``: a specification. ``folder``: is made. ``copies``: the A/A copies too."""
    folder.mkdir()
    asked, watch = spec.parse(text, "one round"), Quiet(lambda _: None)
    if not copies:
        asked = replace(asked, arms=tuple(arm for arm in asked.arms if arm.copy_of is None))
    for arm in asked.arms:
        if why := lacking(write_stack(arm.stack)):
            raise Unavailable(why, "install it")
    with _short_calibration(), ready(asked, folder, watch, tried=True) as prepared:
        plan_file = PlanFile(experiment=asked, queries=prepared.queries, blocks=blocks)
        with RunWriter.create(folder, spec=b"", plan=plan_file, facts=prepared.facts) as writer:
            writer.append(RoundBegin(round=0, attempt=0, elapsed_s=0.0))
            plan = Plan(asked, prepared.queries, blocks, {}).round(0)
            RoundRun(
                prepared.context, prepared.inputs, plan, writer.append, watch, Budget(float("inf")), None, set()
            ).measure()
            writer.append(RoundEnd(round=0, attempt=0, complete=True, elapsed_s=1.0))
    return results.analyze(folder)


@contextmanager
def _short_calibration() -> Iterator[None]:
    """What the driver costs by itself is measured in a tenth of the time: no test asks how much that is."""
    with patch.multiple(driver_calibration, RAMP_UP_NS=20_000_000, WINDOW_NS=100_000_000):
        yield
