"""What a machine is, read from its own /proc and /sys: the part of the facts that every machine has."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Final

from dbtoll.errors import AgentFailure
from dbtoll.model.json import Json

Get = Callable[[str], bytes]
Names = Callable[[str], Sequence[str]]

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""A new one with every start of the kernel, proc(5)."""

VULNERABILITIES: Final = "/sys/devices/system/cpu/vulnerabilities"

_VALUE_MAX: Final = 16_384
"""Characters of one fact; a processor's flags are some thousands."""

_AT_PAGESZ: Final = 6
"""Key of the page size in the auxiliary vector (getauxval(3))."""

_NO_LIMIT_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size in an i64."""


class _MissingError(Exception):
    """A fact that this machine does not give; the message says why."""


def read_facts(hello: Json, get: Get, names: Names) -> Json:
    """The facts as a JSON object; what could not be read is null and its reason stands under ``missing``.

    ``get`` reads a file on the machine, ``names`` lists a directory; both raise AgentFailure. Sizes in bytes, the affinity
    is the agent's own, ``cpu_quota`` in processors. ``mitigations``: the kernel's, by vulnerability.
    """
    readers: dict[str, Callable[[Get], object]] = {
        "hostname": lambda get: _line(get, "/proc/sys/kernel/hostname"),
        "kernel_release": lambda get: _line(get, "/proc/sys/kernel/osrelease"),
        "kernel_version": lambda get: _line(get, "/proc/sys/kernel/version"),
        "kernel_boot": lambda get: _line(get, BOOT_ID),
        "cpu_model": lambda get: _cpu(get, "model name", "Model", "CPU part"),
        "cpu_flags": lambda get: sorted(_cpu(get, "flags", "Features").split()),
        "cpu_flags_sha256": lambda get: hashlib.sha256(_cpu(get, "flags", "Features").encode()).hexdigest(),
        "mitigations": lambda get: {name: _line(get, f"{VULNERABILITIES}/{name}") for name in names(VULNERABILITIES)},
        "cpus_online": lambda get: _line(get, "/sys/devices/system/cpu/online"),
        "cpus_allowed": lambda get: _field(get, "/proc/self/status", "Cpus_allowed_list"),
        "memory_bytes": lambda get: _kib(_field(get, "/proc/meminfo", "MemTotal")),
        "swap_bytes": lambda get: _kib(_field(get, "/proc/meminfo", "SwapTotal")),
        "memory_limit_bytes": _memory_limit_bytes,
        "cpu_quota": _cpu_quota,
        "huge_pages": lambda get: int(_field(get, "/proc/meminfo", "HugePages_Total")),
        "open_files": _open_files,
        "page_bytes": _page_bytes,
        "clocksource": lambda get: _line(get, "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "transparent_hugepages": lambda get: _chosen(_line(get, "/sys/kernel/mm/transparent_hugepage/enabled")),
    }
    facts: Json = {"architecture": hello["architecture"], "agent_build": hello["build"], "agent_clock": hello["clock"]}
    missing: dict[str, str] = {}
    for name, read in readers.items():
        try:
            facts[name] = read(get)
        except (_MissingError, AgentFailure) as reason:
            facts[name], missing[name] = None, reason.args[0]
        except (ValueError, LookupError, ArithmeticError, struct.error):  # what is there is no kernel's
            facts[name], missing[name] = None, "what the machine shows of it is not understood"
    facts["missing"] = missing
    return facts


def _text(get: Get, path: str) -> str:
    return get(path).decode(errors="replace")


def _line(get: Get, path: str) -> str:
    return _short(_text(get, path).strip(), path)


def _short(value: str, path: str) -> str:
    if len(value) > _VALUE_MAX:
        raise _MissingError(f"{path} says {len(value)} characters")
    return value


def _field(get: Get, path: str, *names: str) -> str:
    """Value of the first line ``name: value`` for the first of ``names`` that is there."""
    lines = [line.partition(":") for line in _text(get, path).splitlines()]
    for name in names:
        for key, _, value in lines:
            if key.strip() == name:
                return _short(value.strip(), path)
    raise _MissingError(f"{path} has no line {names[0]}")


def _cpu(get: Get, *names: str) -> str:
    return _field(get, "/proc/cpuinfo", *names)


def _kib(value: str) -> int:
    return int(value.split(maxsplit=1)[0]) * 1024


def _chosen(choices: str) -> str:
    """``always [madvise] never`` -> ``madvise``."""
    if "[" not in choices:
        raise _MissingError(f"no choice is marked in: {choices}")
    return choices.partition("[")[2].partition("]")[0]


def _page_bytes(get: Get) -> int:
    for key, value in struct.iter_unpack("=QQ", get("/proc/self/auxv")):
        if key == _AT_PAGESZ:
            return int(value)
    raise _MissingError("the auxiliary vector names no page size")


def _open_files(get: Get) -> int:
    """The soft limit of the agent and of what it starts (proc(5), ``limits``)."""
    for line in _text(get, "/proc/self/limits").splitlines():
        if line.startswith("Max open files"):
            return int(line.split()[3])
    raise _MissingError("/proc/self/limits has no line Max open files")


def _memory_limit_bytes(get: Get) -> int:
    """The limit of the agent's own memory cgroup, v1 or v2; the smallest of those above it that can be seen.

    A machine in a cgroup namespace sees only what is below it, and one without a mounted cgroup tree sees nothing.
    """
    files = _group_files(get, "memory", "memory.limit_in_bytes", "memory.max")
    limits = [limit for path in files if (limit := _limit_bytes(get, path)) is not None]
    if not limits:
        raise _MissingError("no memory cgroup with a limit can be seen from inside")
    return min(limits)


def _cpu_quota(get: Get) -> float:
    """CPU time that the agent's own cgroup may use per time passed; the smallest of those above it that can be seen."""
    files = _group_files(get, "cpu", "cpu.cfs_quota_us", "cpu.max")
    quotas = [quota for path in files if (quota := _quota(get, path)) is not None]
    if not quotas:
        raise _MissingError("no cpu cgroup with a quota can be seen from inside")
    return min(quotas)


