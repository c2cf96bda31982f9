"""``native``: the system image as root directory, with its control group, and nothing in between.

It is the baseline: same binaries, same kernel, same processors and memory limit as a container, but no container. No
pid, net or ipc namespace; only a mount namespace, which the image as root needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from dbtoll import namespaces
from dbtoll.channel.client import Channel
from dbtoll.errors import AgentFailure, DbtollError
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import LaunchLimits
from dbtoll.machines.agent.nested import agent_stream
from dbtoll.machines.cgroups.group import QUOTA_OPTIONS, Limits, create_group
from dbtoll.machines.cgroups.layout import find_layout, own_cpus
from dbtoll.machines.chroot import confine, open_files
from dbtoll.machines.control_group import LOOPBACK, ControlGroupMachine, Network, through_agent
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.storage import place
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.json import AGENT
from dbtoll.model.machine import MachineSpec, MissingRequirement
from dbtoll.model.options import Option
from dbtoll.model.storage import BIND, MEMORY
from dbtoll.model.storage import options as storage_options


class Environment(interface.Environment):
    """Opens an image, or with ``root = "host"`` the machine's own directories, as a machine."""

    name = "native"
    description = EnvironmentDescription("Native", {"cpu_quota": "cpu_quota"})
    also_called = ("host", "bare-metal", "baremetal", "none")
    primary = "root"
    default_stacks: ClassVar[tuple[str, ...]] = ("native",)
    options: ClassVar[Mapping[str, Option]] = {
        "root": Option(
            "text", "image", "what becomes /: the system image, or the machine's own directories", ("image", "host")
        ),
        **storage_options(BIND, MEMORY),
        **QUOTA_OPTIONS,
    }

    @classmethod
    def look(cls) -> interface.Sight:
        """Without root it takes a user namespace."""
        lack = namespaces.lacking()
        return interface.Sight(f"it lacks {lack[0]}" if lack else "")

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """It is on its parent's network (interfaces.NetworkedEnvironment)."""
        return dict(options)

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Makes a mount namespace and a group, freezes and removes it."""
        parent = through_agent(machine)
        if parent.run(["id", "-u"]).output.strip() != b"0":
            lack = ("root", "to change the root directory, in a user namespace if in no other way", "sudo ./dbtoll …")
            return [MissingRequirement(*(namespaces.lacking() or lack))]
        missing_requirements = []
        try:
            parent.run(["true"], within=LaunchLimits(mounts=()))
        except AgentFailure as failure:
            missing_requirements.append(
                MissingRequirement(
                    "mount namespaces", failure.message, "run outside a container, or in a privileged one"
                )
            )
        try:
            asked = {name: option.default for name, option in self.options.items()} | dict(options)
            limits = Limits(own_cpus(parent), 64 << 20, asked["cpu_quota"], asked["cpu_period"])
            trial = create_group(
                parent, journal or NullJournal(), (f"doctor-{parent.hello()['pid']}", "native"), limits
            )
            try:
                trial.freezer.freeze()
                trial.freezer.thaw()
            finally:
                trial.close()
        except DbtollError as error:
            missing_requirements.append(
                MissingRequirement("control groups that can be written", error.message, error.hint)
            )
        return missing_requirements

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> ControlGroupMachine:
        """A machine in its own mounts and group. Raises Unavailable with the hint."""
        parent = through_agent(machine)
        options = {name: option.default for name, option in self.options.items()} | machine_spec.options
        on_host = options["root"] == "host" or machine_spec.image is None
        limits = Limits(
            machine_spec.cpuset, machine_spec.resources.memory_bytes, options["cpu_quota"], options["cpu_period"]
        )
        with ExitStack() as on_close:
            placement = place(parent, machine_spec, options, journal, on_close)
            group = create_group(parent, journal, machine_spec.group, limits)
            on_close.callback(group.close)
            within = confine(
                parent,
                machine_spec,
                group.directories,
                journal,
                on_close,
                on_host=on_host,
                placement=placement,
            )
            stream = agent_stream(parent, [AGENT, "serve"], within=within)
            channel = Channel(stream, machine_spec.name)
            group.begun(stream.pid)
            told = {
                "name": self.name,
                "root": "host" if on_host else "image",
                "cgroups": find_layout(parent).versions(),
                "storage": placement.kind,
                "cpu_quota": options["cpu_quota"],
                "open_files": open_files(parent, machine_spec.resources.open_files),
            }
            arm = ControlGroupMachine(
                machine_spec,
                parent,
                channel,
                on_close.pop_all(),
                freezer=group.freezer,
                told=told,
                shows_parent=on_host,
            )
            arm.network = Network(LOOPBACK)
            placement.fill(arm, machine_spec)
            return arm
        raise AssertionError  # an ExitStack swallows nothing
