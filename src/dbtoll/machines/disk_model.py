"""A disk model: a block device whose requests cost what a given disk's would (ADR 37).

The agent serves one file by FUSE (agent/src/disk/), and a loop device with direct access is made of it. What is written lies in a
file without a name, the file system is mounted nowhere, and the program that serves ends with the stream that it was started by. So
whatever is killed, nothing is left but the loop device, whose requests then fail; that is in the journal.

BIAS: each request goes through FUSE and a loop device. To one that is alone that adds 0.05 to 0.4 ms (what it is here: `dbtoll
selfbench disks`), and the program needs a processor for it. Data also lie in the page cache of the machine that serves them,
and are written back from there to the disk that they really lie on. `DiskStatistics.late` says how late answers were.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

from dbtoll import identities
from dbtoll.channel.json_lines import JsonLines
from dbtoll.channel.replies import Count, Text
from dbtoll.errors import AgentFailure, ChannelError, DbtollError, Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.block_device import DEVICES, RELEASE_S
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.disk_models import MODELS, DiskDescription
from dbtoll.model.json import Json

KIND: Final = "disk_model"
"""Of the journal's entries: ``name``, of the file that the loop device is made of."""

NAME: Final = "dbtoll-disk-[a-z0-9-]+"
"""What such a name matches: only what we made is removed."""

ANSWER_S: Final = 60.0
"""How long a command to the program may take: it breaks a hang."""

LOOPS: Final = r"""
for loop in /sys/block/loop*; do
    read -r path <"$loop/loop/backing_file" || continue
    case $path in */"$1"|*/"$1 (deleted)") echo "${loop##*/}" ;; esac
done 2>/dev/null
exit 0
"""
"""Loop devices of a file with the name ``$1``, wherever it lies: in here it is mounted nowhere, and it may be gone."""


class _Times(TypedDict):
    sum_ns: Count
    buckets: dict[Text, Count]


class _Requests(TypedDict):
    count: Count
    bytes: Count
    service: _Times
    waited_ns: Count
    sequential: Count
    by_distance: dict[Text, Count]


class _Told(TypedDict):
    at_ns: Count
    cpu_ns: Count
    reads: _Requests
    writes: _Requests
    cached_writes: Count
    flushes: Count
    queue: dict[Text, Count]
    late: _Times
    errors: Count


class _Place(TypedDict):
    path: Text


@dataclass(frozen=True, slots=True)
class Times:
    """``sum_ns``, and a histogram: the highest time of a bucket, ns (two digits) -> how many."""

    sum_ns: int
    buckets: Mapping[int, int]

    def since(self, before: Times) -> Times:
        return Times(self.sum_ns - before.sum_ns, _risen(self.buckets, before.buckets))


