"""OCI runtimes: which program an option means, where it comes from, and what a daemon is told of it.

The rule: a daemon of the machine's own that has the runtime as it is asked for is used. Else dbtoll's own daemon runs the
program that `runtime_path` names, or the installed one of that name, or, of `PACKAGED`, the one in its Debian package.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbtoll.environments.docker import dockerd
from dbtoll.errors import ProgramFailed, Unavailable, UsageError
from dbtoll.interfaces.journal import Journal
from dbtoll.machines import chroot
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.cgroups.group import Limits, create_group
from dbtoll.machines.chroot import STAGES
from dbtoll.machines.programs import find_program, packaged_program
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec, PackagedProgram

BUILT_IN = ("runc", "io.containerd.runc.v2")
"""What every daemon knows by itself."""

GVISOR = "runsc"

PACKAGED: Mapping[str, PackagedProgram] = {GVISOR: PackagedProgram(GVISOR, "runsc", "trixie")}
"""Runtimes that need not be installed. Debian 13's 0.0~20240729.0-4+b7 runs PostgreSQL by systrap and by ptrace, on Debian 12 too,
whose own of 2022 knows no systrap. It is linked statically."""

PANICS = ("0.0~20240729.0-7+b1",)
"""Versions of Debian's runsc that panic under PostgreSQL. By themselves they say the same version as those that work."""

PLATFORMS = ("systrap", "ptrace", "kvm")
"""How gVisor gets hold of system calls: https://gvisor.dev/docs/architecture_guide/platforms/."""

GVISOR_NETWORK: Mapping[str, Sequence[str]] = {"none": ["--network=none"], "host": ["--network=host"], "bridge": []}
"""gVisor brings a network of its own, which it refuses to start where it takes the namespace for the host's."""

SHIMS: Mapping[str, str] = {"kata": "io.containerd.kata.v2"}
"""Short names of runtimes that containerd finds by the name of their shim; a daemon takes such names since Docker 23."""

TRIAL_S = 20.0
"""Debian's runsc runs a program in 0.3 s by systrap; where KVM opens and does not work, it hangs."""

SHIM_NAME = re.compile(r"io\.containerd\.([a-z0-9-]+)\.(v\d+)")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a container asks its daemon for. ``name`` None: the daemon's default. ``package``: of a program that was fetched."""

    name: str | None
    package: Json | None = None


def demand_consistent(options: Mapping[str, Any]) -> None:
    """UsageError or Unavailable for options that contradict each other."""
    if options["runtime"] is None and (options["runtime_path"] is not None or options["runtime_args"]):
        raise Unavailable("runtime_path and runtime_args need a name to register by", "set the option runtime too")
    if options["platform"] is not None and not _is_gvisor(options, options["runtime_path"] or options["runtime"] or ""):
        raise UsageError("platform is an option of gVisor's runtime", f"set runtime={GVISOR} too")


def is_plain(options: Mapping[str, Any]) -> bool:
    """Whether only a name is asked for: then a daemon that has it will do."""
    return options["runtime_path"] is None and not options["runtime_args"] and options["platform"] is None


def has_runtime(info: Json, options: Mapping[str, Any]) -> bool:
    """Whether a daemon that is not dbtoll's own has the runtime as it is asked for."""
    return options["runtime"] is None or (is_plain(options) and options["runtime"] in info["Runtimes"])


def to_fetch(parent: AgentMachine, options: Mapping[str, Any]) -> PackagedProgram | None:
    """What has to come out of a package for dbtoll's own daemon; None where a program is named, is there, or has no package."""
    wanted = PACKAGED.get(options["runtime"] or "")
    if wanted is None or options["runtime_path"] is not None or find_program(parent, wanted.name) is not None:
        return None
    return wanted


def register(parent: AgentMachine, own: dockerd.Lease, program: Artifact | None, options: Mapping[str, Any]) -> Runtime:
    """Make the runtime known to dbtoll's own daemon. Unavailable where it is not there, or does not work."""
    name = options["runtime"]
    if name is None or (is_plain(options) and name in BUILT_IN):
        return Runtime(name)
    if is_plain(options) and (shim := SHIM_NAME.fullmatch(SHIMS.get(name, name))):
        return _by_shim(parent, shim)
    found, package = _found(parent, program, options)
    own.daemon.register(name, found, _arguments(found, options))
    return Runtime(name, package)


