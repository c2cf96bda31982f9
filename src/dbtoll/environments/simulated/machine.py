"""A machine in that world; no process runs in it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from dbtoll.environments.simulated.events import STATUS, Counting, is_counting, is_probe, probed
from dbtoll.environments.simulated.session import SimulatedSession, SimulatedTerminals
from dbtoll.environments.simulated.world import OPTIONS, Timeline, World
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.interfaces.machine import ByteStream, Process
from dbtoll.model.json import AGENT, Json
from dbtoll.model.machine import Address, Artifact, MachineSpec
from dbtoll.model.neighbours import COUNTED, IDLE
from dbtoll.model.reply import Completed


class SimulatedProcess:
    """A program that is said to run; it does nothing."""

    pid = 2

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._signal: int | None = None

    def running(self) -> bool:
        """Until it is signalled."""
        return self._signal is None

    def signal(self, number: int) -> None:
        """Any signal ends it."""
        self._signal = number

    def wait(self, timeout_s: float) -> Completed:
        """Raises DbtollError if nobody has signalled it."""
        if self._signal is None:
            raise DbtollError(f"{self._argv[0]} is simulated and never ends by itself")
        return Completed(self._argv, None, self._signal, b"", b"", {})

    def output(self) -> bytes:
        """It says nothing."""
        return b""


class Aggressor(SimulatedProcess):
    """`dbtoll-agent neighbour`: all of its arm is disturbed while it acts, unless it idles."""

    def __init__(self, argv: Sequence[str], arm: str, timeline: Timeline) -> None:
        super().__init__(argv)
        self._kind = json.loads(argv[2])["kind"]
        self._arm, self._timeline = arm, timeline
        self._began_ns = timeline.now_ns
        if self._kind != IDLE:
            timeline.disturbed.add(arm)

    def signal(self, number: int) -> None:
        """Any signal ends it."""
        super().signal(number)
        self._timeline.disturbed.discard(self._arm)

    def output(self) -> bytes:
        """What it has done: a thing of each kind for each microsecond."""
        reports = [
            {"at_ns": at_ns, "cpu_ns": done, "done": dict.fromkeys(COUNTED.get(self._kind, ()), done // 1000)}
            for at_ns in (self._began_ns, self._timeline.now_ns)
            for done in [at_ns - self._began_ns]
        ]
        return "".join(f"{json.dumps(each)}\n" for each in reports).encode()

    def wait(self, timeout_s: float) -> Completed:
        """As of a program that did all of it."""
        return replace(super().wait(timeout_s), exit_code=0, signal=None, output=self.output())


class SimulatedMachine:
    """Implements interfaces.Machine and Freezable. Whoever talks to it while it sleeps gets an error (DESIGN §1.3)."""

    def __init__(self, machine_spec: MachineSpec, world: World, timeline: Timeline) -> None:
        self.name = machine_spec.name
        self.world = world
        self.timeline = timeline
        self.awake = True
        self.spent_ns = 0
        self._place = machine_spec
        self._files: dict[str, bytes] = {f"/proc/{SimulatedProcess.pid}/status": STATUS}
        self.done: Counter[str] = Counter()
        """Events so far."""
        start = timeline.starts[machine_spec.arm]
        timeline.starts[machine_spec.arm] += 1
        self.offset = world.start_offset(machine_spec.arm, start)
        self.draws = world.draws(machine_spec.arm, start)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Completed:
        """A probe; Unavailable for all else: there is nothing to run."""
        if is_probe(list(argv)):
            self.expect_awake()
            return probed(list(argv), self.world.costs, lambda: math.exp(self.draws.gauss(0.0, self.world.noise)))
        raise Unavailable(
            f"{self.name}: a simulated machine runs no programs ({argv[0]})", "use the engine `noop` with it"
        )

    def spawn(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stop_signal: int = 15,
        stop_grace_ms: int = 5000,
    ) -> Process:
        """A program that does nothing, or one that counts, or disturbs."""
        self.expect_awake()
        if list(argv[:2]) == [AGENT, "neighbour"]:
            return Aggressor(argv, self._place.arm, self.timeline)
        return Counting(tuple(argv), self.done) if is_counting(argv) else SimulatedProcess(argv)

    def put(
        self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None, in_place: bool = False
    ) -> None:
        """Kept in memory."""
        self.expect_awake()
        self._files[path] = data

    def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """What was put."""
        self.expect_awake()
        if path not in self._files:
            raise DbtollError(f"{self.name}: no file {path} was put on this simulated machine")
        return self._files[path]

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """What was put, or with ``recursive`` all that was put below."""
        self.expect_awake()
        for each in [name for name in self._files if name == path or (recursive and name.startswith(f"{path}/"))]:
            del self._files[each]

    def call(
        self,
        method: str,
        parameters: Json,
        *,
        timeout_s: float = 60.0,
        progress: Callable[[Json], None] | None = None,
        data: Callable[[bytes], None] | None = None,
    ) -> Json:
        """Raises Unavailable."""
        raise Unavailable(f"{self.name}: a simulated machine has no agent to ask for {method}")

    def provide(self, artifact: Artifact) -> str:
        """Where it was asked for; nothing is there."""
        return next((each.at for each in self._place.provisions if each.artifact == artifact), artifact.path)

    def connect(
        self, *, unix: str | None = None, tcp: tuple[str, int] | None = None, stamps: bool = False
    ) -> ByteStream:
        """Raises Unavailable."""
        raise Unavailable(f"{self.name}: nothing listens on a simulated machine")

    def serial(self, address: Address, *, connection: str) -> SimulatedSession:
        """A session in the simulated world."""
        self.expect_awake()
        return SimulatedSession(self)

    def terminals(self, address: Address, driver_parameters: Json) -> SimulatedTerminals:
        """Terminals in the simulated world."""
        self.expect_awake()
        return SimulatedTerminals(self, driver_parameters)

    @property
    def is_disturbed(self) -> bool:
        """Whether an aggressor acts in its arm."""
        return self._place.arm in self.timeline.disturbed

    def counters(
        self,
        *,
        tree_of: int | None = None,
        everything: bool = False,
        each: bool = False,
        brief: bool = False,
        single_threads: Collection[int] = (),
    ) -> Json:
        """CPU time is what its visits took."""
        self.expect_awake()
        executions = self.done["executions"]
        processes = {"count": 1, "user_ns": self.spent_ns, "system_ns": 0, "minor_faults": self.done["faults"]}
        processes |= {"voluntary_switches": executions, "involuntary_switches": 0}
        return {"at_ns": self.timeline.now_ns, "processes": processes, "machine": {"pages_in_bytes": 0}}

    def hello(self) -> Json:
        """Its clock is simulated."""
        clock = {"source": "simulated", "resolution_ns": 1}
        return {"magic": "dbtoll", "role": "agent", "architecture": "simulated", "pid": 1, "clock": clock}

    def facts(self) -> Json:
        """The planted truth."""
        return {"environment": {"name": "simulated", **{name: getattr(self.world, name) for name in OPTIONS}}}

    def logs(self) -> Mapping[str, bytes]:
        """None."""
        return {}

    def freeze(self) -> None:
        """Whoever speaks to it now gets an error."""
        self.awake = False

    def thaw(self) -> None:
        """It may be spoken to again."""
        self.awake = True

    def cpu_ns(self) -> int:
        """What its visits took."""
        return self.spent_ns

    def processes(self) -> set[int] | None:
        """None are there."""
        return None

    def close(self) -> None:
        """Also twice."""
        self.awake = True
        self._files.clear()

    def expect_awake(self) -> None:
        """Raises DbtollError while it sleeps."""
        if not self.awake:
            raise DbtollError(f"{self.name} was spoken to while it sleeps", "this is a defect of dbtoll")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
