"""The selfbenches that start real arms, small: that they come to their figures, not what these are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dbtoll.images.cache import default_root
from dbtoll.machines.chroot import STAGES
from tests.support.lacking import lacking
from tests.support.program import is_root, selfbench

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(not is_root(), reason="native arms need root"),
]


def certificate(name: str, **options: Any) -> dict[str, Any]:
    """See selfbench; nothing is left of its arms."""
    found = selfbench(name, **options)
    groups = list(Path("/sys/fs/cgroup").glob("**/dbtoll-selfbench-*"))
    roots = list(Path(STAGES).glob("dbtoll-selfbench-*"))
    copies = list((default_root() / "scratch").glob("dbtoll-selfbench-*/*"))
    assert groups + roots + copies == []
    return found


@pytest.fixture
def stacks() -> list[str]:
    """Without Docker where it is not installed, and while another run has the daemon."""
    why = lacking("docker")
    assert not why or not shutil.which("dockerd") or "another dbtoll run" in why, why
    return ["native"] if why else ["native", "docker"]


def test_starts_are_timed_by_the_hosts_agent(stacks: list[str]) -> None:
    found = certificate("start", starts=2, environments="+".join(stacks))
    assert found["figures"]["failures"] == 0
    for name in stacks:
        assert found["figures"][f"{name}_s"] > 0
        assert len(found["facts"]["seconds"][name]) == 2
    if "docker" in stacks:
        assert found["bounds"]["docker_s"]["max"] == 1


def test_a_disk_model_is_held_against_its_data_sheet() -> None:
    found = certificate("disks", models="hdd15k", duration="300ms")
    assert found["figures"]["faster_than_model"] == 0
    assert found["figures"]["hdd15k_random_read_ms"]["published"] == pytest.approx(5.67, abs=0.01)
    assert found["figures"]["hdd15k_sequential_read_mb_per_s"]["measured"] > 0
    assert set(found["figures"]["added_us"]) == {"hdd15k random_read", "hdd15k log_write"}
    assert "Cheetah" in found["facts"]["sources"]["hdd15k"]


def test_tenants_begin_together_in_every_design_and_are_driven_by_one_agent_or_by_many() -> None:
    found = certificate("tenancy", tenants=2, rounds=2, blocks=1, pairs=1, memory="1GiB")
    figures, pairs = found["figures"], [pair for its in found["facts"]["pairs"] for pair in its]
    assert set(figures["designs"]) == {"native dedicated x2", "native shared x2"}
    assert all(each["start_s"] > 0 and each["agents_mib"] > 1 for each in figures["designs"].values())
    # Whether they are within their bounds is asked of more windows, on a machine that does nothing else.
    assert 0 <= figures["window_skew_ms"] < 1000 and figures["violations"] == 0
    windows = [window for pair in pairs for window in pair.values()]
    assert len(pairs) == 2 and len(windows) == 6
    # Two processors give two seconds of CPU time a second, and the servers need the most of it.
    assert all(0 < each["throughput"] * each["driver_cpu_us"] < 1e6 for each in windows), windows
    for name in ("driver_ratio", "one_agent_ratio", "one_agent_cpu_ratio"):
        assert figures[f"{name}_low"] < figures[name] < figures[f"{name}_high"]


def test_answers_of_an_engine_in_an_environment_are_counted_that_are_right() -> None:
    found = certificate("answers", engines="duckdb", environments="native", scale=0.01, queries="Q1+Q6", drawn=3)
    assert found["holds"], found["failure"]
    assert found["figures"]["answers"] == 6
    assert found["figures"]["engines"] == {"duckdb": {"native": 6}}
    assert found["figures"]["without_rows"] == 0
    assert len(found["facts"]["servers"]["duckdb"]) == 1


def test_comparisons_of_identical_copies_are_independent_of_each_other() -> None:
    found = certificate("aa", comparisons=2, rounds=2, blocks=1, scale=0.01, queries="Q6", burn="true")
    effects = found["facts"]["effects"]
    assert found["figures"]["comparisons"] == len(effects) == 2
    assert len({effect for each in effects for effect in each}) == 4
    estimate, low, high = found["figures"]["bias"]
    assert low <= estimate <= high
    assert found["figures"]["bias_at_most"] >= abs(estimate)
    assert found["facts"]["burnt"]["cpu_s"] > 0
    assert found["bounds"]["comparisons"]["min"] == 60


def test_comparisons_of_designs_are_of_their_throughput() -> None:
    found = certificate("aa", comparisons=1, rounds=2, blocks=1, tenants=2)
    (effects,) = found["facts"]["effects"]
    assert len(effects) == 2 and effects[0] != effects[1] and all(abs(effect) < 2 for effect in effects)
    assert found["bounds"]["comparisons"]["min"] == 20


def test_switches_are_measured_with_and_without_lead_in_and_the_results_compared() -> None:
    found = certificate("switch", environments="native", starts=1, visits=3, rounds=2, blocks=1, scale=0.01)
    figures = found["figures"]
    for name in ("residual_us", "without_lead_in_us", "without_switch_us", "clock_runs_on_asleep"):
        assert set(figures[name]) == {"native"}, name
    assert figures["clock_backwards"] == 0
    assert figures["measurement_time_over_residual"] > 0
    for variant in ("one_neighbour", "four_neighbours", "short_time", "long_time"):
        estimate, low, high = figures[variant]
        assert low <= estimate <= high
    assert isinstance(figures["agree"], bool)
    for pair in ("one_neighbour, four_neighbours", "short_time, long_time"):
        estimate, low, high = figures[pair]["difference"]
        assert low <= estimate <= high
        assert 0 <= figures[pair]["power"] <= 1
    visits = found["facts"]["visits"]["native"]
    assert {len(curve) for curve in visits["execution_us"].values()} == {visits["first"] + 10}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="driver and server need a processor each")
def test_the_driver_is_measured_against_the_null_server_and_the_bare_exchange() -> None:
    found = certificate("null-server", repetitions=2, window="300ms", many=100)
    figures = found["figures"]
    assert figures["round_trips_per_transaction"] == pytest.approx(1.2, abs=0.05)  # by TATP's mix
    assert 0 < figures["bare_exchange_us"] < figures["driver_us_per_transaction"]
    assert figures["limit"] in {"driver", "server"}
    assert figures["agent_mib_1000"] > 1
    assert all(each["transactions"] > 0 and each["server_cpu_ns"] > 0 for each in found["facts"]["windows"])


def test_the_driver_is_measured_on_postgres_beside_whatever_else_is_here() -> None:
    others = {"go_tpc": "/nowhere", "sysbench": "/nowhere"}
    found = certificate("driver", warehouses=1, window="1s", repetitions=1, **others)
    figures = found["figures"]
    assert set(figures["peers"]) == ({"pgbench"} if shutil.which("pgbench") else set())
    assert {"benchbase", "go-tpc", "sysbench-tpcc"} <= set(figures["not_found"])
    trips, seen = figures["round_trips_per_transaction"], found["facts"]["round_trips_seen"]
    assert trips["procedure"] == pytest.approx(1, abs=0.05)  # a procedure that fails is rolled back, and tried again
    assert trips["pipelined"] < 3
    assert trips["statement"] > 20
    for interaction, count in trips.items():  # the relay counts those of connecting, too, and other inputs are drawn
        assert seen[interaction] == pytest.approx(count, rel=0.15)
        (turn,) = found["facts"]["turns"][interaction]
        assert 0.3 < turn["orders"] / turn["transactions"] < 0.55  # the deck's share of new orders is 10 in 23
    assert figures["load_s_per_warehouse"] > 0
