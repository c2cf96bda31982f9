"""What can be measured on this machine, what is missing for the rest and the one command that brings it (DESIGN §4).

Everything is probed: a container is started, a guest is booted, a server is asked. Each probe has a deadline, and one that
hangs does not keep the others from being made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dbtoll import facts, namespaces
from dbtoll.doctor import availability, fixes, host, noise, without_agent
from dbtoll.doctor.deadline import Probe, Probed, asked, with_deadline
from dbtoll.errors import DbtollError
from dbtoll.machines.agent.local import open_local
from dbtoll.model.json import Json
from dbtoll.model.machine import MissingRequirement

Say = Callable[[str], None]

HOST_DEADLINE_S = 30.0
ENGINE_DEADLINE_S = 120.0
ENVIRONMENT_DEADLINE_S = 180.0
"""Emulated, a guest that cannot boot with hardware help is booted twice; a daemon may take a minute to start."""
NOISE_DEADLINE_S = 120.0


def examine(say: Say, *, with_noise: bool) -> Json:
    """All findings as one JSON object (docs: the README's `doctor`). ``with_noise``: also the A/A, about 15 s.

    Where no agent can be started, it says so, and all that can be found out without one. ``host``: as in a run's facts.
    ``environments``, ``engines``, ``machine``: name -> `Probed`. ``noise``: null where it was left out or could not be measured.
    ``hint``: the one command, null where nothing that a command brings is missing; ``advice``: what no command hints. ``root``:
    whether we are; if not, ``root_adds`` names what may be ready with it. ``measurable``: environments that are ready,
    but for the simulated; ``can_measure``: whether there is any.
    """
    try:
        with open_local() as machine:
            described = facts.host(machine)
    except DbtollError as error:
        described = facts.host(without_agent.PlainMachine())
        found = _looked_at(say, error)
    else:
        found = _probed(say, with_noise=with_noise)
    command, advice = fixes.together(
        lack for family in found.values() for each in family.values() for lack in each.missing_requirements
    )
    either = {**found["environments"], **found["machine"]}
    is_root = namespaces.is_root()
    measurable = [
        name
        for name, each in found["environments"].items()
        if each.state == "ready" and not availability.simulated(name)
    ]
    noticed = found["machine"].get("noise")
    return {
        "host": {**described, "meaning": host.meaning(described)},
        **{family: {name: each.as_json() for name, each in members.items()} for family, members in found.items()},
        "noise": noticed.told if noticed and noticed.state == "ready" else None,
        "hint": command,
        "advice": advice,
        "root": is_root,
        "root_adds": [] if is_root else [name for name, each in either.items() if each.state in ("lacks", "hangs")],
        "measurable": measurable,
        "can_measure": bool(measurable),
    }


def _probed(say: Say, *, with_noise: bool) -> dict[str, dict[str, Probed]]:
    """Family -> name -> what was found, one probe after the other."""
    say("environments: each is opened for a moment")
    environments = {
        name: with_deadline(partial(availability.environment, name), ENVIRONMENT_DEADLINE_S)
        for name in availability.environments()
    }
    say("engines: each is started for a moment")
    engines = {
        name: with_deadline(partial(availability.engine, name), ENGINE_DEADLINE_S) for name in availability.engines()
    }
    of_machine: dict[str, Probe] = {
        "agent": availability.agent,
        **host.PROBES,
        "images": availability.images,
        "cache": availability.cache,
    }
    machine = {name: with_deadline(probe, HOST_DEADLINE_S) for name, probe in of_machine.items()}
    if with_noise:
        say("how noisy it is now: two identical copies for about 15 s")
        machine["noise"] = with_deadline(noise.probe, NOISE_DEADLINE_S, cpus=noise.processors()[0])
    return {"environments": environments, "engines": engines, "machine": machine}


def _looked_at(say: Say, error: DbtollError) -> dict[str, dict[str, Probed]]:
    """The same where ``error`` says why no agent can be started."""
    say("there is no agent: environments and engines are not tried")
    machine = without_agent.PlainMachine()
    probes = {**host.PROBES, "images": availability.images, "cache": availability.cache}
    lack = MissingRequirement("the agent", error.message, error.hint)
    return {
        "environments": {name: without_agent.environment(name) for name in availability.environments()},
        "engines": {name: without_agent.engine(name) for name in availability.engines()},
        "machine": {
            "agent": Probed("lacks", (lack,)),
            **{name: asked(probe, machine) for name, probe in probes.items()},
        },
    }