@dataclass(frozen=True, slots=True)
class Requests:
    """Reads, or writes, of the modelled disk. ``service``: what the disk did for them, without ``waited_ns``, all their time in its
    queue. ``sequential``: begin where the one before of this direction ended. ``by_distance``: power of two -> how many of the
    others begin at most so many bytes from there and more than half of that."""

    count: int
    bytes: int
    service: Times
    waited_ns: int
    sequential: int
    by_distance: Mapping[int, int]

    @classmethod
    def of(cls, told: Json) -> Requests:
        """As the agent tells it."""
        return cls(
            told["count"],
            told["bytes"],
            _times(told["service"]),
            told["waited_ns"],
            told["sequential"],
            _numbered(told["by_distance"]),
        )

    def since(self, before: Requests) -> Requests:
        """What came after that."""
        return Requests(
            self.count - before.count,
            self.bytes - before.bytes,
            self.service.since(before.service),
            self.waited_ns - before.waited_ns,
            self.sequential - before.sequential,
            _risen(self.by_distance, before.by_distance),
        )


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """All that the modelled disk was asked for while it kept the model's pace, since it was made.

    ``at_ns``: by the agent's clock; of a difference, how long it was. ``cpu_ns``: of the program that serves. ``cached_writes``:
    taken by the disk's own cache; written later, and then among ``writes``. ``queue``: how many requests were there when one came,
    itself included -> how often. ``late``: how much later than the model says requests were answered. ``errors``: requests that
    what lies behind has refused.
    """

    at_ns: int
    cpu_ns: int
    reads: Requests
    writes: Requests
    cached_writes: int
    flushes: int
    queue: Mapping[int, int]
    late: Times
    errors: int

    @property
    def busy_ns(self) -> int:
        """What the disk did in all: over ``at_ns`` of a difference it is the utilisation."""
        return self.reads.service.sum_ns + self.writes.service.sum_ns

    def since(self, before: DiskStatistics) -> DiskStatistics:
        """What came after that."""
        return replace(
            self,
            at_ns=self.at_ns - before.at_ns,
            cpu_ns=self.cpu_ns - before.cpu_ns,
            reads=self.reads.since(before.reads),
            writes=self.writes.since(before.writes),
            cached_writes=self.cached_writes - before.cached_writes,
            flushes=self.flushes - before.flushes,
            queue=_risen(self.queue, before.queue),
            late=self.late.since(before.late),
            errors=self.errors - before.errors,
        )


@dataclass(frozen=True, slots=True)
class DiskModel:
    """A device that is there. ``device``: its path on the machine. ``size_bytes``: of the device, from the disk's outer edge on."""

    device: str
    size_bytes: int
    model: DiskDescription
    _lines: JsonLines

    def pace(self, on: bool) -> None:
        """From now on requests take what the model says; or, off, no longer than they must: while the device is filled.

        It begins off. BIAS: what is in the page cache of whoever filled it is written at the pace that is kept then: sync first.
        """
        self._lines.ask({"command": "pace", "on": on}, ANSWER_S)

    def statistics(self) -> DiskStatistics:
        """So far. Raises ChannelError where the program has ended."""
        told = self._lines.ask({"command": "statistics"}, ANSWER_S, _Told)
        return DiskStatistics(
            told["at_ns"],
            told["cpu_ns"],
            Requests.of(told["reads"]),
            Requests.of(told["writes"]),
            told["cached_writes"],
            told["flushes"],
            _numbered(told["queue"]),
            _times(told["late"]),
            told["errors"],
        )


@contextmanager
def disk_model(
    machine: Machine,
    model: str | DiskDescription,
    directory: str,
    name: str,
    journal: Journal,
    *,
    size_bytes: int | None = None,
    write_cache: bool = False,
    queue_depth: int | None = None,
) -> Iterator[DiskModel]:
    """While this lasts the machine has such a device, empty and at first without its pace.

    ``model``: one of `MODELS`, or a description. ``directory``: on the machine, where what is written lies; it takes as much room
    as was ever written. ``name``: of letters, digits and ``-``, for people. ``size_bytes``: a disk's first part, else all of it.
    ``write_cache``: the disk takes writes at once into its own cache, which a flush empties. ``queue_depth``: of how many requests
    the disk chooses the next one (1: first come, first served), else as the model has it.

    Raises Unavailable where the machine has no FUSE, no loop devices, or where we are not its root; or where somebody still uses
    the device at the end. It must not be in use then: what is mounted of it is unmounted by whoever mounted it.
    """
    description = MODELS[model] if isinstance(model, str) else model
    size_bytes = description.capacity_bytes if size_bytes is None else size_bytes
    mark = f"dbtoll-disk-{name}-{secrets.token_hex(4)}"
    request = {
        "name": mark,
        "folder": directory,
        "size_bytes": size_bytes,
        "model": description.parameters(),
        "queue_depth": description.queue_depth if queue_depth is None else queue_depth,
        "write_cache_bytes": description.write_cache_bytes if write_cache else 0,
    }
    entry = journal.create(KIND, name=mark)
    try:
        lines = _begun(machine, request)
        try:
            device = _loop_device(machine, lines.reply(time.monotonic() + ANSWER_S))
            _describe(machine, device, rotates=description.rotates, write_cache=bool(request["write_cache_bytes"]))
            yield DiskModel(device, size_bytes, description, lines)
        finally:
            try:
                with suppress(ChannelError):  # it has ended already
                    lines.ask({"command": "pace", "on": False}, ANSWER_S)
                _detach(machine, mark)
            finally:
                lines.close()
    finally:
        if not _loops(machine, mark):
            entry.done()


