"""One arm's fresh start: its stack opened, its servers up, awake or asleep; the units that work in it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dbtoll import registry
from dbtoll.errors import AgentFailure, EngineError, Unavailable
from dbtoll.interfaces.engine import Engine, LogEngine, ThreadedEngine
from dbtoll.interfaces.environment import BootingEnvironment, Environment, ThrottlingEnvironment
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
from dbtoll.interfaces.workload import TenantKeyWorkload
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.nested import open_nested
from dbtoll.machines.arm_device import block_named
from dbtoll.machines.cgroups.group import Limits, create_group
from dbtoll.machines.cgroups.hold import hold
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.mounts import mount_of
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.page_cache import write_back_and_drop
from dbtoll.model.devices import Role
from dbtoll.model.experiment import CPUS, Arm, Resources, Step
from dbtoll.model.json import AGENT, Json
from dbtoll.model.layout import ONE_UNIT, Layout, Unit
from dbtoll.model.machine import DATA, LOG, Address, Artifact, MachineSpec, Provision, ServerPlace
from dbtoll.model.storage import DIRECT, MEMORY, chosen, is_device
from dbtoll.runner.arm_devices import ArmDevices
from dbtoll.runner.parallel import T, in_parallel
from dbtoll.text import noun

if TYPE_CHECKING:
    from dbtoll.runner.hosts import RemoteHosts

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


def is_simulated(arm: Arm) -> bool:
    """Whether its machines have one history, in which everything has its place."""
    return environment_of(arm.stack[-1]).simulated


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


W = TypeVar("W")


def as_tenant(workload: W, layout: Layout, key: int = 0) -> W:
    """The workload of the tenant with that key, on tables that it shares with as many others as the layout says."""
    if layout.keys == 1:
        return workload
    assert isinstance(workload, TenantKeyWorkload)
    made: W = workload.as_tenant(key, layout.keys)
    return made


def packages_inside(arm: Arm, depth: int) -> tuple[str, ...]:
    """What the machine of step ``depth`` must have installed for the steps inside it."""
    return tuple(sorted({name for step in arm.stack[depth + 1 :] for name in environment_of(step).packages}))


def memory_parts(arm: Arm) -> int:
    """Of how many equal parts of the arm's memory each of its machines has one."""
    return arm.memory_parts(are_guests=boots(arm.stack[-1]))


def kernels(arm: Arm) -> int:
    """How many its machines have: each guest its own, with a part of the arm's memory; all others share one, and the whole."""
    return arm.layout.machines if boots(arm.stack[-1]) else 1


def open_stack(context: HostContext, arm: Arm, data: Artifact | None, stack: ExitStack) -> Machine:
    """The only machine of an arm, or the first one; see `open_machines`."""
    alone = replace(arm, layout=ONE_UNIT)
    return open_machines(context, alone, [data] if data else [], stack)[0]


def open_machines(
    context: HostContext, arm: Arm, data: Sequence[Artifact], stack: ExitStack, logs: Sequence[Artifact] = ()
) -> tuple[Machine, ...]:
    """Open the environments of an arm, outermost first, the last one as often as its layout says; ``stack`` closes them again,
    innermost first. ``data``: of each machine; empty where there are none; ``logs``: the same, of what is to hold the logs of their
    servers.

    The image and the data belong into the last one. Those before it keep their own root; a guest among them, which sees
    nothing of the machine around, gets the image with what the others need, and hands on image and data.
    """
    context = context.at(arm)
    cpuset = context.cpuset[-arm.configuration.resources.cpus :]
    opening = _Opening(context, arm, stack, context.host, cpuset, context.journal)
    # Through a guest, which takes those of one machine.
    handed_on = (data[0] if data else None, logs[0] if logs else None)
    for depth in range(len(arm.stack) - 1):
        opening = opening.within(opening.open(depth, *handed_on), is_guest=boots(arm.stack[depth]))
    last = len(arm.stack) - 1
    if arm.layout.machines == 1:
        return (opening.open(last, *handed_on),)
    enclosing = opening.enclosing_group(last)

    def open_one(number: int) -> Machine:
        its = (data[number] if data else None, logs[number] if logs else None)
        return opening.open(last, *its, number=number, enclosing=enclosing)

    # The first one alone: it brings what all need, a daemon or an image in it.
    others = [partial(open_one, number) for number in range(1, arm.layout.machines)]
    return (open_one(0), *in_parallel(others, in_order=is_simulated(arm)))


