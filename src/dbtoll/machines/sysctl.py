"""A setting of the kernel, changed for a while: a file below /proc/sys or /sys that is written and put back.

Whoever changes one asks for `exclusive` first (DESIGN §6): the whole machine sees it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from dbtoll import identities
from dbtoll.errors import AgentFailure, DbtollError, Unavailable
from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.machine_facts import BOOT_ID

KIND = "setting"
"""Of the journal's entries: ``path``, ``former`` (what is to be restored), ``value`` (what was asked for), ``boot``."""

TOPS = ("/proc/sys", "/sys")
"""Where settings lie."""

NO_SETTINGS = ("/sys/fs/", "/sys/kernel/debug/", "/sys/kernel/tracing/")
"""Other file systems, mounted there."""


@dataclass(slots=True)
class _Change:
    """One change that still holds. ``former``: what to restore when it ends. ``found``: how the kernel took ``value``."""

    entry: JournalEntry
    former: str
    value: str
    found: str


_changes: WeakKeyDictionary[AgentMachine, dict[str, list[_Change]]] = WeakKeyDictionary()
"""By machine and path, the oldest first: a setting belongs to its machine, not to the arm that happened to change it."""


_changing = threading.Lock()
"""Machines of an arm are opened at the same time."""


def _nobody(text: str) -> None:
    """Whom nothing is said to."""


@contextmanager
def changed(
    machine: AgentMachine, journal: Journal, path: str, value: str, say: Callable[[str], None] = _nobody
) -> Iterator[str]:
    """While this lasts the setting at ``path`` is ``value``; then what it was before, whoever changed it meanwhile.

    Yields what the kernel made of it, which may be less than was asked for (huge pages). Changes of one setting may overlap
    and end in any order: the last that holds is in force, and with the end of all the first value is back. ``say`` hears
    when somebody else has changed it. Raises Unavailable if there is no such setting or the kernel refuses the value.
    """
    with _changing:
        former = read(machine, path)
        entry = _noted(machine, journal, path, former, value)
        changes = _changes.setdefault(machine, {}).setdefault(path, [])
        change = _Change(entry, former, value, value)
        changes.append(change)
        try:
            _write(machine, path, value)
            change.found = read(machine, path)
        except BaseException:
            _end(machine, journal, path, change, say)
            raise
    try:
        yield change.found
    finally:
        with _changing:
            _end(machine, journal, path, change, say)


def read(machine: AgentMachine, path: str) -> str:
    """The value of a setting; of several that can be chosen (``none [bfq] kyber``), the chosen one."""
    try:
        text = machine.get(path).decode(errors="replace").strip()
    except AgentFailure as failure:
        raise Unavailable(
            f"{machine.name}: the setting {path} cannot be read: {failure.message}", "this kernel may not have it"
        ) from failure
    chosen = re.search(r"(?:^|\s)\[([^\]\s]+)\](?:\s|$)", text)
    return chosen[1] if chosen else text


def restore(machine: AgentMachine, identity: Mapping[str, Any]) -> str | None:
    """Put back what a killed run changed (for `clean`). A sentence if the setting was neither as asked for nor as before.

    Nothing is done where the kernel has started anew since: it has forgotten the change, and may have another default.
    """
    path = identities.path(identity, "path", *TOPS)
    if path.startswith(NO_SETTINGS):
        raise DbtollError(f"{path} is no setting; nothing was done")
    former, value = (identities.word(identity, key, ".*") for key in ("former", "value"))
    if identity.get("boot") != boot_id(machine):
        return "the machine has started anew since: its settings are its own"
    present = read(machine, path)
    if present != former:
        _write(machine, path, former)
    if present in (former, value):
        return None
    return f"it was {present}, not {value} as this run had asked for; {former} is restored"


def _end(machine: AgentMachine, journal: Journal, path: str, change: _Change, say: Callable[[str], None]) -> None:
    changes = _changes[machine][path]
    position = changes.index(change)
    if position < len(changes) - 1:
        # A later change holds: it shall restore what this one would have. It is noted anew before both old entries go,
        # so that whatever is open at any moment, restored newest first, ends with the right value.
        later = changes[position + 1]
        new = _noted(machine, journal, path, change.former, later.value)
        later.entry.done()
        later.entry, later.former = new, change.former
    else:
        present = read(machine, path)
        if present != change.former:
            _write(machine, path, change.former)
        if present not in (change.found, change.former):
            say(f"{path} was changed to {present} by somebody else meanwhile; {change.former} is restored")
    changes.remove(change)
    change.entry.done()


def _noted(machine: AgentMachine, journal: Journal, path: str, former: str, value: str) -> JournalEntry:
    return journal.create(KIND, path=path, former=former, value=value, boot=boot_id(machine))


def boot_id(machine: Machine) -> str:
    """Of the kernel that the machine runs on: another one after each start."""
    return machine.get(BOOT_ID).decode().strip()


def _write(machine: AgentMachine, path: str, value: str) -> None:
    try:
        machine.put(path, value.encode() + b"\n", in_place=True)
    except AgentFailure as failure:
        raise Unavailable(
            f"{machine.name}: the setting {path} cannot be made {value!r}: {failure.message}",
            "ask for a value that this kernel takes, as root",
        ) from failure
