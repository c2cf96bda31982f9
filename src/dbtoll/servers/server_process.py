"""What the engines share that run a server of their own: its process, its directory, how it is asked and how it ends."""

from __future__ import annotations

import signal as signals
import time
from collections.abc import Callable
from dataclasses import dataclass

from dbtoll.errors import AgentFailure, EngineError
from dbtoll.interfaces.machine import Machine, Process
from dbtoll.model.machine import Address
from dbtoll.model.reply import Completed

LOOPBACK = "127.0.0.1"
LOG_LINES = 12
"""The server's last lines in an error."""

POLL_S = 0.02

ENDED_DEADLINE_S = 10.0

MORE_PROCESSOR = "give the arm a processor that has it: of qemu leave out cpu, or choose cpu=max"


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
    machine: Machine,
    name: str,
    process: Process,
    deadline_s: float,
    not_ready: Callable[[], str | None],
    origins: Callable[[str], str] = lambda said: "",
) -> None:
    """Returns when ``not_ready`` has no reason any more, what it raises being one; else raises EngineError.

    ``name``: of the product. ``origins``: what can be added to what it said last.
    """

    def error(
        problem: str, hint: str = "look at its settings: its last lines name the one that it refuses"
    ) -> EngineError:
        said = last_lines(process.output())
        return EngineError(f"{machine.name}: {name} {problem}: {said}{origins(said)}", hint)

    until = time.monotonic() + deadline_s
    while True:
        try:
            why = not_ready()
        except (AgentFailure, EngineError) as refusal:  # no socket yet, or a server that is starting up
            why = refusal.message
        if why is None:
            return
        if not process.running():
            ended = process.wait(ENDED_DEADLINE_S)
            if ended.signal == signals.SIGILL:
                raise error("uses an instruction that this processor does not have", MORE_PROCESSOR)
            raise error(f"ended at once, {how(ended)}")
        if time.monotonic() > until:
            raise error(f"does not answer after {deadline_s:.0f} s ({why})")
        time.sleep(POLL_S)


def end(machine: Machine, server: Server, name: str, signal: int, deadline_s: float) -> None:
    """Sends the signal, if it runs; EngineError unless it ends with 0. ``name``: of the product."""
    if server.process.running():
        server.process.signal(signal)
    ended = server.process.wait(deadline_s)
    if ended.exit_code != 0:
        raise EngineError(f"{machine.name}: {name} did not stop cleanly: {how(ended)}: {last_lines(server.log())}")


def how(ended: Completed) -> str:
    """A program came to its end."""
    return f"killed by signal {ended.signal}" if ended.exit_code is None else f"exit code {ended.exit_code}"


def last_lines(log: bytes) -> str:
    """The last of a log in one line."""
    lines = log.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-LOG_LINES:]) or "it wrote nothing"
