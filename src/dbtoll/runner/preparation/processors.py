"""Two runs never measure on the same processors: the second waits, and says for whom."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dbtoll.errors import Unavailable

DIRECTORIES = Path("/sys/devices/system/cpu")
"""One for each processor, in every kernel (Documentation/ABI/testing/sysfs-devices-system-cpu)."""


class Reserved(Unavailable):
    """Another dbtoll measures on that processor."""


@contextmanager
def reserved(cpus: Sequence[int], say: Callable[[str], None] | None = None) -> Iterator[None]:
    """No other dbtoll of this machine gets these processors meanwhile. ``say`` hears for whom we wait; without: Reserved.

    The lock is flock(2) on the kernel's own directory of a processor, opened to be read: whoever may run may take it, nobody
    has to make a file in a place for all, and the kernel lets go of it when its holder dies. In rising order, so that two do
    not wait for each other. Where the kernel shows no such directory there is no lock.
    """
    with ExitStack() as held:
        for cpu in sorted(cpus):
            try:
                directory = os.open(DIRECTORIES / f"cpu{cpu}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            held.callback(os.close, directory)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = f"another dbtoll{_holder(directory)} measures on processor {cpu}"
                if say is None:
                    raise Reserved(why, "wait for it") from None
                say(f"waiting: {why}")
                fcntl.flock(directory, fcntl.LOCK_EX)
        yield


def _holder(directory: int) -> str:
    """Its number, from proc(5) ``locks``: `` (process 7)``; "" where it is not seen."""
    status = os.fstat(directory)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    pids = [fields[4] for line in lines if (fields := line.split())[1] == "FLOCK" and fields[5] == file]
    return f" (process {pids[0]})" if pids and int(pids[0]) > 0 else ""
