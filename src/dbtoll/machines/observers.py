"""What collectors have in common: programs of the agent that look on (`dbtoll-agent NAME …`, which say when they look, and at their
end what they saw), and counters that are read before and after.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces.machine import Machine, Process
from dbtoll.model.json import AGENT, Json

READY_DEADLINE_S = 30.0
POLL_S = 0.01


class Program:
    """The shape of interfaces.Collector where a program of the agent counts, given the server's first process. A subclass names it
    and says what it counts, for people."""

    name: str
    what: str
    disturbs = True
    everywhere = True
    of_kernel = False
    beside_questions = False
    least_s = 0.0

    def missing_requirements(self, machine: Machine, pid: int) -> str | None:
        """Tried for a moment: sandboxes and kernels may forbid it."""
        try:
            with self.around(machine, pid):
                pass
        except DbtollError as error:
            return error.message
        return None

    @contextmanager
    def around(self, machine: Machine, pid: int) -> Iterator[Callable[[], Json]]:
        """See interfaces.Collector; what the program tells is what was counted."""
        with looking_on(machine, [AGENT, self.name, str(pid)], self.what) as told:
            yield told


@contextmanager
def looking_on(
    machine: Machine, argv: Sequence[str], what: str, *, user: str | None = None
) -> Iterator[Callable[[], Json]]:
    """See interfaces.Collector.around. ``what`` is counted, for people; ``user``: as whom it looks."""
    process = machine.spawn(argv, user=user)
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


class Counters:
    """The shape of interfaces.Collector where the kernel's own accounts are read before and after. A subclass says which."""

    disturbs = False
    everywhere = True
    of_kernel = False
    beside_questions = False
    least_s = 0.0

    def missing_requirements(self, machine: Machine, pid: int) -> str | None:
        """Every kernel has some of them."""
        try:
            machine.counters(tree_of=pid)
        except DbtollError as error:
            return error.message
        return None


def risen(before: Json, after: Json) -> Json:
    """``after - before`` of every counter, at whatever depth; None where one of the two is not known."""
    found: Json = {}
    for name, new in after.items():
        old = before.get(name)
        if isinstance(new, dict):
            found[name] = risen(old if isinstance(old, dict) else {}, new)
        else:
            found[name] = None if old is None or new is None else new - old
    return found


def added(counts: Sequence[Json]) -> Json:
    """Of several servers together, at whatever depth: the sum of each counter, None where one of them does not tell; of a text the
    first."""
    total = dict(counts[0])
    for other in counts[1:]:
        for name, value in other.items():
            before = total.get(name)
            if isinstance(value, dict):
                total[name] = added([before, value]) if isinstance(before, dict) else value
            elif name not in total:
                total[name] = value
            elif not isinstance(before, str):
                total[name] = None if before is None or value is None else before + value
    return total
