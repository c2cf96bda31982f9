"""The locks of Python packages: they hold what pyproject.toml asks for, and the hash of every file that may be installed."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.program import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
ASKED = {"main": PROJECT["project"]["dependencies"] + GROUPS["build"]}
ASKED["test"] = ASKED["main"] + GROUPS["test"] + GROUPS["docs"] + GROUPS["check"] + GROUPS["pictures"]


def locked(lock: str) -> dict[str, tuple[Requirement, set[str]]]:
    """Name -> (the one version, with the machines that it is for; hashes)."""
    text = (ROOT / f"requirements/{lock}.txt").read_text().replace("\\\n", " ")
    lines = [line.split(" --hash=") for line in text.splitlines() if not line.startswith("#")]
    return {
        canonicalize_name(Requirement(first).name): (Requirement(first), set(map(str.strip, hashes)))
        for first, *hashes in lines
    }


@pytest.mark.parametrize("lock", ["main", "test"])
def test_a_lock_holds_what_is_asked_for_with_hashes(lock: str) -> None:
    found = locked(lock)
    for requirement in map(Requirement, ASKED[lock]):
        pinned, _ = found[canonicalize_name(requirement.name)]
        (pin,) = pinned.specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), f"{requirement}, locked {pinned}: just lock"
    for pinned, hashes in found.values():
        assert hashes, pinned
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), pinned


def test_the_locks_agree() -> None:
    main, test = locked("main"), locked("test")
    assert {name: (test[name][0].specifier, test[name][1]) for name in main} == {
        name: (pinned.specifier, hashes) for name, (pinned, hashes) in main.items()
    }


def test_what_builds_the_checkout_is_locked() -> None:
    assert PROJECT["build-system"]["requires"] == GROUPS["build"]


def test_what_is_installed_here_is_what_is_locked() -> None:
    """Else a test could pass with a version that nobody else gets."""
    for name, (pinned, _) in locked("test").items():
        if pinned.marker is None or pinned.marker.evaluate():
            assert pinned.specifier.contains(version(name)), f"{name} {version(name)}: ./dbtoll setup"
