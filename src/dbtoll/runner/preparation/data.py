"""The data that arms work on: the masters, loaded once, and the fresh copies of each start."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from dbtoll import registry
from dbtoll.defaults import BASELINE
from dbtoll.errors import Unavailable
from dbtoll.images import dataset, disk, system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.environment import BootingEnvironment, RemoteEnvironment
from dbtoll.interfaces.journal import JournalEntry
from dbtoll.interfaces.machine import Machine
from dbtoll.interfaces.workload import Workload
from dbtoll.machines.arm_device import ArmDevice, demand_directory, file_system_bytes, number_of_file_system
from dbtoll.machines.block_device import BlockDevice, overlapping
from dbtoll.machines.disk_models import MODELS
from dbtoll.machines.storage import demand_device
from dbtoll.machines.sysctl import boot_id
from dbtoll.model.experiment import Arm
from dbtoll.model.json import Json
from dbtoll.model.layout import ONE_UNIT, Layout
from dbtoll.model.machine import Artifact, MachineSpec, Provision
from dbtoll.model.software import Software
from dbtoll.model.storage import PARTITIONS, chosen, is_device
from dbtoll.runner.arm_devices import (
    IN_MEMORY,
    ON_OWN_DISK,
    ArmDevices,
    Room,
    log_bytes,
    open_devices,
    room_of,
    spare_bytes,
)
from dbtoll.runner.arms import (
    HostContext,
    as_tenant,
    boots,
    copied_from,
    environment_of,
    in_memory,
    machine_name,
    packages_inside,
)
from dbtoll.runner.preparation.requirements import kernel_for
from dbtoll.runner.preparation.software import image_software
from dbtoll.runner.rounds import Watch, understood

IMAGE_SPARE_BYTES = 64 << 20
"""Nobody writes to the image."""

Masters = dict[tuple[Layout, str], Artifact]
"""By what a server holds (`Layout.in_server`) and the kind of artifact."""


def for_guests(cache: Cache, arms: Sequence[Arm], image: Artifact, suite: str, run_facts: Json, watch: Watch) -> Json:
    """What those of the arms of one configuration need that boot: `HostContext.disks` and `HostContext.kernels`."""
    disks: dict[tuple[str, ...], Artifact] = {}
    kernels: dict[str, Artifact] = {}
    for arm in arms:
        for depth, step in enumerate(arm.stack):
            environment = environment_of(step)
            if not isinstance(environment, BootingEnvironment):
                continue
            for packages in {(), packages_inside(arm, depth)} - set(disks):
                held = (
                    image
                    if not packages
                    else system.obtain_image(cache, suite=suite, software=image_software() | Software(packages))[0]
                )
                disks[packages], _ = disk.disk_of(cache, held, spare_bytes=IMAGE_SPARE_BYTES, progress=watch.say)
            if (made := kernel_for(cache, step, suite, watch.say)) is not None:
                artifact, kernel_facts = made
                kernels[environment.kernel(step.options) or ""] = artifact
                run_facts["kernel"] = {"key": artifact.key, **kernel_facts}
    return {"disks": disks, "kernels": kernels}


Sizes = dict[tuple[Layout, str], int]
"""Of each of them, bytes."""


def masters_of(
    cache: Cache, arms: Sequence[Arm], context: HostContext, engine: Engine, workload: Workload, watch: Watch
) -> tuple[Masters, Sizes, Json]:
    """The masters of the arms of one configuration: the data directory, loaded once in a native arm with every processor that the
    rig has (`images.dataset`), and where an arm needs it the disk that was made of it. Facts: of the one that has fewest units."""
    image = context.image
    assert image is not None
    resources = arms[0].configuration.resources
    native = registry.find("environments", BASELINE)()
    cpus = tuple(sorted({*context.cpuset, *os.sched_getaffinity(0)}))

    def open_machine(provisions: tuple[Provision, ...]) -> Machine:
        name = machine_name(context.run_id, "loader", 0)
        machine_spec = MachineSpec(name, context.run_id, "loader", image, provisions, resources, cpus)
        machine: Machine = native.open(context.host, machine_spec, context.journal)
        return machine

    masters: Masters = {}
    sizes: Sizes = {}
    facts: Json = {}
    layouts = {arm.layout.in_server for arm in arms} or {ONE_UNIT}
    for layout in sorted(layouts, key=lambda each: (len(each.units), each.text)):
        loaded = as_tenant(workload, layout)
        provided = [arm for arm in arms if arm.layout.in_server == layout]
        with understood("the server that loads the data"):
            entry = dataset.build(
                cache,
                open_machine,
                engine,
                loaded,
                image=image,
                resources=resources,
                layout=layout,
                estimate_bytes=loaded.estimate_bytes(),
                progress=watch.say,
            )
        demand_memory(provided, entry.facts["data_bytes"])
        masters[layout, "directory"] = entry.artifact()
        sizes[layout, "directory"] = entry.facts["data_bytes"]
        found: Json = {"key": entry.key, "workload": loaded.key(), **entry.facts}
        if any(boots(step) for arm in provided for step in arm.stack):
            own = provided[0].configuration  # all of them have it
            added = 0 if own.devices.log else log_bytes(workload, resources.cpus)
            fewest = min(arm.layout.all_servers for arm in provided)
            beside = spare_bytes(entry.facts["data_bytes"], added // fewest)
            masters[layout, "file"], found["disk"] = disk.disk_of(
                cache, entry.artifact(), spare_bytes=beside, progress=watch.say
            )
            sizes[layout, "file"] = found["disk"]["size_bytes"]
        facts = facts or found
    return masters, sizes, facts


MEMORY_LEFT_BYTES = 256 << 20
"""What an arm has at least (spec), and so has left beside data that lie in its memory."""


def demand_memory(arms: Sequence[Arm], data_bytes: int) -> None:
    """Unavailable if data that are to lie in an arm's memory do not fit into it."""
    needed = data_bytes + MEMORY_LEFT_BYTES
    for arm in arms:
        given = arm.configuration.resources.memory_bytes
        if in_memory(arm) and needed > given:
            raise Unavailable(
                f"{arm.name}: the data take {data_bytes >> 20} MiB of memory there, and so leave less than "
                f"{MEMORY_LEFT_BYTES >> 20} MiB of the arm's {given >> 20} MiB to the server",
                f"--memory {-(-needed >> 20)}MiB or more (memory under [resources]), or a smaller scale",
            )


