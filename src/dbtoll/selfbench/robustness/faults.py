"""What transactions survive: each fault in the middle of TPC-C with one warehouse, and what the data hold afterwards.

After each fault the twelve conditions of clause 3.3.2 must hold, and every transaction that was acknowledged must be there: an
order for each New-Order, a history row with its amount for each Payment. Where a commit was told not to wait for the device, what
may be missing is bounded by what was acknowledged in the engine's loss window before the fault.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll.defaults import BASELINE
from dbtoll.errors import DbtollError, EngineError
from dbtoll.images import dataset
from dbtoll.interfaces.engine import DurabilityEngine
from dbtoll.interfaces.machine import Machine, Session, Terminals
from dbtoll.machines import tmpfs
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.model.json import Json
from dbtoll.model.machine import DATA, Artifact
from dbtoll.model.options import Option
from dbtoll.model.reply import WindowReply
from dbtoll.runner.arms import RunningArm, open_stack
from dbtoll.runner.checks import commits
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.rounds import ArmInputs
from dbtoll.runner.run import ready
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.workloads.tpcc import Workload

SUMMARY = "faults during transactions: hangs, conditions violated, acknowledged transactions lost; what less durable commits lose"

FAULTS = ("server_killed", "connections_reset", "deadlock_storm", "disk_full", "machine_killed")

IN_GUESTS = frozenset({"machine_killed"})
"""Of a machine that has a memory of its own, which can be lost; all others happen in the baseline."""

OPTIONS = {
    "engines": Option("list", [], "engines; by default all whose commits can be told how durable to be"),
    "faults": Option("list", list(FAULTS), f"some of {', '.join(FAULTS)}"),
    "seconds": Option(
        "integer",
        6,
        "how long they work; the fault comes after a third of it and is given the time that it takes",
        least=1,
    ),
}

TERMINALS = {"deadlock_storm": 64}
"""Else `FEW`."""
FEW = 8

LESS_DURABLE: Mapping[str, tuple[str, ...]] = {
    "server_killed": ("os_cache", "server_buffer"),
    "machine_killed": ("server_buffer",),
}
"""Faults that can lose what a less durable commit acknowledged. A machine that is killed may leave PostgreSQL's files unusable
when fsync is off (its manual, section 20.5), so `system` is left out there."""

SLACK_S = 0.5
"""Between a transaction's commit and the moment at which we know that the fault struck."""

PIECE_S = 0.5
PATIENCE = "5s"
SERVES_S = 60.0
"""How soon a server that is up again has to serve."""
RESTART_S = 120.0

ROOM_BYTES = 160 << 20
"""What a disk that is going to be full has beside the data: a server makes itself another log when it starts."""
FILLER = f"{DATA}/dbtoll-filler"
FULL_S = 60.0
"""A server has room in its own files for a while."""


@dataclass(slots=True)
class Case:
    """One fault and what came of it."""

    engine: str
    fault: str
    durability: str
    acknowledged: int = 0
    lost: int = 0
    may_be_lost: int = 0
    violations: list[str] = field(default_factory=list)
    counts: Json = field(default_factory=dict)
    problem: str | None = None

    def as_text(self) -> str:
        told = [f"{self.acknowledged} acknowledged", f"{self.lost} of them lost"]
        if self.durability != "device":
            told.append(f"at most {self.may_be_lost} may be")
        told += [f"{name.replace('_', ' ')} {count}" for name, count in self.counts.items()]
        told += self.violations + ([self.problem] if self.problem else [])
        return f"{self.engine}, {self.fault}, durability {self.durability}: {', '.join(told)}"


