"""``qemu``: a guest of QEMU, with hardware help (KVM) where a guest really boots with it, else emulated (TCG).

The arm's image and data are virtio disks, its line is a virtio port, its control socket is QMP; it has no network, unless
terminals shall work outside of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from dbtoll.environments.qemu.qmp import Qmp
from dbtoll.errors import AgentFailure, DbtollError, Unavailable
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.kernel_modules import load_order
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.control_group import LOOPBACK, Network, through_agent
from dbtoll.machines.guest.boot import (
    OPTIONS,
    Boot,
    boot,
    guest_disks,
    monitor_program,
    networked,
    trial_spec,
    try_guest,
)
from dbtoll.machines.guest.initramfs import Interface
from dbtoll.machines.guest.machine import GuestDisk, GuestMachine
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.storage import Placement, place
from dbtoll.machines.sysctl import boot_id
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import MachineSpec, MissingRequirement
from dbtoll.model.options import Option

PROGRAM = "qemu-system-x86_64"
KERNEL = "debian-cloud"
"""What Place.kernel holds unless the option ``kernel`` says otherwise."""

USER_NETWORK = Interface("eth0", "10.0.2.15", "255.255.255.0")
"""qemu(1), ``-netdev user``: the address that it gives to its first guest, to which forwarded connections go."""

PORT = "dbtoll"
KVM = "/dev/kvm"
KVM_PROBE_NS = 20_000_000_000
"""A guest without disks says hello within 2 s with hardware help. There are hosts with a /dev/kvm under which it hangs."""
EMULATED_NS = 60_000_000_000
"""Within 10 s where two processors emulate it."""

CACHE_MODES: Mapping[str, Json] = {
    "none": {"direct": True, "no-flush": False, "writeback": "on"},
    "writeback": {"direct": False, "no-flush": False, "writeback": "on"},
    "writethrough": {"direct": False, "no-flush": False, "writeback": "off"},
    "directsync": {"direct": True, "no-flush": False, "writeback": "off"},
    "unsafe": {"direct": False, "no-flush": True, "writeback": "on"},
}
"""qemu(1), ``-drive cache=``: its three switches, the last one belongs to the disk's device."""