@dataclass(frozen=True, slots=True)
class _Opening:
    """Where the next environment of a stack is opened: on ``machine``, by whose numbers ``cpuset`` counts."""

    context: HostContext
    arm: Arm
    closing: ExitStack
    machine: Machine
    cpuset: tuple[int, ...]
    journal: Journal

    def within(self, machine: Machine, *, is_guest: bool) -> _Opening:
        """For what lies in a machine that was opened here."""
        if not is_guest:
            return replace(self, machine=machine)
        return replace(self, machine=machine, cpuset=tuple(range(len(self.cpuset))), journal=NullJournal())

    def enclosing_group(self, depth: int) -> str:
        """Name of one control group around all machines of the arm, which holds them to what the arm has as a whole.

        A guest's memory is fixed, and what its monitor takes beyond it has a limit of its own.
        """
        name = machine_name(self.context.run_id, self.arm.name, depth)
        step = self.arm.stack[depth]
        if isinstance(self.machine, AgentMachine) and not environment_of(step).simulated:
            memory_bytes = None if boots(step) else self.arm.configuration.resources.memory_bytes
            parts = (self.context.run_id, name)
            group = create_group(self.machine, self.journal, parts, Limits(self.cpuset, memory_bytes))
            self.closing.callback(group.close)
        return name

    def open(
        self,
        depth: int,
        data: Artifact | None,
        log: Artifact | None = None,
        *,
        number: int | None = None,
        enclosing: str = "",
    ) -> Machine:
        """The environment of that step. ``number``: of the machine, where there are several."""
        context, arm, step = self.context, self.arm, self.arm.stack[depth]
        last = depth == len(arm.stack) - 1
        environment = environment_of(step)
        wanted = ((data, DATA), (log, LOG)) if last else ()
        provisions = tuple(Provision(artifact, at, writable=True) for artifact, at in wanted if artifact is not None)
        image = context.image if last else None
        kernel: Artifact | None = None
        if isinstance(environment, BootingEnvironment) and context.image:
            kernel = context.kernels.get(environment.kernel(step.options) or "")
            image = context.disks[packages_inside(arm, depth)]
            if not last:
                handed_on = {"image": context.disks[()], "data": data, "log": log}
                provisions = tuple(
                    Provision(artifact, f"{NESTED}/{name}", writable=name != "image")
                    for name, artifact in handed_on.items()
                    if artifact is not None
                )
        resources, cpuset = arm.configuration.resources, self.cpuset
        if last:
            resources = resources.shared_by(memory_parts(arm))
        if number is not None and CPUS in resources.split:
            own = len(cpuset) // arm.layout.machines
            cpuset = cpuset[number * own : (number + 1) * own]
            resources = replace(resources, cpus=own)
        machine_spec = MachineSpec(
            name=machine_name(context.run_id, arm.name, depth, number),
            run_id=context.run_id,
            arm=arm.name,
            image=image,
            provisions=provisions,
            resources=resources,
            cpuset=cpuset,
            options=dict(step.options),
            kernel=kernel,
            program=None if depth else context.program_of(step),
            enclosing=enclosing,
            machines=arm.layout.machines if last else 1,
        )
        opened = environment.open(self.machine, machine_spec, self.journal)
        if opened is not self.machine:  # else it is that host itself, which others share
            self.closing.callback(opened.close)
        if last and resources.holds_machines:
            is_last_machine = number is not None and number == arm.layout.machines - 1
            self._hold(opened, resources, provisions, is_neighbour=is_last_machine)
        return opened

    def _hold(
        self, opened: Machine, resources: Resources, provisions: Sequence[Provision], *, is_neighbour: bool
    ) -> None:
        """To what each machine of the arm is held beside what all of them have."""
        around, step, device = through_agent(self.machine), self.arm.stack[-1], storage_of(self.arm)
        places = [around.provide(each.artifact) for each in provisions]
        environment = environment_of(step)
        hold(
            around,
            opened,
            resources,
            [device] if device is not None and is_device(device) else places,
            is_neighbour=is_neighbour,
            rates=not (isinstance(environment, ThrottlingEnvironment) and environment.throttles(step.options)),
        )


