"""The bare exchange: 80 bytes there and back by nothing but epoll, what any driver pays at least for a round trip."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.errors import ProgramFailed
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.local import kept
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits

START_DEADLINE_S = 10.0

Exchange = Callable[[int, float], float]
"""(connections, seconds) -> CPU time of the asking side for one exchange, us."""


@contextmanager
def exchanging(
    host: AgentMachine,
    *where: str,
    asking: tuple[int, ...] | None = None,
    answering: tuple[int, ...] | None = None,
    work_us: int | None = None,
) -> Iterator[Exchange]:
    """An echo server ``where`` (``--unix PATH`` or ``--tcp HOST:PORT``) and what asks it; each on its processors (None: all).

    ``work_us``: so long it goes over its memory before it answers, in a thread for each connection.
    """
    agent = str(kept(find_agent()))
    work = [] if work_us is None else [str(work_us)]
    server = host.spawn([agent, "echo-server", *where, *work], within=LaunchLimits(cpus=answering))

    def ask(connections: int, seconds: float) -> float:
        argv = [agent, "exchange", *where, str(connections), f"{seconds:.3f}"]
        done = host.run(argv, within=LaunchLimits(cpus=asking), timeout_s=60 + seconds)
        told = json.loads(done.output)
        return float(told["cpu_ns"]) / float(told["exchanges"]) / 1e3

    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                ask(1, 0.001)
                break
            except ProgramFailed:
                if not server.running() or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield ask
    finally:
        server.cancel()
        server.wait(START_DEADLINE_S)
