"""What analysis and report know of members comes from the facts of a run; folders of before have it supplied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dbtoll import registry
from dbtoll.errors import RunFolderError
from dbtoll.model.description import Descriptions
from dbtoll.model.experiment import Arm, ComponentSpec, Configuration, Experiment, Step
from dbtoll.runner.preparation.inputs import descriptions
from dbtoll.store.reader import read_run
from dbtoll.store.upgrade import completed
from tests.support.make_run import experiment, make_run


def described(asked: Experiment) -> dict[str, Any]:
    """As a run of this version writes them."""
    configuration = asked.configuration
    engine = registry.find("engines", configuration.engine.name)(configuration.engine.options)
    workload = registry.find("workloads", configuration.workload.name)(configuration.workload.options)
    return descriptions(asked, [engine], workload)


@pytest.fixture
def asked() -> Experiment:
    return experiment()


def test_a_folder_of_before_is_described_as_it_was_then(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", rounds=2, interrupted=False))
    found = run.descriptions
    assert (found.engines["postgres"].title, found.workload.title, found.workload.size) == (
        "PostgreSQL",
        "TPC-H",
        "at scale factor 0.1",
    )
    assert {name: each.title for name, each in found.environments.items()} == {"native": "Native", "docker": "Docker"}
    assert found.engines["postgres"].location_settings.keys() >= {"port", "data_directory"}
    assert "not comparable with published TPC results" in found.workload.disclaimer


@pytest.mark.parametrize("workload", ["tpch", "tpcc", "tatp", "probes"])
@pytest.mark.parametrize("engine", ["postgres", "mariadb", "noop", "no_server"])
def test_what_is_supplied_is_what_is_written_now(asked: Experiment, engine: str, workload: str) -> None:
    """As long as nothing has changed since; then this test says that the table stays and the code goes on."""
    options = {"scale": 0.1} if workload == "tpch" else {}
    asked_of = Configuration(ComponentSpec(engine, {}), ComponentSpec(workload, options))
    names = ("native", "docker", "uml", "qemu", "simulated")
    now = replace(asked, arms=tuple(Arm(name, (Step(name),), configuration=asked_of) for name in names))
    supplied = msgspec.convert(completed({}, now)["descriptions"], Descriptions)
    written = msgspec.convert(described(now), Descriptions)
    assert supplied.environments == written.environments
    assert supplied.workload == written.workload
    assert supplied.engines[engine].title == written.engines[engine].title
    assert supplied.engines[engine].location_settings.keys() == written.engines[engine].location_settings.keys()
    assert supplied.engines[engine].auto_tuned_settings == written.engines[engine].auto_tuned_settings


def test_what_nobody_knew_then_has_its_name_as_title(asked: Experiment) -> None:
    oracle = replace(asked.configuration, engine=ComponentSpec("oracle", {}))
    strange = replace(asked, baseline="xen", arms=(Arm("xen", (Step("xen"),), configuration=oracle),))
    found = msgspec.convert(completed({}, strange)["descriptions"], Descriptions)
    assert found.engines["oracle"].title == "oracle" and found.environments["xen"].title == "xen"


def test_what_was_written_is_left_as_it_is(asked: Experiment) -> None:
    facts = {"descriptions": {"engines": {"postgres": {"title": "Mine"}}}, "configurations": []}
    assert completed(facts, asked) is facts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environments": {"native": {"title": "Native"}}}, "descriptions without 'docker'"),
        ({"engines": {"postgres": {"title": 7}}}, "engine"),
        (
            {"workload": {"title": "W", "throughput_unit": {"name": "none", "seconds": 0.0}}},
            "a unit of throughput of no time",
        ),
        ({"workload": None}, "workload"),
    ],
)
def test_descriptions_that_cannot_be_are_named(
    asked: Experiment, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    facts = {"descriptions": {**described(asked), **change}}
    with pytest.raises(RunFolderError, match=said) as caught:
        read_run(make_run(tmp_path / "run", rounds=2, interrupted=False, facts=facts))
    assert "facts.json" in caught.value.message