BOUNDS = {
    "cases": Bound(min=1),
    "not_survived": Bound(max=0),
    "conditions_violated": Bound(max=0),
    "acknowledged": Bound(min=1),
    "acknowledged_lost": Bound(max=0),
    "lost_beyond_window": Bound(max=0),
}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Each case on a fresh copy of the same data, one after the other."""
    cases: list[Case] = []
    told: Json = {}
    guest: str | None = None
    missing: Mapping[str, str] = {}
    if IN_GUESTS & set(options["faults"]):
        here, missing = available.present([], say)
        guest = available.quickest_guest(here)
    stacks = [BASELINE, *([guest] if guest else [])]
    for engine in options["engines"] or available.engines_with(DurabilityEngine):
        seconds = int(options["seconds"])
        driver_parameters = {"warehouses": 1, "window": f"{seconds}s", "ramp_up": "0s", "response_timeout": PATIENCE}
        asked = available.over(stacks, {"name": engine}, {"name": "tpcc", **driver_parameters})
        with (
            TemporaryDirectory(prefix="dbtoll-selfbench-") as folder,
            ready(asked, Path(folder), Quiet(say)) as prepared,
        ):
            for fault in options["faults"]:
                for durability in ("device", *LESS_DURABLE.get(fault, ())):
                    case = Case(engine, fault, durability)
                    if fault in IN_GUESTS and guest is None:
                        say(f"{case.as_text()}: left out: no guest boots here: {missing}")
                        continue
                    cases.append(case)
                    try:
                        run_fault_case(prepared, asked, case, seconds, guest)
                    except DbtollError as error:
                        case.problem = error.message
                    say(case.as_text())
            told |= {"host": prepared.facts["host"], "missing": missing}
    durable = [case for case in cases if case.durability == "device"]
    figures = {
        "cases": len(cases),
        "not_survived": sum(case.problem is not None for case in cases),
        "conditions_violated": sum(len(case.violations) for case in cases),
        "acknowledged": sum(case.acknowledged for case in durable),
        "acknowledged_lost": sum(case.lost for case in durable),
        "lost_beyond_window": sum(max(0, case.lost - case.may_be_lost) for case in cases if case not in durable),
    }
    told["cases"] = [case.as_text() for case in cases]
    return Certificate("faults", figures, BOUNDS, told)


# --- one case --------------------------------------------------------------------------------------------------------


def run_fault_case(prepared: Prepared, asked: Experiment, case: Case, seconds: int, guest: str | None = None) -> None:
    """Drives a window, lets the fault happen, makes the server whole again, and looks. ``guest``: the arm that is a guest."""
    stack = guest if case.fault in IN_GUESTS else BASELINE
    arm = next(each for each in asked.arms if each.name == stack and each.copy_of is None)
    own = prepared.inputs.by_arm[arm.name]
    workload = own.workload
    assert isinstance(workload, Workload)
    assert own.fresh_data is not None
    (data,) = own.fresh_data(arm)
    try:
        with ExitStack() as around, ExitStack() as closing:
            if case.fault == "disk_full":
                data = around.enter_context(_small_disk(prepared, data))
            running = _started(own, arm, data, closing)
            durable = durable_engine(running)
            isolation = "serializable" if case.fault == "deadlock_storm" else "read_committed"
            durable.make_durable(running.unit.session(), case.durability)
            driver_parameters = {
                **workload.driver_parameters({}, seed=1),
                "terminals": TERMINALS.get(case.fault, FEW),
                "session": durable.session(isolation, multi_statement=workload.multi_statement),
            }
            before = held(running.unit.session())
            # Not the unit's own, which close with its sessions: these go on while the server is started again.
            terminals = running.machine.terminals(running.unit.address(), driver_parameters)
            if case.fault == "machine_killed":
                pieces = _until_the_machine_dies(running, prepared.context.host, terminals, case, seconds)
                closing.close()
                running = _started(own, arm, data, closing)
            else:
                pieces = _with_fault(running, terminals, case, seconds)
            _judge(running, workload, case, before, pieces)
            running.stop_servers()
    finally:
        own.drop_data(arm)


@contextmanager
def _small_disk(prepared: Prepared, data: Artifact) -> Iterator[Artifact]:
    """The same data on a file system of their own with little room."""
    host = prepared.context.host
    size_bytes = dataset.tree_bytes(host, data.path) + ROOM_BYTES
    with tmpfs.in_memory(host, prepared.context.journal, f"{data.path}-small", size_bytes) as path:
        host.run(["cp", "--archive", "--", data.path, f"{path}/data"], timeout_s=600)
        yield Artifact(f"{data.key}-small", f"{path}/data", data.kind)


def _started(own: ArmInputs, arm: Arm, data: Artifact, closing: ExitStack) -> RunningArm:
    machine = open_stack(own.context, arm, data, closing)
    running = RunningArm(arm, (machine,), own.engine, own.settings, closing)
    running.start_servers()
    return running


@dataclass(slots=True)
class Pieces:
    """Windows, one after the other, until told to stop: what was acknowledged when is known to the length of one.

    ``done``: (begin, end) by our clock, and the report.
    """

    terminals: Terminals
    done: list[tuple[float, float, WindowReply]] = field(default_factory=list)
    stop: bool = False

    def drive(self) -> None:
        while not self.stop:
            begin = time.monotonic()
            reply = self.terminals.window(ramp_up_ns=0, window_ns=round(PIECE_S * 1e9), rate=None).result()
            self.done.append((begin, time.monotonic(), reply))

    def acknowledged(self, from_s: float, until_s: float) -> int:
        """Committed in the pieces that were under way between the two."""
        return sum(_done(reply) for begin, end, reply in self.done if end > from_s and begin < until_s)

    def count(self, what: str) -> int:
        return sum(reply.counts[what] for _, _, reply in self.done)

    def count_kinds(self, what: str) -> int:
        """``unknown``, or all causes of ``retried`` and ``failed``."""
        kinds = [kind[what] for _, _, reply in self.done for kind in reply.counts["transactions"].values()]
        return sum(kind if isinstance(kind, int) else sum(kind.values()) for kind in kinds)

    def noticed(self) -> bool:
        """Whether a transaction failed or a connection was lost."""
        return self.count_kinds("failed") + self.count("connections_lost") > 0

    def until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Whether it came to hold."""
        deadline = time.monotonic() + within_s
        while not holds() and time.monotonic() < deadline:
            time.sleep(0.05)
        return holds()


