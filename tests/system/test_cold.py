"""A cold visit reads its data from the device, whatever way an engine reads them: through buffers of its own, or mapped files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbtoll.analysis.result.schema import CheckResult, Result
from dbtoll.runner.arms import RunningArm
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Visit
from tests.support.one_round import measure_one_round

TEXT = """
exclusive = true
[engine]
name = "{engine}"
[workload]
name = "tpch"
scale = 0.1
queries = ["Q1", "Q6"]
[factors]
cache = ["cold"]
[resources]
memory = "2 GiB"
[[arm]]
stack = "native"
"""

DATA_BYTES = 1 << 20
"""Of 600 000 rows both queries read four columns or more."""


@pytest.mark.alone  # it drops the caches of the machine
@pytest.mark.parametrize("engine", ["duckdb", "hyper", "monetdb", "postgres"])
def test_a_cold_visit_reads_its_data(engine: str, run_folder: Path) -> None:
    """Also that of the arm that comes second: of programs it finds in memory what the first one's server has mapped."""
    result = measure_one_round(TEXT.format(engine=engine), run_folder, copies=True)
    read = [visit.units[0].disk_read_bytes or 0 for visit in read_run(run_folder).records(Visit)]
    assert len(read) == 4
    assert min(read) > DATA_BYTES, read
    assert all(check.passed for check in checks(result))


@pytest.mark.parametrize("engine", ["duckdb", "hyper", "monetdb"])
def test_a_visit_that_finds_its_data_in_memory_is_void(
    engine: str, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningArm, "drop_caches", lambda self, host: None)
    result = measure_one_round(TEXT.format(engine=engine), run_folder, copies=True)
    dry = [visit for visit in read_run(run_folder).records(Visit) if visit.units[0].disk_read_bytes == 0]
    assert dry
    assert sum(check.void_visits for check in checks(result)) == len(dry)
    assert not all(check.passed for check in checks(result))


def checks(result: Result) -> list[CheckResult]:
    return [check for arm in result.arms for check in arm.checks if check.name == "cold_reads_disk"]
