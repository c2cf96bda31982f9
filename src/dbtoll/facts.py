"""The fingerprint of the host, for the report and to refuse comparing unlike things (DESIGN §3)."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dbtoll.errors import AgentFailure, RunFolderError
from dbtoll.interfaces.machine import InspectableMachine, Machine
from dbtoll.machines.agent.machine_facts import BOOT_ID
from dbtoll.machines.cgroups.layout import without_root
from dbtoll.model.json import Json

MUST_AGREE = (
    "host.kernel",
    "host.cpu_model",
    "host.cpus",
    "host.without_root",
    "agent.sha256",
    "code_sha256",
    "packages",
    "answers_sha256",
)
"""Facts that may not change between a run's parts, beside those of each configuration and of other hosts: samples from unlike
machines do not belong in one interval. Programs are told apart by what is in them; their version changes with a release alone."""


def host(machine: InspectableMachine) -> Json:
    """What the host is: kernel, processor, memory, whether it is itself a guest, clock, what could disturb."""
    cpu = _read(machine, "/proc/cpuinfo", 1 << 20)
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read(machine, "/proc/meminfo"))
    flags = re.search(r"^flags\s*:\s*(.*)$", cpu, re.MULTILINE)
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)$", cpu, re.MULTILINE)
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read(machine, "/etc/os-release"), re.MULTILINE)
    is_guest = "hypervisor" in (flags[1].split() if flags else []) or bool(_read(machine, "/sys/hypervisor/type"))
    return {
        "kernel": _read(machine, "/proc/sys/kernel/osrelease").strip(),
        "kernel_boot": _read(machine, BOOT_ID).strip() or None,
        "system": release[1] if release else None,
        "cpu_model": model[1].strip() if model else None,
        "cpus": len(re.findall(r"^processor\s*:", cpu, re.MULTILINE)),
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
        "is_guest": is_guest,
        "vendor": _read(machine, "/sys/class/dmi/id/sys_vendor").strip() or None,
        "clocksource": _read(machine, "/sys/devices/system/clocksource/clocksource0/current_clocksource").strip()
        or None,
        "governor": _read(machine, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "turbo_off": _read(machine, "/sys/devices/system/cpu/intel_pstate/no_turbo").strip() or None,
        "smt": _read(machine, "/sys/devices/system/cpu/smt/control").strip() or None,
        "transparent_huge_pages": _chosen(_read(machine, "/sys/kernel/mm/transparent_hugepage/enabled")),
        "swappiness": _read(machine, "/proc/sys/vm/swappiness").strip() or None,
        "randomize_va_space": _read(machine, "/proc/sys/kernel/randomize_va_space").strip() or None,
        "without_root": without_root(machine),
    }


def agent(machine: Machine) -> Json:
    """The agent that runs on the host, which is the one that is put into every arm there."""
    hello = machine.hello()
    program = Path(f"/proc/{hello['pid']}/exe").read_bytes()
    told = {key: hello.get(key) for key in ("build", "protocol", "architecture", "clock")}
    return {**told, "sha256": hashlib.sha256(program).hexdigest()}


@cache
def code_sha256() -> str:
    """Of all files of this package, by name and content, as they are when it is first asked for."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package)} {len(content)}\0".encode() + content)
    return digest.hexdigest()


def compare(before: Json, now: Json, folder: str) -> None:
    """RunFolderError if a run is continued on what is not the same machine, image, engine, data or agent."""
    pairs = {key: (_at(before, key), _at(now, key)) for key in MUST_AGREE}
    pairs["remote_hosts"] = (_remote(before), _remote(now))
    for key in ("engine", "image.key", "settings", "dataset.key"):
        pairs[key] = (_of_arms(before, key), _of_arms(now, key))
    _refuse_unlike(pairs, folder)


def compare_host(before: Json, now: Json, folder: str) -> None:
    """The same of the machine alone, before anything is prepared. ``now``: facts of the `host`."""
    keys = [key for key in MUST_AGREE if key.startswith("host.")]
    _refuse_unlike({key: (_at(before, key), _at({"host": now}, key)) for key in keys}, folder)


def _refuse_unlike(pairs: Mapping[str, tuple[Any, Any]], folder: str) -> None:
    unlike = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if unlike:
        told = "; ".join(f"{key} was {_short(old)} and is {_short(new)}" for key, (old, new) in unlike.items())
        raise RunFolderError(f"{folder}: cannot be continued here: {told}", "begin a new run without --resume")


def _remote(facts: Json) -> Json:
    """Of other hosts what has to agree of this one."""
    names = [key.removeprefix("host.") for key in MUST_AGREE if key.startswith("host.")]
    return {arm: {name: host.get(name) for name in names} for arm, host in facts.get("remote_hosts", {}).items()}


def _of_arms(facts: Json, key: str) -> Json:
    """Of each configuration, by the names of its arms."""
    return {", ".join(told["arms"]): _at(told, key) for told in facts.get("configurations", [])}


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else repr(value)


def _at(facts: Json, path: str) -> Any:
    for key in path.split("."):
        facts = (facts or {}).get(key, {})
    return facts


def _read(machine: InspectableMachine, path: str, max_bytes: int = 65536) -> str:
    with contextlib.suppress(AgentFailure):
        return machine.get(path, max_bytes=max_bytes).decode(errors="replace")
    return ""


def _chosen(text: str) -> Any:
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None
