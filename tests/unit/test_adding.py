"""The pages on how to add a member show what is tried: the toys, whole, and the names that code really has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dbtoll import contracts
from dbtoll.interfaces import engine, environment, workload

ROOT = Path(__file__).parents[2]
PAGES = {"environment": environment.Environment, "engine": engine.Engine, "workload": workload.Workload}


def page(kind: str) -> str:
    return (ROOT / f"docs/adding/{kind}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", PAGES)
def test_the_code_of_a_page_is_the_toy_that_is_run(kind: str) -> None:
    toys = ROOT / "tests/fixtures/toys" / kind
    shown = re.findall(r"```(?:python|sql)\n(.*?)```", page(kind), re.DOTALL)
    (code,) = (file for file in toys.rglob("*.py"))
    assert code.read_text(encoding="utf-8") in shown
    for file in toys.rglob("ones.sql"):
        assert f"-- statements/{file.name}\n{file.read_text(encoding='utf-8')}" in shown


@pytest.mark.parametrize(("kind", "interface"), PAGES.items())
def test_every_attribute_that_a_page_names_is_there(kind: str, interface: type) -> None:
    named = re.findall(r"^\| (.+?) \|", page(kind), re.MULTILINE)
    attributes = re.findall(r"`([a-z_]+)", " ".join(named))
    assert attributes
    for name in attributes:
        assert hasattr(interface, name) or name in interface.__annotations__, name


@pytest.mark.parametrize("name", ["EnvironmentContract", "EngineContract", "WorkloadContract"])
def test_contracts_are_where_the_pages_say(name: str) -> None:
    assert any(f"from dbtoll.contracts import {name}" in page(kind) for kind in PAGES)
    assert hasattr(contracts, name)