def try_gvisor(parent: AgentMachine, machine_spec: MachineSpec, journal: Journal) -> None:
    """Have it run a program by itself: where its platform does not work it may hang, and Docker then does not say why.

    Unavailable with what it said; nothing is done for other runtimes.
    """
    options = machine_spec.options
    if options["runtime"] is None or not _is_gvisor(options, options["runtime_path"] or ""):
        return
    found, _ = _found(parent, machine_spec.program, options)
    state = f"{parent.place(STAGES)}/{machine_spec.run_id}-{GVISOR}"
    chosen = [word for word in _arguments(found, options) if not word.startswith("--network")]
    argv = [found, f"--root={state}", "--network=none", "--ignore-cgroups", *chosen, "do", "true"]
    how = f"{posixpath.basename(found)} {' '.join(chosen)}".strip()
    hint = f"another platform ({', '.join(PLATFORMS)}), or another build by runtime_path"
    entry = journal.create("stage", path=state)
    group = create_group(parent, journal, (machine_spec.run_id, GVISOR), Limits(machine_spec.cpuset))
    try:
        parent.mkdir(state, mode=0o700)
        within = LaunchLimits(group.directories)
        done = parent.run(argv, env={"TMPDIR": state}, timeout_s=TRIAL_S, check=False, within=within)
    except ProgramFailed as error:
        raise Unavailable(f"{parent.name}: {how} ran no program within {TRIAL_S:g} s", hint) from error
    finally:
        group.close()
        chroot.remove(parent, {"path": state})
        entry.done()
    if done.exit_code != 0:
        said = (done.error_output or done.output).decode(errors="replace").strip().splitlines()
        raise Unavailable(
            f"{parent.name}: {how} cannot run a program: {said[-1] if said else f'exit code {done.exit_code}'}", hint
        )


def _by_shim(parent: AgentMachine, shim: re.Match[str]) -> Runtime:
    """A shim of containerd's, which finds it by its name; nothing is registered."""
    program = f"containerd-shim-{shim[1]}-{shim[2]}"
    if find_program(parent, program) is None:
        raise Unavailable(
            f"{parent.name}: there is no {program}, which containerd would call for {shim[0]}",
            "install it so that it is found by its name (Kata Containers: https://katacontainers.io), or set runtime_path",
        )
    return Runtime(shim[0])


def _found(parent: AgentMachine, program: Artifact | None, options: Mapping[str, Any]) -> tuple[str, Json | None]:
    """The program, and what is known of its package if it was fetched. ``program``: what `to_fetch` asked for."""
    name, path = options["runtime"], options["runtime_path"]
    if program is not None:
        return packaged_program(parent, program, PACKAGED[name].name)
    return _installed(parent, path or name), None


def _installed(parent: AgentMachine, wanted: str) -> str:
    found = find_program(parent, wanted)
    if found is None:
        is_name = "/" not in wanted
        raise Unavailable(
            f"{parent.name}: there is no runtime {wanted}",
            f"apt-get install -y {wanted}, or set runtime_path"
            if is_name
            else "runtime_path names a program of that machine",
        )
    if found == f"/usr/bin/{GVISOR}":
        asked = ["dpkg-query", "--show", "--showformat=${Version}", PACKAGED[GVISOR].package]
        version = parent.run(asked, check=False).output.decode(errors="replace").strip()
        if version in PANICS:
            raise Unavailable(
                f"{parent.name}: {found} is Debian's {version}, which panics under PostgreSQL",
                "apt-get remove runsc (dbtoll then takes Debian 13's out of its package), or set runtime_path",
            )
    return found


def _arguments(found: str, options: Mapping[str, Any]) -> list[str]:
    arguments = list(options["runtime_args"])
    if _is_gvisor(options, found):
        is_told = any(word.startswith("--network") for word in arguments)
        arguments += [] if is_told else GVISOR_NETWORK[options["network"]]
        arguments += [] if options["platform"] is None else [f"--platform={options['platform']}"]
    return arguments


def _is_gvisor(options: Mapping[str, Any], program: str) -> bool:
    return GVISOR in (options["runtime"], posixpath.basename(program)[: len(GVISOR)])
