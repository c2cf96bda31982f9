"""What a trace of commits proves: `runner.checks.judge` on traces as the agent tells them."""

from __future__ import annotations

from typing import Any

import pytest

from dbtoll.model.json import Json
from dbtoll.runner.checks.commits import COMMITS, Trial, judge, told

ARM, OTHER, KERNEL = 100, 200, 9
VDA = "254:0"


def process(pid: int = ARM, *, fdatasync: int = COMMITS, device: str = VDA, writes: int = COMMITS, **more: Any) -> Json:
    queued = {device: {"writes": writes, "written_bytes": writes * 4096, "flushes": more.get("flushes", writes)}}
    return {
        "pid": pid, "name": more.get("name", "postgres"), "kernel": pid == KERNEL,
        "calls": {"fdatasync": fdatasync} if fdatasync else {}, "queued": queued if writes or more.get("flushes") else {},
    }  # fmt: skip


def device(name: str = "vda", *, cache: str | None = "write back", writes: int = COMMITS, **more: Any) -> Json:
    flushes = more.get("flushes", writes)
    return {
        "name": name,
        "whole": more.get("whole", VDA),
        "write_cache": cache,
        "writes_done": writes,
        "flushes_done": flushes,
    }


def trace(*processes: Json, devices: dict[str, Json] | None = None, **more: Any) -> Json:
    devices = {VDA: device()} if devices is None else devices
    return {"lost": 0, "calls_traced": True, "processes": list(processes), "devices": devices, **more}


def judged(seen: Json, beneath: str | None = "ext4", inside: str | None = "ext4") -> tuple[bool | None, str]:
    trial = judge(seen, {ARM}, beneath, inside)
    return trial.passed, trial.text


def test_a_write_and_a_flush_for_each_commit_pass() -> None:
    passed, text = judged(trace(process()))
    assert passed is True
    assert text == "all 5 were written to vda and flushed before they were acknowledged (5 fdatasync by postgres)"


def test_no_call_and_no_write_fail() -> None:
    """fsync off."""
    passed, text = judged(trace(process(fdatasync=0, writes=0), devices={}))
    assert passed is False
    assert text.startswith("of 5 that were acknowledged none reached a block device: none of the arm's processes")


def test_what_others_write_is_not_the_arms() -> None:
    mine = process(fdatasync=0, writes=0)
    assert judged(trace(mine, process(OTHER), process(KERNEL)))[0] is False
    assert judged(trace(process(fdatasync=5, writes=0), process(OTHER), process(KERNEL)))[0] is False


def test_one_write_too_few_fails() -> None:
    passed, text = judged(trace(process(writes=4)))
    assert passed is False
    assert text == "of 5 that were acknowledged 4 reached a block device: in spite of 5 fdatasync by postgres"


def test_a_write_that_is_queued_and_not_done_fails() -> None:
    assert judged(trace(process(), devices={VDA: device(writes=4)}))[0] is False


@pytest.mark.parametrize(("beneath", "inside"), [("tmpfs", "tmpfs"), ("ext4", "tmpfs"), ("ramfs", "ext4")])
def test_data_in_memory_fail(beneath: str, inside: str) -> None:
    passed, text = judged(trace(process(writes=0), process(KERNEL)), beneath, inside)
    assert passed is False
    assert "the data lie in memory" in text


def test_a_device_that_forgets_is_memory() -> None:
    seen = trace(process(device="253:0"), devices={"253:0": device("zram0", whole="253:0")})
    assert judged(seen)[0] is False


def test_a_device_that_holds_writes_back_needs_a_flush_for_each_commit() -> None:
    """A monitor that drops the guest's flushes."""
    passed, text = judged(trace(process(flushes=4), devices={VDA: device(flushes=4)}))
    assert passed is False
    assert "only 4 flushes" in text
    assert judged(trace(process(flushes=0), process(OTHER)))[0] is False  # the other's flushes are not the arm's
    assert judged(trace(process(flushes=0), process(KERNEL)))[0] is True  # the journal's thread flushes for it


@pytest.mark.parametrize(("cache", "said"), [("write through", "writes through"), (None, "does not say")])
def test_where_no_flush_can_be_seen_the_write_is_enough_and_that_is_said(cache: str | None, said: str) -> None:
    passed, text = judged(trace(process(flushes=0), devices={VDA: device(cache=cache, flushes=0)}))
    assert passed is True
    assert said in text


@pytest.mark.parametrize("cache", ["write back", "write through", None])
def test_writes_that_fewer_calls_asked_for_than_there_were_commits_fail(cache: str | None) -> None:
    """synchronous_commit off on a slow host: the WAL writer wakes meanwhile and writes several times, and flushes once."""
    late = process(writes=6, fdatasync=1, flushes=1)
    devices = {VDA: device(cache=cache, writes=6, flushes=1)}
    passed, text = judged(trace(late, devices=devices))
    assert passed is False
    assert text == "of 5 that were acknowledged 1 asked for durable data (1 fdatasync by postgres)"
    through = judged(trace(late, devices=devices, lost=3))[0]
    assert through is (cache != "write back")  # calls may be among what was lost


def test_what_is_queued_at_a_partition_is_done_at_its_device() -> None:
    devices = {"259:1": device("nvme0n1p1", whole="259:0", writes=0), "259:0": device("nvme0n1", whole="259:0")}
    passed, text = judged(trace(process(device="259:1"), devices=devices))
    assert passed is True
    assert "nvme0n1p1" in text
    del devices["259:0"]
    assert judged(trace(process(device="259:1"), devices=devices))[0] is False


@pytest.mark.parametrize(("beneath", "passed"), [("btrfs", None), (None, None), ("ext4", False), ("xfs", False)])
def test_writes_by_the_kernel_prove_nothing_where_all_writes_are_the_kernels(
    beneath: str | None, passed: bool | None
) -> None:
    assert judged(trace(process(writes=0), process(KERNEL)), beneath)[0] is passed
    assert judged(trace(process(fdatasync=0, writes=0), process(KERNEL)), beneath)[0] is False  # nobody asked for them


def test_a_trace_with_holes_proves_no_failure_but_may_prove_success() -> None:
    assert judged(trace(process(writes=0), lost=3))[0] is None
    assert judged(trace(process(), lost=3))[0] is True


def test_several_processes_of_an_arm_count_together() -> None:
    seen = trace(process(writes=3, fdatasync=3), process(101, writes=2, fdatasync=2, name="agent"))
    trial = judge(seen, {ARM, 101}, "ext4", "ext4")
    assert trial.passed is True
    assert "(2 fdatasync by agent, 3 fdatasync by postgres)" in trial.text


def test_what_is_found_of_several_servers_is_told_once() -> None:
    seen, lost = Trial(True, "all 5 were written"), Trial(False, "none was")
    assert told({("postgres", seen): [0]}, 1) == "commits of postgres: all 5 were written"
    assert told({("postgres", seen): [0, 1, 2]}, 3) == "commits of each of 3 servers, postgres: all 5 were written"
    assert told({("a file", seen): [0], ("postgres", seen): [0, 2], ("postgres", lost): [1]}, 3) == (
        "commits of server 0, a file: all 5 were written; commits of servers 0, 2, postgres: all 5 were written; "
        "commits of server 1, postgres: none was"
    )
    assert told({("", Trial(None, "noop keeps no data")): [0, 1]}, 2) == "noop keeps no data"
