"""How doctor tries an environment: in the ways that it names, until one works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import pytest

from dbtoll.doctor import availability
from dbtoll.environments import native
from dbtoll.interfaces.environment import Trial
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Step
from dbtoll.model.machine import MissingRequirement

HERE = cast(AgentMachine, object())
"""What is asked in these tests looks at no machine."""


class Tried(native.Environment):
    works: ClassVar[frozenset[str]] = frozenset()
    trials = (Trial({"root": "host"}, "quickly"), Trial({"root": "image"}, "slowly"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Options that were tried."""
    tried: list[Mapping[str, Any]] = []

    def missing(machine: object, name: str, options: Mapping[str, Any]) -> list[MissingRequirement]:
        tried.append(options)
        return [] if options["root"] in Tried.works else [MissingRequirement("a root", f"no {options['root']}", "mend")]

    def environment_of(step: Step) -> Tried:
        return Tried()

    monkeypatch.setattr(availability, "missing", missing)
    monkeypatch.setattr(availability, "environment_of", environment_of)
    return tried


@pytest.mark.parametrize(
    ("works", "state", "note", "count"),
    [
        ({"host", "image"}, "ready", "quickly", 1),
        ({"image"}, "ready", "slowly; not quickly: no host", 2),
        (set[str](), "lacks", "", 2),
    ],
)
def test_the_first_way_that_works_is_taken(
    asked: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch, works: set[str], state: str, note: str, count: int
) -> None:
    monkeypatch.setattr(Tried, "works", frozenset(works))
    found = availability.environment("native", HERE)
    assert (found.state, found.note, len(asked)) == (state, note, count)
    refused = [each["refused"] for each in found.told["trials"]]
    assert refused == [None if root in works else f"no {root}" for root in ("host", "image")[:count]]
    assert [lack.why for lack in found.missing_requirements] == ([] if works else ["no image"])
