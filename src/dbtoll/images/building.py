"""Running the programs that build what lies in the cache, so that none of them outlives its builder unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dbtoll.errors import ProgramFailed

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where build programs are looked for: what a user's own PATH puts before Debian's must not build our disks."""

DEADLINE_S = 1800.0
"""mmdebstrap takes 24 s with a near mirror; a mirror that stalls longer than this is broken."""


def run_build(
    argv: list[str],
    progress: Callable[[str], None] = lambda line: None,
    *,
    hint: str,
    env: Mapping[str, str] | None = None,
    accepted: Collection[int] = (0,),
) -> list[str]:
    """Runs a long build program; its ``I: …`` lines are progress, its last lines (at most 12) are returned and go into
    the error (ProgramFailed, with ``hint``) if it ends with an exit code that is not ``accepted``.

    The kernel ends it with us (``setpriv``). It inherits the cache's lock (``close_fds=False``; the lock is
    inheritable), so that nobody removes the half-built image before its last process has ended.
    """
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": str(Path.home()), **proxies, **(env or {})}
    last: deque[str] = deque(maxlen=12)
    with (
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *argv],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            close_fds=False,
        ) as process,
        _ended(process),
        _deadline(process),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            if line.startswith("I: ") and "hook" not in line:
                progress(line[3:].rstrip())
        if process.wait() not in accepted:
            raise ProgramFailed(f"{argv[0]} ended with {process.returncode}: " + " | ".join(last), hint)
    return list(last)


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens inside, the program and all that it started are gone afterwards; first asked, so that it
    tidies up."""
    try:
        yield
    finally:
        for wanted in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is not None:
                break
            os.killpg(process.pid, wanted)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30.0)
        assert process.stdout is not None
        process.stdout.read()  # its end is the end of the last process that could write to it


@contextmanager
def _deadline(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the program when DEADLINE_S have passed, so that reading its output cannot block for ever."""
    timer = threading.Timer(DEADLINE_S, process.terminate)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
