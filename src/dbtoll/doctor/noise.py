"""How noisy the machine is at the moment: two identical copies of a small fixed work, interleaved as in a run.

The work is coreutils' sort of four megabytes of lines: it computes, takes page faults and walks through more memory than the
inner caches hold, as a database does. A start is a fresh arm with fresh pages of these lines. The arm's agent times every
execution.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from dbtoll.analysis.effects import stats, stopping
from dbtoll.analysis.effects.comparisons import round_effects
from dbtoll.analysis.effects.stats import Floats
from dbtoll.defaults import BASELINE, FLOOR
from dbtoll.doctor.deadline import Probed
from dbtoll.interfaces.machine import FreezableMachine
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.agent.nested import open_nested
from dbtoll.machines.chroot import RUN, agent_path
from dbtoll.model.experiment import Arm, ComponentSpec, Configuration, Experiment, Precision, Resources, Step
from dbtoll.model.json import Json
from dbtoll.model.plan import Round
from dbtoll.plan import Plan
from dbtoll.runner.arms import HostContext, busy_ns, open_stack
from dbtoll.runner.cleanup.beside_arms import workspace
from dbtoll.runner.preparation.processors import Reserved, reserved

LINES = 60_000
ROUNDS, BLOCKS, EXECUTIONS = 8, 4, 3
FIRST_ROUNDS = 5
"""A run may give a verdict after so many rounds at the earliest; the half-width is given for so many."""
ROUND_S = 24.0
"""How long a round of `quick` is meant to take: its budget of four minutes, dealt to ten rounds."""
TARGET = 0.01
"""The half-width that runs aim for by default."""

COPIES = (BASELINE, f"{BASELINE} (A/A)")
WORK = "sort"

_STEPS = (Step(BASELINE, {"root": "host"}),)
_CONFIGURATION = Configuration(
    ComponentSpec(FLOOR), ComponentSpec(WORK), Resources(memory_bytes=512 << 20, shm_bytes=16 << 20)
)
EXPERIMENT = Experiment(
    question="How noisy is this machine now?",
    expected="",
    arms=tuple(
        Arm(name, _STEPS, copy_of=copy_of, configuration=_CONFIGURATION)
        for name, copy_of in zip(COPIES, (None, COPIES[0]), strict=True)
    ),
    baseline=COPIES[0],
    factors={},
)


def processors() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the rig's, the copies'): as in a run, the last one is the arms'."""
    mine = sorted(os.sched_getaffinity(0))
    return tuple(mine[:-1] or mine), tuple(mine[-1:])


def probe(machine: AgentMachine) -> Probed:
    """The A/A, in about 15 s. ``machine`` should be kept to the rig's processors, as this thread is."""
    rig, cpuset = processors()
    os.sched_setaffinity(0, rig)  # of this thread
    try:
        return _noise(machine, cpuset)
    except Reserved as busy:
        return Probed("not probed", note=busy.message)


def _noise(machine: AgentMachine, cpuset: tuple[int, ...]) -> Probed:
    is_root = machine.run(["id", "-u"]).output.strip() == b"0"
    plan = Plan(replace(EXPERIMENT, seed=secrets.randbits(32)), (WORK,), BLOCKS, {})
    mark = f"doctor-{machine.hello()['pid']}"
    with reserved(cpuset), workspace(mark) as (folder, journal):
        context = HostContext(machine, None, cpuset, journal, mark)
        opener = _Native(context) if is_root else _Plain(machine, cpuset, folder)
        before = machine.counters()["machine"]
        rounds = [_round(opener, plan.round(index)) for index in range(ROUNDS)]
        after = machine.counters()["machine"]
    ns = np.array([times for times, _ in rounds])[:, :, np.newaxis, :]
    told = figures(ns, [each for _, executions in rounds for each in executions])
    told |= {"frozen": is_root, "steal": _share(before, after, "steal_ns")}
    return Probed("ready", note=sentence(told), told=told)


def figures(ns: Floats, executions: list[list[int]]) -> Json:
    """What the times say. ``ns``: [round, block, 1, copy]; ``executions``: ns of all executions of each start.

    ``half_width``: of a 95 % interval after FIRST_ROUNDS rounds, a fraction; ``rounds_needed`` for TARGET; ``largest``: by how
    much the worst execution was longer than the median of its start, a fraction.
    """
    effects = round_effects(ns, 1, (0,))[:, 0]
    spread = float(np.std(effects, ddof=1))
    reach = stats.t_quantile(0.975, FIRST_ROUNDS - 1) * spread / math.sqrt(FIRST_ROUNDS)
    reach *= stats.usually_lengthened(FIRST_ROUNDS)
    worst = max(max(start) / statistics.median(start) - 1 for start in executions)
    return {
        "half_width": math.expm1(reach),
        "rounds_needed": stopping.rounds_needed(effects, Precision(target=TARGET, rounds_min=FIRST_ROUNDS)),
        "effects": [float(effect) for effect in effects],
        "largest": worst,
        "executions": sum(len(start) for start in executions),
        "median_ns": statistics.median(each for start in executions for each in start),
    }


