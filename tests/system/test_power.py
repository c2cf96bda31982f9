"""A disk that loses its power: nothing that was promised is lost; and where nothing is synced, that is seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dbtoll.errors import Unavailable
from dbtoll.selfbench import measure
from dbtoll.selfbench.robustness import power
from dbtoll.selfbench.support.certificate import Certificate
from tests.support.program import is_root

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_root(), reason="a file system is mounted from a file, which takes root"),
]


def certificate(**options: object) -> Certificate:
    try:
        return measure("power", {"cuts": 2, "rounds": 2, "seed": 7, **options}, lambda _: None)
    except Unavailable as error:
        pytest.skip(error.message)


def test_the_selfbench_of_power_cuts() -> None:
    """Few of them here; `dbtoll selfbench power` does twenty."""
    found = certificate()
    assert found.holds(), found.as_json()
    assert found.figures["cuts"] == 2


def test_it_sees_a_run_that_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulated world, whose rounds take no time: one is over at nearly every moment at which the power can be cut."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.fsync = lambda handle: None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    simulated = power.SPEC.replace('name = "postgres"', 'name = "noop"').replace('budget = "120s"', 'budget = "10s"')
    monkeypatch.setattr(power, "SPEC", simulated)
    found = certificate(environments="simulated", cuts=4, rounds=30)
    assert found.figures["promised"] > 0
    assert found.figures["lost_rounds"] > 0
    assert not found.holds()
