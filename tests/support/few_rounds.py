"""Runs of a few rounds of simulated arms, in this process."""

from __future__ import annotations

from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.reader import Run


def specification(*arms: str) -> str:
    """Simulated arms without any overhead, the first of them the baseline."""
    return """
[engine]
name = "noop"
[workload]
name = "tpch"
queries = ["Q1", "Q6"]
[precision]
budget = "60s"
target = "0.001%"
rounds_min = 2
rounds_max = 2
""" + "".join(f'[[arm]]\nname = "{arm}"\nstack = "simulated"\n' for arm in arms)


class Counting(Quiet):
    """A watch that ends a run after so many rounds."""

    def __init__(self, rounds: int) -> None:
        super().__init__(lambda _: None)
        self.rounds = rounds

    def decide(self, so_far: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return "rounds_max" if len(so_far.complete_rounds) >= self.rounds else None
