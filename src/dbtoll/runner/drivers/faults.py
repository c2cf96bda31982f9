"""A fault that strikes an arm's last unit while its others work: what they lose is measured (docs/method/neighbours.md).

Servers may be gone after it: so it is the last thing that is done to an arm in a round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dbtoll.errors import AgentFailure, DbtollError, EngineError, Unavailable
from dbtoll.interfaces.machine import FreezableMachine, Machine
from dbtoll.model.neighbours import COUNTED, DISK_FULL, SERVER_KILLED
from dbtoll.runner.arms import RunningArm, RunningServer, RunningUnit, stack_of
from dbtoll.runner.drivers.protocol import PROBLEM_MAX
from dbtoll.store import schema

FILLER = "dbtoll-filler"
"""Beside the data of its server; the copy of the data is thrown away with it."""

RESERVE = """
free=$(df --block-size=1 --output=avail "${1%/*}" | tail -n 1)
size=$(stat -c %s "$1" 2>/dev/null || echo 0)
echo $free
test -z "$free" || test "$free" -le "$2" || nice -n -20 fallocate --offset "$size" --length "$((free - $2))" "$1" 2>/dev/null
"""
"""The file takes all room but so many bytes, where the file system can reserve that. It says how much there was."""

FILL = 'LC_ALL=C exec nice -n -20 dd if=/dev/zero of="$1" bs=64k oflag=append conv=notrunc status=none'
"""What could not be reserved is written, up to the error that says that nothing is left. Before the servers, where that is
permitted: they compute meanwhile."""

ROOM_BYTES = 512 << 20
"""What is left to the servers before the fault strikes: more than they write in a window. So it strikes within a moment also where
room is taken as slowly as it is written, as in memory."""

LEFT_BYTES = 32 << 20
"""What servers may take while the rest is reserved."""

FILL_S = 600.0

RECOVERY_S = 120.0
"""In which a server that crashed on a full disk answers again, if it does by itself."""

POLL_S = 0.2


class Striking:
    """It waits for ``after_s``, and strikes."""

    def __init__(self, running: RunningArm, level: str, after_s: float) -> None:
        self._running, self._level, self._after_s = running, level, after_s
        self._unit = running.units[-1]
        self._over = threading.Event()
        self._strikes = False
        self._thread = threading.Thread(target=self._strike, daemon=True)
        self._did = 0
        self._problem: str | None = None

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """It does not strike any more, if it has not yet."""
        is_late = self._strikes and self._thread.is_alive()
        self._over.set()
        self._thread.join()
        if is_late:
            self._problem = (
                self._problem or "the fault was not over when the window was: a longer window, or a smaller device"
            )

    def lost(self) -> tuple[RunningServer, ...]:
        """The servers that are gone for good. The room of a full disk is given back, and who crashed for it may come back."""
        if self._level != DISK_FULL:
            return (self._unit.server,)
        self._unit.machine.run(["rm", "-f", _filler(self._unit)])
        self._running.close_sessions()  # those to a server that crashed are broken
        first_units = [self._running.first_unit_of(server) for server in self._running.servers]
        return tuple(unit.server for unit in first_units if not _serves(unit))

    def told(self) -> schema.Neighbour:
        """What it did. A fault that struck nobody has a problem, as an aggressor that did nothing."""
        (counted,) = COUNTED[self._level]
        problem = self._problem or (None if self._did else "the fault struck nobody")
        return schema.Neighbour(did={counted: self._did}, elapsed_ns=0, cpu_ns=0, problem=problem)

    def _strike(self) -> None:
        if self._over.wait(self._after_s):
            return
        self._strikes = True
        try:
            if self._level == DISK_FULL:
                self._did = _fill(self._unit)
            elif self._level == SERVER_KILLED:
                self._did = _kill_server(self._unit)
            else:
                self._did = _kill_machine(self._unit.machine)
        except DbtollError as error:
            self._problem = error.in_one_line[:PROBLEM_MAX]


@contextmanager
def striking(running: RunningArm, level: str, after_s: float) -> Iterator[Striking]:
    """The fault strikes ``after_s`` from when the body begins, if it lasts so long."""
    if level == DISK_FULL:
        _reserve(running.units[-1], ROOM_BYTES)
    found = Striking(running, level, after_s)
    found.begin()
    try:
        yield found
    finally:
        found.end()


def _kill_server(unit: RunningUnit) -> int:
    """With all its processes at once (SIGKILL), as who is out of memory is. Returns how many."""
    server = unit.server.server
    assert server is not None
    kill = 'all="$1 $(cat "/proc/$1/task/$1/children")"; kill -9 $all; set -- $all; echo $#'
    told = unit.machine.run(["sh", "-c", kill, "sh", str(server.pid)])
    return int(told.output.split()[-1])


def _kill_machine(machine: Machine) -> int:
    """Everything in it at once, with its monitor. Returns how many processes of the machine around it that was."""
    pids = machine.processes() if isinstance(machine, FreezableMachine) else None
    if not pids:
        raise Unavailable(f"{machine.name}: its processes are not known, so none was killed")
    around = stack_of(machine)[-2]
    # One of them may have ended meanwhile.
    around.run(["sh", "-c", 'kill -9 "$@"', "sh", *map(str, sorted(pids))], check=False)
    return len(pids)


def _filler(unit: RunningUnit) -> str:
    return f"{unit.server.place.data}/{FILLER}"


def _reserve(unit: RunningUnit, left_bytes: int) -> int | None:
    """Returns the bytes that were free; None where that is not known."""
    words = ["sh", "-c", RESERVE, "sh", _filler(unit), str(left_bytes)]
    told = unit.machine.run(words, check=False, timeout_s=FILL_S).output.split()
    return int(told[0]) if told and told[0].isdigit() else None


def _fill(unit: RunningUnit) -> int:
    """All that is free on the file system of its data is taken. Returns the bytes. Unavailable where something else ended that, as
    what has no memory left for a device in memory does."""
    path = _filler(unit)
    free = _reserve(unit, LEFT_BYTES)
    if free == 0:
        raise Unavailable("the disk was full before the fault struck: a shorter window, or a larger device")
    told = unit.machine.run(["sh", "-c", FILL, "sh", path], check=False, timeout_s=FILL_S)
    if b"No space left on device" not in told.error_output:
        raise Unavailable(
            f"the disk was not filled: dd ended by {told.signal or told.exit_code}: {told.error_output!r}"
        )
    return int(unit.machine.run(["stat", "-c", "%s", path]).output)


def _serves(unit: RunningUnit) -> bool:
    """Whether its server answers, if need be after it has recovered by itself."""
    server = unit.server.server
    assert server is not None
    until = time.monotonic() + RECOVERY_S
    while time.monotonic() < until:
        with suppress(AgentFailure, EngineError):  # refused, or the connection of before; the next one is made anew
            unit.session().query("SELECT 1")
            return True
        if unit.machine.run(["test", "-e", f"/proc/{server.pid}"], check=False).exit_code != 0:
            return False
        time.sleep(POLL_S)
    return False
