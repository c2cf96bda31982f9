"""One arm's fresh start: its stack opened, its server up, awake or asleep; and the copies of its data."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dbtoll import registry
from dbtoll.errors import AgentFailure, EngineError, Unavailable
from dbtoll.interfaces.engine import Engine, ThreadedEngine
from dbtoll.interfaces.environment import BootingEnvironment, Environment
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import (
    CacheDroppingMachine,
    FreezableMachine,
    Machine,
    ReachableMachine,
    RemoteMachine,
    Server,
    Session,
    Terminals,
)
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.experiment import Arm, Step
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, Artifact, MachineSpec, Provision
from dbtoll.model.storage import DIRECT, MEMORY, chosen
from dbtoll.text import noun

if TYPE_CHECKING:
    from dbtoll.runner.hosts import RemoteHosts

DATA = "/dbtoll/data"
"""Where every arm finds its data directory."""

NESTED = "/dbtoll/run/nested"
"""Below it a guest that holds further environments finds the system image and the data for them."""


@dataclass(frozen=True, slots=True)
class HostContext:
    """What arms stand on: the host, the arms' processors, where to write, and what those of one configuration are made of.

    ``cpuset``: as many as any arm gets. ``image``: the system image. ``disks``: by the packages that a guest has beyond those of
    the image (none, but for one that holds other environments), the image as a disk. ``kernels``: by the name that
    `interfaces.BootingEnvironment` gives. ``copies``: where copies of the data lie on the host. ``remotes``: None where no arm can
    stand elsewhere. ``programs``: by the step of a stack that has `interfaces.ProgramEnvironment`."""

    host: Machine
    image: Artifact | None
    cpuset: tuple[int, ...]
    journal: Journal
    run_id: str
    disks: Mapping[tuple[str, ...], Artifact] = field(default_factory=dict)
    kernels: Mapping[str, Artifact] = field(default_factory=dict)
    copies: str = ""
    remotes: RemoteHosts | None = None
    programs: Mapping[str, Artifact] = field(default_factory=dict)

    def at(self, arm: Arm) -> HostContext:
        """The same for that arm: another one where it stands on another host (`interfaces.environment.RemoteEnvironment`)."""
        there = self.remotes.of(arm) if self.remotes else None
        if there is None:
            return self
        return replace(
            self,
            host=there.machine,
            cpuset=there.cpuset,
            journal=there.journal,
            copies=f"{there.directory}/copies",
            remotes=None,
        )

    def program_of(self, step: Step) -> Artifact | None:
        """For the outermost step of a stack."""
        return self.programs.get(repr(step))


def environment_of(step: Step) -> Environment:
    """The environment that a step of a stack names."""
    environment: Environment = registry.find("environments", step.environment)()
    return environment


def boots(step: Step) -> bool:
    """Whether that environment has a kernel of its own, and so takes disks."""
    return isinstance(environment_of(step), BootingEnvironment)


def storage_of(arm: Arm) -> str | None:
    """The kind of storage of its last environment, which holds the data; None where that has no such thing."""
    step = arm.stack[-1]
    return chosen(step.options, environment_of(step).options)


def in_memory(arm: Arm) -> bool:
    """Whether its data were asked to lie in a memory file system, of whichever environment of its stack."""
    return any(chosen(step.options, environment_of(step).options) == MEMORY for step in arm.stack)


def copied_from(arm: Arm) -> bool:
    """Whether the arm works on a copy that is made of what it is provided with, which then is only read."""
    holder = next((step for step in arm.stack if boots(step)), arm.stack[-1])
    return chosen(holder.options, environment_of(holder).options) not in (None, *DIRECT)


def packages_inside(arm: Arm, depth: int) -> tuple[str, ...]:
    """What the machine of step ``depth`` must have installed for the steps inside it."""
    return tuple(sorted({name for step in arm.stack[depth + 1 :] for name in environment_of(step).packages}))


def open_stack(context: HostContext, arm: Arm, data: Artifact | None, stack: ExitStack) -> Machine:
    """Open the environments of an arm, outermost first; ``stack`` closes them again, innermost first.

    The image and the data belong into the last one. Those before it keep their own root; a guest among them, which sees
    nothing of the machine around, gets the image with what the others need, and hands on image and data.
    """
    context = context.at(arm)
    machine = context.host
    resources = arm.configuration.resources
    cpuset = context.cpuset[-resources.cpus :]
    journal = context.journal
    for depth, step in enumerate(arm.stack):
        last = depth == len(arm.stack) - 1
        environment = environment_of(step)
        provisions: tuple[Provision, ...] = (Provision(data, DATA, writable=True),) if data and last else ()
        image = context.image if last else None
        kernel: Artifact | None = None
        if isinstance(environment, BootingEnvironment) and context.image:
            kernel = context.kernels.get(environment.kernel(step.options) or "")
            image = context.disks[packages_inside(arm, depth)]
            if not last:
                handed_on = {"image": context.disks[()], "data": data}
                provisions = tuple(
                    Provision(artifact, f"{NESTED}/{name}", writable=name == "data")
                    for name, artifact in handed_on.items()
                    if artifact is not None
                )
        machine_spec = MachineSpec(
            name=machine_name(context.run_id, arm.name, depth),
            run_id=context.run_id,
            arm=arm.name,
            image=image,
            provisions=provisions,
            resources=resources,
            cpuset=cpuset,
            options=dict(step.options),
            kernel=kernel,
            program=None if depth else context.program_of(step),
        )
        opened = environment.open(machine, machine_spec, journal)
        if opened is not machine:  # else it is that host itself, which others share
            stack.callback(opened.close)
        machine = opened
        if isinstance(environment, BootingEnvironment):
            cpuset = tuple(range(len(cpuset)))
            journal = NullJournal()
    return machine


def machine_name(run_id: str, arm: str, depth: int) -> str:
    """``[a-z0-9-]+``, another one for every run and every name of an arm, short enough for a socket path."""
    if not re.fullmatch("[a-z0-9-]{1,24}", run_id):  # with a name of the user's in it
        run_id = hashlib.sha256(run_id.encode()).hexdigest()[:22]
    word = re.sub(r"[^a-z0-9]+", "-", arm.lower()).strip("-")[:20]
    mark = hashlib.sha256(arm.encode()).hexdigest()[:8]
    return f"{run_id}-{word}-{mark}" + (f"-{depth}" if depth else "")


@dataclass(slots=True)
class RunningArm:
    """An arm between its start and its end in a round. Only one of them is awake at a time (DESIGN §1.3).

    ``outside``: terminals will work outside of its machine too, so its server listens on a network. ``threads``: that its server
    gives a query at most; None: as the settings say. ``warmed_up``: this server has answered every query before.
    """

    arm: Arm
    machine: Machine
    engine: Engine
    settings: Mapping[str, str]
    closing: ExitStack
    outside: bool = False
    threads: int | None = None
    warmed_up: bool = False
    server: Server | None = None
    awake: bool = True
    failure: str | None = None
    _sessions: dict[str, Session] = field(default_factory=dict)
    _terminals: tuple[str, Terminals] | None = None
    executed: Counter[str] = field(default_factory=Counter)
    """Transactions of the round's windows, by kind, however they ended."""
    prepared_work: Counter[str] = field(default_factory=Counter)
    """Background work of the server that this program asked for between two windows, as `background_work` counts it."""
    uncounted: dict[str, str] = field(default_factory=dict)
    """Collectors that cannot count in this arm, with why: they are not tried again."""
    _asleep_cpu_ns: int | None = None

    def start_server(self) -> None:
        network = _reachable(self.machine).listen_at() if self.outside else None
        settings = self.settings
        if self.threads is not None and isinstance(self.engine, ThreadedEngine):
            settings = {**settings, **self.engine.settings_of_threads(self.threads)}
        self.warmed_up = False
        self.server = self.engine.start(self.machine, DATA, settings, network=network)

    def stop_server(self) -> None:
        """Cleanly, with all sessions closed before."""
        self.close_sessions()
        if self.server is not None:
            server, self.server = self.server, None
            self.engine.stop(self.machine, server)

    def use_threads(self, threads: int) -> None:
        """A server that gives a query at most so many threads: the one that runs, or another one in its place.

        EngineError unless the server says that it is so, and that all else is as it was.
        """
        if not isinstance(self.engine, ThreadedEngine):  # it has one, and nobody asks for more (`Engine.unsupported`)
            return
        if threads != self.threads:
            before = self._other_settings(self.engine)
            self.stop_server()
            self.threads = threads
            self.start_server()
            after = self._other_settings(self.engine)
            if changed := sorted(name for name in {*before, *after} if before.get(name) != after.get(name)):
                number = f"{threads} {noun(threads, 'thread')}"
                raise EngineError(
                    f"{self.arm.name}: with {number} its server has other settings too: {', '.join(changed)}",
                    "say by the engine's settings what they are to be",
                )
        if (told := self.engine.threads(self.session())) != threads:
            raise EngineError(
                f"{self.arm.name}: its server gives a query {told} {noun(told, 'thread')}, not {threads}",
                "see its log",
            )

    def _other_settings(self, engine: ThreadedEngine) -> Json:
        """What the server says of its settings, but for those of threads and those of its place."""
        told = self.engine.facts(self.session()).get("settings") or {}
        described = self.engine.description
        left_out = {
            *engine.thread_settings,
            *engine.following_settings,
            *described.location_settings,
            *described.auto_tuned_settings,
        }
        return {name: value for name, value in told.items() if name not in left_out}

    def session(self, connection: str = "persistent") -> Session:
        """The driver session of that connection mode; opened when first asked for."""
        if connection not in self._sessions:
            assert self.server is not None
            kept = "per_statement" if connection == "per_statement" else "persistent"
            self._sessions[connection] = self.machine.serial(self.server.address, connection=kept)
        return self._sessions[connection]

    def terminals(self, placement: str, driver_parameters: Json) -> Terminals:
        """The terminals that are driven so, there; connected when first asked for, in the place of those that were driven
        otherwise: a server has its limit of connections, and idle ones are not free."""
        key = f"{placement} {driver_parameters!r}"
        if self._terminals is None or self._terminals[0] != key:
            self.close_terminals()
            self._terminals = key, self.driver_machine(placement).terminals(self.address(placement), driver_parameters)
        return self._terminals[1]

    def driver_machine(self, placement: str) -> Machine:
        """The machine in which terminals of that placement work: this one (``inside``), or the one that it stands on.

        BIAS: the host's agent is kept off the arms' processors where there are others (`preparation.host_machine`). So an
        outside driver leaves them to the server, which can outweigh what the network costs; with no others, and on the
        machines within a guest or another host, it works beside the server as an inside one does.
        """
        return _reachable(self.machine).parent if placement == "outside" else self.machine

    def address(self, placement: str) -> Address:
        """Of the server, as seen from there."""
        assert self.server is not None
        if placement == "inside":
            return self.server.address
        network = self.server.network
        if network is None or network.tcp is None:
            raise Unavailable(f"{self.arm.name}: its server was not asked to listen on a network")
        return replace(network, tcp=_reachable(self.machine).reach(network.tcp[1]))

    def close_sessions(self) -> None:
        """Every connection of ours to the server."""
        self.close_terminals()
        while self._sessions:
            self._sessions.popitem()[1].close()

    def close_terminals(self) -> None:
        """Those that there are."""
        if self._terminals is not None:
            (_, terminals), self._terminals = self._terminals, None
            terminals.close()

    def restart_cold(self, host: Machine) -> None:
        """Server stopped for certain, caches of the guest and of the host dropped, server up again, and what was read for that
        dropped too (DESIGN §5)."""
        self.stop_server()
        # Before it starts: what it had found in memory and mapped would stay.
        self.drop_caches(host)
        self.start_server()
        # HyPer and DuckDB read ahead when they open a database: of a small one all, which no statement would read again.
        self.drop_caches(host)

    def drop_caches(self, host: Machine) -> None:
        """Of every machine from the arm's to the host on which it stands: what is read next comes from the device.

        BIAS: what a process has mapped stays. So of the programs of arms that share the image's files (native, containers) some is
        in memory as long as another of their servers sleeps, and a guest reads its own again.
        """
        around = stack_of(self.machine)
        for machine in around:
            if isinstance(machine, CacheDroppingMachine):
                machine.drop_caches()
        if not any(isinstance(machine, RemoteMachine) for machine in around):
            drop_host_caches(host)

    def wake(self) -> None:
        """The outermost machine first."""
        if not self.awake:
            for machine in _sleepers(self.machine):
                machine.thaw()
        self.awake = True

    def asleep(self) -> bool | None:
        """Whether its CPU time stands still since it was put to sleep; None where it cannot sleep."""
        if not _sleepers(self.machine):
            return None
        return not self.awake and cpu_ns(self.machine) == self._asleep_cpu_ns

    def sleep(self) -> None:
        """The innermost machine first: what lies around it must be awake to put it to sleep."""
        if self.awake and (sleepers := _sleepers(self.machine)):
            for machine in reversed(sleepers):
                machine.freeze()
            self._asleep_cpu_ns = cpu_ns(self.machine)
            self.awake = False

    def counters(self, *, brief: bool = False) -> Json:
        """Of the server's process tree, as the agent inside sees it; and of the machine and of threads, unless ``brief``."""
        return self.machine.counters(tree_of=self.server.pid if self.server else None, brief=brief)