def machine_name(run_id: str, arm: str, depth: int, number: int | None = None) -> str:
    """``[a-z0-9-]+``, another one for every run and every name of an arm, short enough for a socket path."""
    if not re.fullmatch("[a-z0-9-]{1,24}", run_id):  # with a name of the user's in it
        run_id = hashlib.sha256(run_id.encode()).hexdigest()[:22]
    word = re.sub(r"[^a-z0-9]+", "-", arm.lower()).strip("-")[:20]
    mark = hashlib.sha256(arm.encode()).hexdigest()[:8]
    return f"{run_id}-{word}-{mark}" + (f"-{depth}" if depth else "") + ("" if number is None else f"-m{number}")


@dataclass(slots=True, eq=False)
class RunningServer:
    """A server of an arm, in one of its machines. ``outside``: it listens on a network too. ``log_apart``: its log lies on a
    device of its own."""

    engine: Engine
    settings: Mapping[str, str]
    machine: Machine
    number: int
    of: int
    outside: bool = False
    log_apart: bool = False
    server: Server | None = None
    prepared_work: Counter[str] = field(default_factory=Counter)
    """Background work that this program asked for between two windows, as `background_work` counts it."""

    @property
    def place(self) -> ServerPlace:
        """In its machine."""
        network = _reachable(self.machine).listen_at() if self.outside else None
        data = DATA if self.of == 1 else f"{DATA}/{self.number}"
        log = f"{LOG}/{self.number}" if self.log_apart else None
        return ServerPlace(data, f"/dbtoll/run/server-{self.number}", network, log)

    def move_log(self) -> None:
        """To its place, before the first start."""
        place = self.place
        assert isinstance(self.engine, LogEngine)
        assert place.log is not None
        self.engine.move_log(self.machine, place)
        write_back_and_drop(self.machine, place.log)

    def start(self, threads: int | None = None) -> None:
        """``threads``: that it gives a query at most; None: as the settings say."""
        settings = self.settings
        if threads is not None and isinstance(self.engine, ThreadedEngine):
            settings = {**settings, **self.engine.settings_of_threads(threads)}
        self.server = self.engine.start(self.machine, self.place, settings)

    def stop(self) -> None:
        """Cleanly."""
        if self.server is not None:
            server, self.server = self.server, None
            self.engine.stop(self.machine, server)

    def counters(self, *, brief: bool = False) -> Json:
        """Of its process tree, as the agent inside sees it; and of the machine and of threads, unless ``brief``."""
        return self.machine.counters(tree_of=self.server.pid if self.server else None, brief=brief)