def remove(machine: Machine, identity: Mapping[str, Any]) -> None:
    """Take away the loop device of a killed run; what served it has ended with its stream. Unavailable where somebody uses it.
    DbtollError for what no entry of `KIND` can have."""
    _detach(machine, identities.word(identity, "name", NAME))


def _begun(machine: Machine, request: Json) -> JsonLines:
    agent = through_agent(machine)
    program = f"/proc/{agent.hello()['pid']}/exe"
    parameters: Json = {"argv": [program, "disk", json.dumps(request)], "env": {}, "cwd": "/", "user": None}
    return JsonLines(agent.channel, "run", parameters, who="the disk model")


def _loop_device(machine: Machine, told: Json) -> str:
    """Of what the program said first."""
    if (why := told.get("unavailable")) is not None:
        hints = {
            "open /dev/fuse": "it needs FUSE (modprobe fuse), and the machine's own root",
            "mount fuse": "it needs the right to mount: run as the machine's own root",
        }
        hint = next((hint for begin, hint in hints.items() if str(why).startswith(begin)), "give another directory")
        raise Unavailable(f"{machine.name} can have no disk model: {why}", hint)
    try:
        made = machine.run(["losetup", "--find", "--show", "--direct-io=on", told["path"]], check=False)
    except AgentFailure as failure:
        raise Unavailable(f"{machine.name} has no losetup: {failure.message}", "apt-get install -y mount") from failure
    if made.exit_code != 0:
        said = made.error_output.decode(errors="replace").strip()
        raise Unavailable(
            f"{machine.name} can have no disk model: {said}", "it needs loop devices (modprobe loop), and root"
        )
    return made.output.decode().strip()


def _describe(machine: Machine, device: str, *, rotates: bool, write_cache: bool) -> None:
    """What the kernel is to think of it. A disk without a cache for writes is sent no flushes; disks like these discard nothing."""
    settings = {
        "rotational": "1" if rotates else "0",
        "write_cache": "write back" if write_cache else "write through",
        "discard_max_bytes": "0",
    }
    queue = f"/sys/block/{device.removeprefix(f'{DEVICES}/')}/queue"
    for setting, value in settings.items():
        through_agent(machine).put(f"{queue}/{setting}", f"{value}\n".encode(), in_place=True)


def _loops(machine: Machine, mark: str) -> list[str]:
    return machine.run(["sh", "-c", LOOPS, "sh", mark]).output.decode().split()


def _detach(machine: Machine, mark: str) -> None:
    """A device that is open at that moment goes when it is closed: who looks at new devices (udev) has it open for a while."""
    deadline = time.monotonic() + RELEASE_S
    while loops := _loops(machine, mark):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{DEVICES}/{loops[0]}, a disk model's, is in use", "unmount it, or end what has it open (fuser)"
            )
        for loop in loops:
            machine.run(["losetup", "--detach", f"{DEVICES}/{loop}"], check=False)
        time.sleep(0.05)


def _times(told: Json) -> Times:
    return Times(told["sum_ns"], _numbered(told["buckets"]))


def _numbered(told: Mapping[str, int]) -> dict[int, int]:
    try:
        return {int(key): value for key, value in told.items()}
    except ValueError as error:
        raise DbtollError(f"the disk model told a histogram that is none: {error}") from None


def _risen(after: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    return {key: more for key, value in after.items() if (more := value - before.get(key, 0))}
