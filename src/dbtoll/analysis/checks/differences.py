"""What an arm was asked to be other than the arm that it is held against: the checks demand sameness of all else."""

from __future__ import annotations

from dbtoll.analysis.checks.evidence import AskedOfServer
from dbtoll.model.experiment import Experiment
from dbtoll.store.reader import Run

RESOURCES = {"cpus": "processors", "memory_bytes": "memory", "open_files": "open_files", "split": "processors"}
"""Resource -> the fact of a start by which it shows."""


def asked_of_resources(experiment: Experiment, arm: str, baseline: str) -> frozenset[str]:
    """Facts of a start that the arm's own resources make others; and of machines that use all of the arm's processors together,
    how many each of them has."""
    own = experiment.arm(arm)
    found = own.configuration.differences(experiment.arm(baseline).configuration)
    asked = {RESOURCES[each.name] for each in found if each.part == "resources" and each.name in RESOURCES}
    if own.layout.machines >= own.configuration.resources.cpus > 1:
        asked.add(RESOURCES["cpus"])
    return frozenset(asked)


def asked_of_server(run: Run, arm: str, baseline: str) -> AskedOfServer:
    """By the engines, the images, and the settings that both were given, those that a profile or a file holds among them."""
    first, second = (run.plan.experiment.arm(name) for name in (arm, baseline))
    own, other = first.configuration, second.configuration
    settings, expected = (run.facts_of(name).get("settings") or {} for name in (arm, baseline))
    names = frozenset(name for name in {*settings, *expected} if settings.get(name) != expected.get(name))
    another_share = first.layout.all_servers != second.layout.all_servers
    return AskedOfServer(own.engine.name != other.engine.name or own.image != other.image or another_share, names)
