"""What collectors have in common that are programs of the agent: `dbtoll-agent NAME PID`, which says when it looks, and at its end
what it saw."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces import Machine, Process
from dbtoll.model import AGENT, Json

READY_DEADLINE_S = 30.0
POLL_S = 0.01


def lacks(machine: Machine, pid: int, name: str, what: str) -> str | None:
    """Tried for a moment: sandboxes and kernels may forbid it."""
    try:
        with looking_on(machine, pid, name, what):
            pass
    except DbtollError as error:
        return error.message
    return None


@contextmanager
def looking_on(
    machine: Machine, pid: int, name: str, what: str, *, user: str | None = None
) -> Iterator[Callable[[], Json]]:
    """See interfaces.Collector.around. ``what`` is counted, for people; ``user``: as whom it looks."""
    process = machine.spawn([AGENT, name, str(pid)], user=user)
    told: Json = {}
    try:
        _wait_until_ready(process, what)
        yield lambda: told
    finally:
        if process.running():
            process.signal(signal.SIGTERM)
        ended = process.wait(READY_DEADLINE_S)
    if ended.exit_code != 0:
        said = (ended.error_output or ended.output).decode(errors="replace").strip()[-400:]
        raise Unavailable(f"{machine.name}: {what} could not be counted: {said}")
    told |= json.loads(ended.output.splitlines()[-1])


def _wait_until_ready(process: Process, what: str) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    while b"ready" not in process.output():
        if not process.running() or time.monotonic() > deadline:
            raise Unavailable(f"{what} cannot be counted: {process.output().decode()[-400:].strip()}")
        time.sleep(POLL_S)


def owner(machine: Machine, pid: int) -> str:
    """``uid:gid`` of a process."""
    lines = machine.get(f"/proc/{pid}/status").decode().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return f"{fields['Uid'].split()[0]}:{fields['Gid'].split()[0]}"
