"""What lies in the page cache: what a copy leaves behind there is let go, what was evicted is read again."""

from __future__ import annotations

from dbtoll.interfaces.machine import Machine

COPY_DEADLINE_S = 1800.0

_LARGER_FILES = ("-xdev", "-type", "f", "-size", "+256k")


def write_back_and_drop(machine: Machine, target: str) -> None:
    """``target``, a file or a directory that was copied just now, is on its disk and no page of its larger files in the page cache.

    BIAS: a copy leaves its pages behind in memory, dirty: they would be written back in some arm's measured time, and they lie in
    memory as the copy laid them out (large folios, file after file). So the file system is synced (a dirty page cannot be
    dropped), and each file's pages are dropped with posix_fadvise(DONTNEED): ``dd iflag=nocache count=0`` of coreutils does that
    for a whole file and reads nothing. Smaller files are left in: they are a thousand, 20 MB together, and new anyway.
    """
    machine.run(["sync", "--file-system", target], timeout_s=COPY_DEADLINE_S)
    drop = ["-exec", "dd", "if={}", "iflag=nocache", "count=0", "status=none", ";"]
    machine.run(["find", target, *_LARGER_FILES, *drop], timeout_s=COPY_DEADLINE_S)


def read_again(machine: Machine, target: str) -> None:
    """What lies in the larger files of ``target`` is in the page cache, as far as there is room for it."""
    read = ["-exec", "dd", "if={}", "of=/dev/null", "bs=1M", "status=none", ";"]
    machine.run(["find", target, *_LARGER_FILES, *read], timeout_s=COPY_DEADLINE_S)