class Environment(interface.Environment):
    """Opens a disk with a system image as a guest."""

    name = "qemu"
    description = EnvironmentDescription("QEMU", {"vcpus": "processors"})
    also_called = ("kvm", "vm", "virtual-machine", "firecracker")
    primary = "accel"
    packages = ("qemu-system-x86",)
    start_bound_s = 20.0  # without hardware help
    default_stacks = ("qemu",)
    trials = (
        interface.Trial({"accel": "kvm", "boot_timeout": KVM_PROBE_NS}, "with hardware help (KVM)"),
        interface.Trial({"accel": "tcg", "boot_timeout": EMULATED_NS}, "emulated, so many times slower"),
    )
    options: ClassVar[Mapping[str, Option]] = {
        **OPTIONS,
        "accel": Option(
            "text",
            "auto",
            "hardware help: `auto` tries it with a guest and emulates if none boots",
            ("auto", "kvm", "tcg"),
        ),
        "machine": Option("text", "q35", "machine type with its properties: q35, pc, microvm …"),
        "clock": Option(
            "text",
            "host",
            "what the guest's clocks count: time, or emulated instructions, one a nanosecond; that arm is compared with nothing",
            ("host", "instructions"),
        ),
        "cpu": Option("text", None, "CPU model; else `host` with hardware help and `max` without"),
        "vcpus": Option("integer", None, "virtual processors; else as many as the arm's"),
        "kernel": Option(
            "text", None, "a kernel's file on that machine, with its drivers built in; else Debian's cloud kernel"
        ),
        "modules": Option("list", (), "further kernel modules to load, by name"),
        "kernel_args": Option("list", (), "further words for the kernel"),
        "cache": Option("text", "none", "cache mode of the disks", tuple(CACHE_MODES)),
        "aio": Option("text", "threads", "how the monitor reads and writes disks", ("threads", "native", "io_uring")),
        "throttling": Option(
            "text",
            "group",
            "what holds its requests back where the arm has rates: the control group of the monitor, or QEMU",
            ("group", "qemu"),
        ),
        "iothread": Option("flag", False, "a thread of its own for the disks"),
        "network": Option(
            "text",
            "none",
            "how its parent reaches it: not at all, by QEMU's own network, or by a tap; `user` for terminals outside",
            ("none", "user", "tap"),
        ),
        "hugepages": Option("text", None, "directory of a hugetlbfs on that machine, to take the guest's memory from"),
        "extra_args": Option("list", (), "further words for QEMU"),
    }

    def kernel(self, options: Mapping[str, Any]) -> str | None:
        """Debian's, unless the options name a file."""
        return None if options.get("kernel") else KERNEL

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See interfaces.NetworkedEnvironment."""
        return networked(options, "user")

    def throttles(self, options: Mapping[str, Any]) -> bool:
        """See interfaces.ThrottlingEnvironment."""
        return options.get("throttling") == "qemu"

    @classmethod
    def look(cls) -> interface.Sight:
        """Whether hardware help can be opened; whether guests boot with it takes a trial."""
        opens = os.access(KVM, os.R_OK | os.W_OK)
        return interface.Sight(f"{KVM} {'can be opened' if opens else 'cannot be opened, so guests are emulated'}")

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Boots a guest without any disk."""

        def trial() -> GuestMachine:
            parent = through_agent(machine)
            if options.get("accel") == "kvm" and not _kvm_opens(parent):
                raise Unavailable(f"{parent.name}: {KVM} cannot be opened", "accel = tcg emulates, many times slower")
            monitor_program(parent, {"path": None, **options}, PROGRAM, Environment.packages)
            machine_spec = trial_spec(parent, self.name, options, kernel() if kernel else None)
            return self.open(machine, machine_spec, journal or NullJournal())

        return try_guest(trial, "a guest of QEMU that boots")

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> GuestMachine:
        """A booted guest. Raises Unavailable, or ChannelError with the console's last words."""
        parent = through_agent(machine)
        options = {name: option.default for name, option in self.options.items()} | machine_spec.options
        program = monitor_program(parent, options, PROGRAM, Environment.packages)
        if options["clock"] == "instructions":
            options["accel"] = "tcg"  # hardware cannot tell QEMU how many it has done
        if options["accel"] == "auto":
            options["accel"] = "kvm" if kvm_boots(parent, machine_spec, options, journal) else "tcg"
        return _open(parent, machine_spec, journal, options, program)


def _open(
    parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, options: Mapping[str, Any], program: str
) -> GuestMachine:
    with ExitStack() as before:
        placement = place(parent, machine_spec, options, journal, before)
        return _booted(parent, machine_spec, journal, options, program, placement, before)
    raise AssertionError  # an ExitStack swallows nothing


