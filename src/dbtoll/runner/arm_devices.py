"""The devices that an arm's data and its log lie on, from its start to its end in a round (machines/arm_device.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dbtoll.images.cache import SPARE_BYTES
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.interfaces.workload import TransactionWorkload, Workload
from dbtoll.machines.arm_device import ArmDevice, arm_device, file_system_bytes
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.disk_model import DiskStatistics
from dbtoll.model.devices import Device, Devices, Role
from dbtoll.model.layout import Layout
from dbtoll.model.machine import Artifact

SPARE_STEP_BYTES = 256 << 20
"""What is left beside data for a log and temporary files is as much as the data, at least this, and so many of these as a window
writes: disks of guests are kept, and are not to be others for every length of a window."""

LOG_BYTES_PER_CPU_S = 16 << 20
"""Room for what a window of transactions adds to the log, a second for each processor: it is given free between windows alone, by
their checkpoints. Each page once whole (PostgreSQL) has the room that is as large as the data."""


IN_MEMORY, ON_OWN_DISK = "memory", "the disk of the cache"
"""Places of devices, beside directories of their users, which begin with a slash."""


@dataclass(frozen=True, slots=True)
class Room:
    """What an arm's devices need room for, bytes: ``data``, ``log`` of all its servers together, if that lies apart;
    ``log_of_server``: of each."""

    data: int
    log: int
    log_of_server: int

    def of(self, devices: Devices) -> list[tuple[Device, int]]:
        """Of each that is opened."""
        both = [(devices.data, self.data), (devices.log, self.log)]
        return [(device, content_bytes) for device, content_bytes in both if device is not None]

    def by_place(self, devices: Devices) -> list[tuple[str, int]]:
        """What each takes, and of what: a directory of its user's, `IN_MEMORY`, or `ON_OWN_DISK`, where a model's content lies."""
        places = {"memory": IN_MEMORY, "directory": None}
        return [
            (places.get(device.kind, ON_OWN_DISK) or device.of, device.size_bytes or file_system_bytes(content_bytes))
            for device, content_bytes in self.of(devices)
        ]


def log_bytes(workload: Workload, cpus: int) -> int:
    """What all servers of an arm add to their logs in a window, at most."""
    if not isinstance(workload, TransactionWorkload):
        return 0
    ramp_up_ns, window_ns, _ = workload.window_timing()
    return math.ceil((ramp_up_ns + window_ns) / 1e9 * cpus * LOG_BYTES_PER_CPU_S)


def spare_bytes(data_bytes: int, added: int) -> int:
    """What is to be left beside the data of one server. ``added``: to a log that lies there, in a window."""
    return max(SPARE_STEP_BYTES, data_bytes) + -(-added // SPARE_STEP_BYTES) * SPARE_STEP_BYTES


def room_of(layout: Layout, devices: Devices, data_bytes: int, added: int, disk_bytes: int | None = None) -> Room:
    """Copies with what is to be left beside them; and for the log of each server as much as all of its data, of which it was a
    part, and what is added to it. ``data_bytes``: of what one server holds. ``added``: see `log_bytes`. ``disk_bytes``: of a
    guest's disk with that in it."""
    servers = layout.all_servers
    beside = spare_bytes(data_bytes, 0 if devices.log else added // servers)
    of_server = data_bytes + beside if disk_bytes is None else disk_bytes
    log_of_server = file_system_bytes(data_bytes + SPARE_STEP_BYTES + added // servers)
    return Room(servers * of_server + SPARE_BYTES, servers * log_of_server, log_of_server)


@dataclass(slots=True)
class ArmDevices:
    """Those that are open. ``inside``: of each kernel of the arm's own, what of it lies on which of its block devices."""

    data: ArmDevice | None = None
    log: ArmDevice | None = None
    logs: tuple[Artifact, ...] = ()
    """Of each machine: an empty directory or disk; none where the log lies with the data."""
    inside: tuple[Mapping[str, Role], ...] = ()

    @property
    def all(self) -> tuple[ArmDevice, ...]:
        return tuple(each for each in (self.data, self.log) if each is not None)

    @contextmanager
    def at_pace(self) -> Iterator[None]:
        """Meanwhile requests take what the models of the devices say. BIAS: before and after, what was written is written back, so
        that the window has nothing of what came before it, nor the next arm's of this one."""
        try:
            for each in self.all:
                each.pace(True)
            yield
        finally:
            for each in self.all:
                each.pace(False)

    @property
    def role_of_data(self) -> Role:
        """Of the device that holds the data."""
        return "data" if self.log else "data and log"

    def roles(self) -> dict[str, Role]:
        """Block device of the machine on which the arm stands -> what lies on it."""
        found: dict[str, Role] = {}
        if self.data is not None and self.data.block is not None:
            found[self.data.block] = self.role_of_data
        if self.log is not None and self.log.block is not None:
            found[self.log.block] = "data and log" if self.log.block in found else "log"
        return found

    def statistics(self) -> dict[str, DiskStatistics]:
        """By the block device's name, of those that are models."""
        told = {each.block: each.statistics() for each in self.all if each.block is not None}
        return {block: statistics for block, statistics in told.items() if statistics is not None}

    def cpu_ns(self) -> int:
        """Of the programs that serve them, so far."""
        return sum(each.cpu_ns for each in self.statistics().values())


def open_devices(
    host: Machine, devices: Devices, name: str, scratch: str, room: Room, journal: Journal, closing: ExitStack
) -> ArmDevices:
    """Those of an arm that begins; ``closing`` takes them away again, the last of all that the arm has. ``name``: as
    `machines.arm_device.arm_device`, to which is added what lies there."""
    opened = ArmDevices()
    if not devices.all:
        return opened
    machine = through_agent(host)
    machine.run(["mkdir", "-p", scratch])
    if devices.data is not None:
        device = arm_device(machine, devices.data, f"{name}-data", scratch, room.data, journal)
        opened.data = closing.enter_context(device)
    if devices.log is not None:
        device = arm_device(machine, devices.log, f"{name}-log", scratch, room.log, journal)
        opened.log = closing.enter_context(device)
    return opened
