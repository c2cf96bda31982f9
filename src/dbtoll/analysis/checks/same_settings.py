"""Whether a start is like the baseline's: the same server on the same resources, by the facts that both told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbtoll.analysis.checks.evidence import AskedOfServer
from dbtoll.model.description import EngineDescription
from dbtoll.model.json import Json
from dbtoll.model.storage import DIRECT, is_device

SERVER_FACTS = ("version", "encoding", "collation")
"""What an engine says of a server, beside its ``settings``."""

MEMORY_BOUND = 0.05
"""A guest's kernel takes its own code and page tables (about 2 to 4 % of 1 to 4 GiB) off what it shows."""

PROCESSORS: Mapping[str, str] = {"processors": "processors", "cpu_quota": "CPU quota"}
"""What a start may use of processors -> what that is called. What an environment's options asked for
(`EnvironmentDescription.asked_facts`) is a factor, and no reason to void."""

COMPARED_FACTS: Mapping[str, str] = {
    "architecture": "architecture",
    "cpu_model": "processor model",
    "page_bytes": "page size",
    "transparent_hugepages": "transparent huge pages",
    "huge_pages": "huge pages",
    "swap_bytes": "swap",
    "open_files": "open files",
    "clocksource": "clock source",
    "kernel_release": "kernel",
}
"""Facts that are compared as they are -> what they are called."""

NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Difference:
    """``text``: what it is here and, in brackets, in the baseline. ``asked``: for it."""

    text: str
    voids: bool = False
    asked: bool = False


def told(different: Mapping[int, Sequence[Difference]]) -> str:
    """Each difference once, with its round where it is not in all of them."""
    rounds: dict[str, list[int]] = {}
    for number, found in different.items():
        for each in found:
            rounds.setdefault(each.text, []).append(number)
    parts = []
    for text, where in rounds.items():
        everywhere = len(where) == len(different)
        parts.append(text if everywhere else f"{text} in round{'s' if len(where) > 1 else ''} {_listed(where)}")
    return "; ".join(parts)


def _listed(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:NAMES_SHOWN])
    return shown + (f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else "")


# --- the server ------------------------------------------------------------------------------------------------------


def tells_of_server(facts: Json) -> bool:
    """Whether there is anything to compare."""
    return any(facts.get(name) for name in (*SERVER_FACTS, "settings"))


def of_servers(facts: Json, expected: Json, engine: EngineDescription, asked: AskedOfServer) -> list[Difference]:
    """Version and settings that differ, but for those that only say where a server lies. One that nobody asked for voids, unless
    another server was asked for: then it comes with that."""
    pairs = {name: (facts.get(name), expected.get(name)) for name in SERVER_FACTS}
    settings, wanted = facts.get("settings") or {}, expected.get("settings") or {}
    for name in sorted({*settings, *wanted} - set(engine.location_settings)):
        pairs[name] = (settings.get(name, "built-in"), wanted.get(name, "built-in"))
    spelled = {_spelling(name) for name in asked.settings}
    return [
        Difference(
            different.text + (", as asked for" if was_asked else ""),
            voids=not was_asked and not asked.another and name not in engine.auto_tuned_settings,
            asked=was_asked,
        )
        for name, pair in pairs.items()
        if (different := _plain(name, *pair)) is not None
        for was_asked in [(name == "version" and asked.another) or _spelling(name) in spelled]
    ]


def _spelling(setting: str) -> str:
    """MariaDB's files say ``max-connections`` and its server ``max_connections``; PostgreSQL's are not told apart by case."""
    return setting.lower().replace("-", "_")


def _plain(name: str, value: Any, expected: Any) -> Difference | None:
    return None if value == expected else Difference(f"{name} {_text(value)} ({_text(expected)})")


def _text(value: Any) -> str:
    return "not known" if value is None else str(value)


# --- the resources -----------------------------------------------------------------------------------------------------


def of_resources(facts: Json, expected: Json, asked: frozenset[str]) -> list[Difference]:
    """What a start may use and what its kernel shows it that differs; a number of processors that nobody asked for voids."""
    return list(_resources(facts, expected, asked))


