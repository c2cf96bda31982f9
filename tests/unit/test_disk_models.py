"""The disks that a disk model can be like, and what is made of what it tells."""

from __future__ import annotations

from typing import cast

import pytest

from dbtoll.errors import DbtollError
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import disk_model
from dbtoll.machines.disk_model import DiskStatistics, Requests, Times
from dbtoll.machines.disk_models import MODELS, FixedTimes, RotatingDisk
from tests.support.program import ROOT

TABLE_1 = ROOT / "../shared/published/zhang2014/table1_device_iops.csv"


def test_every_rotating_disk_is_one_that_can_be() -> None:
    rotating = [disk for disk in MODELS.values() if isinstance(disk, RotatingDisk)]
    assert len(rotating) == 2
    for disk in rotating:
        assert disk.inner_bytes_per_s <= disk.outer_bytes_per_s < disk.interface_bytes_per_s
        for seek in (disk.read_seek, disk.write_seek):
            assert 0 < seek.track_to_track_ns < seek.average_ns < 2 * disk.revolution_ns
        assert disk.capacity_bytes % 4096 == 0


@pytest.mark.parametrize(
    ("name", "read_ms", "write_ms", "log_ms"), [("hdd7200", 12.84, 13.84, 8.33), ("hdd15k", 5.67, 6.17, 4.0)]
)
def test_what_a_data_sheet_lets_one_expect(name: str, read_ms: float, write_ms: float, log_ms: float) -> None:
    """Overhead, average seek, half a revolution, and 8 KiB at the media's rate; a revolution for a log."""
    published = MODELS[name].published(8192)
    told = [published[f"{kind}_ms"] for kind in ("random_read", "random_write", "log_write")]
    assert told == pytest.approx([read_ms, write_ms, log_ms], abs=0.01)


@pytest.mark.parametrize(
    ("name", "iops"), [("hssd", [20863, 13692, 17085, 12623]), ("ssd_raid", [6062, 3084, 6118, 2701])]
)
def test_fixed_times_are_the_published_rates(name: str, iops: list[int]) -> None:
    disk = MODELS[name]
    assert isinstance(disk, FixedTimes)
    times = (disk.sequential_read_ns, disk.random_read_ns, disk.sequential_write_ns, disk.random_write_ns)
    assert [round(1e9 / each) for each in times] == pytest.approx(iops, rel=1e-4)
    assert disk.published(8192)["sequential_read_mb_per_s"] == pytest.approx(iops[0] * 8192 / 1e6, rel=1e-4)
    assert disk.published(16384)["random_read_ms"] == pytest.approx(1e3 / iops[1] + 1e3 / iops[0], rel=1e-4)


def statistics(at_ns: int, count: int, busy_ns: int, queue: dict[int, int]) -> DiskStatistics:
    some = Requests(count, count * 8192, Times(busy_ns, {busy_ns: count}), 0, 0, {8192: count})
    none = Requests(0, 0, Times(0, {}), 0, 0, {})
    return DiskStatistics(at_ns, 5, none, some, 0, 0, queue, Times(0, {}), 0)


def test_of_two_looks_the_difference_is_what_was_between() -> None:
    between = statistics(3000, 7, 900, {1: 5, 2: 2}).since(statistics(1000, 3, 400, {1: 3}))
    assert (between.at_ns, between.busy_ns, between.writes.count, between.cpu_ns) == (2000, 500, 4, 0)
    assert between.queue == {1: 2, 2: 2}
    assert between.writes.by_distance == {8192: 4}


@pytest.mark.parametrize("name", ["loop0", "dbtoll-disk-", "dbtoll-disk-a/b", "dbtoll-disk-*", 7])
def test_only_a_device_of_ours_is_taken_away(name: object) -> None:
    with pytest.raises(DbtollError, match="nothing was done"):
        disk_model.remove(cast(Machine, None), {"name": name})
