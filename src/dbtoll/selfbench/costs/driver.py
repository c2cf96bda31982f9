"""dbtoll's driver of TPC-C beside the well-known ones, on one PostgreSQL, in turn: what a transaction costs the client."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from dbtoll import facts
from dbtoll.engines.postgres import Engine, Server
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import DATA, Address, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import ended_well
from dbtoll.selfbench.support.bare_exchange import exchanging
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.native_setup import native_arm
from dbtoll.selfbench.support.peers import BenchBase, Command, Count, GoTpc, Job, Peer, Pgbench, SysbenchTpcc
from dbtoll.selfbench.support.round_trip_counter import counting
from dbtoll.workloads.tpcc import Workload

SUMMARY = (
    "the driver on PostgreSQL: client_us_per_transaction of TPC-C, load_s_per_warehouse, and the same of other drivers"
)
OPTIONS = {
    "warehouses": Option("integer", 2, "warehouses", least=1),
    "connections": Option("integer", 2, "connections, without think time", least=1),
    "window": Option("duration", 12 * 10**9, "how long each works, in whole seconds"),
    "repetitions": Option("integer", 3, "how often, in turn, each from the data that it loaded itself", least=1),
    "benchbase": Option("text", "", "the folder with benchbase.jar"),
    "java": Option("text", "java", "the Java for it"),
    "go_tpc": Option("text", "go-tpc", "the program go-tpc"),
    "sysbench": Option("text", "sysbench", "the program sysbench"),
    "sysbench_tpcc": Option("text", "", "the folder with tpcc.lua"),
    "pgbench": Option("text", "pgbench", "the program pgbench"),
}

INTERACTIONS = ("statement", "pipelined", "procedure")

COUNTING_S = 4
"""How long each works once more while its round trips are counted; what that does to its pace does not matter."""

WORK_US = 500
"""What a server does for one procedure, about: a bare exchange after so long is the floor of one round trip for a transaction."""

LOAD_DEADLINE_S = 1800.0

RESOURCES = Resources(cpus=2, memory_bytes=4 << 30)
SETTINGS = {"synchronous_commit": "off", "shared_buffers": "1GB", "max_wal_size": "8GB"}


@dataclass(frozen=True, slots=True)
class DriverResult:
    """One turn. ``cpu_ns``: of the client's whole process, its start included; ``orders``: committed by the server."""

    transactions: int
    per_s: float
    cpu_ns: int
    orders: int | None
    round_trips: int | None = None


class Subject(Protocol):
    """What takes its turn. ``data``: name of the data directory that it starts from."""

    @property
    def name(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def orders(self) -> str | None:
        """As Peer's."""
        ...

    def load(self, arm: AgentMachine, host: AgentMachine, server: Server, job: Job) -> float:
        """Seconds."""
        ...

    def run(self, host: AgentMachine, job: Job) -> tuple[Count, int, int | None]:
        """(what it did, its CPU time in ns, its round trips if it knows them)"""
        ...


@dataclass(frozen=True, slots=True)
class DbtollDriver:
    """dbtoll's driver in one of its interactions. The client is a fresh agent of its own.

    BIAS: Python, which asks it for one window and waits, is left out, as it is no part of the load.
    """

    interaction: str
    data: str = "dbtoll"
    orders: str | None = Peer.orders

    @property
    def name(self) -> str:
        return self.interaction

    def load(self, arm: AgentMachine, host: AgentMachine, server: Server, job: Job) -> float:
        """Rows, keys, indexes, procedures; what is checked afterwards is not part of it: nobody else checks."""
        told = _workload(job).load(arm, Engine.sql, server, lambda text: None)
        return float(told["load_ns"] + told["index_ns"]) / 1e9

    def run(self, host: AgentMachine, job: Job) -> tuple[Count, int, int | None]:
        """No ramp-up: every transaction is in the window, as the CPU time is of all."""
        driver_parameters = _workload(job).driver_parameters({"interaction": self.interaction}, 1)
        with open_local("client") as client:
            terminals = client.terminals(
                job.address,
                {**driver_parameters, "session": Engine({}).session("read_committed", multi_statement=True)},
            )
            counts = terminals.window(ramp_up_ns=0, window_ns=job.seconds * 10**9, rate=None).result().counts
            terminals.close()
            used = host.counters(tree_of=client.hello()["pid"])["processes"]
        ended = ended_well(counts)
        return Count(ended, ended / job.seconds), used["user_ns"] + used["system_ns"], counts["round_trips"]


def _workload(job: Job) -> Workload:
    return Workload({"warehouses": job.warehouses, "terminals": job.connections})


@dataclass(frozen=True, slots=True)
class PeerDriver:
    """One of the peers."""

    peer: Peer

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def data(self) -> str:
        return self.peer.name

    @property
    def orders(self) -> str | None:
        return self.peer.orders

    def load(self, arm: AgentMachine, host: AgentMachine, server: Server, job: Job) -> float:
        """Its whole process."""
        _, usage = _run(host, self.peer.load(job), LOAD_DEADLINE_S)
        return float(usage["wall_ns"]) / 1e9

    def run(self, host: AgentMachine, job: Job) -> tuple[Count, int, int | None]:
        """CPU time by the kernel's account of the ended process."""
        output, usage = _run(host, self.peer.run(job), 60.0 + 2 * job.seconds)
        return self.peer.read(output), usage["user_ns"] + usage["system_ns"], None


def _run(host: AgentMachine, command: Command, timeout_s: float) -> tuple[str, Json]:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **command.env}
    done = host.run(command.argv, cwd=command.cwd, env=env, timeout_s=timeout_s)
    return done.output.decode(errors="replace"), done.usage


