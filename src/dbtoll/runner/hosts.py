"""The hosts that arms stand on where their environment reaches another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces.environment import RemoteEnvironment
from dbtoll.interfaces.journal import Journal, RemoteJournal
from dbtoll.interfaces.machine import Machine, RemoteMachine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.layout import own_cpus
from dbtoll.machines.control_group import through_agent
from dbtoll.model.experiment import Arm
from dbtoll.runner.arms import environment_of
from dbtoll.runner.cleanup.removers import on_host


@dataclass(slots=True)
class RemoteHosts:
    """Those of one run. Each is reached once for all arms whose outermost environment has the same options, and again where the
    line to it broke. ``cpus``: how many processors an arm gets."""

    host: Machine
    cpus: int
    journal: Journal
    _reached: dict[str, AgentMachine] = field(default_factory=dict)

    def of(self, arm: Arm) -> AgentMachine | None:
        """Where that arm stands; None if it is this host."""
        step = arm.stack[0]
        if repr(step) not in self._reached:
            environment = environment_of(step)
            if not isinstance(environment, RemoteEnvironment):
                return None
            there = environment.reach(self.host, step.options, self.journal, keeps=True)
            self._reached[repr(step)] = through_agent(there)
        return self._reached[repr(step)]

    def processors_of(self, there: AgentMachine) -> tuple[int, ...]:
        """The last ones, as on this host. Unavailable where there are not enough."""
        own = own_cpus(there)
        if len(own) < self.cpus:
            raise Unavailable(
                f"each arm shall have {self.cpus} processors and {there.name} has {len(own)}", f"--cpus {len(own)}"
            )
        return own[-self.cpus :]

    def renew(self, arm: Arm) -> None:
        """Before a start: a host to which the line broke is reached again, and what was left there is removed."""
        former = self._reached.get(repr(arm.stack[0]))
        if former is None or is_there(former):
            return
        with suppress(DbtollError):  # it cannot be closed cleanly
            self._reached.pop(repr(arm.stack[0])).close()
        there = self.of(arm)
        assert there is not None
        with on_host(there) as removers:
            for entry in journal_of(former).left():
                identity = {key: value for key, value in entry.what.items() if key != "kind"}
                removers[entry.what["kind"]](identity)
                entry.done()

    def close(self) -> None:
        """All of them."""
        for key in list(self._reached):
            with suppress(DbtollError):  # what could not be removed is in the journal
                self._reached.pop(key).close()


def is_there(machine: Machine) -> bool:
    """Whether the line to a remote host holds."""
    return isinstance(machine, RemoteMachine) and machine.is_there()


def journal_of(machine: Machine) -> RemoteJournal:
    """By which things on that host are noted."""
    assert isinstance(machine, RemoteMachine)
    return machine.journal


@contextmanager
def remote_hosts(host: Machine, cpus: int, journal: Journal) -> Iterator[RemoteHosts]:
    """None is reached before it is asked for; at the end nothing of the run is left on any, but what is in the journal."""
    hosts = RemoteHosts(host, cpus, journal)
    try:
        yield hosts
    finally:
        hosts.close()
