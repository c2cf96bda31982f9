"""A round at several numbers of threads, through the real runner: which servers are started, what is warmed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dbtoll.engines import noop
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Start, Visit
from tests.support.one_round import measure_one_round

TEXT = """
[engine]
name = "noop"
[workload]
name = "tpch"
queries = ["Q1", "Q6"]
[factors]
threads = [1, 2]
connection = ["persistent", "per_visit"]
[resources]
cpus = 2
[[arm]]
stack = "simulated"
"""


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The no-op engine as one that can be told: with how many threads its servers were started."""
    started: list[str] = []
    start = noop.Engine.start

    def noted(self: Any, machine: Any, place: Any, settings: Mapping[str, str]) -> Any:
        started.append(settings["workers"])
        return start(self, machine, place, settings)

    told = {"thread_settings": ("workers",), "following_settings": (), "unsupported": {}, "start": noted}
    told |= {"settings_of_threads": lambda self, threads: {"workers": str(threads)}}
    told |= {"threads_asked_for": lambda self: None}
    told |= {"threads": lambda self, session: int(started[-1])}
    for name, value in told.items():
        monkeypatch.setattr(noop.Engine, name, value, raising=False)
    return started


def test_servers_are_started_and_warmed_for_each_number(starts: list[str], run_folder: Path) -> None:
    measure_one_round(TEXT, run_folder, blocks=2, copies=True)
    run = read_run(run_folder)
    assert [start.outcome for start in run.records(Start)] == ["ok", "ok"]
    visits = list(run.records(Visit))
    order = list(dict.fromkeys(visit.levels["threads"] for visit in visits))
    # All start with the fewest; one for each arm, and again where the number changes.
    assert Counter(starts) == ({"1": 2, "2": 2} if order == ["1", "2"] else {"1": 4, "2": 2})
    firsts = Counter(
        (visit.arm, visit.levels["threads"], visit.levels["connection"]) for visit in visits if visit.first_execution
    )
    assert firsts == {(arm, n, "persistent"): 2 for arm in ("simulated", "simulated (A/A)") for n in ("1", "2")}
    steady = Counter(
        (visit.levels["threads"], visit.levels["connection"]) for visit in visits if not visit.first_execution
    )
    assert steady == {(n, connection): 2 * 2 * 2 for n in ("1", "2") for connection in ("persistent", "per_visit")}


def test_an_arm_whose_server_gives_another_number_fails(
    starts: list[str], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noop.Engine, "threads", lambda self, session: 1, raising=False)
    result = measure_one_round(TEXT, run_folder, copies=True)
    assert {arm.outcome for arm in result.arms} == {"failed"}
    assert all("its server gives a query 1 thread, not 2" in str(arm.reason) for arm in result.arms)
