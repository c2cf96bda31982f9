"""Network interfaces that are made for one arm: their names, a point-to-point network with a guest, their removal."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from itertools import pairwise
from typing import Any

from dbtoll import identities
from dbtoll.errors import Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import InspectableMachine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.programs import exists, find_program
from dbtoll.model.machine import MachineSpec, MissingRequirement

NETWORKS = IPv4Network("198.18.0.0/15")
"""For tests of devices that are not connected to the Internet (RFC 2544, appendix C.2.2; RFC 5735)."""

PREFIX = 30
"""Two addresses: the parent's and the guest's."""

KIND = "network"
"""Of the journal's entries: ``interface``."""

NAMED = "dbtoll[0-9a-f]{8}"
"""How interfaces are called that are made for arms."""


@dataclass(frozen=True, slots=True)
class Tap:
    """An Ethernet cable between the parent, where its end is called ``interface``, and a guest."""

    interface: str
    guest: IPv4Interface


def interface_name(machine_spec: MachineSpec) -> str:
    """Of the interface that is made for this arm: at most 15 letters (IFNAMSIZ)."""
    return "dbtoll" + hashlib.sha256(machine_spec.name.encode()).hexdigest()[:8]


def missing_requirements(machine: InspectableMachine) -> list[MissingRequirement]:
    """What the machine lacks to make taps, and to remove the networks that a killed run left."""
    if find_program(machine, "ip"):
        return []
    why = "it makes a guest's network, and removes those that a killed run left, Docker's bridges too"
    return [MissingRequirement("ip", why, "apt-get install -y --no-install-recommends iproute2")]


def _demand_program(machine: AgentMachine) -> None:
    for lack in missing_requirements(machine):
        raise Unavailable(f"{machine.name} has no program {lack.what}", lack.hint)


def tap(parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, on_close: ExitStack) -> Tap:
    """A tap device with the parent's address on it, until ``on_close``. Raises Unavailable where none can be made."""
    _demand_program(parent)
    name = interface_name(machine_spec)
    entry = journal.create(KIND, interface=name)

    def end() -> None:
        remove(parent, {"interface": name})
        entry.done()

    on_close.callback(end)
    made = parent.run(["ip", "tuntap", "add", "dev", name, "mode", "tap"], check=False)
    if made.exit_code != 0:
        said = made.error_output.decode(errors="replace").strip()
        raise Unavailable(
            f"{parent.name}: no tap device can be made: {said}",
            "it takes root and the kernel's module tun (in a guest: its option modules=tun)",
        )
    host, guest = list(_free_network(parent).hosts())
    parent.run(["ip", "address", "add", f"{host}/{PREFIX}", "dev", name])
    parent.run(["ip", "link", "set", name, "up"])
    return Tap(name, IPv4Interface(f"{guest}/{PREFIX}"))


def _free_network(parent: AgentMachine) -> IPv4Network:
    """At random one that no interface of the parent is on."""
    words = parent.run(["ip", "-4", "-oneline", "address"]).output.decode().split()
    taken = [IPv4Interface(after).network for word, after in pairwise(words) if word == "inet"]
    step = 1 << (32 - PREFIX)
    while True:
        at = int(NETWORKS.network_address) + step * secrets.randbelow(NETWORKS.num_addresses // step)
        chosen = IPv4Network((at, PREFIX))
        if not any(chosen.overlaps(other) for other in taken):
            return chosen


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Remove the interface ``identity["interface"]``, if it is there: a tap, or the bridge that a killed daemon left."""
    name = identities.word(identity, "interface", NAMED)
    if exists(machine, f"/sys/class/net/{name}"):
        _demand_program(machine)
        machine.run(["ip", "link", "delete", name])
