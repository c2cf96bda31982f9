"""One arm's fresh start: its stack opened, its server up, awake or asleep; and the copies of its data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from dbtoll import registry
from dbtoll.interfaces import CacheDropping, Engine, Freezable, Journal, Machine, Server, Session
from dbtoll.model import Arm, Artifact, Experiment, Json, Place, Provision

DATA = "/dbtoll/data"
"""Where every arm finds its data directory."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all arms of a run stand on: the host, the system image, the arms' processors, where to write."""

    host: Machine
    image: Artifact | None
    cpuset: tuple[int, ...]
    journal: Journal
    run_id: str


def open_stack(ground: Ground, experiment: Experiment, arm: Arm, data: Artifact | None, stack: ExitStack) -> Machine:
    """Open the environments of an arm, outermost first; ``stack`` closes them again, innermost first.

    The image and the data belong into the last one; those before it keep their own root.
    """
    machine = ground.host
    for depth, step in enumerate(arm.stack):
        last = depth == len(arm.stack) - 1
        environment = registry.find("environments", step.environment)()
        place = Place(
            name=place_name(ground.run_id, arm.name, depth),
            run_id=ground.run_id,
            arm=arm.name,
            image=ground.image if last else None,
            provisions=(Provision(data, DATA, writable=True),) if data and last else (),
            resources=experiment.resources,
            cpuset=ground.cpuset,
            options=dict(step.options),
        )
        machine = environment.open(machine, place, ground.journal)
        stack.callback(machine.close)
    return machine


def place_name(run_id: str, arm: str, depth: int) -> str:
    """``[a-z0-9-]+``, unique for arms whose names differ only in other characters too, short enough for a socket path."""
    word = re.sub(r"[^a-z0-9]+", "-", arm.lower()).strip("-")[:24]
    mark = format(sum(ord(c) * (i + 1) for i, c in enumerate(arm)) % 46656, "x")
    return f"{run_id}-{word}-{mark}" + (f"-{depth}" if depth else "")


@dataclass(slots=True)
class RunningArm:
    """An arm between its start and its end in a round. Only one of them is awake at a time (DESIGN §1.3)."""

    arm: Arm
    machine: Machine
    engine: Engine
    settings: Mapping[str, str]
    closing: ExitStack
    server: Server | None = None
    awake: bool = True
    failure: str | None = None
    _sessions: dict[str, Session] = field(default_factory=dict)
    _asleep_cpu_ns: int | None = None

    def start_server(self) -> None:
        self.server = self.engine.start(self.machine, DATA, self.settings)

    def stop_server(self) -> None:
        """Cleanly, with all sessions closed before."""
        self.close_sessions()
        if self.server is not None:
            server, self.server = self.server, None
            self.engine.stop(self.machine, server)

    def session(self, connection: str = "one") -> Session:
        """The driver session of that connection mode; opened when first asked for."""
        if connection not in self._sessions:
            assert self.server is not None
            self._sessions[connection] = self.machine.serial(self.server.address, connection=connection)
        return self._sessions[connection]

    def close_sessions(self) -> None:
        while self._sessions:
            self._sessions.popitem()[1].close()

    def restart_cold(self, host: Machine) -> None:
        """Server stopped for certain, caches of the guest and of the host dropped, server up again (DESIGN §5)."""
        self.stop_server()
        if isinstance(self.machine, CacheDropping):
            self.machine.drop_caches()
        drop_host_caches(host)
        self.start_server()

    def wake(self) -> None:
        if not self.awake and isinstance(self.machine, Freezable):
            self.machine.thaw()
        self.awake = True

    def asleep(self) -> bool | None:
        """Whether its CPU time stands still since it was put to sleep; None where it cannot sleep."""
        if not isinstance(self.machine, Freezable):
            return None
        return not self.awake and self.machine.cpu_ns() == self._asleep_cpu_ns

    def sleep(self) -> None:
        if self.awake and isinstance(self.machine, Freezable):
            self.machine.freeze()
            self._asleep_cpu_ns = self.machine.cpu_ns()
            self.awake = False

    def counters(self) -> Json:
        """Of the server's process tree, as the agent inside sees it."""
        return self.machine.counters(tree_of=self.server.pid if self.server else None)


def drop_host_caches(host: Machine) -> None:
    """Write back, then drop page cache, dentries and inodes of the whole host (Linux, Documentation/admin-guide/sysctl/vm.rst)."""
    host.run(["sync"], timeout_s=600)
    host.put("/proc/sys/vm/drop_caches", b"3\n", in_place=True)


def cpu_ns(machine: Machine) -> int | None:
    """CPU time of an arm so far; None where its environment cannot tell."""
    return machine.cpu_ns() if isinstance(machine, Freezable) else None


def busy_ns(counters: Json) -> int | None:
    """CPU time that a machine has spent on anything but idling and waiting, from its counters."""
    machine = counters.get("machine") or {}
    parts = [machine.get(name) for name in ("user_ns", "nice_ns", "system_ns", "irq_ns", "softirq_ns")]
    return None if None in parts else sum(part for part in parts if part is not None)
