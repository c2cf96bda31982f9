"""A file system of a given size, in memory: a disk that can be full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine

KIND = "mount"
"""Kind of journal entry: ``path``, the mount point, a directory that goes with it."""


@contextmanager
def in_memory(machine: Machine, journal: Journal, path: str, size_bytes: int) -> Iterator[str]:
    """``path``, made and empty; gone at the end. Needs root. Raises ProgramFailed."""
    entry = journal.create(KIND, path=path)
    try:
        machine.run(["mkdir", "-p", path])
        machine.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "dbtoll", path])
        yield path
    finally:
        remove(machine, path)
        entry.done()


def remove(machine: Machine, path: str) -> None:
    """No error if it is gone."""
    if machine.run(["mountpoint", "--quiet", path], check=False).exit_code == 0:
        machine.run(["umount", path])
    machine.run(["rmdir", "--ignore-fail-on-non-empty", path], check=False)
