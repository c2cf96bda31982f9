"""A window of TPC-C on two real servers, with what its devices did and what its sessions' time went into."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import WindowsResult
from dbtoll.report import page, transactions
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import Visit
from tests.support.one_round import measure_one_round
from tests.support.program import is_root
from tests.unit.test_report import Page

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_root(), reason="native arms need root"),
]

SPEC = """
question = "Where does the time of two servers go?"
baseline = "servers"
explain = true
[engine]
name = "postgres"
[workload]
name = "tpcc"
warehouses = 1
terminals = 2
window = "1s"
ramp_up = "200ms"
[resources]
memory = "2 GiB"
[[arm]]
name = "servers"
stack = "native"
servers = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("time") / "run"
    measure_one_round(SPEC, folder)
    return read_run(folder)


def test_the_time_of_mariadbs_sessions_is_told_too(tmp_path: Path) -> None:
    text = SPEC.replace("explain = true", "sessions = true").replace('"postgres"', '"mariadb"')
    text = text.replace('"1s"', '"5s"')  # a busy machine looks rarely, and a session commits for a moment
    measure_one_round(text, tmp_path / "run")
    run = read_run(tmp_path / "run")
    (windows,) = results.analyze_run(run).windows
    assert windows.sessions is not None and windows.sessions.reason is None
    shares = {each.name: each.share.estimate for each in windows.sessions.shares}
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares["on_cpu"], shares["run_queue"], shares["log_files"], shares["client"]) > 0, shares
    (counted,) = [visit for visit in run.records(Visit) if visit.counts]
    assert counted.counts is not None
    told = counted.counts["engine"]["counted"]
    assert set(told["waiting"]) & {"Commit", "asleep", "running"} and told["looks_ns"] > 0
    # Of the threads that serve its sessions alone, as its server has others.
    assert 0 < told["processes"]["run_ns"] < told["processes"]["elapsed_ns"]


@pytest.fixture(scope="module")
def windows(run: Run) -> WindowsResult:
    (found,) = results.analyze_run(run).windows
    return found


def test_commits_reach_a_device_of_the_host(run: Run, windows: WindowsResult) -> None:
    assert windows.devices and {each.where for each in windows.devices} == {"host"}
    most = max(windows.devices, key=lambda each: each.written_bytes_per_s.estimate)
    assert most.transfers_per_s.estimate > 10 and most.written_bytes_per_s.estimate > 100_000
    assert most.service_ns is not None and most.service_ns.estimate > 0
    assert 0 < most.utilisation.estimate <= 1.1 and most.queue_length.estimate > 0  # its clock ticks
    timed = [visit for visit in run.records(Visit) if visit.counts is None and visit.units[0].window]
    for visit in timed:
        (host,) = visit.devices
        assert 1_200_000_000 <= host.elapsed_ns < 3_000_000_000  # window, ramp-up, and little else


def test_the_time_of_both_servers_sessions_is_told(run: Run, windows: WindowsResult) -> None:
    sessions = windows.sessions
    assert sessions is not None and sessions.reason is None
    shares = {each.name: each.share.estimate for each in sessions.shares}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["on_cpu"] > 0 and shares["run_queue"] > 0 and shares["client"] > 0
    (counted,) = [visit for visit in run.records(Visit) if visit.counts]
    assert counted.counts is not None
    told = counted.counts["engine"]
    # Both servers: of one alone the time of a window would be that of one.
    assert 2 * 10**9 <= told["counted"]["processes"]["elapsed_ns"] < 4 * 10**9
    assert 0 < told["counted"]["processes"]["run_ns"] < told["counted"]["processes"]["elapsed_ns"]
    assert "IPC: CheckpointDone" not in told["counted"]["waiting"]
    each = counted.counts["processes"]["counted"]["each"]
    assert sum("checkpointer" in name for name in each) == 2


def test_writes_are_seen_on_the_same_device(windows: WindowsResult) -> None:
    names = {each.device for each in windows.devices}
    assert windows.writes and {each.where for each in windows.writes} == {"host"}
    most = max(windows.writes, key=lambda each: each.count)
    assert most.count > 10 and most.device in names
    assert most.distances[-1].share == pytest.approx(1) and 0 <= most.sequential.estimate <= 1


def test_the_page_shows_both(run: Run, windows: WindowsResult) -> None:
    assert windows.sessions is not None
    segments = transactions.stack(windows.sessions)
    assert sum(each.width for each in segments) == pytest.approx(100, abs=0.1)
    seen = Page(page.render(results.analyze_run(run), run))
    assert {"devices", "sessions"} <= set(seen.ids)
    assert "Distances between successive writes" in seen.text
    assert "waiting for a processor" in seen.text and "KiB/s written" in seen.text
