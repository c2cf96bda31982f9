"""HyPer and MonetDB under Docker, KVM and VirtualBox: its tables and claims, and all of it measured again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dbtoll.analysis.reproduction import paper
from dbtoll.analysis.reproduction.tables import PublishedTable
from dbtoll.analysis.result.schema import Result
from dbtoll.model.experiment import Experiment
from dbtoll.papers.muehlbauer2015 import figure5, reproduced
from dbtoll.papers.muehlbauer2015.claims import CHECKS
from dbtoll.papers.muehlbauer2015.parts import Part, Parts
from dbtoll.papers.muehlbauer2015.verdicts import RULES
from dbtoll.store.reader import Run


class Paper(paper.Paper):
    """See analysis.reproduction.paper.Paper."""

    name = "muehlbauer2015"
    checks = CHECKS
    rules = RULES

    def parts(self, runs: Mapping[str, Sequence[Run]], samples: Path | None = None) -> Parts:
        parts = Parts({role: Part(run) for role, (run,) in runs.items()})
        parts.samples = samples
        return parts

    def tables(self, parts: Parts) -> Iterable[PublishedTable]:
        return reproduced.find_all(parts)

    def beside(self, result: Result, experiment: Experiment) -> Iterable[PublishedTable]:
        return figure5.tables(result, experiment.configuration.workload.name)
