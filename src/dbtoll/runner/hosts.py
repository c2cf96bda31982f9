"""The hosts that arms stand on where their environment reaches another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


@dataclass(frozen=True, slots=True)
class Reached:
    """A host, and the processors that an arm gets there. ``journal``: by which what is made there is noted."""

    machine: AgentMachine
    cpuset: tuple[int, ...]
    directory: str
    journal: RemoteJournal


@dataclass(slots=True)
class RemoteHosts:
    """Those of one run. Each is reached once for all arms whose outermost environment has the same options, and again where the
    line to it broke. ``cpus``: the most processors that an arm gets."""

    host: Machine
    cpus: int
    journal: Journal
    _reached: dict[str, Reached] = field(default_factory=dict)
    _left: dict[str, list[RemoteJournal]] = field(default_factory=dict)
    """Of hosts to which a line broke: what may still be there."""

    def of(self, arm: Arm) -> Reached | None:
        """Where that arm stands; None if it is this host."""
        step = arm.stack[0]
        if repr(step) not in self._reached:
            environment = environment_of(step)
            if not isinstance(environment, RemoteEnvironment):
                return None
            there = environment.reach(self.host, step.options, self.journal, keeps=True)
            assert isinstance(there, RemoteMachine)
            with ExitStack() as undo:
                undo.callback(there.close)
                cpuset = self._processors_of(there)
                undo.pop_all()
            self._reached[repr(step)] = Reached(through_agent(there), cpuset, there.directory, there.journal)
        return self._reached[repr(step)]

    def _processors_of(self, there: Machine) -> tuple[int, ...]:
        """The last ones, as on this host. Unavailable where there are not enough."""
        own = own_cpus(through_agent(there))
        if len(own) < self.cpus:
            raise Unavailable(
                f"an arm shall have {self.cpus} processors and {there.name} has {len(own)}", f"--cpus {len(own)}"
            )
        return own[-self.cpus :]

    def renew(self, arm: Arm) -> None:
        """Before a start: a host to which the line broke is reached again, and what was left there is removed."""
        key = repr(arm.stack[0])
        former = self._reached.get(key)
        if former is not None and former.machine.channel.failure is not None:
            self._left.setdefault(key, []).append(former.journal)
            self._let_go(key)
        if key not in self._left:
            return
        there = self.of(arm)
        assert there is not None
        with on_host(there.machine) as removers:
            for entry in [entry for journal in reversed(self._left[key]) for entry in journal.left()]:
                identity = {name: value for name, value in entry.what.items() if name != "kind"}
                removers[entry.what["kind"]](identity)
                entry.done()
        del self._left[key]

    def _let_go(self, key: str) -> None:
        with suppress(DbtollError):  # what could not be removed is in the journal
            self._reached.pop(key).machine.close()

    def close(self) -> None:
        """All of them."""
        for key in list(self._reached):
            self._let_go(key)


@contextmanager
def remote_hosts(host: Machine, cpus: int, journal: Journal) -> Iterator[RemoteHosts]:
    """None is reached before it is asked for; at the end nothing of the run is left on any, but what is in the journal."""
    hosts = RemoteHosts(host, cpus, journal)
    try:
        yield hosts
    finally:
        hosts.close()
