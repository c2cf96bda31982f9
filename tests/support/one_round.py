"""One round of an experiment, measured in this process: what a test may look into and meddle with."""

from __future__ import annotations

from pathlib import Path

from dbtoll import spec
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import Result
from dbtoll.plan import Plan
from dbtoll.runner.budget import Budget
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.store.reader import Run
from dbtoll.store.schema import PlanFile, RoundBegin, RoundEnd
from dbtoll.store.writer import RunWriter


class Silent:
    """A watch that shows nothing and never stops a run."""

    def say(self, text: str) -> None:
        del text

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        del round_index, doing, done, of, left_s

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        del run, elapsed_s, next_round_s
        return None

    def larger_budget(self, budget_s: float) -> bool:
        del budget_s
        return False


def measure_one_round(text: str, folder: Path, *, blocks: int = 1) -> Result:
    """What is said of it. ``text``: a specification. ``folder``: is made."""
    folder.mkdir()
    asked = spec.parse(text, "one round")
    with ready(asked, folder, Silent()) as prepared:
        plan_file = PlanFile(experiment=asked, queries=prepared.queries, blocks=blocks)
        with RunWriter.create(folder, spec=b"", plan=plan_file, facts=prepared.facts) as writer:
            writer.append(RoundBegin(round=0, attempt=0, elapsed_s=0.0))
            plan = Plan(asked, prepared.queries, blocks, {}).round(0)
            RoundRun(
                prepared.context, prepared.inputs, plan, writer.append, Silent(), Budget(float("inf")), None, set()
            ).measure()
            writer.append(RoundEnd(round=0, attempt=0, complete=True, elapsed_s=1.0))
    return results.analyze(folder)
