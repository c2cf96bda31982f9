"""Control groups of version 2, on a kernel that has nothing else: User Mode Linux, with this host's files as its root.

The same tests that run here on whatever the host has run there: in the root group, and once more in the root of a cgroup
namespace, as in a container.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dbtoll.machines.agent.binary import find_agent

UML = shutil.which("linux.uml")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(UML is None, reason="no linux.uml here: apt-get install -y user-mode-linux"),
    pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to read all of this host's files"),
]

ROOT = Path(__file__).parents[2]

INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t cgroup2 none /sys/fs/cgroup
mkdir /run/disk
mount -t ext4 /dev/ubda /run/disk
export {environ}
cd {root}
{job}
echo o > /proc/sysrq-trigger
sleep 60
"""

PYTEST = (
    "{python} -m pytest -q --color=no -p no:cacheprovider --basetemp=/run/disk/pytest -k native"
    " tests/system/test_native.py tests/contract/test_environments.py"
)

IN_THE_ROOT = "{pytest} && echo ALL-PASSED"
IN_A_NAMESPACE = """mkdir /sys/fs/cgroup/container
echo $$ > /sys/fs/cgroup/container/cgroup.procs
echo '+memory +cpu +io' > /sys/fs/cgroup/cgroup.subtree_control
unshare --cgroup --mount sh -c \
  'umount /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && {pytest} && echo ALL-PASSED'"""


JOBS = {"root": IN_THE_ROOT, "namespace": IN_A_NAMESPACE}


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """One for each job with what it says, at the same time: they have one processor each."""
    assert UML is not None
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    environ = kept | {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/run", "XDG_CACHE_HOME": "/run/cache"}
    started = {}
    with ExitStack() as ending:
        for name, job in JOBS.items():
            folder = tmp_path_factory.mktemp(name)
            init = folder / "init"
            init.write_text(
                INIT.format(
                    environ=" ".join(f"{name}='{value}'" for name, value in environ.items()),
                    root=ROOT,
                    job=job.format(pytest=PYTEST.format(python=sys.executable)),
                )
            )
            init.chmod(0o755)
            disk = folder / "disk"  # a limit of requests is one of a disk
            subprocess.run(["mke2fs", "-q", "-t", "ext4", disk, "512M"], check=True)
            argv = [
                str(find_agent()),
                "uml",
                UML,
                "mem=1200M",
                "rootfstype=hostfs",
                "rootflags=/",
                "ro",
                f"init={init}",
                f"ubd0={disk}",
            ]
            said = folder / "said"
            guest = subprocess.Popen(
                [*argv, "con=null", "con0=fd:0,fd:1"],
                stdin=subprocess.DEVNULL,
                stdout=ending.enter_context(said.open("wb")),
                stderr=subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},  # it leaves a directory in the home
            )
            started[name] = guest, said
            ending.callback(guest.wait)
            ending.callback(guest.kill)
        yield started


@pytest.mark.parametrize("name", JOBS)
def test_native_arms(name: str, guests: dict[str, tuple[subprocess.Popen[bytes], Path]]) -> None:
    guest, output = guests[name]
    guest.wait(500)
    said = output.read_text(errors="replace").rpartition("Run ")[2]
    print(said)
    # What failed in there stands first: of a long output the end alone may be kept.
    assert "ALL-PASSED" in said, [line for line in said.splitlines() if line.startswith(("E  ", "FAILED", "ERROR"))]
    # Not by skipping everything: for want of a second processor, and twice of a loop device (its kernel has no module).
    passed, skipped = (int((re.search(rf"(\d+) {what}", said) or ["", "0"])[1]) for what in ("passed", "skipped"))
    assert passed > 15
    assert skipped <= 3
