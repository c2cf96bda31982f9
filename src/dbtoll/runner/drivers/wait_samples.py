"""What servers themselves count, and what their sessions are found to wait for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces.engine import StatisticsEngine
from dbtoll.machines.observers import added, risen
from dbtoll.model.json import Json
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.arms import RunningArm, RunningServer
from dbtoll.runner.drivers.protocol import VisitDriver, work_done
from dbtoll.runner.drivers.statements import StatementDriver

LOOK_EVERY_S = 0.02
"""At what the sessions of a server wait for: some fifty times in a window of a second, and little enough work for it."""

SCHEDULED = ("run_ns", "run_queue_wait_ns")
"""What the kernel counts of a process: how long it was on a processor, and how long it waited for one."""


def engine_account(driver: VisitDriver, running: RunningArm, phase: Phase, block: Block, query: str) -> Json:
    """What the first server itself counts of one execution; or what all of them count together in a window in which their sessions
    are looked at too."""
    engine = running.engine
    assert isinstance(engine, StatisticsEngine)
    if isinstance(driver, StatementDriver):
        try:
            told = engine.query_statistics(running.unit.session(), driver.statements[block.parameter_set][query])
        except Unavailable as error:
            return {"missing": error.message}
        return {"executions": 1, "round_trips": 1, "elapsed_ns": 0, "counted": told}
    driver.make_ready(running, phase, first_execution=False)
    before = _statistics(running, engine)
    seen: Json = {}
    with _looks(running, engine, seen):
        result = driver.drive(running, phase, block, query, first_execution=False)
    counted = added([risen(*pair) for pair in zip(before, _statistics(running, engine), strict=True)])
    return {**work_done(result.units), "counted": {**counted, **seen}}


def _statistics(running: RunningArm, engine: StatisticsEngine) -> list[Json]:
    return [engine.server_statistics(running.units_of(server)[0].session()) for server in running.servers]


@contextmanager
def _looks(running: RunningArm, engine: StatisticsEngine, seen: Json) -> Iterator[None]:
    """``seen`` then has ``waiting``, what sessions were found to wait for while it lasted, and how often, with ``looks``: how many
    there were, at one server each; and ``processes``, see `_scheduled`.

    Each look is at the next server, so all are looked at equally often, and the looks cost what they cost at one.
    """
    found: Counter[str] = Counter()
    over = threading.Event()
    with ExitStack() as closing:
        sessions = [running.units_of(server)[0].new_session() for server in running.servers]
        for session in sessions:
            closing.callback(session.close)

        def look() -> None:
            # Whatever ends the window ends this too; its own failure must not.
            with suppress(DbtollError):
                for session in cycle(sessions):
                    if over.wait(LOOK_EVERY_S):
                        return
                    found.update([*engine.wait_events(session), "looks"])

        serving = [engine.serving(session) for session in sessions]
        before = [_scheduled(*pair) for pair in zip(running.servers, serving, strict=True)]
        looking = threading.Thread(target=look, name="what sessions wait for", daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
        after = [_scheduled(*pair) for pair in zip(running.servers, serving, strict=True)]
    ran = added([risen(*pair) for pair in zip(before, after, strict=True)])
    seen |= {"waiting": dict(found), "processes": ran}


def _scheduled(server: RunningServer, serving: Collection[int]) -> Json:
    """How long so far the processes that serve sessions, or where there are no such all of the server, were on a processor, and how
    long they waited for one: None where the kernel does not tell. ``elapsed_ns``: when that was."""
    told = server.machine.counters(tree_of=server.server.pid if server.server else None, each=True)
    processes = told.get("processes") or {}
    each = [threads for name, threads in (processes.get("each") or {}).items() if int(name.split()[0]) in serving]
    chosen = each if serving else [processes]
    sums = added([{name: threads.get(name) for name in SCHEDULED} for threads in chosen]) if chosen else {}
    return {**dict.fromkeys(SCHEDULED), **sums, "elapsed_ns": told["at_ns"]}
