"""A block device that is in use is never overwritten, whoever uses it and by whatever name it was given."""

from __future__ import annotations

import os
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbtoll.contracts.machines import loop_device, mounted_elsewhere
from dbtoll.errors import Unavailable
from dbtoll.machines import block_device, storage
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.sysctl import boot_id
from dbtoll.model.experiment import Arm, ComponentSpec, Configuration
from dbtoll.runner.arms import HostContext
from dbtoll.runner.preparation.data import demand_devices
from dbtoll.spec.stack import parse_stack

SECTOR_BYTES = 512
LINUX = 0x83


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_device, "RELEASE_S", 0.0)


@pytest.fixture
def device(local: AgentMachine, tmp_path: Path) -> Iterator[str]:
    with loop_device(local, tmp_path) as made:
        yield made


@pytest.fixture
def disk(local: AgentMachine, device: str) -> Iterator[str]:
    """With two partitions."""
    table = b"".join(struct.pack("<B3xB3xII", 0, LINUX, 2048 + n * 204800, 204800) for n in range(2))
    with Path(device).open("r+b") as opened:  # MBR: four entries from byte 446, then its mark
        opened.write(bytes(446) + table.ljust(64, b"\0") + b"\x55\xaa")
    local.run(["partx", "--add", device], check=False)
    if not Path(f"{device}p2").exists():
        pytest.skip("the kernel makes no partitions of a loop device")
    yield device
    local.run(["partx", "--delete", device])


@contextmanager
def held(path: str) -> Iterator[str]:
    """As a monitor of guests has a disk: open, not exclusively. Who that is."""
    opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    finally:
        os.close(opened)


def refused(machine: AgentMachine, path: str) -> str:
    with pytest.raises(Unavailable) as caught:
        storage.demand_device(machine, path, overwrite=True)
    return caught.value.message


def test_a_device_that_a_process_has_open_is_refused_and_who_it_is_is_told(local: AgentMachine, device: str) -> None:
    with held(device) as who:
        assert refused(local, device) == f"the device {device} is in use: {who} has it open"
    assert storage.demand_device(local, device, overwrite=True).path == device


def test_a_process_that_is_only_passing_is_waited_for(
    local: AgentMachine, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever looks at each new content of a device (udev)."""
    monkeypatch.setattr(block_device, "RELEASE_S", 30.0)
    passing = threading.Timer(1.0, os.close, [os.open(device, os.O_RDONLY | os.O_CLOEXEC)])
    passing.start()
    storage.demand_device(local, device, overwrite=False)
    passing.join()


def test_a_process_that_has_the_disk_or_a_partition_open_has_its_blocks(local: AgentMachine, disk: str) -> None:
    first, second = f"{disk}p1", f"{disk}p2"
    with held(first) as who:
        assert f"{who} has {first.removeprefix('/dev/')} open" in refused(local, disk)
        assert f"{who} has it open" in refused(local, first)
        storage.demand_device(local, second, overwrite=True)
    with held(disk) as who:
        assert f"{who} has {disk.removeprefix('/dev/')} open" in refused(local, second)


def test_who_mounts_it_swaps_to_it_or_makes_a_device_of_it_is_told(
    local: AgentMachine, device: str, tmp_path: Path
) -> None:
    local.run(["mke2fs", "-q", "-t", "ext4", device])
    at = tmp_path / "mounted"
    at.mkdir()
    with mounted_elsewhere(device, at):
        assert f"it is mounted at {at} for process " in refused(local, device)
    on_it = local.run(["losetup", "--find", "--show", device]).output.decode().strip()
    try:
        assert f"{on_it.removeprefix('/dev/')} is a loop device of it" in refused(local, device)
    finally:
        local.run(["losetup", "--detach", on_it])
    local.run(["mkswap", device])
    if local.run(["swapon", device], check=False).exit_code == 0:
        try:
            assert "the kernel swaps to it" in refused(local, device)
        finally:
            local.run(["swapoff", device])
    storage.demand_device(local, device, overwrite=True)


def test_where_it_cannot_be_seen_who_has_it_open_it_is_refused(
    local: AgentMachine, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_device, "USES", block_device.USES.replace("find -L", "false -L"))
    assert "does not show who uses the device" in refused(local, device)


def test_what_a_killed_run_left_is_not_emptied_while_another_one_has_it(local: AgentMachine, device: str) -> None:
    """A guest of a later run, with the same data, and so the same file system."""
    mark = str(uuid.uuid4())
    identity = {"device": device, "uuid": mark, "mount": f"{storage.MOUNTS}/t{os.getpid()}", "boot": boot_id(local)}
    local.run(["mke2fs", "-q", "-t", "ext4", "-U", mark, device])
    with held(device) as who:
        with pytest.raises(Unavailable) as caught:
            storage.remove(local, identity)
        assert who in caught.value.message
        assert mark in local.run(["blkid", "--probe", device]).output.decode()
    storage.remove(local, identity)
    assert local.run(["cmp", "--bytes", str(storage.EMPTY_BYTES), device, "/dev/zero"]).exit_code == 0


def arms_on(*devices: str) -> list[Arm]:
    stacks = [parse_stack(f"native:storage={path},overwrite=yes") for path in devices]
    configuration = Configuration(engine=ComponentSpec("postgres"))
    return [Arm(f"arm {number}", stack, configuration=configuration) for number, stack in enumerate(stacks)]


def test_one_device_by_two_names_is_refused(local: AgentMachine, device: str, tmp_path: Path) -> None:
    link = tmp_path / "by-id"
    link.symlink_to(device)
    context = HostContext(local, None, (0,), NullJournal(), "run")
    demand_devices(arms_on(str(link)), context)
    with pytest.raises(Unavailable, match="'arm 0' and 'arm 1' have one device, or a part of it"):
        demand_devices(arms_on(device, str(link)), context)


def test_a_disk_and_its_partition_are_refused_and_two_partitions_are_not(local: AgentMachine, disk: str) -> None:
    context = HostContext(local, None, (0,), NullJournal(), "run")
    demand_devices(arms_on(f"{disk}p1", f"{disk}p2"), context)
    for pair in ((disk, f"{disk}p1"), (f"{disk}p1", f"{disk}p2", disk)):
        with pytest.raises(Unavailable, match="have one device, or a part of it"):
            demand_devices(arms_on(*pair), context)