def _with_fault(running: RunningArm, terminals: Terminals, case: Case, seconds: int) -> Pieces:
    """The fault after a third; when the server is up again it has to serve, and the rest of the time passes."""
    pieces = Pieces(terminals)
    try:
        with ThreadPoolExecutor(1) as other:
            driven = other.submit(pieces.drive)
            try:
                time.sleep(seconds / 3)
                struck = time.monotonic()
                _HAPPENINGS[case.fault](running, pieces)
                over = time.monotonic()
                if not pieces.until(
                    lambda: any(begin > over and _done(reply) for begin, _, reply in pieces.done), SERVES_S
                ):
                    case.problem = f"no transaction ended within {SERVES_S:.0f} s after it"
                time.sleep(seconds / 3)
            finally:
                pieces.stop = True
            driven.result()
    finally:
        terminals.close()
    if case.durability != "device":
        case.may_be_lost = pieces.acknowledged(
            struck - durable_engine(running).loss_window_s - SLACK_S, struck + SLACK_S
        )
    if case.fault == "disk_full" and not pieces.noticed():
        case.problem = "nobody noticed that the disk was full"
    if case.fault == "deadlock_storm" and pieces.count_kinds("retried") == 0:
        case.problem = "nobody was in anybody's way"
    return pieces


def _kill_server(running: RunningArm, pieces: Pieces) -> None:
    """With all its processes at once; it is started again a moment later."""
    server = running.servers[0].server
    assert server is not None
    machine = running.machine
    kill = 'kill -9 "$1" $(cat "/proc/$1/task/$1/children")'
    machine.run(["sh", "-c", kill, "sh", str(server.pid)])
    time.sleep(0.3)
    _start_again(running)


def _start_again(running: RunningArm) -> None:
    """What still holds the data (orphans of a killed PostgreSQL) goes by itself."""
    running.close_sessions()
    running.servers[0].server = None
    until = time.monotonic() + RESTART_S
    while True:
        try:
            return running.start_servers()
        except EngineError:
            if time.monotonic() > until:
                raise
        time.sleep(0.3)


def _reset_connections(running: RunningArm, pieces: Pieces) -> None:
    """Every connection but the one that asks, by the server."""
    durable_engine(running).disconnect_others(running.unit.session())


def _fill_disk(running: RunningArm, pieces: Pieces) -> None:
    """All that is free is taken until somebody notices, then given back; a server that did not survive that is started again."""
    machine = running.machine
    machine.run(["dd", "if=/dev/zero", f"of={FILLER}", "bs=64k", "status=none"], check=False, timeout_s=300)
    pieces.until(pieces.noticed, FULL_S)
    machine.run(["rm", "-f", FILLER])
    server = running.servers[0].server
    assert server is not None
    time.sleep(0.5)
    if machine.run(["test", "-e", f"/proc/{server.pid}"], check=False).exit_code == 0:
        return
    _start_again(running)


def _nothing(running: RunningArm, pieces: Pieces) -> None:
    """The terminals are in each other's way enough."""


_HAPPENINGS: Mapping[str, Callable[[RunningArm, Pieces], None]] = {
    "server_killed": _kill_server,
    "connections_reset": _reset_connections,
    "deadlock_storm": _nothing,
    "disk_full": _fill_disk,
}


