"""What a machine is, read from its own /proc and /sys: the part of the facts that every machine has."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Final

from dbtoll.errors import AgentFailure
from dbtoll.model import Json

Get = Callable[[str], bytes]

_AT_PAGESZ: Final = 6
"""Key of the page size in the auxiliary vector (getauxval(3))."""

_NO_LIMIT_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size in an i64."""


class _MissingError(Exception):
    """A fact that this machine does not give; the message says why."""


def read_facts(hello: Json, get: Get) -> Json:
    """The facts as a JSON object; what could not be read is null and its reason stands under ``missing``.

    ``get`` reads a file on the machine and raises AgentFailure. Sizes in bytes, the affinity is the agent's own.
    """
    readers: dict[str, Callable[[Get], object]] = {
        "hostname": lambda get: _line(get, "/proc/sys/kernel/hostname"),
        "kernel_release": lambda get: _line(get, "/proc/sys/kernel/osrelease"),
        "kernel_version": lambda get: _line(get, "/proc/sys/kernel/version"),
        "cpu_model": lambda get: _cpu(get, "model name", "Model", "CPU part"),
        "cpu_flags_sha256": lambda get: hashlib.sha256(_cpu(get, "flags", "Features").encode()).hexdigest(),
        "cpus_online": lambda get: _line(get, "/sys/devices/system/cpu/online"),
        "cpus_allowed": lambda get: _field(get, "/proc/self/status", "Cpus_allowed_list"),
        "memory_bytes": lambda get: _kib(_field(get, "/proc/meminfo", "MemTotal")),
        "swap_bytes": lambda get: _kib(_field(get, "/proc/meminfo", "SwapTotal")),
        "memory_limit_bytes": _memory_limit_bytes,
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
    facts["missing"] = missing
    return facts


def _text(get: Get, path: str) -> str:
    return get(path).decode(errors="replace")


def _line(get: Get, path: str) -> str:
    return _text(get, path).strip()


def _field(get: Get, path: str, *names: str) -> str:
    """Value of the first line ``name: value`` for the first of ``names`` that is there."""
    lines = [line.partition(":") for line in _text(get, path).splitlines()]
    for name in names:
        for key, _, value in lines:
            if key.strip() == name:
                return value.strip()
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


def _memory_limit_bytes(get: Get) -> int:
    """The limit of the agent's own memory cgroup, v1 or v2; the smallest of those above it that can be seen.

    A machine in a cgroup namespace sees only what is below it, and one without a mounted cgroup tree sees nothing.
    """
    limits = [limit for path in _limit_files(get) if (limit := _limit_bytes(get, path)) is not None]
    if not limits:
        raise _MissingError("no memory cgroup with a limit can be seen from inside")
    return min(limits)


def _limit_files(get: Get) -> list[str]:
    """Candidates: in each visible mount of a memory hierarchy, the agent's own directory and all above it."""
    own: dict[str, str] = {}
    for line in _text(get, "/proc/self/cgroup").splitlines():
        _, controllers, directory = line.split(":", 2)
        if controllers == "":
            own["v2"] = directory
        elif "memory" in controllers.split(","):
            own["v1"] = directory
    files: list[str] = []
    for line in _text(get, "/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            version, file = "v2", "memory.max"
        elif kind == "cgroup" and "memory" in options.split()[-1].split(","):
            version, file = "v1", "memory.limit_in_bytes"
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
