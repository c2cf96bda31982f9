"""The disks that `disk_model` can be like, as data. The agent computes with them (agent/src/disk/model.rs).

What a data sheet or a paper says is named as its source; what nobody published is said to be assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from dbtoll.model.json import Json

MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Seek:
    """Of a data sheet, ns: from one track to the next, and the mean over all pairs of places. In between the agent takes the curve
    of Ruemmler and Wilkes (IEEE Computer 27(3), 1994): the root of the distance over a fifth of the stroke, its tangent beyond."""

    track_to_track_ns: int
    average_ns: int


@dataclass(frozen=True, slots=True)
class RotatingDisk:
    """A disk with one arm. Rates in bytes per second, at the outer and at the inner edge.

    ``overhead_ns``: of the controller, for each request, while nothing waits. ``read_ahead_bytes``: how far it reads on after a
    read. ``queue_depth``: of so many requests it takes next the one that its head reaches soonest. ``write_cache_bytes``: how much
    it can be told to take at once; off unless `disk_model` is asked for it, as databases' disks are run.
    """

    what: str
    source: str
    capacity_bytes: int
    revolution_ns: int
    read_seek: Seek
    write_seek: Seek
    outer_bytes_per_s: int
    inner_bytes_per_s: int
    interface_bytes_per_s: int
    overhead_ns: int
    read_ahead_bytes: int
    queue_depth: int
    write_cache_bytes: int
    kind: str = field(default="rotating", init=False)
    rotates: bool = field(default=True, init=False)

    @property
    def lacks(self) -> str:
        """What a disk of that kind does and this does not."""
        return (
            "two rates and no zones in between, no remapped sectors, no error that is tried again, no spinning up; it knows no "
            "discarded blocks"
        )

    def published(self, request_bytes: int) -> Mapping[str, float]:
        """What the data sheet lets one expect of a single request: mean latencies in ms, rates in MB/s at the outer edge."""
        transfer_ns = request_bytes / self.outer_bytes_per_s * 1e9
        fixed_ns = self.overhead_ns + self.revolution_ns / 2 + transfer_ns
        return {
            "random_read_ms": (fixed_ns + self.read_seek.average_ns) / MS,
            "random_write_ms": (fixed_ns + self.write_seek.average_ns) / MS,
            # Asked for one by one, each comes when its place has just gone by.
            "log_write_ms": self.revolution_ns / MS,
            "sequential_read_mb_per_s": self.outer_bytes_per_s / 1e6,
            "sequential_write_mb_per_s": self.outer_bytes_per_s / 1e6,
        }

    def parameters(self) -> Json:
        """As the agent takes it."""
        return _parameters(self)


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """A device that takes, for requests of ``unit_bytes``, a time for each kind, ns; one after the other.

    A longer request takes so many more sequential units. BIAS: flash serves several requests at once, slows down when it has to
    erase, and has a cache; one number for each kind has none of that.
    """

    what: str
    source: str
    capacity_bytes: int
    unit_bytes: int
    sequential_read_ns: int
    random_read_ns: int
    sequential_write_ns: int
    random_write_ns: int
    queue_depth: int = 1
    write_cache_bytes: int = 0
    kind: str = field(default="fixed", init=False)
    rotates: bool = field(default=False, init=False)

    @property
    def lacks(self) -> str:
        """As `RotatingDisk.lacks`."""
        return "it serves one request after the other, never has to erase, does not grow slow as it fills, and has no cache"

    def published(self, request_bytes: int) -> Mapping[str, float]:
        """As `RotatingDisk.published`."""
        units = max(1.0, request_bytes / self.unit_bytes)
        more_read_ns, more_write_ns = (
            (units - 1) * each for each in (self.sequential_read_ns, self.sequential_write_ns)
        )
        return {
            "random_read_ms": (self.random_read_ns + more_read_ns) / MS,
            "random_write_ms": (self.random_write_ns + more_write_ns) / MS,
            "log_write_ms": (self.sequential_write_ns + more_write_ns) / MS,
            "sequential_read_mb_per_s": self.unit_bytes / self.sequential_read_ns * 1e3,
            "sequential_write_mb_per_s": self.unit_bytes / self.sequential_write_ns * 1e3,
        }

    def parameters(self) -> Json:
        """As the agent takes it."""
        return _parameters(self)


DiskDescription = RotatingDisk | FixedTimes


NOT_OF_THE_MODEL: Final = ("what", "source", "write_cache_bytes", "queue_depth", "rotates")
"""Of a description: for people, or chosen for each device."""


def _parameters(disk: DiskDescription) -> Json:
    return {key: value for key, value in asdict(disk).items() if key not in NOT_OF_THE_MODEL}


def _of_iops(name: str, sequential_read: int, random_read: int, sequential_write: int, random_write: int) -> FixedTimes:
    """One request at a time: its time is a second over how many there are in one."""
    sequential_read_ns, random_read_ns, sequential_write_ns, random_write_ns = (
        round(1e9 / each) for each in (sequential_read, random_read, sequential_write, random_write)
    )
    return FixedTimes(
        what=f"{name} of Zhang et al. 2014",
        # Its capacity is not published there.
        source="Zhang et al. 2014, Table 1: requests per second of 8 KiB, so a mean time of each kind; the capacity is assumed",
        capacity_bytes=512 << 30,
        unit_bytes=8192,
        sequential_read_ns=sequential_read_ns,
        random_read_ns=random_read_ns,
        sequential_write_ns=sequential_write_ns,
        random_write_ns=random_write_ns,
    )


MODELS: Final[Mapping[str, DiskDescription]] = {
    "hdd7200": RotatingDisk(
        what="Seagate Barracuda ES.2, 750 GB, 7200 revolutions a minute",
        source="its data sheet: seeks, latency, sustained rate (one figure, so the same on all tracks), interface; "
        "assumed: overhead, how far it reads ahead",
        capacity_bytes=1_465_149_168 * 512,
        revolution_ns=8_333_333,
        read_seek=Seek(800_000, 8_500_000),
        write_seek=Seek(1_000_000, 9_500_000),
        outer_bytes_per_s=105_000_000,
        inner_bytes_per_s=105_000_000,
        interface_bytes_per_s=300_000_000,
        overhead_ns=100_000,
        read_ahead_bytes=2 << 20,
        queue_depth=32,
        write_cache_bytes=16 << 20,
    ),
    "hdd15k": RotatingDisk(
        what="Seagate Cheetah 15K.5, 146 GB, 15 000 revolutions a minute",
        source="its data sheet: seeks, latency, sustained rates of the outer and the inner edge, interface; "
        "assumed: overhead, how far it reads ahead",
        capacity_bytes=286_749_488 * 512,
        revolution_ns=4_000_000,
        read_seek=Seek(200_000, 3_500_000),
        write_seek=Seek(400_000, 4_000_000),
        outer_bytes_per_s=125_000_000,
        inner_bytes_per_s=73_000_000,
        interface_bytes_per_s=300_000_000,
        overhead_ns=100_000,
        read_ahead_bytes=2 << 20,
        queue_depth=32,
        write_cache_bytes=8 << 20,
    ),
    "hssd": _of_iops("H-SSD", 20863, 13692, 17085, 12623),
    "ssd_raid": _of_iops("SSD RAID", 6062, 3084, 6118, 2701),
}
"""Name -> disk."""
