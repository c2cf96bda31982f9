"""Environments and engines, each tried for real."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from dbtoll import namespaces, registry
from dbtoll.defaults import BASELINE
from dbtoll.doctor.deadline import Probed
from dbtoll.images import debian, disk, system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.environment import A_HOST, Environment, KeepingEnvironment, RemoteEnvironment
from dbtoll.interfaces.machine import InspectableMachine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.layout import own_cpus
from dbtoll.model.experiment import Arm, Resources, Step
from dbtoll.model.json import Json
from dbtoll.model.machine import DATA, Artifact, MachineSpec, MissingRequirement, Provision, ServerPlace
from dbtoll.runner.arms import environment_of
from dbtoll.runner.cleanup.beside_arms import workspace
from dbtoll.runner.preparation import requirements
from dbtoll.runner.preparation.software import image_software
from dbtoll.spec.stack import parse_stack

GIB = 1 << 30
NOTE_MAX = 240
"""Characters of a note; the whole reason is among what is told to programs."""


SIMULATED = Probed("ready", note="a simulated world, for tests")


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
    """Open it for a moment, in each of the ways in which it can be tried until one works.

    ``told``: ``trials``, each with its ``options`` and why it was ``refused`` (null where it worked).
    """
    told: list[Json] = []
    refused: list[str] = []
    member = environment_of(Step(name))
    if isinstance(member, RemoteEnvironment) and {lack.what for lack in missing(machine, name, {})} == {A_HOST}:
        return Probed("not probed", note=member.look().note)
    for trial in member.trials:
        missing_requirements = missing(machine, name, trial.options)
        why = "; ".join(lack.why for lack in missing_requirements) or None
        told.append({"options": dict(trial.options), "refused": why})
        if not missing_requirements:
            words = filter(None, [trial.note, *refused, *_variants(name, machine)])
            note = textwrap.shorten("; ".join(words), NOTE_MAX, placeholder=" …")
            return Probed("ready", note=note, told={"trials": told})
        refused.append(f"not {trial.note or 'with its defaults'}: {why}")
    # What the last one lacks may have kept the others from working, too.
    return Probed("lacks", tuple(missing_requirements), told={"trials": told})


def _variants(name: str, machine: AgentMachine) -> Iterator[str]:
    """What can be said of its further default stacks (``docker:runsc``): whether they work, and by whose program."""
    for stack in environment_of(Step(name)).default_stacks[1:]:
        step = parse_stack(stack)[0]
        if lacks := missing(machine, name, step.options):
            yield f"not {stack}: {lacks[0].why}"
        elif fetched := requirements.program_for(Cache(), machine, step):
            yield f"{stack} by {fetched[1]['package']} {fetched[1]['version']} out of Debian's package"
        else:
            yield f"{stack} by what is installed"


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
            image, _ = system.obtain_image(Cache(), progress=_would_be_made, software=image_software(tried))
        except _NotMadeError:
            return Probed("not probed", note="it is tried on the system image, which the first run makes")
    native: Environment = registry.find("environments", BASELINE)()
    if missing_requirements := native.missing_requirements(machine, {}):
        return Probed(
            "not probed", note=f"it is tried in an arm of {BASELINE}, which lacks {missing_requirements[0].what}"
        )
    version = _serve(machine, native, tried, image)
    return Probed("ready", note=version.partition(" on ")[0])


def agent(machine: AgentMachine) -> Probed:
    """The program that measures in every machine."""
    hello = machine.hello()
    told = {name: hello[name] for name in ("build", "protocol", "architecture")}
    return Probed("ready", note=f"{told['build']}, {told['architecture']}", told=told)


def images(machine: InspectableMachine) -> Probed:
    """The programs that the first run makes its system image, kernel and disks with."""
    missing_requirements = (*debian.missing_requirements(), *disk.missing_requirements())
    return Probed(
        "lacks" if missing_requirements else "ready",
        missing_requirements,
        note="" if missing_requirements else "what the first run needs is here",
    )


def cache(machine: InspectableMachine) -> Probed:
    """How much is kept from run to run, and how much it may become."""
    held = Cache()
    kept = held.kept()
    images = {path: _size_bytes(machine, path) for path in _kept_at()}
    told: Json = {
        "path": str(held.root),
        "entries": len(kept),
        "size_bytes": sum(each.size_bytes for each in kept),
        "limit_bytes": held.limit_bytes(),
        "images_bytes": images,
    }
    note = f"{told['size_bytes'] / GIB:.1f} GiB of at most {told['limit_bytes'] / GIB:.1f} in {held.root}"
    note += "".join(f", {held_bytes / GIB:.1f} GiB in {path}" for path, held_bytes in images.items() if held_bytes)
    return Probed("ready", note=f"{note}; smaller by: dbtoll clean --cache", told=told)


def _kept_at() -> Iterator[str]:
    """Where environments keep images of their own."""
    for kind in registry.members("environments"):
        environment = kind()
        if isinstance(environment, KeepingEnvironment):
            yield from map(namespaces.own_place, environment.keeps_at)


def _size_bytes(machine: InspectableMachine, path: str) -> int:
    """0 for what is not there."""
    if machine.run(["test", "-d", path], check=False).exit_code != 0:
        return 0
    measured = machine.run(["du", "--summarize", "--one-file-system", "--block-size=1", path], check=False)
    return int(measured.output.split()[0]) if measured.output else 0


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
        server = tried.start(arm, ServerPlace(f"{DATA}/server"), tried.settings(resources))
        stack.callback(tried.stop, arm, server)
        if server.pid is None:
            return "no server, for what needs none"
        session = arm.serial(server.address, connection="persistent")
        stack.callback(session.close)
        session.query("SELECT 1")
        return str(tried.facts(session).get("version", ""))
