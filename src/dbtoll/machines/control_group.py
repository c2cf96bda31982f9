"""What the machines of all freezable environments have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from dbtoll.channel.client import Channel
from dbtoll.errors import Unavailable
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.freezer import Freezer
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Network:
    """How a machine is reached from its parent: at ``host``, its own address, by the same port; or, where the parent does not
    see that address, at its own loopback by the port that ``forward`` makes of one in here."""

    host: str
    forward: Callable[[int], int] | None = None


class ControlGroupMachine(AgentMachine):
    """An agent in a control group, or in a tree of processes where there are none, on the same kernel as ``parent``: it can sleep,
    and its page cache is its parent's.

    ``told``: facts that only the environment knows. ``shows_parent``: it sees the parent's own files, at the same
    paths. ``network``: None for a machine that nobody reaches from outside (interfaces.ReachableMachine).
    """

    network: Network | None = None

    def __init__(
        self,
        machine_spec: MachineSpec,
        parent: AgentMachine,
        channel: Channel,
        on_close: ExitStack,
        *,
        freezer: Freezer,
        told: Json,
        shows_parent: bool = False,
    ) -> None:
        super().__init__(machine_spec.name, channel, on_close)
        self._machine_spec = machine_spec
        self.parent = parent
        self._freezer = freezer
        self._told = told
        self.shows_parent = shows_parent
        self._closed = False

    def place(self, path: str) -> str:
        """See AgentMachine."""
        return self.parent.place(path) if self.shows_parent else path

    def visited(self) -> tuple[AgentMachine, ExitStack] | None:
        """See AgentMachine."""
        return self.parent.visited() if self.shows_parent else None

    def provide(self, artifact: Artifact) -> str:
        """Where it was asked for when this was opened. Raises Unavailable for what cannot be seen from inside."""
        for provision in self._machine_spec.provisions:
            if provision.artifact.key == artifact.key:
                return provision.at
        if self.shows_parent:
            return self.parent.provide(artifact)
        raise Unavailable(f"{self.name}: {artifact.path} was not provided when this machine was opened")

    def freeze(self) -> None:
        """Returns when every process in here sleeps, the agent too."""
        self._freezer.freeze()

    def thaw(self) -> None:
        """Returns when every process in here may run."""
        self._freezer.thaw()

    def cpu_ns(self) -> int:
        """CPU time of all processes that ever were in here, ns; asked of the parent, so also of a sleeping machine."""
        return self._freezer.cpu_ns()

    def processes(self) -> set[int] | None:
        """Asked of the parent."""
        return self._freezer.processes()

    def listen_at(self) -> str:
        """See interfaces.ReachableMachine."""
        return self._reached().host

    def reach(self, port: int) -> tuple[str, int]:
        """See interfaces.ReachableMachine."""
        network = self._reached()
        return (network.host, port) if network.forward is None else (LOOPBACK, network.forward(port))

    def _reached(self) -> Network:
        if self.network is None:
            raise Unavailable(f"{self.name} has no network by which it could be reached", "set its option network")
        return self.network

    def facts(self) -> Json:
        """As of any machine, and what only the environment knows under ``environment``."""
        return {**super().facts(), "environment": self._told}

    def close(self) -> None:
        """Thaw, end everything in here and give back what was made for it. Also twice."""
        try:
            if not self._closed:
                self._closed = True
                self.thaw()  # a sleeping agent cannot say goodbye
        finally:
            super().close()


def through_agent(machine: Machine) -> AgentMachine:
    """The machine as one that can hold others. Raises Unavailable for one without an agent (``simulated``)."""
    if not isinstance(machine, AgentMachine):
        raise Unavailable(
            f"{machine.name}: nothing can be opened on a machine without an agent", "put `simulated` last in its stack"
        )
    return machine
