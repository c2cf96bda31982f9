"""HyPer and MonetDB under Docker, KVM and VirtualBox: its tables and claims, and Figure 5 beside transactions measured here."""

from __future__ import annotations

from collections.abc import Iterable

from dbtoll.analysis.reproduction import paper
from dbtoll.analysis.reproduction.tables import PublishedTable
from dbtoll.analysis.result.schema import Result
from dbtoll.model.experiment import Experiment
from dbtoll.papers.muehlbauer2015 import figure5
from dbtoll.papers.muehlbauer2015.claims import CHECKS


class Paper(paper.Paper):
    """See analysis.reproduction.paper.Paper."""

    name = "muehlbauer2015"
    checks = CHECKS

    def beside(self, result: Result, experiment: Experiment) -> Iterable[PublishedTable]:
        return figure5.tables(result, experiment.configuration.workload.name)