@dataclass(slots=True, eq=False)
class RunningUnit:
    """Who works on rows of its own in a server: sessions and terminals.

    ``beside_others``: what the arm's end closes, of a unit that is not alone in its machine; None of one that is.
    """

    unit: Unit
    server: RunningServer
    beside_others: ExitStack | None = None
    _driver: Machine | None = None
    _sessions: dict[str, Session] = field(default_factory=dict)
    _terminals: tuple[str, Terminals] | None = None
    executed: Counter[str] = field(default_factory=Counter)
    """Transactions of the round's windows, by kind, however they ended."""

    @property
    def machine(self) -> Machine:
        """The one that its server is in."""
        return self.server.machine

    @property
    def engine(self) -> Engine:
        """Of its server."""
        return self.server.engine

    def session(self, connection: str = "persistent") -> Session:
        """The driver session of that connection mode; opened when first asked for."""
        if connection not in self._sessions:
            kept = "per_statement" if connection == "per_statement" else "persistent"
            self._sessions[connection] = self.new_session(connection=kept)
        return self._sessions[connection]

    def new_session(self, placement: str = "inside", *, connection: str = "persistent") -> Session:
        """Another session, which whoever asked for it closes."""
        return self.driver_machine(placement).serial(self.address(placement), connection=connection)

    def terminals(self, placement: str, driver_parameters: Json) -> Terminals:
        """The terminals that are driven so, there; connected when first asked for, in the place of those that were driven
        otherwise: a server has its limit of connections, and idle ones are not free."""
        key = f"{placement} {driver_parameters!r}"
        if self._terminals is None or self._terminals[0] != key:
            self.close_terminals()
            self._terminals = key, self.driver_machine(placement).terminals(self.address(placement), driver_parameters)
        return self._terminals[1]

    def driver_machine(self, placement: str) -> Machine:
        """The agent that drives what works at that placement: in its server's machine (``inside``), or on what that stands on.

        BIAS: the host's agent is kept off the arms' processors where there are others (`preparation.host_machine`). So an
        outside driver leaves them to the server, which can outweigh what the network costs; with no others, and on the
        machines within a guest or another host, it works beside the server as an inside one does.
        """
        return _reachable(self.machine).parent if placement == "outside" else self.driver

    @property
    def driver(self) -> Machine:
        """By which its load is driven inside: its machine, or where others work in that too an agent of its own there, as it has in
        a machine of its own. So a design has as many driving processes as tenants, whatever else it is (docs/adr/0045)."""
        if self.beside_others is None or not isinstance(self.machine, AgentMachine):
            return self.machine
        if self._driver is None:
            agent, _ = open_nested(self.machine, f"{self.machine.name}, unit {self.unit.number}", [AGENT, "serve"])
            self._driver = self.beside_others.enter_context(agent)
        return self._driver

    def address(self, placement: str = "inside") -> Address:
        """Of its database and schema, as seen from there."""
        server = self.server.server
        assert server is not None
        if placement == "inside":
            return server.address.of(self.unit)
        network = server.network
        if network is None or network.tcp is None:
            raise Unavailable(f"{self.machine.name}: its server was not asked to listen on a network")
        return replace(network, tcp=_reachable(self.machine).reach(network.tcp[1])).of(self.unit)

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


