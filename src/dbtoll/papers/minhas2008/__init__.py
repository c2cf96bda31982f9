"""PostgreSQL on TPC-H in a Xen guest: its tables and claims, and both measured again in another environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dbtoll.analysis.reproduction import paper
from dbtoll.analysis.reproduction.tables import PublishedTable
from dbtoll.analysis.result.schema import Result
from dbtoll.model.experiment import Experiment
from dbtoll.papers.minhas2008 import reproduced, side_by_side
from dbtoll.papers.minhas2008.claims import CHECKS
from dbtoll.papers.minhas2008.parts import Part, Parts
from dbtoll.papers.minhas2008.verdicts import RULES
from dbtoll.store.reader import Run


class Paper(paper.Paper):
    """See analysis.reproduction.paper.Paper."""

    name = "minhas2008"
    checks = CHECKS
    rules = RULES

    def parts(self, runs: Mapping[str, Sequence[Run]], samples: Path | None = None) -> Parts:
        found = {role: Part(run) for role, (run,) in runs.items()}
        return Parts(warm=found["warm"], cold=found.get("cold"), unread=found.get("cold without read-ahead"))

    def tables(self, parts: Parts) -> Iterable[PublishedTable]:
        return reproduced.find_all(parts)

    def beside(self, result: Result, experiment: Experiment) -> Iterable[PublishedTable]:
        return side_by_side.tables(result) if experiment.configuration.workload.name == "tpch" else ()
