"""``bubblewrap``: the system image as root directory through bwrap(1), with namespaces of its own and nothing else.

For hosts where nothing may be installed: where there is no bwrap, dbtoll takes it out of its Debian package. Between the server
and the kernel lies no more than in ``native`` but these namespaces: no daemon, no seccomp filter, no capability is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from dbtoll.channel.client import Channel
from dbtoll.errors import DbtollError, Unavailable, UsageError
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.agent.nested import agent_stream
from dbtoll.machines.cgroups.group import QUOTA_OPTIONS, Limits, create_group
from dbtoll.machines.cgroups.layout import own_cpus
from dbtoll.machines.chroot import FRESH_DIRECTORIES, agent_path, open_files
from dbtoll.machines.control_group import LOOPBACK, ControlGroupMachine, Network, through_agent
from dbtoll.machines.mounts import OUT_OF_SIGHT, mount_of
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.programs import find_program, packaged_program
from dbtoll.machines.storage import Placement, place, source_of
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.json import AGENT, Json
from dbtoll.model.machine import Artifact, MachineSpec, MissingRequirement, PackagedProgram
from dbtoll.model.options import Option
from dbtoll.model.storage import BIND, MEMORY
from dbtoll.model.storage import options as storage_options

PROGRAM = PackagedProgram("bwrap", "bubblewrap", "bookworm")
"""The oldest suite that images are made of: it runs on that C library and on all later ones."""

NAMESPACES = ("user", "pid", "ipc", "uts", "cgroup")
"""Those that may be had or not; a mount namespace there always is, a network namespace is the option ``network``."""

TRIAL_S = 20.0
"""It takes some milliseconds."""

HINT = "user namespaces: sysctl user.max_user_namespaces; others: run outside a container, or in a privileged one"


class Environment(interface.Environment):
    """Opens an image as a sandbox of bubblewrap."""

    name = "bubblewrap"
    description = EnvironmentDescription("Bubblewrap", {"cpu_quota": "cpu_quota"})
    also_called = ("bwrap", "flatpak", "sandbox")
    primary = "network"
    packages = ("bubblewrap",)
    start_bound_s = 1.0
    options: ClassVar[Mapping[str, Option]] = {
        "network": Option(
            "text",
            "none",
            "its network: `none` (a loopback of its own), or its parent's; `host` for terminals outside",
            ("none", "host"),
        ),
        # Not `user`: bwrap has one user in it, and servers run as users of their own.
        "unshare": Option(
            "list",
            ("pid", "ipc", "uts", "cgroup"),
            f"namespaces of its own, of {', '.join(NAMESPACES)}; with `user` there is but one user, so no server starts",
        ),
        **storage_options(BIND, MEMORY),
        "path": Option("text", None, "the program; else the one found by its name, else the one in Debian's package"),
        **QUOTA_OPTIONS,
    }

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its parent's network (interfaces.NetworkedEnvironment)."""
        if options.get("network") == "none":
            raise UsageError("a sandbox with network=none cannot be reached from outside", "network=host")
        return {"network": "host", **options}

    def program(self, machine: Machine, options: Mapping[str, Any]) -> PackagedProgram | None:
        """See interfaces.ProgramEnvironment."""
        is_there = options.get("path") or find_program(through_agent(machine), PROGRAM.name)
        return None if is_there else PROGRAM

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Runs a program with these namespaces in a control group, freezes and removes it."""
        parent, asked = through_agent(machine), self._complete(options)
        mark = f"doctor-{parent.hello()['pid']}"
        try:
            limits = Limits(own_cpus(parent), 64 << 20, asked["cpu_quota"], asked["cpu_period"])
            group = create_group(parent, journal or NullJournal(), (mark, self.name), limits)
            try:
                program, _ = _found(parent, kernel() if kernel else None, asked)
                # On the parent's own root: it has a program to run, and there need not be an image yet.
                argv = [program, *_isolation(asked), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
                within = LaunchLimits(group.directories, mounts=_mounts_around(parent))
                done = parent.run(argv, timeout_s=TRIAL_S, check=False, within=within)
                group.freezer.freeze()
                group.freezer.thaw()
            finally:
                group.close()
            if done.exit_code != 0:
                said = done.error_output.decode(errors="replace").strip().splitlines() or [
                    f"exit code {done.exit_code}"
                ]
                raise Unavailable(f"{parent.name}: {said[0]}", HINT)
        except DbtollError as error:
            return [MissingRequirement("bubblewrap that starts a program", error.message, error.hint)]
        return []

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> ControlGroupMachine:
        """A machine in its own namespaces and group. Raises Unavailable with the hint."""
        parent = through_agent(machine)
        if machine_spec.image is None:
            raise Unavailable(f"{machine_spec.name}: a sandbox needs a system image", "put it last in its stack")
        options = self._complete(machine_spec.options)
        limits = Limits(
            machine_spec.cpuset, machine_spec.resources.memory_bytes, options["cpu_quota"], options["cpu_period"]
        )
        nofile = open_files(parent, machine_spec.resources.open_files)
        program, package = _found(parent, machine_spec.program, options)
        told = {
            "name": self.name,
            "program": program,
            "version": parent.run([program, "--version"]).output.decode(errors="replace").strip(),
            "program_package": package,
            "unshare": list(options["unshare"]),
            "network": options["network"],
            "storage": options["storage"],
            "cpu_quota": options["cpu_quota"],
            "open_files": nofile,
        }
        with ExitStack() as on_close:
            placement = place(parent, machine_spec, options, journal, on_close)
            group = create_group(parent, journal, machine_spec.group, limits)
            on_close.callback(group.close)
            within = LaunchLimits(
                group.directories,
                mounts=_mounts_around(parent, placement),
                rlimits={"nofile": nofile},
                cpus=machine_spec.cpuset,
            )
            mounts = _mounts(parent, machine_spec, machine_spec.image, placement)
            argv = [program, *_isolation(options), *mounts, AGENT, "serve"]
            stream = agent_stream(parent, argv, within=within)
            channel = Channel(stream, machine_spec.name)
            group.begun(stream.pid)
            arm = ControlGroupMachine(
                machine_spec, parent, channel, on_close.pop_all(), freezer=group.freezer, told=told
            )
            arm.network = Network(LOOPBACK) if options["network"] == "host" else None
            placement.fill(arm, machine_spec)
            return arm
        raise AssertionError  # an ExitStack swallows nothing

    def _complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        complete = {name: option.default for name, option in self.options.items()} | dict(options)
        if unknown := sorted(set(complete["unshare"]) - set(NAMESPACES)):
            raise UsageError(
                f"bubblewrap has no namespace {', '.join(unknown)}", f"choose from {', '.join(NAMESPACES)}"
            )
        return complete


def _found(parent: AgentMachine, fetched: Artifact | None, options: Mapping[str, Any]) -> tuple[str, Json | None]:
    """The program, and what is known of its package if it was fetched."""
    if fetched is not None:
        return packaged_program(parent, fetched, PROGRAM.name)
    found = find_program(parent, options["path"] or PROGRAM.name)
    if found is None:
        raise Unavailable(
            f"{parent.name}: there is no program {options['path'] or PROGRAM.name}", "apt-get install -y bubblewrap"
        )
    return found, None


def _isolation(options: Mapping[str, Any]) -> list[str]:
    """Whatever ends the agent around, the kernel ends the sandbox."""
    words = ["--die-with-parent", *(f"--unshare-{name}" for name in options["unshare"])]
    words += ["--unshare-net"] if options["network"] == "none" else []
    # The agent then is the first program, as in a container: it reaps what others leave.
    return [*words, "--as-pid-1"] if "pid" in options["unshare"] else words


DEVICE = "/mnt"
"""Where bwrap finds the file system of a device: mounted over the parent's own directory, in bwrap's mount namespace alone."""


def _mounts_around(parent: AgentMachine, placement: Placement | None = None) -> tuple[Json, ...] | None:
    """What is mounted before bwrap starts; None: it starts among the mounts that are there.

    It mounts no devices. And it wants `/` to be a mount point, which in a chroot it need not be: among mounts of its own it is.
    """
    if placement is None or placement.device is None:
        return () if mount_of(parent, "/").at == OUT_OF_SIGHT else None
    return ({"kind": "ext4", "source": placement.device, "target": DEVICE, "writable": True},)


def _mounts(parent: AgentMachine, machine_spec: MachineSpec, image: Artifact, placement: Placement) -> Sequence[str]:
    """The same as native's (machines.chroot), but for /dev, which is bwrap's own."""
    words = ["--ro-bind", parent.provide(image), "/", "--proc", "/proc", "--ro-bind", "/sys", "/sys", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(machine_spec.resources.shm_bytes), "--tmpfs", "/dev/shm"]
    for at, mode in FRESH_DIRECTORIES.items():
        words += ["--perms", f"{mode:o}", "--tmpfs", at]
    words += ["--ro-bind", agent_path(parent), AGENT]
    for provision in machine_spec.provisions:
        source = parent.provide(provision.artifact)
        if placement.is_copied(provision):
            words += ["--perms", "700", "--size", str(placement.memory_bytes), "--tmpfs", provision.at]
            words += ["--ro-bind", source, source_of(provision)]
        elif provision.writable:
            words += ["--bind", DEVICE if placement.device else source, provision.at]
        else:
            words += ["--ro-bind", source, provision.at]
    return words
