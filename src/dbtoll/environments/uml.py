"""``uml``: a guest of User Mode Linux: a kernel that runs as a program, without any help from the processor.

https://docs.kernel.org/virt/uml/user_mode_linux_howto_v2.html. It has one processor. Its disks go through the host's page
cache (it knows no O_DIRECT), which the arm's control group bears. Debian's 6.1 and 6.12 have no room for the registers of a
processor with AMX; the agent, which becomes the guest, adds it (``agent/preload``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from dbtoll.errors import Unavailable
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.chroot import agent_path
from dbtoll.machines.control_group import through_agent
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
from dbtoll.machines.guest.machine import GuestDisk, GuestMachine
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.storage import place
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.machine import MachineSpec, MissingRequirement
from dbtoll.model.options import Option

LINE = "/dev/ttyS0"
PROBE_TIMEOUT_NS = 30_000_000_000


class Environment(interface.Environment):
    """Opens a disk with a system image as a guest."""

    name = "uml"
    description = EnvironmentDescription("User Mode Linux")
    also_called = ("linux.uml", "user-mode-linux")
    primary = "path"
    packages = ("user-mode-linux",)
    cpus_most = 1
    start_bound_s = 6.0
    default_stacks = ("uml",)
    options: ClassVar[Mapping[str, Option]] = {
        **OPTIONS,
        # Seen by trace: Debian's 6.1 takes a flush from its block layer and asks the host for nothing.
        "sync": Option(
            "flag",
            True,
            "every write to a disk waits for the host's (O_SYNC); with `no`, commits do not reach the device",
        ),
        "network": Option(
            "text",
            "none",
            "how its parent reaches it: not at all, or by a tap; `tap` for terminals outside",
            ("none", "tap"),
        ),
        "kernel_args": Option("list", (), "further words for the kernel"),
    }

    def kernel(self, options: Mapping[str, Any]) -> str | None:
        """The program is the kernel."""
        return None

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See interfaces.NetworkedEnvironment."""
        return networked(options, "tap")

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Boots a guest without any disk."""
        asked = {"boot_timeout": PROBE_TIMEOUT_NS, **options}
        machine_spec = trial_spec(through_agent(machine), self.name, asked, None)
        what = "a guest of User Mode Linux that boots"
        return try_guest(lambda: self.open(machine, machine_spec, journal or NullJournal()), what)

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> GuestMachine:
        """A booted guest. Raises Unavailable, or ChannelError with the console's last words."""
        with ExitStack() as before:
            return self._boot(through_agent(machine), machine_spec, journal, before)
        raise AssertionError  # an ExitStack swallows nothing

    def _boot(
        self, parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, before: ExitStack
    ) -> GuestMachine:
        options = {name: option.default for name, option in self.options.items()} | machine_spec.options
        # As many guests as processors, or more, can use all that the arm has; BIAS: each of them no more than one at a time.
        if len(machine_spec.cpuset) > machine_spec.machines:
            raise Unavailable(
                f"{machine_spec.name}: User Mode Linux has one processor, and there are {machine_spec.machines} of it",
                f"cpus = {machine_spec.machines} under [resources]",
            )
        program = monitor_program(parent, options, "linux.uml", self.packages)
        memory_bytes = machine_spec.resources.memory_bytes
        placement = place(parent, machine_spec, options, journal, before)
        image, disks = guest_disks(
            parent, machine_spec, placement, lambda number, name: f"/dev/ubd{chr(ord('a') + number)}"
        )
        version = parent.run([program, "--version"]).output.decode().strip()

        def argv(stage: str, tap: str | None) -> list[str]:
            attached = [image, *disks] if image else []
            return [
                agent_path(parent),
                "uml",
                program,
                f"mem={memory_bytes >> 20}M",
                f"initrd={stage}/initramfs",
                *(f"ubd{n}{_flags(disk, sync=options['sync'])}={disk.file}" for n, disk in enumerate(attached)),
                "ssl0=fd:0,fd:1",
                "ssl=null",
                "con=null",
                "con0=null,fd:2",
                f"uml_dir={stage}/",
                "umid=guest",
                *([f"vec0:transport=tap,ifname={tap}"] if tap else []),
                "quiet",
                *options["kernel_args"],
            ]

        # The guest's memory is a file. The host's /dev/shm may be too small, and memory on a disk would be slow.
        memory = {"kind": "tmpfs", "target": "/dev/shm", "writable": True, "mode": 0o1777}
        wanted = Boot(
            argv,
            placement,
            LINE,
            image,
            disks,
            modules={},
            mounts=({**memory, "size_bytes": memory_bytes + (64 << 20)},),
            env={"TMPDIR": "/dev/shm", "HOME": "/"},
            interface="vec0",
        )
        told = {
            "name": self.name,
            "program": program,
            "version": version,
            "emulated": False,
            "cache": "writethrough" if options["sync"] else "unsafe",
            "sync": options["sync"],
            "network": options["network"],
            "kernel_args": list(options["kernel_args"]),
        }
        return boot(parent, machine_spec, journal, options, wanted, told, before)


def _flags(disk: GuestDisk, *, sync: bool) -> str:
    """Of the parameter ``ubd``: d, never taken for a copy-on-write file, whatever it holds; r, read-only; s, O_SYNC."""
    if not disk.inside.writable:
        return "rd"
    return "sd" if sync else "d"
