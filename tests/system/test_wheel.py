"""One wheel carries everything: who installs it needs no Rust and no checkout."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.wheel import agents_in, build_wheel


@pytest.mark.timeout(1200)
def test_the_wheel_carries_agent_and_experiments(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, platform.machine())
    assert "-py3-none-manylinux" in wheel.name
    home = tmp_path / "home"
    # The libraries are those of this environment; the package itself is the wheel's.
    venv.create(home, with_pip=True)
    subprocess.run([home / "bin" / "pip", "install", "-q", "--no-deps", wheel], check=True, cwd=tmp_path)
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    script = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import dbtoll\n"
        "from dbtoll.machines.agent.local import open_local\n"
        "from dbtoll.machines.agent.binary import find_agent\n"
        "from dbtoll.commands.experiments import experiments\n"
        "from dbtoll.system_packages import INSTALL, programs\n"
        "assert INSTALL.is_file() and 'mmdebstrap' in programs()\n"
        "print(dbtoll.__file__, find_agent(), (experiments() / 'quick.toml').is_file())\n"
        "with open_local() as host: print(host.run(['true']).exit_code)\n"
    )
    done = subprocess.run(
        [home / "bin" / "python", "-c", script, libraries], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    package, agent, shipped, code = done.stdout.split()
    told = Path(f"{agent}.sha256").read_text().split()[0]
    assert told == hashlib.sha256(Path(agent).read_bytes()).hexdigest()
    assert package.startswith(str(home))
    assert agent.startswith(str(home))
    assert (shipped, code) == ("True", "0")


@pytest.mark.timeout(1200)
def test_a_wheel_with_both_agents_is_for_every_machine(tmp_path: Path) -> None:
    """Both are static; the other architecture's starts where there is an emulator of its user mode."""
    wheel = build_wheel(tmp_path, "x86_64 aarch64")
    assert wheel.name.endswith("-py3-none-any.whl")
    agents = agents_in(wheel, tmp_path / "content")
    assert set(agents) == {"x86_64", "aarch64"}
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("it is static; whether it runs needs an emulator: apt-get install qemu-user-static")
    said = subprocess.run([emulator, agents["aarch64"], "--version"], capture_output=True, text=True, check=True).stdout
    assert "aarch64 static" in said
