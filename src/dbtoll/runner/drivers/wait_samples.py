"""What servers themselves count, and what their sessions are found to wait for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces.engine import StatisticsEngine
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.machines.observers import added, risen
from dbtoll.model.description import ASLEEP, ON_DISK, RUNNING
from dbtoll.model.json import Json
from dbtoll.model.plan import Block
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.statements import StatementDriver

LOOK_EVERY_S = 0.02
"""At what the sessions of a server wait for: some fifty times in a window of a second, and little enough work for it."""

RUNNABLE = "R"
SLEEPS = {"D": ON_DISK, "S": ASLEEP}
"""The kernel's letters for what a thread does (proc(5)). Whoever waits for a block device cannot be interrupted; BIAS: nor can who
waits until memory is found for it, or for a lock of the kernel's."""

SCHEDULED = ("run_ns", "run_queue_wait_ns")
"""What the kernel counts of a thread: how long it was on a processor, and how long it waited for one."""


def account_of_statement(driver: StatementDriver, running: RunningArm, block: Block, query: str) -> Json:
    """What the first server itself counts of one execution."""
    engine = running.engine
    assert isinstance(engine, StatisticsEngine)
    try:
        told = engine.query_statistics(running.unit.session(), driver.statements[block.parameter_set][query])
    except Unavailable as error:
        return {"missing": error.message}
    return {"executions": 1, "round_trips": 1, "elapsed_ns": 0, "counted": told}


@contextmanager
def account_of_window(running: RunningArm) -> Iterator[Json]:
    """What all servers count together while it lasts, and what their sessions are found to wait for; filled at its end."""
    engine = running.engine
    assert isinstance(engine, StatisticsEngine)
    told: Json = {}
    before = _statistics(running, engine)
    with _looks(running, engine, told):
        yield told
    told |= added([risen(*pair) for pair in zip(before, _statistics(running, engine), strict=True)])


def _statistics(running: RunningArm, engine: StatisticsEngine) -> list[Json]:
    return [engine.server_statistics(running.first_unit_of(server).session()) for server in running.servers]


@contextmanager
def _looks(running: RunningArm, engine: StatisticsEngine, seen: Json) -> Iterator[None]:
    """``seen`` then has ``waiting``, what sessions were found to wait for while it lasted, and how often, with ``looks``: how many
    there were, at one server each; ``looks_ns``, how long they took; and ``processes``, `SCHEDULED` of the threads that serve these
    sessions, in ``elapsed_ns``.

    Each look is at the next server, so all are looked at equally often, and the looks cost what they cost at one.
    """
    found: Counter[str] = Counter()
    took_ns: list[int] = []
    asks_kernel = ON_DISK in running.engine.description.waits
    over = threading.Event()
    with ExitStack() as closing:
        watched: list[WatchedServer] = []
        for server in running.servers:
            session = running.first_unit_of(server).new_session()
            closing.callback(session.close)
            watched.append(WatchedServer(server.machine, engine, session, engine.serving(session), asks_kernel))

        def look() -> None:
            # Whatever ends the window ends this too; its own failure must not.
            with suppress(DbtollError):
                for server in cycle(watched):
                    if over.wait(LOOK_EVERY_S):
                        return
                    begin = time.monotonic_ns()
                    found.update([*server.waits(), "looks"])
                    took_ns.append(time.monotonic_ns() - begin)

        before = [server.scheduled() for server in watched]
        looking = threading.Thread(target=look, name="what sessions wait for", daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
        after = [server.scheduled() for server in watched]
    ran = [risen(*pair) for pair in zip(before, after, strict=True)]
    threads = [thread for server in ran for thread in server["threads"].values()]
    sums = added(threads) if threads else dict.fromkeys(SCHEDULED)
    elapsed_ns = sum(server["elapsed_ns"] for server in ran)
    seen |= {"waiting": dict(found), "looks_ns": sum(took_ns), "processes": {**sums, "elapsed_ns": elapsed_ns}}


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """A server, and the ``threads`` that serve its terminals. ``asks_kernel``: what they wait for, where the server cannot tell."""

    machine: Machine
    engine: StatisticsEngine
    session: Session
    threads: Sequence[int]
    asks_kernel: bool

    def waits(self) -> list[str]:
        """What each session that works waits for. Who slept before and after the server was asked, and did not run in between,
        slept all the while. Who could run both times waits for nothing, whatever the server says of its state.

        BIAS: so a sleep that is shorter than a look is found too seldom where only the kernel tells of it.
        """
        before = self._threads(self.threads) if self.asks_kernel else {}
        told = self.engine.wait_events(self.session)
        after = self._threads([thread for thread in told if thread in before])
        return [_waits(wait, before.get(thread), after.get(thread)) for thread, wait in told.items()]

    def scheduled(self) -> Json:
        """`SCHEDULED` so far of each of the ``threads`` that lives; ``elapsed_ns``: when that was."""
        told = self._counters(self.threads)
        each = {
            number: {name: its[name] for name in SCHEDULED} for number, its in told.get("single_threads", {}).items()
        }
        return {"threads": each, "elapsed_ns": told["at_ns"]}

    def _threads(self, numbers: Sequence[int]) -> dict[int, Json]:
        """Those of which the kernel tells how often it gave them a processor: of others nothing shows that they slept."""
        told = self._counters(numbers).get("single_threads", {}) if numbers else {}
        return {int(number): thread for number, thread in told.items() if thread["time_slices"] is not None}

    def _counters(self, numbers: Sequence[int]) -> Json:
        return self.machine.counters(brief=True, single_threads=numbers)


def _waits(told: str, before: Json | None, after: Json | None) -> str:
    """What a session waits for of which its server says ``told``, and the kernel this of its thread: None, nothing."""
    if before is None or after is None:
        return told
    if before["state"] == after["state"] == RUNNABLE:
        return RUNNING
    return SLEEPS.get(after["state"], RUNNING) if told == RUNNING and before == after else told
