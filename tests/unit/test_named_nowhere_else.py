"""What dbtoll knows of an environment, an engine or a workload stands in its own file: no other source file has its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dbtoll
from dbtoll import registry

SOURCE = Path(dbtoll.__file__).parent

FINDINGS = "a key of a run's facts, and a noun: what is asked of probes"
PLANNED = "the baseline, in the text of a specification"

ALLOWED: dict[str, tuple[str, str]] = {
    "defaults.py": ("native postgres tpch noop probes no_server", "the members on which dbtoll itself stands"),
    "cli.py": ("native postgres tpch probes no_server", "defaults that its help shows, which imports nothing"),
    "store/upgrade.py": (
        "native docker qemu uml simulated postgres mariadb noop no_server tpch tpcc tatp sql probes",
        "what was so when folders of before were written",
    ),
    "spec/__init__.py": ("docker", "an example in a hint"),
    "analysis/checks/findings.py": ("probes", FINDINGS),
    "analysis/result/run_warnings.py": ("probes", FINDINGS),
    "report/export/__init__.py": ("probes", FINDINGS),
    "report/tables.py": ("probes", FINDINGS),
    "report/text/names.py": ("probes", FINDINGS),
    "runner/preparation/inputs.py": ("probes", FINDINGS),
    "interfaces/engine.py": ("sql", "the ability to answer statements"),
    "machines/agent/session.py": ("sql", "a key of the agent's protocol"),
    "doctor/host.py": ("native", "a key of `doctor --json`: what the word means on this machine"),
    "doctor/summary.py": ("native", "the same"),
    "environments/qemu/__init__.py": ("native", "aio=native of qemu(1)"),
    "engines/no_server.py": ("postgres", "the wire that its address is said to speak"),
    "engines/noop.py": ("postgres", "the wire and the dialect that it takes"),
    "workloads/tpch/reference.py": ("duckdb", "a key of a recipe: the library that gives the reference answers"),
    "selfbench/explanations/ledger.py": ("native simulated", "a world with planted costs is what it is about"),
    "selfbench/costs/growth.py": ("native docker uml qemu simulated", "what the arms of a simulated world are called"),
    "selfbench/statistics/precision.py": ("native", PLANNED),
}
"""File -> names that it may have, and why."""

FAMILIES = ("environments", "engines", "workloads")
BENCHED = ("engines", "workloads")
"""A selfbench is a certain experiment: it names what it loads into what, but no environment."""


def literals(file: Path) -> Iterator[tuple[int, str]]:
    """Line and value of every text that is no docstring."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value


def named(text: str, names: set[str]) -> set[str]:
    """Members that a literal names: as it stands, as the beginning of a stack, or as a key of a specification in it."""
    stacks = re.findall(r'\b(?:name|stack|baseline) = "([a-z_]+)', text)
    whole = re.fullmatch(r"([a-z_]+)((:|//).*)?", text)
    return ({whole[1]} if whole else set[str]()).union(stacks) & names


def own(file: Path, name: str) -> bool:
    """Whether the file is the member's, or lies in its folder."""
    return name in (file.stem, *file.relative_to(SOURCE).parts) and file.relative_to(SOURCE).parts[0] in FAMILIES


def found() -> Iterator[tuple[str, str]]:
    """File and name of a member, for each literal outside of the member's own files that names it."""
    names = {family: set(registry.names(family)) for family in FAMILIES}
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        if place.startswith("papers/"):  # what a paper measured is its own to say
            continue
        benched = BENCHED if place.startswith("selfbench/") else ()
        looked_for = set[str]().union(*(names[family] for family in FAMILIES if family not in benched))
        for _, text in literals(file):
            yield from ((place, name) for name in named(text, looked_for) if not own(file, name))


def test_members_are_named_in_their_own_files_alone() -> None:
    allowed = {(place, name) for place, (names, _) in ALLOWED.items() for name in names.split()}
    seen = set(found())
    assert seen - allowed == set()
    assert allowed - seen == set(), "these exceptions are not needed any more"


def test_a_name_is_seen_wherever_it_stands() -> None:
    names = {"docker", "noop"}
    assert (
        named("docker", names)
        == named("docker:runsc", names)
        == named('[[arm]]\nstack = "docker"', names)
        == {"docker"}
    )
    assert named('[engine]\nname = "noop"\n', names) == {"noop"}
    assert named("the docker daemon", names) == named("docker.io", names) == set()
