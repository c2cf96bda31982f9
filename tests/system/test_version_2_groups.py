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
from pathlib import Path

import pytest

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
export {environ}
cd {root}
{job}
echo o > /proc/sysrq-trigger
sleep 60
"""

PYTEST = (
    "{python} -m pytest -q --color=no -p no:cacheprovider --basetemp=/run/pytest -k native"
    " tests/system/test_native.py tests/contract/test_environments.py"
)

IN_THE_ROOT = "{pytest} && echo ALL-PASSED"
IN_A_NAMESPACE = """mkdir /sys/fs/cgroup/container
echo $$ > /sys/fs/cgroup/container/cgroup.procs
echo '+memory +cpu' > /sys/fs/cgroup/cgroup.subtree_control
unshare --cgroup --mount sh -c \
  'umount /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && {pytest} && echo ALL-PASSED'"""


@pytest.mark.parametrize("job", [IN_THE_ROOT, IN_A_NAMESPACE], ids=["root", "namespace"])
def test_native_arms(job: str, tmp_path: Path) -> None:
    assert UML is not None
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    environ = kept | {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/run", "XDG_CACHE_HOME": "/run/cache"}
    init = tmp_path / "init"
    init.write_text(
        INIT.format(
            environ=" ".join(f"{name}='{value}'" for name, value in environ.items()),
            root=ROOT,
            job=job.format(pytest=PYTEST.format(python=sys.executable)),
        )
    )
    init.chmod(0o755)
    argv = [UML, "mem=1200M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "con=null", "con0=fd:0,fd:1"]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},  # it leaves a directory in the home
    )
    said = done.stdout.rpartition("Run ")[2]
    print(said)
    assert "ALL-PASSED" in said
    # Not by skipping everything: one skip is right, for want of a second processor.
    passed, skipped = (int((re.search(rf"(\d+) {what}", said) or ["", "0"])[1]) for what in ("passed", "skipped"))
    assert passed > 15
    assert skipped <= 1
