"""What an arm has where no control group can be made for it: its processes, known by the first of them.

It has no limits but its processors, which are an affinity. It sleeps by SIGSTOP, which no process can refuse.
"""

from __future__ import annotations

from dbtoll.errors import AgentFailure, DbtollError, Unavailable
from dbtoll.machines.agent.machine import AgentMachine

STOP_DEADLINE_S = 10.0


class ProcessTree:
    """The processes of one arm on ``machine``, from `begun` on. Implements cgroups.group.Group, and is its own freezer."""

    directories: tuple[str, ...] = ()
    """Of control groups: none."""

    def __init__(self, machine: AgentMachine) -> None:
        self._machine = machine
        self._first: int | None = None

    @property
    def freezer(self) -> ProcessTree:
        """This one."""
        return self

    def begun(self, pid: int | None) -> None:
        """The arm's first process, of which all others descend: what its children leave behind falls to it."""
        self._first = pid

    def freeze(self) -> None:
        """Returns when none of them can run.

        BIAS: unlike the freezer of a control group, SIGSTOP cuts short some waits (signal(7), "Interruption of system calls by
        stop signals"): a server that waits by epoll_wait finds itself awake and waits again, outside of all times.
        """
        try:
            self._make("stopped")
        except AgentFailure as failure:
            self.thaw()
            raise DbtollError(
                f"{self._machine.name}: an arm did not fall asleep: {failure.message}",
                "look for a process in uninterruptible sleep (state D), such as one waiting for a dead disk",
            ) from failure

    def thaw(self) -> None:
        """Returns when all of them may run. Whoever has ended needs nothing."""
        try:
            self._make("running")
        except AgentFailure as failure:
            if failure.code != "not_found":
                raise

    def cpu_ns(self) -> int:
        """CPU time of those that live, ns: while none of them can run, none begins or ends either, so it stands still."""
        counted = self._machine.call("counters", {"tree_of": self._demanded(), "machine": False})["processes"]
        if counted["run_ns"] is None:
            raise Unavailable(
                f"{self._machine.name}: this kernel does not tell how long a process ran", "CONFIG_SCHED_INFO"
            )
        return int(counted["run_ns"])

    def processes(self) -> set[int]:
        """Their numbers on the machine."""
        return set(self._machine.call("tree", {"pid": self._demanded()})["pids"])

    def close(self) -> None:
        """They end with the agent's stream that they hang on, and at the latest with the namespace (namespaces.py)."""

    def _make(self, state: str) -> None:
        if self._first is not None:
            timeout_ms = round(STOP_DEADLINE_S * 1000)
            self._machine.call("tree", {"pid": self._first, "make": state, "timeout_ms": timeout_ms})

    def _demanded(self) -> int:
        if self._first is None:
            raise DbtollError(f"{self._machine.name}: an arm without processes was asked for them")
        return self._first
