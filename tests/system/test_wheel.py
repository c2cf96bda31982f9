"""One wheel carries everything: who installs it needs no Rust and no checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.program import ROOT


@pytest.mark.timeout(1200)
def test_the_wheel_carries_agent_and_experiments(tmp_path: Path) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: ./dbtoll setup brings one")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
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
