"""Running dbtoll as a user does, and listing what a machine carries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AGENTS_TESTS = ("cargo", "test", "--locked", "--quiet")
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
