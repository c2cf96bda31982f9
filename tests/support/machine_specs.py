"""What tests of environments share: a system image of a few megabytes made from this host's programs; places."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, MachineSpec, Provision

PROGRAMS = (
    "sh",
    "cat",
    "sleep",
    "ls",
    "cp",
    "chmod",
    "mkdir",
    "nproc",
    "df",
    "dd",
    "true",
    "id",
    "touch",
    "head",
    "tail",
    "readlink",
    "test",
    "sync",
)

CPU = min(os.sched_getaffinity(0))


def small_image(directory: Path) -> Artifact:
    """A root file system with a shell and the mount points that the image builder makes (machines/chroot.py)."""
    for name in ("proc", "sys", "dev", "run", "tmp", "etc", "root", "dbtoll/data", "dbtoll/run"):
        (directory / name).mkdir(parents=True)
    (directory / "dbtoll/agent").touch()
    (directory / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (directory / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    for program in PROGRAMS:
        found = shutil.which(program, path="/usr/bin:/bin")
        assert found is not None
        _copy(Path(found), directory / "bin" / program)
        libraries = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"/\S+", libraries):
            _copy(Path(library), directory / library.lstrip("/"))
    return Artifact(f"small-{directory.parent.name}-{os.getpid()}", str(directory))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)


def machine_spec(
    arm: str,
    image: Artifact | None,
    *,
    provisions: Sequence[Provision] = (),
    resources: Resources | None = None,
    cpuset: Sequence[int] = (CPU,),
    options: dict[str, Any] | None = None,
) -> MachineSpec:
    """A place for one arm of this process's own run."""
    return MachineSpec(
        name=f"t{os.getpid()}-{arm}",
        run_id=f"t{os.getpid()}",
        arm=arm,
        image=image,
        provisions=tuple(provisions),
        resources=resources or Resources(memory_bytes=256 << 20, shm_bytes=16 << 20, open_files=1000),
        cpuset=tuple(cpuset),
        options=options or {},
    )


def groups_left() -> list[str]:
    """Control groups of this process's runs that still exist."""
    return [str(path) for path in Path("/sys/fs/cgroup").rglob(f"*t{os.getpid()}*")]


def start_of(pid: int) -> tuple[int, int]:
    """Sorts processes by their start, proc(5) ``starttime``: numbers begin anew after the highest one."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[19]), pid
