"""Environments and engines, each tried for real."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from dbtoll import registry
from dbtoll.doctor.deadline import Probed
from dbtoll.environments.docker.dockerd import DATA_ROOT
from dbtoll.images import debian, disk, system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.environment import Environment
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.layout import own_cpus
from dbtoll.model.experiment import Arm, Resources, Step
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec, MissingRequirement, Provision
from dbtoll.model.options import Option
from dbtoll.runner.arms import DATA
from dbtoll.runner.cleanup.sweep import workspace
from dbtoll.runner.preparation import requirements

KVM = "/dev/kvm"
GIB = 1 << 30
HELPED_NS = 20_000_000_000
"""A guest without disks says hello within 2 s with hardware help."""
NOTE_MAX = 240
"""Characters of a note; the whole reason is among what is told to programs."""
EMULATED_NS = 60_000_000_000
"""Within 10 s where two processors emulate it."""


def environments() -> list[str]:
    """All there are."""
    return registry.names("environments")


def engines() -> list[str]:
    """All there are."""
    return registry.names("engines")


def simulated(name: str) -> bool:
    """Whether that environment only simulates."""
    return requirements.simulated(Step(name))


def environment(name: str, machine: AgentMachine) -> Probed:
    """Open it with its default options, for a moment."""
    if simulated(name):
        return Probed("ready", note="a simulated world, for tests")
    options: Mapping[str, Option] = registry.find("environments", name).options
    if "accel" in options and "kvm" in options["accel"].choices:
        return _with_or_without_help(machine, name)
    missing_requirements = missing(machine, name, {})
    return Probed("lacks" if missing_requirements else "ready", tuple(missing_requirements))


def _with_or_without_help(machine: AgentMachine, name: str) -> Probed:
    """A guest with the processor's help, and only if none boots an emulated one: each probe that fails takes its deadline.

    That /dev/kvm can be opened proves nothing: there are hosts on which stock kernels hang under it.
    """
    opens = machine.run(["sh", "-c", f": <>{KVM}"], check=False).exit_code == 0
    helped = missing(machine, name, {"accel": "kvm", "boot_timeout": HELPED_NS}) if opens else []
    if opens and not helped:
        return Probed("ready", note="with hardware help (KVM)", told=_told(opens=True, boots=True))
    missing_requirements = missing(machine, name, {"accel": "tcg", "boot_timeout": EMULATED_NS})
    if missing_requirements:  # then the same may have kept the other from booting
        return Probed("lacks", tuple(missing_requirements), told=_told(opens=opens, boots=None))
    reason = helped[0].why if opens else ""
    why = f"{KVM} opens, but no guest boots with it: {reason}" if opens else f"{KVM} cannot be opened"
    note = textwrap.shorten(f"emulated, so many times slower: {why}", NOTE_MAX, placeholder=" …")
    return Probed("ready", note=note, told=_told(opens=opens, boots=False) | {"kvm_reason": reason})


def _told(*, opens: bool, boots: bool | None) -> Json:
    return {"kvm_opens": opens, "kvm_boots": boots, "emulated": None if boots is None else not boots}


def missing(machine: AgentMachine, name: str, options: Mapping[str, Any]) -> list[MissingRequirement]:
    """As before a run."""
    return requirements.missing_requirements(machine, [Arm(name, (Step(name, dict(options)),))]).get(name, [])


def engine(name: str, machine: AgentMachine) -> Probed:
    """Create a data directory, start a server in a native arm, ask it if it is a process, stop it.

    On the system image, if that has been made; a server that answers nothing real (``noop``) needs none.
    """
    tried: Engine = registry.find("engines", name)({})
    image: Artifact | None = None
    if tried.returns_rows:
        try:
            image, _ = system.obtain_image(Cache(), progress=_would_be_made, extra=tried.packages)
        except _NotMadeError:
            return Probed("not probed", note="it is tried on the system image, which the first run makes")
    native: Environment = registry.find("environments", "native")()
    if missing_requirements := native.missing_requirements(machine, {}):
        return Probed("not probed", note=f"it is tried in a native arm, which lacks {missing_requirements[0].what}")
    version = _serve(machine, native, tried, image)
    return Probed("ready", note=version.partition(" on ")[0])


def images(machine: AgentMachine) -> Probed:
    """The programs that the first run makes its system image, kernel and disks with."""
    missing_requirements = (*debian.missing_requirements(), *disk.missing_requirements())
    return Probed(
        "lacks" if missing_requirements else "ready",
        missing_requirements,
        note="" if missing_requirements else "what the first run needs is here",
    )


def cache(machine: AgentMachine) -> Probed:
    """How much is kept from run to run, and how much it may become."""
    held = Cache()
    kept = held.kept()
    docker_bytes = 0
    if machine.run(["test", "-d", DATA_ROOT], check=False).exit_code == 0:
        measured = machine.run(["du", "--summarize", "--one-file-system", "--block-size=1", DATA_ROOT], check=False)
        docker_bytes = int(measured.output.split()[0]) if measured.output else 0
    told: Json = {
        "path": str(held.root),
        "entries": len(kept),
        "size_bytes": sum(each.size_bytes for each in kept),
        "limit_bytes": held.limit_bytes(),
        "docker_bytes": docker_bytes,
    }
    note = f"{told['size_bytes'] / GIB:.1f} GiB of at most {told['limit_bytes'] / GIB:.1f} in {held.root}"
    if docker_bytes:
        note += f", {docker_bytes / GIB:.1f} GiB in {DATA_ROOT}"
    return Probed("ready", note=f"{note}; smaller by: dbtoll clean --cache", told=told)


class _NotMadeError(Exception):
    """What is asked for is not in the cache."""


def _would_be_made(text: str) -> None:
    """Stands for progress of a build: the first word of it means that something would have to be built."""
    raise _NotMadeError(text)


def _serve(machine: AgentMachine, native: Environment, tried: Engine, image: Artifact | None) -> str:
    """What a server that was asked says that it is."""
    mark = f"doctor-{machine.hello()['pid']}"
    resources = Resources(memory_bytes=1 << 30, shm_bytes=256 << 20)
    with workspace(mark) as (folder, journal), ExitStack() as stack:
        data = folder / "data"
        data.mkdir()
        machine_spec = MachineSpec(
            name=f"{mark}-{tried.name}",
            run_id=mark,
            arm=tried.name,
            image=image,
            provisions=(Provision(Artifact(mark, str(data)), DATA, writable=True),),
            resources=resources,
            cpuset=own_cpus(machine)[-1:],
        )
        arm = stack.enter_context(native.open(machine, machine_spec, journal))
        tried.create(arm, f"{DATA}/server")
        server = tried.start(arm, f"{DATA}/server", tried.settings(resources))
        stack.callback(tried.stop, arm, server)
        if server.pid is None:
            return "no server, for what needs none"
        session = arm.serial(server.address, connection="persistent")
        stack.callback(session.close)
        session.query("SELECT 1")
        return str(tried.facts(session).get("version", ""))