def demand_devices(arms: Sequence[Arm], context: HostContext) -> None:
    """Unavailable if a device may not be written to, or two arms have one, by whatever names, or share a part of one. Before
    anything is made; those inside an arm are only there once it runs."""
    by_kernel: dict[str, list[tuple[str, BlockDevice]]] = {}
    for arm in arms:
        first = environment_of(arm.stack[0])
        steps = arm.stack[: 2 if isinstance(first, RemoteEnvironment) else 1]
        if not registry.find("engines", arm.configuration.engine.name).keeps_data:
            continue
        for step in steps:
            kind = chosen(step.options, environment_of(step).options)
            if kind is None or not is_device(kind):
                continue
            host = context.at(arm).host
            device = demand_device(host, kind, overwrite=bool(step.options.get("overwrite")))
            by_kernel.setdefault(boot_id(host), []).append((arm.name, device))
    for found in by_kernel.values():  # one host may have been reached by several names
        if (shared := overlapping([device for _, device in found])) is not None:
            (one, its), (other, others) = (found[place] for place in shared)
            raise Unavailable(
                f"{one!r} and {other!r} have one device, or a part of it: {its.path} and {others.path}", PARTITIONS
            )


def demand_directories(arms: Sequence[Arm], context: HostContext) -> None:
    """Unavailable if a directory that data or logs are to lie in is none. Before anything is made."""
    asked = {
        (arm.name, each.of): arm for arm in arms for each in arm.configuration.devices.all if each.kind == "directory"
    }
    for (_, path), arm in asked.items():
        demand_directory(context.at(arm).host, path)


def demand_room(rooms: Sequence[tuple[Arm, Room]], context: HostContext) -> None:
    """Unavailable if the devices of all arms, which stand at the same time, do not fit where they really lie. ``rooms``: of each
    arm that has any. Before the first start."""
    needed: dict[tuple[str, str], int] = {}
    for arm, room in rooms:
        own = context.at(arm)
        own.host.run(["mkdir", "-p", own.copies])
        for why, hint in too_small(arm, room):
            raise Unavailable(why, hint)
        for place, taken_bytes in room.by_place(arm.configuration.devices):
            directory = own.copies if place == ON_OWN_DISK else place
            key = (own.host.name, place if place == IN_MEMORY else number_of_file_system(own.host, directory))
            free_bytes = _free_memory(own.host) if place == IN_MEMORY else dataset.free_bytes(own.host, directory)
            needed[key] = needed.get(key, 0) + taken_bytes
            if needed[key] > free_bytes:
                where = (
                    f"{free_bytes >> 20} MiB of memory are free"
                    if place == IN_MEMORY
                    else f"{directory} has {free_bytes >> 20} MiB free"
                )
                raise Unavailable(
                    f"the devices of the arms need {needed[key] >> 20} MiB or more there, and of {own.host.name} {where}",
                    "a smaller scale, fewer tenants or fewer arms: all arms, and their second copies, stand at the same time",
                )


def too_small(arm: Arm, room: Room) -> Iterator[tuple[str, str]]:
    """Of each of its devices that what is to lie there does not fit into: why, and what would help."""
    for device, content_bytes in room.of(arm.configuration.devices):
        size_bytes = file_system_bytes(content_bytes)
        if device.size_bytes is not None and device.size_bytes < size_bytes:
            yield (
                f"{arm.name}: the device {device.text} has {device.size_bytes >> 20} MiB, and what is to lie there needs "
                f"{size_bytes >> 20} MiB",
                f'size = "{size_bytes >> 20} MiB" or more under [devices], or leave it out',
            )
        if device.kind == "model" and size_bytes > (whole := MODELS[device.of].capacity_bytes):
            yield (
                f"{arm.name}: a disk like {device.of} has {whole >> 30} GiB, and what is to lie there needs {size_bytes >> 30} GiB",
                "a smaller scale, or fewer tenants",
            )


