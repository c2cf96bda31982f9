"""Honesty checks that only the runner can answer (DESIGN §4): something has to be tried while an arm is up.

`commit_reaches_device`: once per start, outside timed passes, while all other arms sleep, the arm commits a few times and the
outermost host's kernel tells what its processes asked for and what reached a block device. See docs/method/checks.md.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbtoll import identities, registry
from dbtoll.errors import AgentFailure
from dbtoll.interfaces.engine import CommittingEngine, DurabilityEngine
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import CacheDroppingMachine, FreezableMachine, Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.arm_device import ArmDevice
from dbtoll.machines.mounts import IN_MEMORY, mount_of, real_path
from dbtoll.model.json import Json
from dbtoll.model.machine import DATA, LOG, Artifact
from dbtoll.runner.arms import (
    HostContext,
    RunningArm,
    RunningUnit,
    copied_from,
    in_memory,
    machine_name,
    stack_of,
)
from dbtoll.store.schema import CheckRecord

NAME = "commit_reaches_device"

COMMITS = 5
"""Of each kind, one after the other: each is durable before the next begins, so none can ride on another's flush."""

DURABLE = "device"
"""The level of the factor ``durability`` at which a commit waits for the device."""

COMMIT_BYTES = 4096
"""A page: what a file system writes at least."""

TRACING = "tracing"
"""Kind of journal entry: ``instance``, a directory of the kernel's tracing files."""

MEMORY_DEVICES = re.compile(r"z?ram\d+")
"""Block devices that forget."""

WRITTEN_BY_CALLER = frozenset({"ext2", "ext3", "ext4", "xfs"})
"""File systems on which the process that asks for durable data hands the writes to the device itself. On others (btrfs,
zfs) threads of the kernel do, and then it cannot be told for whom."""


# --- the check ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of commit: what was seen of ``COMMITS`` of them. ``passed`` None: it cannot be told, ``text`` says why."""

    passed: bool | None
    text: str


class _UntraceableError(Exception):
    """The host's kernel cannot be asked what it does; the message says why."""


def commit_reaches_device(
    context: HostContext,
    running: RunningArm,
    workload: str,
    data: Sequence[Artifact],
    round_index: int,
    durability: Sequence[str] = (),
) -> CheckRecord:
    """Whether what this arm's servers and file systems call durable was written to a block device of the host, and flushed.

    ``data``: the copy of each of its machines, none where the engine keeps none. ``durability``: the levels of that factor; where
    a commit is to be less than durable, it fails if all reached the device: then the server did not do what it was told. For a
    workload that writes a failure voids the start, for others it is a label. Where the data, or the log, were asked to lie in
    memory, a commit is to reach no device; where they were asked to lie on a device that the kernel can tell, it is to reach that
    one. Raises DbtollError if the arm itself cannot commit.
    """
    voids = bool(registry.find("workloads", workload).writes)
    found: dict[tuple[str, Trial], list[int]] = {}
    tried: set[int] = set()
    for number, server in enumerate(running.servers if data else ()):
        its = running.first_unit_of(server)
        machine = its.unit.machine
        for each in _trials(context, running, its, data[machine], durability, beside=machine not in tried).items():
            found.setdefault(each, []).append(number)
        tried.add(machine)
    if not found:
        found["", Trial(None, f"{running.engine.name} keeps no data")] = []
    outcomes = {trial.passed for _, trial in found}
    passed = False if False in outcomes else None if None in outcomes else True
    finding = told(found, len(running.servers))
    return CheckRecord(round=round_index, arm=running.arm.name, check=NAME, passed=passed, finding=finding, voids=voids)


