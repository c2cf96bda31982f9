"""What all guests have in common: a kernel of their own, disks, the agent as first program, a serial line to it.

The virtual machine monitor (or User Mode Linux) is a program of the machine around, in the arm's control group: one bill,
one freezer. Its standard streams are the guest's line; its error output is the guest's console.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dbtoll.channel.client import Channel
from dbtoll.errors import DbtollError, Unavailable, UsageError
from dbtoll.interfaces.journal import Journal
from dbtoll.machines import network_interfaces
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.agent.nested import agent_stream
from dbtoll.machines.cgroups.group import Limits, create_group
from dbtoll.machines.cgroups.layout import own_cpus
from dbtoll.machines.chroot import STAGES, agent_path, open_files, remove
from dbtoll.machines.control_group import Network
from dbtoll.machines.guest.initramfs import Disk, Guest, Interface, Memory, initramfs
from dbtoll.machines.guest.machine import GuestDisk, GuestMachine
from dbtoll.machines.storage import Placement, source_of
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec, MissingRequirement
from dbtoll.model.options import Option
from dbtoll.model.storage import IMAGE, MEMORY
from dbtoll.model.storage import options as storage_options

AGENT_MAX_BYTES = 64 << 20

OPTIONS: Mapping[str, Option] = {
    "path": Option("text", None, "the program; else the one found by its name"),
    "overhead_memory": Option(
        "size", 512 << 20, "memory of the arm's control group beyond what the guest sees, for the program that runs it"
    ),
    "read_ahead": Option(
        "size",
        None,
        "how much the guest's kernel reads in advance from its disks, such as `0 KiB`; else its own choice",
    ),
    **storage_options(IMAGE, MEMORY),
    "boot_timeout": Option("duration", 180_000_000_000, "a guest whose agent has not answered by then has failed"),
}
"""Options that every guest environment has."""


@dataclass(frozen=True, slots=True)
class Boot:
    """How one guest is started.

    ``argv`` is made from the directory that holds the initial memory file system, and from the name of the parent's tap
    (None: it has none). ``own``: the interface by which it is reached otherwise. ``interface``: what the guest's kernel calls
    the first one it has.
    """

    argv: Callable[[str, str | None], Sequence[str]]
    placement: Placement
    line: str
    image: GuestDisk | None
    disks: Sequence[GuestDisk]
    modules: Mapping[str, bytes]
    mounts: tuple[Json, ...] | None = None
    env: Mapping[str, str] | None = None
    interface: str = "eth0"
    own: Interface | None = None


def networked(options: Mapping[str, Any], default: str) -> dict[str, Any]:
    """For interfaces.NetworkedEnvironment, with that network where none was named."""
    if options.get("network") == "none":
        raise UsageError("a guest with network=none cannot be reached from outside", f"network={default}")
    return {"network": default, **options}


def boot(
    parent: AgentMachine,
    machine_spec: MachineSpec,
    journal: Journal,
    options: Mapping[str, Any],
    wanted: Boot,
    told: Json,
    before: ExitStack,
) -> GuestMachine:
    """A guest whose agent has said hello. ChannelError, with the console's last words, if it does not in time.

    ``before``: what is undone when the guest is gone, also where it does not come up.
    """
    limits = Limits(machine_spec.cpuset, machine_spec.resources.memory_bytes + options["overhead_memory"])
    with before.pop_all() as on_close:
        tap = network_interfaces.tap(parent, machine_spec, journal, on_close) if options["network"] == "tap" else None
        joined = wanted.own if tap is None else _at(wanted.interface, tap)
        group = create_group(parent, journal, machine_spec.group, limits)
        on_close.callback(group.close)
        stage = _stage(parent, machine_spec, journal, on_close)
        copied = filter(wanted.placement.is_copied, machine_spec.provisions)
        memories = [Memory(provision.at, wanted.placement.memory_bytes) for provision in copied]
        guest = Guest(
            line=wanted.line,
            image=wanted.image.inside if wanted.image else None,
            disks=[disk.inside for disk in wanted.disks],
            shm_bytes=machine_spec.resources.shm_bytes,
            open_files=open_files(parent, machine_spec.resources.open_files),
            network=joined,
            memories=memories,
        )
        agent = parent.get(agent_path(parent), max_bytes=AGENT_MAX_BYTES)
        parent.put(f"{stage}/initramfs", initramfs(agent, guest, wanted.modules))
        within = LaunchLimits(cgroups=group.directories, mounts=wanted.mounts, cpus=machine_spec.cpuset)
        line = agent_stream(
            parent, list(wanted.argv(stage, tap.interface if tap else None)), env=wanted.env, cwd=stage, within=within
        )
        channel = Channel(
            line, machine_spec.name, greeting_timeout_s=options["boot_timeout"] / 1e9, waits_for_sign=True
        )
        group.begun(line.pid)
        machine = GuestMachine(
            machine_spec,
            parent,
            channel,
            on_close.pop_all(),
            freezer=group.freezer,
            told=told | {"storage": wanted.placement.kind, "read_ahead": options["read_ahead"]},
        )
        machine.console, machine.stage, machine.directories = line, stage, group.directories
        machine.network = Network(joined.address) if joined else None
        try:
            if wanted.image is not None and options["read_ahead"] is not None:
                _read_ahead(machine, options["read_ahead"])
            wanted.placement.fill(machine, machine_spec)
            if memories:
                machine.drop_caches()  # BIAS: of the disk that it was filled from
        except BaseException:
            machine.close()
            raise
        return machine
    raise AssertionError  # an ExitStack swallows nothing


def _read_ahead(machine: GuestMachine, size_bytes: int) -> None:
    """Of every disk of the guest (Documentation/ABI/stable/sysfs-block, read_ahead_kb)."""
    machine.run(["sh", "-c", f"for file in /sys/block/*/queue/read_ahead_kb; do echo {size_bytes >> 10} > $file; done"])


def _at(interface: str, tap: network_interfaces.Tap) -> Interface:
    return Interface(interface, str(tap.guest.ip), str(tap.guest.netmask))


def _stage(parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, on_close: ExitStack) -> str:
    """A directory in memory for what the guest boots from and for its control sockets."""
    stage = f"{parent.place(STAGES)}/{machine_spec.name}"
    entry = journal.create("stage", path=stage)

    def clear() -> None:
        remove(parent, {"path": stage})
        entry.done()

    on_close.callback(clear)
    parent.mkdir(stage, mode=0o700)
    return stage


def guest_disks(
    parent: AgentMachine, machine_spec: MachineSpec, placement: Placement, device: Callable[[int, str], str]
) -> tuple[GuestDisk | None, list[GuestDisk]]:
    """The image (first disk, never written) and the provisions. ``device``: number and name -> how the guest finds it."""

    def file(artifact: Artifact) -> str:
        if artifact.kind != "file":
            raise Unavailable(f"{machine_spec.name}: {artifact.path} is no disk, and a guest takes only disks")
        return parent.provide(artifact)

    if machine_spec.image is None:
        return None, []
    image = GuestDisk("image", file(machine_spec.image), Disk(device(0, "image"), "/", writable=False))
    disks = []
    for number, provision in enumerate(machine_spec.provisions, 1):
        name, path, at, writable = f"disk{number}", file(provision.artifact), provision.at, provision.writable
        if placement.is_copied(provision):
            at, writable = source_of(provision), False
        elif placement.device is not None and writable:
            path = placement.device
        disks.append(GuestDisk(name, path, Disk(device(number, name), at, writable)))
    return image, disks


def monitor_program(parent: AgentMachine, options: Mapping[str, Any], name: str, packages: Sequence[str]) -> str:
    """Path of the monitor on that machine. Raises Unavailable with the packages that have it."""
    wanted = options["path"] or name
    found = parent.run(["sh", "-c", 'command -v -- "$1"', "sh", wanted], check=False).output.decode().strip()
    if not found:
        hint = f"apt-get install -y --no-install-recommends {' '.join(packages)}"
        raise Unavailable(f"{parent.name} has no program {wanted}", hint)
    return found


def trial_spec(parent: AgentMachine, name: str, options: Mapping[str, Any], kernel: Artifact | None) -> MachineSpec:
    """A guest without any disk, to see whether one boots."""
    mark = f"doctor-{parent.hello()['pid']}"
    return MachineSpec(
        name=f"{mark}-{name}",
        run_id=mark,
        arm=name,
        image=None,
        provisions=(),
        resources=Resources(memory_bytes=256 << 20, shm_bytes=16 << 20),
        cpuset=own_cpus(parent)[-1:],
        options=dict(options),
        kernel=kernel,
    )


def try_guest(open_guest: Callable[[], GuestMachine], what: str) -> list[MissingRequirement]:
    """What is missing, named ``what``, if a guest cannot be opened, put to sleep, woken and talked to."""
    try:
        with open_guest() as guest:
            guest.freeze()
            guest.thaw()
            guest.hello()
    except DbtollError as error:
        return [MissingRequirement(what, error.message, error.hint)]
    return []
