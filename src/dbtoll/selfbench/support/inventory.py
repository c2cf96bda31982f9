"""What a machine carries of one run: processes, mounts, loop devices, control groups, containers, sockets, files, settings.

Other things go on on a machine. So a resource counts only if it is known to be the run's: because its name, path, command
line or control group holds the run's id, because it is in the run's journal, or because it descended from the run's process.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbtoll.images.cache import scratch
from dbtoll.machines.cgroups.layout import TOP
from dbtoll.machines.chroot import STAGES
from dbtoll.runner.cleanup.journal import FILE, journals

WATCHED = (
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/nr_overcommit_hugepages",
    "/proc/sys/vm/swappiness",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/dirty_*",
    "/proc/sys/vm/vfs_cache_pressure",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/perf_event_paranoid",
    "/proc/sys/kernel/task_delayacct",
    "/proc/sys/kernel/sched_*",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/net/ipv4/ip_forward",
    "/sys/kernel/mm/transparent_hugepage/*",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/tracing/tracing_on",
    "/sys/kernel/tracing/current_tracer",
    "/sys/block/*/queue/scheduler",
    "/sys/block/*/queue/read_ahead_kb",
    "/sys/block/*/queue/nr_requests",
    "/sys/block/*/queue/write_cache",
    "/sys/devices/system/cpu/cpu*/online",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
)
"""Settings that a measurement could want to change; all that ever differ are counted, whoever changed them."""

TRACES = ("/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances")

Process = tuple[int, int]
"""Number and start time in clock ticks since boot: together they name a process for good."""


@dataclass(frozen=True, slots=True)
class Marks:
    """By what a run's things are known. ``descendants``: of its process, at the moments when it was killed.

    ``noted``: everything that it ever noted, read now: its folder may be deleted later.
    """

    run: Path
    descendants: frozenset[Process] = frozenset()
    noted: tuple[Mapping[str, Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "noted", tuple(_noted_in(self.run)))

    def words(self) -> tuple[str, ...]:
        """The run's id, and what the trials of its agents (``doctor-PID``) are called."""
        return self.run.name, *(f"doctor-{pid}" for pid, _ in self.descendants)

    def in_text(self, text: str) -> bool:
        """Whether one of the words stands in it, not as a part of another."""
        return any(re.search(rf"(?<![0-9a-z]){re.escape(word)}(?![0-9a-z])", text) for word in self.words())


def carried(marks: Marks) -> dict[str, list[str]]:
    """By kind, what is there of this run; kinds of which there is nothing are left out."""
    found = {
        "processes": _processes(marks),
        "mounts": [line for line in _lines("/proc/self/mountinfo") if marks.in_text(line)],
        "loop devices": [f"{device}: {file}" for device, file in _loops() if marks.in_text(file)],
        "control groups": [path for path in _groups() if marks.in_text(path)],
        "containers": [held for root in _data_roots(marks.noted) for held in _containers(root, marks)],
        "sockets": [line for line in _lines("/proc/net/unix") if marks.in_text(line)],
        "interfaces": [name for name in _interfaces(marks.noted) if Path("/sys/class/net", name).exists()],
        "traces": [str(path) for top in TRACES for path in _inside(Path(top)) if marks.in_text(path.name)],
        "files": [str(path) for path in _places() if marks.in_text(path.name)],
        "noted paths": [path for path in _paths(marks.noted) if Path(path).exists()],
    }
    return {kind: things for kind, things in found.items() if things}


def settings() -> dict[str, str]:
    """Path -> value of every watched setting that can be read."""
    values = {}
    for pattern in WATCHED:
        for path in Path("/").glob(pattern.lstrip("/")):
            try:
                values[str(path)] = path.read_text(errors="replace").strip()
            except OSError:
                continue
    return values


def descendants(ancestor: int) -> set[Process]:
    """A process and all that descend from it now."""
    parents: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for pid, stat in _stats():
        parents.setdefault(int(stat[1]), []).append(pid)
        started[pid] = int(stat[19])
    found, rest = set(), [ancestor]
    while rest:
        pid = rest.pop()
        if pid in started:
            found.add((pid, started[pid]))
        rest += parents.get(pid, [])
    return found


# --- where to look -------------------------------------------------------------------------------------------------------


def _processes(marks: Marks) -> list[str]:
    found = []
    for pid, stat in _stats():
        if pid == os.getpid() or stat[0] == "Z":
            continue
        command = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        if (pid, int(stat[19])) in marks.descendants or marks.in_text(f"{command} {_text(f'/proc/{pid}/cgroup')}"):
            found.append(f"{pid} {command or '?'}")
    return found


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Number and the fields of proc(5) ``stat`` from the third on (state, parent …) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _text(f"{entry}/stat")):
            yield int(entry.name), stat.rpartition(")")[2].split()


def _loops() -> Iterator[tuple[str, str]]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        yield path.parent.parent.name, _text(str(path))


def _groups() -> Iterator[str]:
    """All control groups of dbtoll, wherever they lie."""
    for line in _lines("/proc/self/mountinfo"):
        fields = line.split(" ")
        if fields[fields.index("-", 6) + 1] in ("cgroup", "cgroup2"):
            for folder, names, _ in os.walk(fields[4]):
                yield from (f"{folder}/{name}" for name in names if TOP in folder or TOP in name)


def _containers(data_root: str, marks: Marks) -> Iterator[str]:
    for file in _inside(Path(data_root, "data", "containers")):
        if marks.in_text(_text(str(file / "config.v2.json"))):
            yield str(file)


def _places() -> Iterator[Path]:
    """Where runs put files, and where their journals lie."""
    for place in (scratch(), journals(), Path(tempfile.gettempdir()), Path(STAGES), Path("/dev/shm")):
        yield from _inside(place)


# --- the run's journal -----------------------------------------------------------------------------------------------------


def _noted_in(run: Path) -> Iterator[dict[str, Any]]:
    """Of the copy in the run folder; its last line may be cut."""
    for line in _text(str(run / FILE)).split("\n")[:-1]:
        if "kind" in (noted := json.loads(line)):
            yield noted


def _paths(journal: Collection[Mapping[str, Any]]) -> set[str]:
    """Paths that are gone when the run is. ``litter`` is not among them: others may have made it since."""
    gone = [noted for noted in journal if noted["kind"] not in ("litter", "setting")]
    return {path for noted in gone for path in [*noted.get("paths", []), *([noted["path"]] if "path" in noted else [])]}


def _data_roots(journal: Collection[Mapping[str, Any]]) -> set[str]:
    return {noted["data_root"] for noted in journal if "data_root" in noted}


def _interfaces(journal: Collection[Mapping[str, Any]]) -> set[str]:
    return {noted["interface"] for noted in journal if "interface" in noted}


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    return _text(path).splitlines()


def _text(path: str) -> str:
    """ "" for what is not there, or no longer."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
