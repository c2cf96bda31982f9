"""System calls of the server's processes by name, seen by ptrace(2), which works wherever a debugger does.

Cost: every call stops twice and takes many times as long, so this belongs into a counting pass. BIAS: the stops are themselves
switches, and the times of the calls hold them; the counts are exact, but that waiting calls may be made more or less often when all
else is slower.
"""

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


class Collector:
    """See interfaces.Collector."""

    name = "calls"
    disturbs = True

    def lacks(self, machine: Machine, pid: int) -> str | None:
        """Tried for a moment: sandboxes and kernels may forbid it."""
        try:
            with self.around(machine, pid):
                pass
        except DbtollError as error:
            return error.message
        return None

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector: name -> ``count``, ``failed``, ``elapsed_ns``."""
        # As the server's own user: a container's root may not look at others' processes (ptrace(2), "access mode checking").
        process = machine.spawn([AGENT, "calls", str(pid)], user=_owner(machine, pid))
        told: Json = {}
        try:
            _wait_until_ready(process)
            yield lambda: told
        finally:
            if process.running():
                process.signal(signal.SIGTERM)
            ended = process.wait(READY_DEADLINE_S)
        if ended.exit_code != 0:
            said = (ended.error_output or ended.output).decode(errors="replace").strip()[-400:]
            raise Unavailable(f"{machine.name}: system calls could not be counted: {said}")
        told |= json.loads(ended.output.splitlines()[-1])["calls"]


def _wait_until_ready(process: Process) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    while b"ready" not in process.output():
        if not process.running() or time.monotonic() > deadline:
            raise Unavailable(f"system calls cannot be counted: {process.output().decode()[-400:].strip()}")
        time.sleep(POLL_S)


def _owner(machine: Machine, pid: int) -> str:
    """``uid:gid`` of a process."""
    fields = dict(
        line.split(":", 1) for line in machine.get(f"/proc/{pid}/status").decode().splitlines() if ":" in line
    )
    return f"{fields['Uid'].split()[0]}:{fields['Gid'].split()[0]}"
