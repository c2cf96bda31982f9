"""Running dbtoll as a user does, and listing what a machine carries."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CARGO_TESTS = ("cargo", "test", "--locked", "--quiet")
"""In ROOT/agent."""


def dbtoll(*words: str, cwd: Path | None = None, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """The command line program, to its end."""
    program = Path(sys.executable).parent / "dbtoll"
    return subprocess.run(
        [str(program), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def cargo_test(folder: Path, words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What the Rust tests in ``folder`` say, which must pass. Whatever ends the waiting for them ends all that they have started:
    it has their output open, and who then waits for the end of that would wait forever."""
    with TemporaryFile("w+") as said:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=said, stderr=said, text=True, start_new_session=True
        )
        try:
            status = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        text = said.read()
    assert status == 0, text[-12000:]
    assert "test result: ok" in text
    return text


def selfbench(name: str, **options: Any) -> dict[str, Any]:
    """What it prints as JSON; whether its bounds hold does not matter here."""
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    done = dbtoll("selfbench", name, "--json", *words)
    assert done.returncode in {0, 1}, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found["bounds"]) <= set(found["figures"])
    return found


_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["dbtoll.cli", "dbtoll.commands.inspect", "dbtoll.analysis.result.builder"])
_PYTHONPATH = os.environ.get("PYTHONPATH")


def dbtoll_forked(*words: str, cwd: Path | None = None, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """The same, forked off a process that has its modules already, which a program that is begun anew imports for one to two
    seconds; for what starts nothing that would tell the one from the other."""
    assert os.environ.get("PYTHONPATH") == _PYTHONPATH, "the process that is forked would not see those packages"
    with TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("out", "err")]
        child = _forking.Process(target=_main, args=(words, cwd or Path.cwd(), dict(os.environ), *said))
        child.start()
        child.join(timeout_s)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(words, timeout_s)
        out, err = (path.read_text() for path in said)
        return subprocess.CompletedProcess(words, child.exitcode, out, err)


def _main(words: tuple[str, ...], cwd: Path, environ: dict[str, str], out: Path, err: Path) -> None:
    from dbtoll.cli import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    for path, mode, descriptor in ((Path(os.devnull), "rb", 0), (out, "wb", 1), (err, "wb", 2)):
        with path.open(mode) as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
    sys.argv = [str(Path(sys.executable).parent / "dbtoll"), *words]
    main()


def only_run(runs: Path) -> Path:
    """The one run folder that is there, beside the link to it."""
    (folder,) = (path for path in runs.iterdir() if not path.is_symlink())
    return folder


def is_root() -> bool:
    return os.geteuid() == 0


def carried() -> dict[str, set[str]]:
    """What a run could leave behind on this machine: mounts, loop devices, cgroups, processes of ours, sockets."""
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    loops = {path.parent.parent.name for path in Path("/sys/block").glob("loop*/loop/backing_file")}
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob("**/dbtoll*")}
    groups |= {str(path) for path in Path("/sys/fs/cgroup").glob("**/dbtoll/**/")}
    processes = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            name = Path(command[0].decode(errors="replace")).name
            if (
                name.startswith(("dbtoll-agent", "postgres", "dockerd", "containerd", "runc"))
                or b"/dbtoll/agent" in command[0]
            ):
                processes.add(f"{entry.name} {name}")
    interfaces = {path.name for path in Path("/sys/class/net").iterdir()}
    return {"mounts": mounts, "loops": loops, "cgroups": groups, "processes": processes, "interfaces": interfaces}


def processes_of(root: str) -> list[str]:
    """Command lines of what works on the data root of a container engine: daemon, containerd, shims, what tidies up."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{root}/" in command and str(os.getpid()) not in path.parts:
            found.append(command)
    return found


def skip_without_user_namespaces() -> None:
    """Skips the test where the kernel makes none, so in every chroot (user_namespaces(7)), with what it says."""
    tried = subprocess.run(["unshare", "--user", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(tried.stderr.strip())
