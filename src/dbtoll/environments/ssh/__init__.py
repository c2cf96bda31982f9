"""``ssh``: any machine that OpenSSH reaches with its user's own configuration, keys and known hosts.

Over there it is as ``native`` is here: the same image as root, a control group, and nothing in between.

BIAS: what such an arm differs by is that machine and its virtualisation together: another processor, memory, disk and kernel.
Rounds and blocks keep what drifts here or there from becoming a difference; they do not tell the two causes apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from dbtoll.environments import native
from dbtoll.environments.ssh import vendor
from dbtoll.environments.ssh.host import RemoteHost, reach, remove_place, stage
from dbtoll.environments.ssh.line import Target
from dbtoll.errors import DbtollError, UsageError
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import programs
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.group import QUOTA_OPTIONS
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.remote_journal import PLACE, RemoteJournal
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.machine import MachineSpec, MissingRequirement
from dbtoll.model.options import Option

NAMES = r"[A-Za-z0-9_.:@%\[\]][A-Za-z0-9_.:@%\[\]-]*"
"""What can name a host or an alias of one, with a user before it; never what ssh would take for an option."""

DIRECTORIES = "/[A-Za-z0-9_./@+-]*"
"""Without anything that a shell or rsync would take apart."""


class Environment(native.Environment):
    """Opens an image on the host ``host``; without an image that host's own root, for what is nested in it."""

    name = "ssh"
    description = EnvironmentDescription("SSH", {"cpu_quota": "cpu_quota"})
    also_called = ("remote", "cloud", "ec2", "openssh")
    primary = "host"
    packages = ("openssh-client",)
    default_stacks = ()
    options: ClassVar[Mapping[str, Option]] = {
        "host": Option("text", None, "as ssh takes it: a name, USER@NAME, or an alias of its configuration"),
        "config": Option("path", None, "a configuration of ssh in place of the user's own (ssh -F)"),
        "sudo": Option("flag", False, "become root there by `sudo -n`; else its user must be root"),
        "directory": Option(
            "text",
            "/var/tmp",
            "where a directory is made there for image, data and agent; on the disk that is measured",
        ),
        "metadata": Option("flag", False, "ask the cloud's metadata service there which type of machine it is"),
        **{name: native.Environment.options[name] for name in ("storage", "overwrite", *QUOTA_OPTIONS)},
    }

    @classmethod
    def look(cls) -> interface.Sight:
        """Which hosts there are only their names tell."""
        return interface.Sight("hosts are named when they are measured: ssh:HOST")

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Logs in there, if a host is named, and tries there what `native` tries here."""
        parent = through_agent(machine)
        if programs.find_program(parent, "ssh") is None:
            hint = f"apt-get install -y --no-install-recommends {' '.join(self.packages)}"
            return [MissingRequirement("ssh", "it reaches other hosts", hint)]
        if not options.get("host"):
            return [MissingRequirement(interface.A_HOST, "none is named", "name it as ssh takes it: ssh:HOST")]
        try:
            with self.reach(parent, options, journal or NullJournal()) as there:
                return super().missing_requirements(there, {}, kernel, there.journal)
        except DbtollError as error:
            return [MissingRequirement(f"the host {options['host']}", error.message, error.hint)]

    def reach(
        self, machine: Machine, options: Mapping[str, Any], journal: Journal, *, keeps: bool = False
    ) -> RemoteHost:
        """See interfaces.RemoteEnvironment."""
        parent = through_agent(machine)
        asked = {name: option.default for name, option in self.options.items()} | dict(options)
        config = asked["config"] and str(Path(asked["config"]).expanduser().absolute())
        target = Target(_matched(asked, "host", NAMES), config, asked["sudo"])
        directory = _matched(asked, "directory", DIRECTORIES)
        noted = RemoteJournal(journal, target.host, self.name, {**options, "config": config})
        with ExitStack() as undo:
            control = f"{stage(parent, journal, undo)}/line" if keeps else None
            there = reach(parent, target, directory, noted, control)
            there.options = dict(options)
            there.on_close.push(undo.pop_all())
            undo.callback(there.close)
            there.told = {"host": target.host, **vendor.facts(there, metadata=asked["metadata"])}
            undo.pop_all()
            return there
        raise AssertionError  # an ExitStack swallows nothing

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> AgentMachine:  # type: ignore[override]
        """An arm on that host, which is reached for it unless ``machine`` is it. Raises Unavailable with the hint."""
        if isinstance(machine, RemoteHost) and machine.options == machine_spec.options:
            return self._opened(machine, machine_spec, journal)
        there = self.reach(machine, machine_spec.options, journal, keeps=True)
        try:
            arm = self._opened(there, machine_spec, there.journal)
        except BaseException:
            there.close()
            raise
        if arm is not there:
            last = ExitStack()
            last.callback(there.close)
            last.push(arm.on_close.pop_all())
            arm.on_close = last
        return arm

    def _opened(self, there: RemoteHost, machine_spec: MachineSpec, journal: Journal) -> AgentMachine:
        if machine_spec.image is None:
            return there
        arm = super().open(there, replace(machine_spec, options={**machine_spec.options, "root": "image"}), journal)
        arm._told |= there.told
        return arm

    def removers(self) -> Mapping[str, interface.Remover]:
        """Directories on other hosts."""
        return {PLACE: remove_place}


def _matched(asked: Mapping[str, Any], name: str, pattern: str) -> str:
    value = asked[name]
    if value is None:
        raise UsageError("ssh needs a host", "name it as ssh takes it: ssh:HOST")
    if re.fullmatch(pattern, value) is None:
        raise UsageError(f"ssh: the {name} {value!r} cannot be one", Environment.options[name].help)
    return str(value)
