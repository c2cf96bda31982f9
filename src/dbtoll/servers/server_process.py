"""What the engines share that run a server of their own: its process, its directory, how it is asked and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dbtoll.errors import AgentFailure, EngineError
from dbtoll.interfaces.machine import Machine, Process
from dbtoll.model.machine import Address

LOOPBACK = "127.0.0.1"
LOG_LINES = 12
"""The server's last lines in an error."""

POLL_S = 0.02


@dataclass(slots=True)
class Server:
    """A running server (interfaces.Server); ``pid`` is that of its main process, on its machine. ``log`` grows until it ends."""

    address: Address
    pid: int | None
    process: Process
    network: Address | None = None

    def log(self) -> bytes:
        """What it wrote so far, the last of it."""
        return self.process.output()


def own_directory(machine: Machine, path: str, user: str) -> None:
    """``path``, for nobody but ``user`` (and root)."""
    machine.run(["mkdir", "-p", path])
    machine.run(["chown", user, path])
    machine.run(["chmod", "0700", path])


def ask(machine: Machine, address: Address, sql: str) -> list[list[str | None]]:
    """The rows, over a connection of its own. Raises AgentFailure, EngineError."""
    session = machine.serial(address, connection="persistent")
    try:
        return session.query(sql)
    finally:
        session.close()


def wait_until_ready(
    process: Process, deadline_s: float, not_ready: Callable[[], str | None], error: Callable[[str], EngineError]
) -> None:
    """Returns when ``not_ready`` has no reason any more, what it raises being one; else raises ``error`` of the problem."""
    until = time.monotonic() + deadline_s
    while True:
        try:
            why = not_ready()
        except (AgentFailure, EngineError) as refusal:  # no socket yet, or a server that is starting up
            why = refusal.message
        if why is None:
            return
        if not process.running():
            raise error("ended at once")
        if time.monotonic() > until:
            raise error(f"does not answer after {deadline_s:.0f} s ({why})")
        time.sleep(POLL_S)


def end(machine: Machine, server: Server, name: str, signal: int, deadline_s: float) -> None:
    """Sends the signal, if it runs; EngineError unless it ends with 0. ``name``: of the product."""
    if server.process.running():
        server.process.signal(signal)
    ended = server.process.wait(deadline_s)
    if ended.exit_code != 0:
        how = f"killed by signal {ended.signal}" if ended.exit_code is None else f"exit code {ended.exit_code}"
        raise EngineError(f"{machine.name}: {name} did not stop cleanly: {how}: {last_lines(server.log())}")


def last_lines(log: bytes) -> str:
    """The last of a log in one line."""
    lines = log.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-LOG_LINES:]) or "it wrote nothing"