BOUNDS = {
    "client_us_per_transaction": Bound(max=100),
    "client_us_per_transaction_procedure": Bound(max=30),
    "statement_over_bare": Bound(max=1.5),
    "load_s_per_warehouse": Bound(max=1.8),
    "pipelined_over_cheapest": Bound(max=0.25),
    "round_trip_over_cheapest": Bound(max=1),
    "load_over_fastest": Bound(max=0.25),
    "throughput_over_best": Bound(min=1),
}
OVER_RIVALS = {"pipelined_over_cheapest", "round_trip_over_cheapest", "load_over_fastest", "throughput_over_best"}
"""Figures that there are only where another driver is here, too."""


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Each loads once on a fresh server; then in every repetition each has its turn on a fresh copy of what it loaded.

    The order shifts by one with each repetition. BIAS: server and client share the processors, here as in the papers.
    """
    peers, missing = found(options)
    for name, why in missing.items():
        say(f"{name} is left out: {why}")
    subjects: list[Subject] = [DbtollDriver(interaction) for interaction in INTERACTIONS]
    subjects += [PeerDriver(peer) for peer in peers]
    seen: dict[str, list[DriverResult]] = {subject.name: [] for subject in subjects}
    trips: dict[str, float] = {}
    loaded: dict[str, float] = {}
    with (
        native_arm(RESOURCES, say) as (host, arm, _),
        TemporaryDirectory(prefix="dbtoll-selfbench-") as folder,
        exchanging(host, "--tcp", f"127.0.0.1:{_free_port()}") as bare,
        exchanging(host, "--tcp", f"127.0.0.1:{_free_port()}", work_us=WORK_US) as worked,
    ):
        rig = DriverSetup(host, arm, Engine({"listen": "tcp", "settings": SETTINGS}), Path(folder), options)
        for subject in {subject.data: subject for subject in subjects}.values():
            loaded[subject.data] = rig.load(subject) / options["warehouses"]
            say(f"{subject.data}: loaded, {loaded[subject.data]:.2f} s for a warehouse")
        bare_us, worked_us = [], []
        for repetition in range(options["repetitions"]):
            bare_us.append(bare(options["connections"], 2))
            worked_us.append(worked(options["connections"], 4))
            start = repetition % len(subjects)
            for subject in [*subjects[start:], *subjects[:start]]:
                done = rig.turn(subject)
                seen[subject.name].append(done)
                us = done.cpu_ns / done.transactions / 1e3
                say(f"{subject.name}: {done.per_s:.0f} transactions/s, {us:.0f} us of client CPU each")
        for subject in subjects:
            trips[subject.name] = rig.count_round_trips(subject)
        told = {
            "host": facts.host(host),
            "settings": SETTINGS,
            "turns": {name: [asdict(each) for each in done] for name, done in seen.items()},
            "bare_exchange_us": bare_us,
            "bare_exchange_after_work_us": worked_us,
            "round_trips_seen": trips,
        }
    results = {name: summary(done, trips[name]) for name, done in seen.items()}
    figures, bounds = compared(results, statistics.median(bare_us), loaded)
    figures["bare_exchange_after_work_us"] = statistics.median(worked_us)
    return Certificate("driver", {**figures, "not_found": missing}, bounds, told)


def found(options: Mapping[str, Any]) -> tuple[list[Peer], dict[str, str]]:
    """(the peers that are here, name -> why another is not)"""
    peers: list[Peer] = [
        BenchBase(options["benchbase"], options["java"]),
        GoTpc(options["go_tpc"]),
        SysbenchTpcc(options["sysbench"], options["sysbench_tpcc"]),
        Pgbench(options["pgbench"]),
    ]
    missing = {peer.name: why for peer in peers if (why := peer.missing()) is not None}
    return [peer for peer in peers if peer.name not in missing], missing


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class DriverSetup:
    """The servers, one after the other, in the native arm; clients run on the host."""

    host: AgentMachine
    arm: AgentMachine
    engine: Engine
    folder: Path
    options: Mapping[str, Any]

    @contextmanager
    def server(self, data: str) -> Iterator[Server]:
        """With the same settings for all, loading or not."""
        server = self.engine.start(self.arm, ServerPlace(data), self.engine.settings(RESOURCES))
        try:
            yield server
        finally:
            self.engine.stop(self.arm, server)

    def job(self, address: Address, seconds: int | None = None) -> Job:
        """On that server; for the length of a window if nothing else is said."""
        seconds = seconds or max(1, self.options["window"] // 10**9)
        return Job(address, self.options["warehouses"], self.options["connections"], seconds, self.folder)

    def load(self, subject: Subject) -> float:
        """Seconds; the data directory is kept."""
        data = f"{DATA}/{subject.data}"
        self.engine.create(self.arm, data)
        with self.server(data) as server:
            seconds = subject.load(self.arm, self.host, server, self.job(server.address))
            session = self.arm.serial(server.address, connection="persistent")
            self.engine.finish_load(session)
            session.close()
        return seconds

    @contextmanager
    def copy(self, subject: Subject) -> Iterator[Server]:
        """A server on a fresh copy of what the subject loaded."""
        data = f"{DATA}/turn"
        self.arm.run(["cp", "-a", f"{DATA}/{subject.data}", data], timeout_s=600)
        try:
            with self.server(data) as server:
                yield server
        finally:
            self.arm.run(["rm", "-rf", data])

    def turn(self, subject: Subject) -> DriverResult:
        """One."""
        with self.copy(subject) as server:
            before = self._orders(subject, server)
            count, cpu_ns, round_trips = subject.run(self.host, self.job(server.address))
            after = self._orders(subject, server)
        orders = None if before is None or after is None else after - before
        return DriverResult(count.transactions, count.per_s, cpu_ns, orders, round_trips)

    def _orders(self, subject: Subject, server: Server) -> int | None:
        if subject.orders is None:
            return None
        session = self.arm.serial(server.address, connection="persistent")
        try:
            ((count,),) = session.query(subject.orders)
        finally:
            session.close()
        return int(count or 0)

    def count_round_trips(self, subject: Subject) -> float:
        """For a transaction, through a relay. BIAS: those of connecting and preparing are among them, some dozens."""
        with self.copy(subject) as server:
            assert server.address.tcp is not None
            with counting(server.address.tcp) as turns:
                address = replace(server.address, tcp=("127.0.0.1", turns.port))
                count, _, _ = subject.run(self.host, self.job(address, COUNTING_S))
        return turns.count / count.transactions


def summary(done: Sequence[DriverResult], round_trips: float) -> Json:
    """Medians of one subject over its turns; ``round_trips`` for a transaction where it does not count them itself."""
    own = [each.round_trips / each.transactions for each in done if each.round_trips is not None]
    us = statistics.median(each.cpu_ns / each.transactions / 1e3 for each in done)
    trips = statistics.median(own) if own else round_trips
    minute = [60 * each.per_s * each.orders / each.transactions for each in done if each.orders is not None]
    return {
        "client_us_per_transaction": us,
        "round_trips_per_transaction": trips,
        "client_us_per_round_trip": us / trips,
        "transactions_per_s": statistics.median(each.per_s for each in done),
        **({"tpmC": statistics.median(minute)} if minute else {}),
    }


def compared(
    results: Mapping[str, Json], bare_us: float, loaded: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, Bound]]:
    """Figures and bounds. ``results`` by interaction and by peer; ``loaded``: seconds for a warehouse, by data.

    pgbench, whose transactions are others, is only shown.
    """
    pipelined, statement = results["pipelined"], results["statement"]
    figures: dict[str, Any] = {
        "client_us_per_transaction": pipelined["client_us_per_transaction"],
        "client_us_per_transaction_statement": statement["client_us_per_transaction"],
        "client_us_per_transaction_procedure": results["procedure"]["client_us_per_transaction"],
    }
    for what in ("round_trips_per_transaction", "client_us_per_round_trip", "transactions_per_s", "tpmC"):
        figures[what] = {name: results[name][what] for name in INTERACTIONS}
    figures["bare_exchange_us"] = bare_us
    figures["statement_over_bare"] = statement["client_us_per_round_trip"] / bare_us
    figures["load_s_per_warehouse"] = loaded["dbtoll"]
    peers = {name: {**each, "load_s_per_warehouse": loaded[name]} for name, each in results.items() if name in loaded}
    figures["peers"] = peers
    rivals = [each for name, each in peers.items() if name != Pgbench.name]
    if rivals:
        least = {what: min(each[what] for each in rivals) for what in rivals[0]}
        best = max(each["transactions_per_s"] for each in rivals)
        figures |= {
            "pipelined_over_cheapest": figures["client_us_per_transaction"] / least["client_us_per_transaction"],
            "round_trip_over_cheapest": statement["client_us_per_round_trip"] / least["client_us_per_round_trip"],
            "load_over_fastest": loaded["dbtoll"] / least["load_s_per_warehouse"],
            "throughput_over_best": pipelined["transactions_per_s"] / best,
        }
    return figures, {name: bound for name, bound in BOUNDS.items() if rivals or name not in OVER_RIVALS}