def drop_host_caches(host: Machine) -> None:
    """Write back, then drop page cache, dentries and inodes of the whole host (Linux, Documentation/admin-guide/sysctl/vm.rst)."""
    host.run(["sync"], timeout_s=600)
    try:
        host.put("/proc/sys/vm/drop_caches", b"3\n", in_place=True)
    except AgentFailure as failure:
        raise Unavailable(f"{host.name}: only root may drop the page cache of a host", "sudo ./dbtoll …") from failure


def cpu_ns(machine: Machine) -> int | None:
    """CPU time of an arm so far, with all that lies around its machine; None where its environment cannot tell."""
    sleepers = _sleepers(machine)
    return sleepers[0].cpu_ns() if sleepers else None


def stack_of(machine: Machine) -> list[Machine]:
    """A machine and those around it, outermost (the host) first."""
    found: list[Machine] = []
    around: Machine | None = machine
    while around is not None:
        found.insert(0, around)
        around = getattr(around, "parent", None)
    return found


def _reachable(machine: Machine) -> ReachableMachine:
    if not isinstance(machine, ReachableMachine):
        raise Unavailable(f"{machine.name} cannot be reached from outside", 'placement = ["inside"] under [factors]')
    return machine


def _sleepers(machine: Machine) -> list[FreezableMachine]:
    return [each for each in stack_of(machine) if isinstance(each, FreezableMachine)]


def busy_ns(counters: Json) -> int | None:
    """CPU time that a machine has spent on anything but idling and waiting, from its counters."""
    machine = counters.get("machine") or {}
    parts = [machine.get(name) for name in ("user_ns", "nice_ns", "system_ns", "irq_ns", "softirq_ns")]
    return None if None in parts else sum(part for part in parts if part is not None)