def sentence(told: Json) -> str:
    """What the figures mean, in plain words."""
    half, minutes = told["half_width"], math.ceil(FIRST_ROUNDS * ROUND_S / 60)
    enough = math.ceil(max(told["rounds_needed"] or 0, FIRST_ROUNDS) * ROUND_S / 60)
    means = f"two identical copies agree within ±{half:.1%} after {FIRST_ROUNDS} rounds"
    if half <= TARGET:
        means += f", so a difference of {TARGET:.0%} shows within about {minutes} minutes"
    else:
        means += f", so differences below about {half:.1%} need more than {minutes} minutes here now"
        means += f", and one of {TARGET:.0%} about {enough}"
    worst = f"the worst of {told['executions']} executions took {told['largest']:.0%} longer than usual"
    stolen = f"; {told['steal']:.1%} of the processors' time was taken away by the host" if told["steal"] else ""
    return f"{means}; {worst}{stolen}"


class _Native:
    """Copies as native arms on this machine's own directories, asleep while they are not asked."""

    def __init__(self, context: HostContext) -> None:
        self._ground = context

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[AgentMachine, str]]:
        """(the arm, where its lines lie)."""
        with ExitStack() as stack:
            machine = open_stack(self._ground, EXPERIMENT.arm(name), None, stack)
            assert isinstance(machine, AgentMachine)
            yield machine, f"{RUN}/lines"


class _Plain:
    """Without root: copies are agents on the arms' processor that nobody can freeze; while not asked they do nothing."""

    def __init__(self, machine: AgentMachine, cpuset: tuple[int, ...], folder: Path) -> None:
        self._machine, self._cpuset, self._folder = machine, cpuset, folder

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[AgentMachine, str]]:
        """(the agent, where its lines lie)."""
        argv = [agent_path(self._machine), "serve"]
        machine, _ = open_nested(self._machine, name, argv, within=LaunchLimits(cpus=self._cpuset))
        with machine:
            yield machine, str(self._folder / f"lines-{COPIES.index(name)}")


def _round(opener: _Native | _Plain, plan: Round) -> tuple[list[list[float]], list[list[int]]]:
    """([block][copy]: the median of a visit's executions; [copy]: all of a start's) in ns, after fresh starts."""
    (phase,) = plan.phases
    times = [[math.nan] * len(COPIES) for _ in phase.blocks]
    executions: list[list[int]] = [[] for _ in COPIES]
    with ExitStack() as stack:
        arms: dict[str, tuple[AgentMachine, str]] = {}
        for name in plan.start_order:
            machine, path = arms[name] = stack.enter_context(opener.open(name))
            machine.put(path, _lines())
            _sleep(machine)
        for block in phase.blocks:
            for visit in block.visits:
                copy = COPIES.index(visit.arm)
                seen = _visit(*arms[visit.arm])
                executions[copy] += seen
                times[block.index][copy] = statistics.median(seen)
    return times, executions


def _visit(machine: AgentMachine, path: str) -> list[int]:
    """Wake a copy, let it work once untimed and then EXECUTIONS times, put it to sleep. ns, from exec to end."""
    if isinstance(machine, FreezableMachine):
        machine.thaw()
    argv = ["sort", "--parallel=1", "--buffer-size=64M", "--output=/dev/null", path]
    seen = [machine.run(argv, env={"LC_ALL": "C"}).usage["wall_ns"] for _ in range(1 + EXECUTIONS)]
    _sleep(machine)
    return seen[1:]


def _sleep(machine: AgentMachine) -> None:
    if isinstance(machine, FreezableMachine):
        machine.freeze()


def _lines() -> bytes:
    """The same in every copy."""
    return b"".join(hashlib.sha256(b"%d" % number).hexdigest().encode() + b"\n" for number in range(LINES))


def _share(before: Json, after: Json, name: str) -> float | None:
    """Of all processors' time between two readings; None where the kernel does not tell."""
    busy = busy_ns({"machine": before}), busy_ns({"machine": after})
    names = (name, "idle_ns", "iowait_ns")
    if None in busy or any(reading.get(each) is None for reading in (before, after) for each in names):
        return None
    parts = {each: after[each] - before[each] for each in names}
    whole = (busy[1] or 0) - (busy[0] or 0) + sum(parts.values())
    return float(parts[name] / whole) if whole else None
