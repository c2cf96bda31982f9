"""The agent's own tests, so that one command runs everything."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.program import ROOT


@pytest.mark.timeout(1500)
def test_the_agents_own_tests_pass() -> None:
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: ./dbtoll setup brings one")
    done = subprocess.run(
        ["cargo", "test", "--locked", "--quiet"], cwd=ROOT / "agent", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert "test result: ok" in done.stdout