def told(found: Mapping[tuple[str, Trial], Sequence[int]], servers: int) -> str:
    """What was found, in words. ``found``: by what was tried, the numbers of the servers of which it was found; ``servers``: how
    many the arm has."""

    def of(numbers: Sequence[int]) -> str:
        if servers == 1:
            return ""
        if len(numbers) == servers:
            return f"each of {servers} servers, "
        return f"server{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}, "

    return "; ".join(
        f"commits of {of(numbers)}{what}: {trial.text}" if what else trial.text
        for (what, trial), numbers in found.items()
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """What is committed to: ``at`` a path in the arm, on the host's file system ``beneath`` (None: not known). ``block``: the block
    device of the host that holds it, where it was asked for."""

    at: str
    beneath: str | None
    in_memory: bool
    block: str | None = None


def _trials(
    context: HostContext,
    running: RunningArm,
    unit: RunningUnit,
    data: Artifact,
    durability: Sequence[str],
    *,
    beside: bool,
) -> dict[str, Trial]:
    """``beside``: of a file beside the data too, which the servers of one machine share."""
    arm = running.arm
    context = context.at(arm)
    machine, host, engine = unit.machine, context.host, unit.engine
    if (at_first := processes_of(machine, host)) is None or not isinstance(host, AgentMachine):
        return {"": Trial(None, "which processes of the host are this arm's cannot be told")}

    def traced(commit: Callable[[], object], place: _Place) -> Trial:
        if isinstance(machine, CacheDroppingMachine):
            machine.run(["sync"], timeout_s=600)  # what its kernel writes back by itself is no commit
        try:
            before = processes_of(machine, host) or at_first
            seen = _traced(host, context.journal, instance, commit)
            members = before | (processes_of(machine, host) or set())
            trial = judge(seen, members, place.beneath, mount_of(machine, place.at).file_system, place.block)
        except _UntraceableError as why:
            trial = _by_counters(host, commit, str(why))
        return less_than_durable(trial) if place.in_memory else trial

    def place_of(at: str, artifact: Artifact, device: ArmDevice | None) -> _Place:
        beneath = None if copied_from(arm) else mount_of(host, real_path(host, host.provide(artifact))).file_system
        if device is None:
            return _Place(at, beneath, in_memory=in_memory(arm))
        return _Place(at, beneath, in_memory=device.in_memory, block=device.block)

    devices = running.devices
    files = place_of(DATA, data, devices.data)
    log = place_of(LOG, devices.logs[unit.unit.machine], devices.log) if devices.logs else files
    instance = f"dbtoll-{machine_name(context.run_id, arm.name, 0)}"
    trials = {"a file beside the data": traced(lambda: _commit_file(machine), files)} if beside else {}
    if not isinstance(engine, CommittingEngine):
        return trials
    session = unit.session()

    def commit() -> None:
        for _ in range(COMMITS):
            engine.commit(session)

    if not durability or not isinstance(engine, DurabilityEngine):
        return trials | {engine.name: traced(commit, log)}
    for level in durability:
        engine.make_durable(session, level)
        trial = traced(commit, log)
        as_told = level == DURABLE or log.in_memory
        trials[f"{engine.name}, durability {level}"] = trial if as_told else less_than_durable(trial)
    return trials


def less_than_durable(trial: Trial) -> Trial:
    """The same where a commit was told not to wait for the device, or there is none."""
    if trial.passed is None:
        return trial
    return Trial(not trial.passed, trial.text if trial.passed else f"as asked for, {trial.text}")


def _commit_file(machine: Machine) -> None:
    """By the arm's agent, with fdatasync."""
    machine.call("commit", {"folder": DATA, "size_bytes": COMMIT_BYTES, "count": COMMITS}, timeout_s=120.0)


def processes_of(machine: Machine, host: Machine) -> set[int] | None:
    """All processes of an arm, as the host on which it stands numbers them: of the machine directly on it, which holds all of the
    arm. None where that cannot be told."""
    around = stack_of(machine)
    inside = around[around.index(host) + 1 :] if host in around else []
    return inside[0].processes() if inside and isinstance(inside[0], FreezableMachine) else None


# --- by tracing ------------------------------------------------------------------------------------------------------------


def _traced(host: AgentMachine, journal: Journal, instance: str, work: Callable[[], object]) -> Json:
    """What the host's kernel did meanwhile (docs/PROTOCOL.md, ``trace_end``). Raises _UntraceableError before any work."""
    entry = journal.create(TRACING, instance=instance)
    try:
        host.call("trace_begin", {"instance": instance})
    except AgentFailure as failure:
        entry.done()
        raise _UntraceableError(failure.message) from failure
    try:
        work()
    finally:
        seen = host.call("trace_end", {"instance": instance})
        entry.done()
    return seen


def end_tracing(host: Machine, identity: Mapping[str, Any]) -> None:
    """Remove what a killed run left of it (journal kind `TRACING`)."""
    try:
        host.call("trace_end", {"instance": identities.word(identity, "instance", "dbtoll-[A-Za-z0-9-]+")})
    except AgentFailure as failure:
        if failure.code != "not_found":
            raise


def judge(seen: Json, members: set[int], beneath: str | None, inside: str | None, wanted: str | None = None) -> Trial:
    """From a trace around `COMMITS` commits of one kind.

    ``members``: the arm's processes on the host. ``beneath``: the host's file system that holds the arm's data or disk;
    ``inside``: the arm's own; None if not known. ``wanted``: the device that they are to be written to; None: any.
    """
    own = [process for process in seen["processes"] if process["pid"] in members]
    kernel = [process for process in seen["processes"] if process["kernel"]]
    devices = {number: device for number, device in seen["devices"].items() if not _forgets(device)}
    written = {number: _queued(own, number, "writes") for number in devices}
    for number, count in sorted(written.items(), key=lambda item: -item[1]):
        whole = devices.get(devices[number]["whole"], devices[number])
        if count >= COMMITS and whole["writes_done"] >= COMMITS:
            name = devices[number]["name"] or number
            flushes = min(_queued([*own, *kernel], number, "flushes"), whole["flushes_done"])
            known = own if seen["calls_traced"] and not seen["lost"] else []
            trial = _flushed(name, whole["write_cache"], flushes, _asked(own), _count(known))
            if wanted in (None, name, whole["name"]):
                return trial
            return Trial(False, f"{trial.text}; they are to be written to {wanted}")
    most = max(written.values(), default=0)
    finding = f"of {COMMITS} that were acknowledged {most or 'none'} reached a block device: "
    if in_memory := {beneath, inside} & IN_MEMORY:
        return Trial(False, finding + f"the data lie in memory ({in_memory.pop()})")
    return _unwritten(seen, own, kernel, beneath, finding)


def _unwritten(seen: Json, own: Sequence[Json], kernel: Sequence[Json], beneath: str | None, finding: str) -> Trial:
    """Of commits of which no device of the trace shows all, by what was asked for."""
    calls = _asked(own)
    if seen["lost"]:
        return Trial(None, f"the trace has lost {seen['lost']} events")
    if seen["calls_traced"] and not calls:
        return Trial(False, finding + "none of the arm's processes on the host asked for durable data")
    devices = [number for number, device in seen["devices"].items() if not _forgets(device)]
    by_kernel = max((_queued(kernel, number, "writes") for number in devices), default=0)
    if by_kernel >= COMMITS and beneath not in WRITTEN_BY_CALLER:
        return Trial(
            None, f"threads of the kernel wrote {by_kernel} times; on {beneath or 'this host'} it shows not for whom"
        )
    return Trial(False, finding + (f"in spite of {calls}" if calls else "what was asked for could not be traced"))


def _forgets(device: Json) -> bool:
    return MEMORY_DEVICES.fullmatch(device["name"] or "") is not None


def _queued(processes: Sequence[Json], device: str, what: str) -> int:
    return sum(int(process["queued"].get(device, {}).get(what, 0)) for process in processes)


def _asked(processes: Sequence[Json]) -> str:
    """``5 fdatasync by postgres``; empty if none."""
    calls: Counter[tuple[str, str]] = Counter()
    for process in processes:
        calls.update({(call, process["name"]): count for call, count in process["calls"].items()})
    return ", ".join(f"{count} {call} by {name}" for (call, name), count in sorted(calls.items()))


def _count(processes: Sequence[Json]) -> int:
    """How often they asked for durable data."""
    return sum(count for process in processes for count in process["calls"].values())


def _flushed(device: str, cache: str | None, flushes: int, calls: str, count: int) -> Trial:
    """``count``: how many ``calls`` that is; 0 where not all of them are known."""
    asked = f" ({calls})" if calls else ""
    written = f"all {COMMITS} were written to {device}"
    if flushes >= COMMITS:
        return Trial(True, f"{written} and flushed before they were acknowledged{asked}")
    # None is no sign: files may be opened so that each write is durable. Some, but fewer than commits, were not for them: on a slow
    # host a writer of the server's own wakes meanwhile, and what it writes may be several writes.
    if 0 < count < COMMITS:
        return Trial(False, f"of {COMMITS} that were acknowledged {count} asked for durable data{asked}")
    if cache == "write back":
        return Trial(False, f"{written}, but only {flushes} flushes reached it, which holds writes back{asked}")
    why = "writes through, and so gets no flushes" if cache else "does not say whether it holds writes back"
    return Trial(True, f"{written}, which {why}{asked}")


# --- by the devices' counters ------------------------------------------------------------------------------------------------


def _by_counters(host: AgentMachine, commit: Callable[[], object], untraceable: str) -> Trial:
    """Where nothing can be traced: whether any device was written to so often, and was not in as long a time without it."""
    before, begin = _writes(host), time.monotonic()
    commit()
    between, spent_s = _writes(host), time.monotonic() - begin
    time.sleep(spent_s)
    after = _writes(host)
    risen = {name: between[name] - before.get(name, 0) for name in between}
    idle = {name: after[name] - between.get(name, 0) for name in after}
    how = f"by the device's counters alone, as tracing is refused: {untraceable}"
    if max(risen.values(), default=0) < COMMITS:
        return Trial(False, f"of {COMMITS} that were acknowledged none reached a block device ({how})")
    told = [name for name, count in risen.items() if count >= COMMITS > idle.get(name, 0)]
    if not told:
        return Trial(None, f"others write to the devices too, so it cannot be told ({how})")
    return Trial(True, f"{risen[told[0]]} writes reached {told[0]} ({how}; flushes are not counted)")


def _writes(host: AgentMachine) -> dict[str, int]:
    disks = (host.counters()["machine"] or {}).get("disk") or {}
    return {name: int(disk["writes"]) for name, disk in disks.items() if not MEMORY_DEVICES.fullmatch(name)}


# --- the agents ----------------------------------------------------------------------------------------------------------------


def agent_cpu_ns(machine: Machine) -> int | None:
    """CPU time so far of the machine's agent, which drives the load inside an arm; None where there is none.

    Of its own process only, without what it started (on the host: the native arms themselves); in steps of 10 ms.
    """
    if not isinstance(machine, AgentMachine):
        return None
    counted = machine.call("counters", {"pids": [machine.hello()["pid"]], "machine": False})["processes"]
    parts = (counted["user_ns"], counted["system_ns"])
    return None if None in parts else sum(parts)
