"""What contract tests are made of: this host, arms of the baseline on the system image, and a small image of this host's programs.

Where something is missing the test is skipped, and says what and why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dbtoll import defaults, registry
from dbtoll.errors import ProgramFailed, Unavailable
from dbtoll.images import debian
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, MachineSpec, Provision
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.preparation.software import image_software

OpenArm = Callable[..., Machine]

PROGRAMS = (
    "sh",
    "cat",
    "sleep",
    "ls",
    "cp",
    "chmod",
    "chown",
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
    "find",
    "stat",
)

CPU = min(os.sched_getaffinity(0))


@contextmanager
def local_machine() -> Iterator[AgentMachine]:
    """This host."""
    try:
        machine = open_local()
    except Unavailable as lack:
        pytest.skip(str(lack))
    with machine:
        yield machine


def system_image(engine: Engine | None = None) -> Artifact:
    """Debian's, from the user's cache, with what that engine needs; built if it is not there."""
    if os.geteuid() != 0:
        pytest.skip("an image that a chroot can use needs root")
    try:
        return debian.debian_image(Cache(), software=image_software(engine)).artifact()
    except Unavailable as lack:
        pytest.skip(str(lack))


@contextmanager
def arms_of_baseline(local: AgentMachine, folder: Path) -> Iterator[OpenArm]:
    """``open_arm(*provisions, name="a", resources=None, engine=None)``: a native arm; closed, and nothing left, at the end.

    ``folder``: for the journal, made here.
    """
    folder.mkdir()
    baseline = registry.find("environments", defaults.BASELINE)()
    if lacking := baseline.missing_requirements(local, {}):
        pytest.skip(f"{baseline.name}: {lacking[0].what}: {lacking[0].why}")
    with Journal(folder) as journal, ExitStack() as machines:

        def open_arm(
            *provisions: Provision,
            name: str = "a",
            resources: Resources | None = None,
            engine: Engine | None = None,
        ) -> Machine:
            machine: Machine = baseline.open(
                local,
                MachineSpec(
                    name=f"{name}-{os.getpid()}",
                    run_id=f"test-{os.getpid()}",
                    arm=name,
                    image=system_image(engine),
                    provisions=provisions,
                    resources=resources or Resources(memory_bytes=1 << 30),
                    cpuset=(CPU,),
                ),
                journal,
            )
            machines.callback(machine.close)
            return machine

        yield open_arm
    assert leftovers(folder) == []


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
    return small_image_at(directory)


def small_image_at(directory: Path) -> Artifact:
    """One that `small_image` has made."""
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


@contextmanager
def loop_device(machine: AgentMachine, folder: Path, size_bytes: int = 640 << 20) -> Iterator[str]:
    """An empty block device on a sparse file in ``folder``. Skips the test where the kernel has no loop devices."""
    file = folder / "device"
    with file.open("wb") as made:
        made.truncate(size_bytes)
    try:
        device = machine.run(["losetup", "--find", "--show", str(file)]).output.decode().strip()
    except ProgramFailed as failure:
        pytest.skip(failure.message)
    try:
        yield device
    finally:
        machine.run(["losetup", "--detach", device])
        file.unlink()


# As the agent does it (agent/src/launch.rs): in a chroot `/` may be no mount point, whose propagation cannot be changed. Then the
# same tree is bound in one place more, and that place becomes `/`.
_OWN_MOUNTS = """
mount --make-rslave / 2>/dev/null && exec "$@"
mount --rbind / /mnt || exit
if grep -q '^[^-]* /mnt [^-]* shared:' /proc/self/mountinfo; then
    umount --lazy /mnt
    echo 'a chroot whose root is no mount point, where mounts are shared: nothing can be mounted unseen' >&2
    exit 1
fi
chroot /mnt mount --make-rslave / && exec chroot /mnt "$@"
"""


def in_own_mounts(*command: str) -> list[str]:
    """The command in a mount namespace of its own: what is mounted in there is not seen outside."""
    return ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _OWN_MOUNTS, "sh", *command]


@contextmanager
def mounted_elsewhere(device: str, at: Path) -> Iterator[None]:
    """A device that is mounted, in a mount namespace of its own: a namespace that anybody makes meanwhile is a copy of ours, and
    would keep the mount, and with it the device, when we are done."""
    script = 'mount "$1" "$2" && echo mounted && read -r _; umount "$2"'
    words = in_own_mounts("sh", "-c", script, "sh", device, str(at))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "mounted\n"
        try:
            yield
        finally:
            holder.communicate()
    assert holder.returncode == 0


def groups_left() -> list[str]:
    """Control groups of this process's runs that still exist."""
    return [str(path) for path in Path("/sys/fs/cgroup").rglob(f"*t{os.getpid()}*")]


def start_of(pid: int) -> tuple[int, int]:
    """Sorts processes by their start, proc(5) ``starttime``: numbers begin anew after the highest one."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[19]), pid
