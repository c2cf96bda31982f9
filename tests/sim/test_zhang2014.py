"""Zhang et al. 2014 in the simulated world: its parts, with planted costs of the designs; every claim has its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry, spec
from dbtoll.analysis.reproduction.paper import Paper, Reproduction
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.commands import sweep
from dbtoll.model.devices import Devices
from dbtoll.model.experiment import Arm, ComponentSpec, Experiment
from dbtoll.model.layout import Layout
from dbtoll.report import reproduction as reports
from dbtoll.spec.stack import parse_stack, write_stack
from dbtoll.store.reader import Run

COSTS = {"dedicated": 0.0, "shared": 0.3, "docker": 0.15}
"""Planted: how much longer a transaction takes, on the fast device."""
ON_DISKS = {"dedicated": 0.5, "shared": 0.0}


def simulated(experiment: Experiment, costs: Mapping[str, float]) -> Experiment:
    """The same on servers that do nothing, in machines for the units of each arm."""

    def arm(asked: Arm) -> Arm:
        stack = parse_stack(f"simulated:effect={costs[asked.copy_of or asked.name]},start_spread=0.002")
        own = replace(asked.configuration, engine=ComponentSpec("noop"), devices=Devices())
        units = Layout(machines=len(asked.layout.units))
        return replace(asked, stack=stack, text=write_stack(stack), configuration=own, layout=units)

    precision = replace(experiment.precision, budget_s=600, rounds_min=5, rounds_max=5)
    return replace(experiment, arms=tuple(map(arm, experiment.arms)), precision=precision, sessions=False)


def swept(paper: Paper, role: str, over: str, costs: Mapping[str, float], folder: Path) -> list[Run]:
    (part,) = (part for part in paper.about.parts if part.role == role)
    file = paper.folder / part.file
    assert part.over.startswith(over.partition("=")[0] + "=")
    planned = sweep.plan(spec.read_text(file), str(file), over, variables={})
    made = {value: simulated(each, costs) for value, each in planned.experiments.items()}
    return [each.run for each in sweep.measure(replace(planned, experiments=made), folder, quiet=True, yes=True).parts]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, Mapping[str, list[Run]]]:
    paper: Paper = registry.find("papers", "zhang2014")()
    folder = tmp_path_factory.mktemp("zhang2014")
    runs = {
        "tenants": swept(paper, "tenants", "tenants=1,5", COSTS, folder),
        "disks": swept(paper, "disks", "tenants=1,2", ON_DISKS, folder),
    }
    return paper.reproduce(runs), runs


def test_one_value_of_a_part_can_be_measured_alone(tmp_path: Path) -> None:
    paper: Paper = registry.find("papers", "zhang2014")()
    made = paper.reproduce({"disks": swept(paper, "disks", "tenants=2", ON_DISKS, tmp_path)})
    told = {each.checked.claim.id: each.judged for each in made.claims}
    assert told["Z14"].direction.outcome == "reproduced" and len(told["Z14"].direction.figures) == 1


def test_planted_designs_are_judged_as_they_were_planted(found: Any) -> None:
    made, _ = found
    paper: Paper = registry.find("papers", "zhang2014")()
    told = {each.checked.claim.id: each.judged for each in made.claims}
    assert list(told) == [claim.id for claim in paper.claims]
    outcomes = {name: tuple(each and each.outcome for each in (its.direction, its.size)) for name, its in told.items()}
    assert outcomes["Z01"] == ("reproduced", None)
    assert outcomes["Z02"] == ("reproduced", "not possible here")
    assert outcomes["Z03"] == (None, "not possible here")
    assert outcomes["Z04"] == ("reproduced", None)
    assert outcomes["Z14"] == ("reproduced", None)
    assert outcomes["Z07"] == (None, "not measured"), "it is of sixteen tenants, and five is the most here"
    for name in ("Z05", "Z06", "Z08", "Z09", "Z10", "Z11", "Z12", "Z13", "Z15"):
        assert {each for each in outcomes[name] if each} == {"not measured"}
    (first, *_) = told["Z14"].direction.figures
    assert first.low < 0.5 < first.high


def test_the_page_has_the_designs_over_tenants(found: Any, tmp_path: Path) -> None:
    made, runs = found
    paper: Paper = registry.find("papers", "zhang2014")()
    assert [each.name for each in made.tables] == ["Figure 2", "Figures 5, 7 and 8", "Figure 17"]
    measured = [run for its in runs.values() for run in its]
    written = reports.write(tmp_path, paper.about, made, [analyze_run(run) for run in measured], measured)
    page = written[0].read_text(encoding="utf-8")
    assert page.count('class="curves beside"') == 2
    assert "Rethinking Designs" in page
    assert "(tenants = 5)" in page, "of a sweep each run says which it is"
    assert "read its figures with care" in page