def _group_files(get: Get, controller: str, file_1: str, file_2: str) -> list[str]:
    """Candidates: in each visible mount of the controller's hierarchy, the agent's own directory and all above it.

    ``file_1``, ``file_2``: the file's name in version 1 and 2.
    """
    own: dict[str, str] = {}
    for line in _text(get, "/proc/self/cgroup").splitlines():
        _, controllers, directory = line.split(":", 2)
        if controllers == "":
            own["v2"] = directory
        elif controller in controllers.split(","):
            own["v1"] = directory
    files: list[str] = []
    for line in _text(get, "/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            version, file = "v2", file_2
        elif kind == "cgroup" and controller in options.split()[-1].split(","):
            version, file = "v1", file_1
        else:
            continue
        if version not in own:
            continue
        directory = own[version]
        below = directory.removeprefix(root.rstrip("/")) if directory.startswith(root) else "/"
        parts = [part for part in below.split("/") if part]
        for depth in range(len(parts), -1, -1):
            files.append("/".join([mount_point.rstrip("/"), *parts[:depth], file]))
    return files


def _limit_bytes(get: Get, path: str) -> int | None:
    try:
        value = _line(get, path)
    except AgentFailure:
        return None
    return int(value) if value.isdigit() and int(value) < _NO_LIMIT_BYTES else None


def _quota(get: Get, path: str) -> float | None:
    """Of ``cpu.max`` (``50000 100000``), or of ``cpu.cfs_quota_us`` and the period beside it; None where there is none."""
    try:
        words = _line(get, path).split()
        words += [_line(get, path.replace("quota", "period"))] if len(words) == 1 else []
    except AgentFailure:
        return None
    quota, period = words
    return int(quota) / int(period) if quota.isdigit() else None