def _resources(facts: Json, expected: Json, asked: frozenset[str]) -> Iterator[Difference]:
    processors: dict[str, tuple[Any, Any]] = {
        "processors": (cpu_count(facts), cpu_count(expected)),
        "cpu_quota": (facts.get("cpu_quota") or "none", expected.get("cpu_quota") or "none"),
    }
    for name, (value, wanted) in processors.items():
        if (different := _plain(PROCESSORS[name], value, wanted)) is not None:
            was_asked = name in asked
            text = different.text + (", as asked for" if was_asked else "")
            yield Difference(text, voids=not was_asked and None not in (value, wanted))
    memory, baseline = memory_bytes(facts), memory_bytes(expected)
    if memory is None or baseline is None:
        if memory != baseline:
            yield Difference(f"memory {_gib(memory)} ({_gib(baseline)})")
    elif abs(memory - baseline) > MEMORY_BOUND * baseline:
        yield Difference(f"memory {_gib(memory)} ({_gib(baseline)}){_asked_for('memory', asked)}")
    storage, its_storage = _storage(facts), _storage(expected)
    if None not in (storage, its_storage) and (different := _plain("storage", storage, its_storage)) is not None:
        yield different
    for key, name in COMPARED_FACTS.items():
        if (different := _plain(name, facts.get(key), expected.get(key))) is not None:
            yield Difference(different.text + _asked_for(key, asked))
    yield from _flags(facts.get("cpu_flags"), expected.get("cpu_flags"))
    yield from _mitigations(facts.get("mitigations"), expected.get("mitigations"))


def _asked_for(fact: str, asked: frozenset[str]) -> str:
    return ", as asked for" if fact in asked else ""


def _storage(facts: Json) -> str | None:
    """The kind: one for all on the machine's own file system, one for all devices."""
    told = facts.get("storage")
    kind = told.get("kind") if isinstance(told, dict) else None
    if not isinstance(kind, str):
        return None
    return "a device" if is_device(kind) else " or ".join(sorted(DIRECT)) if kind in DIRECT else kind


def cpu_count(facts: Json) -> int | None:
    """How many processors the agent, and so the server, may use: of the kernel's list format (``0-2,5``)."""
    listed = facts.get("cpus_allowed")
    if not listed:
        return None
    bounds = [part.partition("-") for part in str(listed).split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in bounds)


def memory_bytes(facts: Json) -> int | None:
    """What an arm may use: its control group's limit, or all memory that its kernel has, whichever is less; of one of several
    guests with all others."""
    known = [value for key in ("memory_limit_bytes", "memory_bytes") if (value := facts.get(key)) is not None]
    return min(known) * facts.get("memory_parts", 1) if known else None


def _gib(value: int | None) -> str:
    return "not known" if value is None else f"{value / (1 << 30):.2f} GiB"


def _flags(flags: Sequence[str] | None, expected: Sequence[str] | None) -> Iterator[Difference]:
    if flags is None or expected is None:
        if flags is not expected:
            yield Difference(f"processor flags {'not known' if flags is None else f'{len(flags)} (not known)'}")
        return
    lacking, more = sorted(set(expected) - set(flags)), sorted(set(flags) - set(expected))
    parts = [f"without {_listed(lacking)}"] if lacking else []
    parts += [f"with {_listed(more)}"] if more else []
    if parts:
        yield Difference(f"processor flags {' and '.join(parts)}")


def _mitigations(found: Json | None, expected: Json | None) -> Iterator[Difference]:
    if found is None or expected is None:
        if found is not expected:
            yield Difference(f"mitigations {'not known' if found is None else 'known (not known)'}")
        return
    # A vulnerability that one of the kernels is too old to know says nothing of the other.
    names = sorted(name for name in {*found} & {*expected} if found[name] != expected[name])
    if names:
        first = names[0]
        yield Difference(f"mitigations of {_listed(names)}: {first} {found[first]!r} ({expected[first]!r})")
