"""Where data lie: what is judged of what an arm shows, and what is refused before anything is made."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from dbtoll.errors import Unavailable
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import block_device, storage
from dbtoll.machines.mounts import mount_of
from dbtoll.model.experiment import Arm, Configuration, Resources
from dbtoll.model.machine import Artifact
from dbtoll.model.reply import Completed
from dbtoll.runner.checks.storage import check
from dbtoll.runner.preparation.data import demand_memory
from dbtoll.spec.stack import parse_stack

ROOT = "21 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u"
DATA = "22 21 {} /copies/1 /dbtoll/data rw,nosuid - {} {} rw,discard"
COPY = Artifact("data", "/copies/1")


class Fake:
    """A machine that shows these mounts; ``number``: what ``stat`` says of devices, ``file``: of directories."""

    def __init__(self, *mounts: str, parent: Fake | None = None, number: str = "8 11", file: str = "2049:77") -> None:
        self.mounts, self.number, self.file = "\n".join(mounts), number, file
        if parent is not None:
            self.parent = parent

    def get(self, path: str, *, max_bytes: int = 0) -> bytes:
        assert path == "/proc/self/mountinfo"
        return self.mounts.encode()

    def provide(self, artifact: Artifact) -> str:
        return artifact.path

    def run(self, argv: list[str], **_: Any) -> Completed:
        told = {"--format=%t %T": self.number, "--format=%d:%i": self.file}
        told |= {"--format=%Hd:%Ld": "8:1", "--format=%T": "ext2/ext3"}
        output = next(told[word] for word in argv if word in told)
        return Completed(tuple(argv), 0, None, output.encode(), b"", {})


HOST = Fake("21 1 8:1 / / rw - ext4 /dev/sda1 rw")


@pytest.mark.parametrize(
    ("kind", "mount", "passed"),
    [
        ("memory", DATA.format("0:50", "tmpfs", "tmpfs"), True),
        ("memory", DATA.format("8:1", "ext4", "/dev/sda1"), False),
        ("memory", "", False),
        ("layer", "", True),
        ("layer", DATA.format("8:1", "ext4", "/dev/sda1"), False),
        ("volume", DATA.format("8:1", "ext4", "/dev/sda1"), True),
        ("volume", "", False),
        ("volume", DATA.format("0:50", "tmpfs", "tmpfs"), False),
        ("bind", DATA.format("8:1", "ext4", "/dev/sda1"), True),
        ("bind", "", False),
        ("bind", DATA.format("0:60", "9p", "none"), None),
        ("image", DATA.format("254:16", "ext4", "/dev/vdb"), True),
        ("image", DATA.format("0:50", "tmpfs", "tmpfs"), False),
        ("/dev/sdb1", DATA.format("8:17", "ext4", "/dev/sdb1"), True),
        ("/dev/sdb1", DATA.format("8:1", "ext4", "/dev/sda1"), False),
    ],
)
def test_what_was_asked_for_is_held_against_what_is_there(kind: str, mount: str, passed: bool | None) -> None:
    machine = Fake(ROOT, *filter(None, [mount]), parent=HOST)
    record = check(cast(Machine, machine), kind, COPY, 3, "arm")
    assert (record.passed, record.voids, record.check, record.round) == (passed, True, "storage", 3)
    assert kind in record.finding


@pytest.mark.parametrize("around", [HOST, Fake("22 21 0:5 / /dev rw - devtmpfs devtmpfs rw")], ids=["host", "chroot"])
@pytest.mark.parametrize(("file", "passed"), [("2049:77", True), ("2049:78", False), ("2065:77", False)])
def test_a_bound_directory_is_the_one_that_was_to_be_mounted(around: Fake, file: str, passed: bool) -> None:
    """Whatever mounts of the machine around are in sight: in a chroot the root may be none."""
    machine = Fake(ROOT, DATA.format("8:1", "ext4", "/dev/sda1"), parent=around, file=file)
    assert check(cast(Machine, machine), "bind", COPY, 0, "arm").passed is passed


def test_a_mount_around_a_chroot_is_told_by_a_file_in_it() -> None:
    chroot = Fake("22 21 0:5 / /dev rw - devtmpfs devtmpfs rw")
    mount = mount_of(cast(Machine, chroot), "/copies/1")
    assert (mount.device, mount.at, mount.file_system) == ("8:1", "a mount around this root", "ext4")
    assert mount_of(cast(Machine, chroot), "/dev/shm").file_system == "devtmpfs"


def test_of_two_mounts_at_one_place_the_later_is_told_with_all_its_options() -> None:
    machine = Fake(ROOT, DATA.format("8:1", "ext4", "/dev/sda1"), DATA.format("0:50", "tmpfs", "my\\040memory"))
    mount = mount_of(cast(Machine, machine), "/dbtoll/data")
    assert (mount.device, mount.at, mount.file_system, mount.source) == ("0:50", "/dbtoll/data", "tmpfs", "my memory")
    assert mount.options == ("rw", "nosuid", "discard")


@pytest.mark.parametrize(("memory_mib", "fits"), [(456, True), (455, False)])
def test_data_that_do_not_fit_into_an_arms_memory_are_refused(memory_mib: int, fits: bool) -> None:
    configuration = Configuration(resources=Resources(memory_bytes=memory_mib << 20))
    plain = Arm("plain", parse_stack("native"), configuration=configuration)
    nested = Arm("nested", parse_stack("qemu:storage=memory//docker"), configuration=configuration)
    demand_memory([plain], 200 << 20)
    if fits:
        demand_memory([plain, nested], 200 << 20)
        return
    with pytest.raises(Unavailable, match="nested: the data take 200 MiB of memory") as caught:
        demand_memory([plain, nested], 200 << 20)
    assert "--memory 456MiB" in caught.value.hint


@pytest.mark.parametrize(
    "identity",
    [
        {"device": "/etc/passwd", "mount": "/run/dbtoll/a", "uuid": "0" * 36},
        {"device": "/dev/../etc/passwd", "mount": "/run/dbtoll/a", "uuid": "0" * 36},
        {"device": "/dev/sdb", "mount": "/home", "uuid": "0" * 36},
        {"device": "/dev/sdb", "mount": "/run/dbtoll/a", "uuid": "; rm"},
    ],
)
def test_a_journal_names_no_device_but_with_its_file_system(identity: dict[str, str]) -> None:
    from dbtoll.errors import DbtollError

    with pytest.raises(DbtollError, match="nothing was done"):
        storage.remove(cast(Machine, Fake()), identity)


def test_what_is_made_of_a_device_is_found_at_it_its_disk_and_its_partitions(tmp_path: Path) -> None:
    """A kernel's sysfs with a disk of two partitions: one is in a volume, the other in an array."""
    disk = tmp_path / "sys/devices/pci/block/sdb"
    for number, directory in (("8:16", disk), ("8:17", disk / "sdb1"), ("8:18", disk / "sdb2")):
        (directory / "holders").mkdir(parents=True)
        (directory / "dev").write_text(f"{number}\n")
        if directory != disk:
            (directory / "partition").write_text("1\n")
        (tmp_path / "sys/dev/block").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/dev/block" / number).symlink_to(directory)
    (disk / "sdb1/holders/dm-0/dm").mkdir(parents=True)
    (disk / "sdb1/holders/dm-0/dm/name").write_text("vg-data\n")
    (disk / "sdb2/holders/md0").mkdir()
    (disk / "device").mkdir()
    (disk / "device/dev").write_text("10:3\n")  # of its controller

    def shape(number: str) -> list[str]:
        script = block_device.SHAPE.replace("/sys/", f"{tmp_path}/sys/")
        return subprocess.check_output(["sh", "-c", script, "sh", number], text=True).splitlines()

    assert shape("8:16") == [
        "block 8:16 sdb",
        "block 8:17 sdb1",
        "holder dm-0 vg-data",
        "block 8:18 sdb2",
        "holder md0 ",
    ]
    assert shape("8:17") == ["block 8:17 sdb1", "holder dm-0 vg-data", "block 8:16 sdb"]