def _booted(
    parent: AgentMachine,
    machine_spec: MachineSpec,
    journal: Journal,
    options: Mapping[str, Any],
    program: str,
    placement: Placement,
    before: ExitStack,
) -> GuestMachine:
    image, disks = guest_disks(parent, machine_spec, placement, lambda number, name: f"serial:{name}")
    kernel, modules = _kernel(parent, machine_spec, options)
    attached = [image, *disks] if image else []
    cpu = options["cpu"] or ("host" if options["accel"] == "kvm" else "max")
    vcpus = options["vcpus"] or len(machine_spec.cpuset)
    memory_bytes = machine_spec.resources.memory_bytes
    bus = "device" if _is_microvm(options) else "pci"

    def argv(stage: str, tap: str | None) -> list[str]:
        counting = options["clock"] == "instructions"
        threads = "single" if counting else "multi"
        acceleration = options["accel"] + (f",thread={threads},tb-size=128" if options["accel"] == "tcg" else "")
        words = [program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        words += ["-machine", options["machine"], "-accel", acceleration, "-cpu", cpu, "-smp", str(vcpus)]
        words += ["-m", f"{memory_bytes >> 20}M"]
        if counting:
            # qemu(1), -icount: 2^0 ns an instruction. Idle, the guest waits for its next timer in real time, not in a busy loop.
            words += ["-icount", "shift=0,sleep=on"]
        if options["hugepages"]:
            words += ["-mem-path", options["hugepages"], "-mem-prealloc"]
        arguments = ["console=ttyS0", "quiet", "panic=-1", *options["kernel_args"]]
        words += ["-kernel", kernel, "-initrd", f"{stage}/initramfs", "-append", " ".join(arguments)]
        words += ["-chardev", "stdio,id=line,signal=off", "-device", f"virtio-serial-{bus}"]
        words += ["-device", f"virtserialport,chardev=line,name={PORT}"]
        words += ["-chardev", "file,id=console,path=/dev/stderr", "-serial", "chardev:console"]
        words += ["-qmp", f"unix:{stage}/qmp,server=on,wait=off"]
        if options["iothread"]:
            words += ["-object", "iothread,id=disks"]
        for disk in attached:
            throttle = machine_spec.resources if options["throttling"] == "qemu" and disk.inside.writable else None
            words += _disk_words(disk, options, bus, is_device=disk.file == placement.device, throttle=throttle)
        words += _network_words(options, tap, bus)
        return [*words, *options["extra_args"]]

    own = USER_NETWORK if options["network"] == "user" else None
    wanted = Boot(argv, placement, f"port:{PORT}", image, disks, modules, own=own)
    told = {
        "name": "qemu",
        "program": program,
        "version": parent.run([program, "--version"]).output.decode().partition("\n")[0],
        "emulated": options["accel"] == "tcg",
        "cpu": cpu,
        "vcpus": vcpus,
        "kernel": options["kernel"] or KERNEL,
        **{
            name: options[name]
            for name in (
                *(
                    "accel",
                    "clock",
                    "machine",
                    "cache",
                    "aio",
                    "iothread",
                    "throttling",
                    "network",
                    "hugepages",
                    "kernel_args",
                    "extra_args",
                ),
            )
        },
    }
    machine = boot(parent, machine_spec, journal, options, wanted, told, before)
    try:
        control = Qmp(parent, f"{machine.stage}/qmp")
    except BaseException:
        machine.close()
        raise
    machine.on_close.callback(control.close)
    machine.asleep_first = lambda: control.execute("stop")
    machine.awake_last = lambda: control.execute("cont")
    if own is not None:
        machine.network = Network(own.address, Forwards(control).to)
    return machine


class Forwards:
    """Ports of the parent's loopback at which QEMU listens and from which it hands on to the guest's."""

    def __init__(self, control: Qmp) -> None:
        self._control = control
        self._made: dict[int, int] = {}

    def to(self, port: int) -> int:
        """The parent's port, free when it was first asked for, that leads to the guest's ``port``."""
        if port not in self._made:
            self._ask(f"hostfwd_add net tcp:{LOOPBACK}:0-{USER_NETWORK.address}:{port}")
            listed = self._ask("info usernet")
            # Protocol, file descriptor, source address and port, destination address and port, lengths of queues.
            line = rf"TCP\[HOST_FORWARD\]\s+\d+\s+{re.escape(LOOPBACK)}\s+(\d+)\s+{re.escape(USER_NETWORK.address)}\s+{port}\s"
            found = re.search(line, listed)
            if found is None:
                raise DbtollError(f"QEMU does not forward to the guest's port {port}; it says: {listed}")
            self._made[port] = int(found[1])
        return self._made[port]

    def _ask(self, line: str) -> str:
        return str(self._control.execute("human-monitor-command", **{"command-line": line}))


def _network_words(options: Mapping[str, Any], tap: str | None, bus: str) -> list[str]:
    """BIAS: the user network's TCP is QEMU's own work, in the arm's bill; a tap's frames go through QEMU too (no vhost)."""
    if options["network"] == "none":
        return []
    # Restricted: the guest sees nothing but what is forwarded to it.
    backend = "user,id=net,restrict=on" if tap is None else f"tap,id=net,ifname={tap},script=no,downscript=no"
    no_boot_code = ",romfile=" if bus == "pci" else ""
    return ["-netdev", backend, "-device", f"virtio-net-{bus},netdev=net{no_boot_code}"]


def _disk_words(
    disk: GuestDisk, options: Mapping[str, Any], bus: str, *, is_device: bool, throttle: Resources | None
) -> list[str]:
    """``throttle``: what QEMU itself holds the disk to (qemu(1), ``-object throttle-group``). BIAS: it counts a request of the
    guest's as one, of whatever size; a control group counts what the kernel makes of it."""
    mode = CACHE_MODES[options["cache"]]
    cache = {"direct": mode["direct"], "no-flush": mode["no-flush"]}
    node: Json = {
        "node-name": disk.name,
        "driver": "raw",
        "read-only": not disk.inside.writable,
        "cache": cache,
        "file": {
            "driver": "host_device" if is_device else "file",
            "filename": disk.file,
            # The image is shared by guests of all kinds; QEMU would take User Mode Linux's read lock for a writer's.
            "locking": "auto" if disk.inside.writable else "off",
            "aio": options["aio"],
            "cache": cache,
        },
    }
    words = []
    if throttle is not None and throttle.has_rates:
        limits = {
            "bps-read": throttle.read_rate,
            "bps-write": throttle.write_rate,
            "iops-read": throttle.read_requests,
            "iops-write": throttle.write_requests,
        }
        group = {"qom-type": "throttle-group", "id": f"rates-{disk.name}"}
        given = {name: value for name, value in limits.items() if value is not None}
        words += ["-object", json.dumps({**group, "limits": given})]
        below = {**node, "node-name": f"{disk.name}-held"}
        node = {
            "node-name": disk.name,
            "driver": "throttle",
            "throttle-group": group["id"],
            "cache": cache,
            "file": below,
        }
    device = f"virtio-blk-{bus},drive={disk.name},serial={disk.name},write-cache={mode['writeback']}"
    return [
        *words,
        "-blockdev",
        json.dumps(node),
        "-device",
        device + (",iothread=disks" if options["iothread"] else ""),
    ]


def _is_microvm(options: Mapping[str, Any]) -> bool:
    return str(options["machine"]).partition(",")[0] == "microvm"


def _kernel(
    parent: AgentMachine, machine_spec: MachineSpec, options: Mapping[str, Any]
) -> tuple[str, dict[str, bytes]]:
    """Path of the kernel on that machine, and its modules in the order in which they are to be loaded."""
    if options["kernel"]:
        return options["kernel"], {}
    if machine_spec.kernel is None:
        raise Unavailable(f"{machine_spec.name}: a guest needs a kernel", "set the option kernel to a kernel's file")
    directory = parent.provide(machine_spec.kernel)
    needs = json.loads(parent.get(f"{directory}/modules.json", max_bytes=1 << 20))
    transport = "virtio_mmio" if _is_microvm(options) else "virtio_pci"
    # BIAS: ext4 checks its metadata by crc32c, which without the processor's own instruction for it costs time.
    helpers = [name for name in ("crc32c_intel",) if name in needs]
    net = [] if options["network"] == "none" else ["virtio_net"]
    wanted = [*helpers, transport, "virtio_console", "virtio_blk", "ext4", *net, *options["modules"]]
    order = load_order(needs, wanted)
    return f"{directory}/vmlinuz", {
        name: parent.get(f"{directory}/modules/{name}.ko", max_bytes=16 << 20) for name in order
    }


# --- hardware help ---------------------------------------------------------------------------------------------------


def _kvm_opens(parent: AgentMachine) -> bool:
    return parent.run(["sh", "-c", f": <>{KVM}"], check=False).exit_code == 0


_kvm_boots: dict[tuple[str, str, str], bool] = {}
"""What was found out, by the parent's kernel (its boot), its name (an arm may lack what its host has) and the options: a probe
that fails may take its whole deadline.
"""


def kvm_boots(parent: AgentMachine, machine_spec: MachineSpec, options: Mapping[str, Any], journal: Journal) -> bool:
    """Whether a guest without disks says hello with hardware help: opening /dev/kvm proves nothing."""
    if not _kvm_opens(parent):
        return False
    trial = {**options, "accel": "kvm", "boot_timeout": min(options["boot_timeout"], KVM_PROBE_NS)}
    key = boot_id(parent), parent.name, repr(sorted(trial.items(), key=str))
    if key not in _kvm_boots:
        _kvm_boots[key] = False
        probe = trial_spec(parent, "kvm", trial, machine_spec.kernel)
        program = monitor_program(parent, options, PROGRAM, Environment.packages)
        with suppress(DbtollError, AgentFailure), _open(parent, probe, journal, trial, program) as guest:
            guest.hello()
            _kvm_boots[key] = True
    return _kvm_boots[key]