def available_bytes(meminfo: str) -> int:
    """Memory that is free or can be (proc(5), ``MemAvailable``: in kB)."""
    told = dict(line.split(":", 1) for line in meminfo.splitlines())
    return int(told["MemAvailable"].split()[0]) << 10


def _free_memory(machine: Machine) -> int:
    return available_bytes(machine.get("/proc/meminfo").decode())


def _kind(arm: Arm) -> str:
    """Of the artifacts that its machines take."""
    return "file" if any(boots(step) for step in arm.stack) else "directory"


def _copy_name(context: HostContext, arm: Arm, number: int) -> str:
    return machine_name(context.run_id, arm.name, 0, number if arm.layout.machines > 1 else None)


class Copies:
    """Fresh copies of the masters, one for each start, on the host where the arm stands; written to the journal, removed after the
    round. An arm that only reads what it is given, and works on a copy of its own, gets the master."""

    def __init__(self, masters: Masters, context: HostContext, sizes: Sizes | None = None) -> None:
        self.masters, self.context, self.sizes = masters, context, sizes or {}
        self.made: dict[str, list[tuple[JournalEntry, Machine, str]]] = {}
        self.places: dict[str, Iterator[str]] = {}

    def master(self, arm: Arm) -> Artifact:
        """The one that its arm's copies are made of."""
        return self.masters[arm.layout.in_server, _kind(arm)]

    def room(self, arm: Arm) -> Room:
        """What its devices need room for."""
        in_server = arm.layout.in_server
        disk_bytes = self.sizes[in_server, "file"] if _kind(arm) == "file" else None
        own = arm.configuration
        workload = registry.find("workloads", own.workload.name)(own.workload.options)
        added = log_bytes(workload, own.resources.cpus)
        return room_of(arm.layout, own.devices, self.sizes[in_server, "directory"], added, disk_bytes)

    def devices(self, arm: Arm, closing: ExitStack) -> ArmDevices:
        """Those of an arm that begins, open and with the places for its logs (`arm_devices.open_devices`)."""
        context, room = self.context.at(arm), self.room(arm)
        name = machine_name(context.run_id, arm.name, 0)
        asked = arm.configuration.devices
        opened = open_devices(context.host, asked, name, context.copies, room, context.journal, closing)
        if (log := opened.log) is not None:
            names = [f"{name}-log-{number}" for number in range(arm.layout.machines)]
            is_guest = _kind(arm) == "file"
            opened.logs = tuple(
                log.new_disk(each, room.log_of_server) if is_guest else log.new_directory(each) for each in names
            )
        return opened

    def make(self, arm: Arm, on: ArmDevice | None = None) -> tuple[Artifact, ...]:
        """Of each of its machines; where that has several servers, a directory with theirs, as `RunningServer.place` finds them.
        ``on``: the device that they lie on, and go with."""
        if on is not None:
            return tuple(self._copy(arm, number, on.directory, placed=True) for number in range(arm.layout.machines))
        host = self.context.at(arm).host
        # Where the host was reached anew, all that was left there is gone.
        self.made[arm.name] = [made for made in self.made.get(arm.name, []) if made[1] is host]
        self.drop(arm)  # those of a start whose removal failed
        if copied_from(arm) and arm.layout.servers == 1:
            return (self.master(arm),) * arm.layout.machines
        return tuple(self._make(arm, number) for number in range(arm.layout.machines))

    def _make(self, arm: Arm, number: int) -> Artifact:
        context = self.context.at(arm)
        if context.copies not in self.places:
            self.places[context.copies] = itertools.cycle(dataset.places(context.host, context.copies))
        place = next(self.places[context.copies])
        target = f"{place}/{_copy_name(context, arm, number)}"
        entry = context.journal.create("directory", path=target)
        self.made.setdefault(arm.name, []).append((entry, context.host, target))
        # What a run that is gone on with has left there; a copy would mix with it.
        dataset.remove_copy(context.host, target)
        return self._copy(arm, number, place)

    def _copy(self, arm: Arm, number: int, place: str, *, placed: bool = False) -> Artifact:
        """Into a directory that is there. ``placed``: see `Artifact`."""
        context, master = self.context.at(arm), self.master(arm)
        target = f"{place}/{_copy_name(context, arm, number)}"
        for server in range(arm.layout.servers):
            dataset.fresh_copy(context.host, master, target if arm.layout.servers == 1 else f"{target}/{server}")
        return Artifact(f"{master.key}-copy", target, master.kind, placed)

    def drop(self, arm: Arm) -> None:
        """What there is of them."""
        made = self.made.get(arm.name, [])
        while made:
            entry, host, target = made[-1]
            dataset.remove_copy(host, target)
            entry.done()
            made.pop()
