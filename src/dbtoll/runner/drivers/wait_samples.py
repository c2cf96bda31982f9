"""What the server itself counts, and what its sessions are found to wait for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces.engine import StatisticsEngine
from dbtoll.machines.observers import risen
from dbtoll.model.json import Json
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers.protocol import VisitDriver, work_done
from dbtoll.runner.drivers.statements import StatementDriver

LOOK_EVERY_S = 0.02
"""At what the sessions wait for: some hundred times in a window, and little enough work for the server."""


def engine_account(driver: VisitDriver, running: RunningArm, phase: Phase, block: Block, query: str) -> Json:
    """What the server itself counts, of one execution, or in a window in which its sessions are looked at too."""
    engine = running.engine
    assert isinstance(engine, StatisticsEngine)
    if isinstance(driver, StatementDriver):
        try:
            told = engine.query_statistics(running.unit.session(), driver.statements[block.parameter_set][query])
        except Unavailable as error:
            return {"missing": error.message}
        return {"executions": 1, "round_trips": 1, "elapsed_ns": 0, "counted": told}
    before = engine.server_statistics(running.unit.session())
    with _looks(running) as looks:
        result = driver.drive(running, phase, block, query, first_execution=False)
    counted = {**risen(before, engine.server_statistics(running.unit.session())), "waiting": dict(looks)}
    return {**work_done(result.units[: len(running.units_of(running.servers[0]))]), "counted": counted}


@contextmanager
def _looks(running: RunningArm) -> Iterator[Counter[str]]:
    """While it lasts: what sessions were found to wait for, and how often; ``looks``: how many there were."""
    engine = running.engine
    assert isinstance(engine, StatisticsEngine)
    found: Counter[str] = Counter()
    over = threading.Event()
    session = running.unit.new_session()

    def look() -> None:
        # Whatever ends the window ends this too; its own failure must not.
        with suppress(DbtollError):
            while not over.wait(LOOK_EVERY_S):
                found.update([*engine.wait_events(session), "looks"])

    looking = threading.Thread(target=look, name="what sessions wait for", daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()
        session.close()