@dataclass(slots=True)
class RunningArm:
    """An arm between its start and its end in a round. Only one of them is awake at a time (DESIGN §1.3).

    ``outside``: terminals will work outside of its machines too, so its servers listen on a network. ``threads``: that they give a
    query at most; None: as the settings say. ``warmed_up``: these servers have answered every query before. ``devices``: that its
    data and its log lie on, where it was asked for any. ``lost``: servers that a fault has taken.
    """

    arm: Arm
    machines: tuple[Machine, ...]
    engine: Engine
    settings: Mapping[str, str]
    closing: ExitStack
    outside: bool = False
    threads: int | None = None
    devices: ArmDevices = field(default_factory=ArmDevices)
    warmed_up: bool = False
    awake: bool = True
    failure: str | None = None
    lost: tuple[RunningServer, ...] = ()
    servers: tuple[RunningServer, ...] = field(init=False)
    """Those of one machine after the other."""
    units: tuple[RunningUnit, ...] = field(init=False)
    uncounted: dict[str, str] = field(default_factory=dict)
    """Collectors that cannot count in this arm, with why: they are not tried again."""
    _asleep_cpu_ns: int | None = None

    def __post_init__(self) -> None:
        many = self.arm.layout.servers
        self.servers = tuple(
            RunningServer(self.engine, self.settings, machine, number, many, self.outside, bool(self.devices.logs))
            for machine in self.machines
            for number in range(many)
        )
        beside_others = self.closing if len(self.arm.layout.units) > len(self.machines) else None
        self.units = tuple(
            RunningUnit(unit, self.servers[unit.machine * many + unit.server], beside_others)
            for unit in self.arm.layout.units
        )

    @property
    def machine(self) -> Machine:
        """The first one; where there are others they are like it."""
        return self.machines[0]

    @property
    def unit(self) -> RunningUnit:
        """The first one, of which all is asked that is the same for every unit."""
        return self.units[0]

    def named(self, units: Sequence[RunningUnit], text: str) -> str:
        """``text``, with whose it is where the arm has others."""
        if len(units) == len(self.units):
            return text
        numbers = [str(each.unit.number) for each in units]
        return f"unit {numbers[0]}: {text}" if len(units) == 1 else f"units {numbers[0]} to {numbers[-1]}: {text}"

    def units_of(self, server: RunningServer) -> tuple[RunningUnit, ...]:
        """Those that work on what it holds."""
        return tuple(unit for unit in self.units if unit.server is server)

    def first_unit_of(self, server: RunningServer) -> RunningUnit:
        """Through which the server as a whole is asked."""
        return self.units_of(server)[0]

    def units_by_tables(self) -> list[tuple[RunningUnit, ...]]:
        """Those that work on one set of tables, each by its key: what is done to all rows of it is done once."""
        many = self.arm.layout.keys
        return [self.units[begin : begin + many] for begin in range(0, len(self.units), many)]

    def left_by_tables(self) -> list[tuple[RunningUnit, ...]]:
        """The same of those whose server no fault has taken."""
        return [units for units in self.units_by_tables() if units[0].server not in self.lost]

    def servers_by_kernel(self) -> list[tuple[RunningServer, ...]]:
        """Those that stand on one kernel, which counts what all of them did."""
        many = len(self.servers) // kernels(self.arm)
        return [self.servers[begin : begin + many] for begin in range(0, len(self.servers), many)]

    def find_devices(self) -> None:
        """Which block devices of a guest hold what, where it was asked for devices."""
        if not (self.devices.all and any(boots(step) for step in self.arm.stack)):
            return
        places: dict[str, Role] = {DATA: self.devices.role_of_data}
        if self.devices.logs:
            places[LOG] = "log"
        found = []
        for servers in self.servers_by_kernel():
            machine = servers[0].machine
            names = {block_named(machine, mount_of(machine, at).device): role for at, role in places.items()}
            found.append({name: role for name, role in names.items() if name is not None})
        self.devices.inside = tuple(found)

    def in_parallel(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """As `parallel.in_parallel`, of untimed work on its machines or servers; in a simulated world one after the other."""
        return in_parallel(work, in_order=is_simulated(self.arm))

    def start_servers(self) -> None:
        self.warmed_up = False
        self.in_parallel([partial(server.start, self.threads) for server in self.servers])

    def use_threads(self, threads: int) -> None:
        """A server that gives a query at most so many threads: the one that runs, or another one in its place.

        EngineError unless the server says that it is so, and that all else is as it was.
        """
        if not isinstance(self.engine, ThreadedEngine):  # it has one, and nobody asks for more (`Engine.unsupported`)
            return
        if threads != self.threads:
            before = [self._other_settings(self.engine, unit) for unit in self.units]
            self.stop_servers()
            self.threads = threads
            self.start_servers()
            after = [self._other_settings(self.engine, unit) for unit in self.units]
            pairs = list(zip(before, after, strict=True))
            if changed := sorted(
                {name for old, new in pairs for name in {*old, *new} if old.get(name) != new.get(name)}
            ):
                number = f"{threads} {noun(threads, 'thread')}"
                raise EngineError(
                    f"{self.arm.name}: with {number} its server has other settings too: {', '.join(changed)}",
                    "say by the engine's settings what they are to be",
                )
        for unit in self.units:
            if (told := self.engine.threads(unit.session())) != threads:
                raise EngineError(
                    f"{self.arm.name}: its server gives a query {told} {noun(told, 'thread')}, not {threads}",
                    "see its log",
                )

    def _other_settings(self, engine: ThreadedEngine, unit: RunningUnit) -> Json:
        """What the server says of its settings, but for those of threads and those of its place."""
        told = self.engine.facts(unit.session()).get("settings") or {}
        described = self.engine.description
        left_out = {
            *engine.thread_settings,
            *engine.following_settings,
            *described.location_settings,
            *described.auto_tuned_settings,
        }
        return {name: value for name, value in told.items() if name not in left_out}

    def stop_servers(self) -> None:
        """Cleanly, with all sessions closed before."""
        self.close_sessions()
        self.in_parallel([server.stop for server in self.servers])

    def close_sessions(self) -> None:
        """Every connection of ours to its servers."""
        for unit in self.units:
            unit.close_sessions()

    def restart_cold(self, host: Machine) -> None:
        """Servers stopped for certain, caches of the guests and of the host dropped, servers up again, and what was read for that
        dropped too (DESIGN §5)."""
        self.stop_servers()
        # Before they start: what they had found in memory and mapped would stay.
        self.drop_caches(host)
        self.start_servers()
        # HyPer and DuckDB read ahead when they open a database: of a small one all, which no statement would read again.
        self.drop_caches(host)

    def drop_caches(self, host: Machine) -> None:
        """Of every machine from the arm's to the host on which it stands, innermost first, as each writes back into what lies
        around it: what is read next comes from the device.

        BIAS: what a process has mapped stays. So of the programs of arms that share the image's files (native, containers) some is
        in memory as long as another of their servers sleeps, and a guest reads its own again.
        """
        for machine in reversed(self._around()):
            if isinstance(machine, CacheDroppingMachine):
                machine.drop_caches()
        if not any(isinstance(machine, RemoteMachine) for machine in self._around()):
            drop_host_caches(host)

    def wake(self) -> None:
        """The outermost machine first."""
        if not self.awake:
            for machine in self._sleepers():
                machine.thaw()
        self.awake = True

    def asleep(self) -> bool | None:
        """Whether its CPU time stands still since it was put to sleep; None where it cannot sleep."""
        if not self._sleepers():
            return None
        return not self.awake and self.cpu_ns() == self._asleep_cpu_ns

    def sleep(self) -> None:
        """The innermost machine first: what lies around it must be awake to put it to sleep."""
        if self.awake and (sleepers := self._sleepers()):
            for machine in reversed(sleepers):
                machine.freeze()
            self._asleep_cpu_ns = self.cpu_ns()
            self.awake = False

    def cpu_ns(self) -> int | None:
        """CPU time so far, with all that lies around its machines; None where its environment cannot tell."""
        outermost: list[FreezableMachine] = []
        for machine in self.machines:
            sleepers = [each for each in stack_of(machine) if isinstance(each, FreezableMachine)]
            if sleepers and sleepers[0] not in outermost:
                outermost.append(sleepers[0])
        return sum(each.cpu_ns() for each in outermost) if outermost else None

    def counters(self, *, brief: bool = False) -> Json:
        """Of the first of its servers; see `RunningServer.counters`."""
        return self.servers[0].counters(brief=brief)

    def _around(self) -> list[Machine]:
        """Its machines and those around them, each once, what lies around others before them."""
        return list(dict.fromkeys(each for machine in self.machines for each in stack_of(machine)))

    def _sleepers(self) -> list[FreezableMachine]:
        return [each for each in self._around() if isinstance(each, FreezableMachine)]


def drop_host_caches(host: Machine) -> None:
    """Write back, then drop page cache, dentries and inodes of the whole host (Linux, Documentation/admin-guide/sysctl/vm.rst)."""
    host.run(["sync"], timeout_s=600)
    try:
        host.put("/proc/sys/vm/drop_caches", b"3\n", in_place=True)
    except AgentFailure as failure:
        raise Unavailable(f"{host.name}: only root may drop the page cache of a host", "sudo ./dbtoll …") from failure


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


def busy_ns(counters: Json) -> int | None:
    """CPU time that a machine has spent on anything but idling and waiting, from its counters."""
    machine = counters.get("machine") or {}
    parts = [machine.get(name) for name in ("user_ns", "nice_ns", "system_ns", "irq_ns", "softirq_ns")]
    return None if None in parts else sum(part for part in parts if part is not None)