def _until_the_machine_dies(
    running: RunningArm, host: Machine, terminals: Terminals, case: Case, seconds: int
) -> Pieces:
    """All windows but the last, which died with the machine. `Case.may_be_lost` is set."""
    pieces = Pieces(terminals)
    with ThreadPoolExecutor(1) as other:
        driven = other.submit(pieces.drive)
        time.sleep(seconds + PIECE_S / 2)
        killed = time.monotonic()
        for pid in commits.processes_of(running.machine, host) or ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(DbtollError):  # it dies with its machine
            driven.result()
    if case.durability != "device":
        case.may_be_lost = pieces.acknowledged(killed - durable_engine(running).loss_window_s - SLACK_S, killed)
    return pieces


def durable_engine(running: RunningArm) -> DurabilityEngine:
    """Its engine, which was chosen for that power."""
    assert isinstance(running.engine, DurabilityEngine)
    return running.engine


# --- looking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What the data hold: orders by "warehouse district"; payments by warehouse, and their sum in hundredths."""

    orders: Mapping[str, int]
    payments: Mapping[str, int]
    cents: Mapping[str, int]


def held(session: Session) -> Held:
    """Of the data as they are."""
    orders = session.query("SELECT o_w_id, o_d_id, count(*) FROM orders GROUP BY o_w_id, o_d_id", timeout_s=600)
    history = session.query("SELECT h_w_id, count(*), sum(h_amount) FROM history GROUP BY h_w_id", timeout_s=600)
    return Held(
        {f"{warehouse} {district}": int(count or 0) for warehouse, district, count in orders},
        {str(warehouse): int(count or 0) for warehouse, count, _ in history},
        {str(warehouse): round(float(amount or 0) * 100) for warehouse, _, amount in history},
    )


def _judge(running: RunningArm, workload: Workload, case: Case, before: Held, pieces: Pieces) -> None:
    running.close_sessions()  # ours may have ended with the others: PostgreSQL restarts itself when its disk is full
    now = held(running.unit.session())
    told = _acknowledged(pieces.done[-1][2].counts["acknowledged"])  # since the terminals began
    pairs = [
        ("orders", told.orders, told.unknown_orders, before.orders, now.orders),
        ("payments", told.payments, told.unknown_payments, before.payments, now.payments),
    ]
    for what, known, unknown, old, new in pairs:
        for key in sorted(known.keys() | unknown.keys() | new.keys()):
            grown = new.get(key, 0) - old.get(key, 0)
            case.acknowledged += known[key]
            case.lost += max(0, known[key] - grown)
            # Of a machine that died nobody knows what its last window had sent.
            if case.fault != "machine_killed" and grown > known[key] + unknown[key]:
                case.violations.append(f"{grown} {what} of {key}, {known[key]} acknowledged, {unknown[key]} unknown")
    if case.lost == 0 and not told.unknown_payments and case.fault != "machine_killed":
        for key, cents in told.cents.items():
            if now.cents[key] - before.cents[key] != cents:
                case.violations.append(f"payments of warehouse {key} do not add up to what was acknowledged")
    case.violations += workload.violations(running.unit.session())
    case.counts = {
        "connections_lost": pieces.count("connections_lost"),
        "reconnects": pieces.count("reconnects"),
        "retried": pieces.count_kinds("retried"),
        "failed": pieces.count_kinds("failed"),
        "unknown": pieces.count_kinds("unknown"),
    }


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the terminals know of, all threads together; the keys are `Held`'s."""

    orders: Counter[str] = field(default_factory=Counter)
    payments: Counter[str] = field(default_factory=Counter)
    cents: Counter[str] = field(default_factory=Counter)
    unknown_orders: Counter[str] = field(default_factory=Counter)
    unknown_payments: Counter[str] = field(default_factory=Counter)


def _acknowledged(ledgers: Sequence[Json]) -> Acknowledged:
    found = Acknowledged()
    for ledger in ledgers:
        found.orders.update(ledger["new_orders"])
        found.unknown_orders.update(ledger["unknown_new_orders"])
        for warehouse, (count, cents) in ledger["payments"].items():
            found.payments[warehouse] += count
            found.cents[warehouse] += cents
        for warehouse, (count, _) in ledger["unknown_payments"].items():
            found.unknown_payments[warehouse] += count
    return found


def _done(reply: WindowReply) -> int:
    return sum(int(kind["committed"]) for kind in reply.counts["transactions"].values())
