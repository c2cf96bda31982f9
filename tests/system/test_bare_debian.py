"""The wheel on a Debian that has neither compiler nor checkout: doctor, and a comparison with all that it installs itself."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbtoll.images.cache import Cache
from tests.support.bare_debian import bare_debian, inside
from tests.support.program import ROOT, is_root
from tests.support.wheel import agents_in, build_wheel

pytestmark = [
    pytest.mark.skipif(not is_root(), reason="a root of its own takes mounts, and they take root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="no mmdebstrap here: ./dbtoll setup brings it"),
    pytest.mark.timeout(1800),
]

SPECIFICATION = """
[engine]
name = "postgres"
[workload]
name = "sql"
directory = "/root/sql"
[precision]
budget = "60s"
rounds_min = 2
rounds_max = 2
[[arm]]
name = "native"
stack = "native"
"""


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel is installed there, and nothing else of ours."""
    folder = tmp_path_factory.mktemp("newcomer")
    wheel = build_wheel(folder, platform.machine())
    with bare_debian(folder / "root", "bookworm", ("pipx", "ca-certificates"), Cache().root) as root:
        shutil.copy(wheel, root / "root")
        shutil.copytree(ROOT / "examples/sql", root / "root/sql")
        (root / "root/spec.toml").write_text(SPECIFICATION)
        installed = inside(root, "pipx", "install", f"/root/{wheel.name}")
        assert installed.returncode == 0, installed.stdout + installed.stderr
        yield root


def test_the_wheel_says_without_a_compiler_what_would_bring_the_rest(newcomer: Path) -> None:
    """Without a word that it may, it installs nothing."""
    for program in ("cc", "gcc", "cargo", "rustc", "mmdebstrap"):
        assert inside(newcomer, "sh", "-c", f"command -v {program}").returncode != 0
    found = json.loads(inside(newcomer, "dbtoll", "doctor", "--quick", "--json").stdout)
    assert found["machine"]["agent"]["state"] == "ready"
    assert found["environments"]["native"]["state"] == "ready"
    assert {"mmdebstrap", "docker.io", "user-mode-linux"} <= set(found["hint"].split())
    assert inside(newcomer, "sh", "-c", "command -v mmdebstrap").returncode != 0


@pytest.mark.alone  # it has a run, in whose way others would be
def test_the_wheel_measures_where_there_is_no_compiler(newcomer: Path) -> None:
    """It installs what this comparison needs, and no more."""
    done = inside(newcomer, "dbtoll", "run", "/root/spec.toml", "--yes", "--json", "--runs-dir", "/root/runs")
    assert done.returncode == 0, done.stderr
    assert "will install these Debian packages: mmdebstrap" in done.stderr
    assert inside(newcomer, "sh", "-c", "command -v dockerd || command -v qemu-system-x86_64").returncode != 0
    arms = json.loads(done.stdout)["arms"]
    assert [(arm["rounds"], arm["outcome"]) for arm in arms] == [(2, "ok")] * 2  # native and its copy
    (folder,) = (newcomer / "root/runs").glob("2*")
    assert (folder / "report.html").stat().st_size > 10_000
    # Again, there is nothing to be installed.
    again = inside(newcomer, "dbtoll", "setup", "--yes")
    assert "mmdebstrap" not in again.stderr


CROSS = ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static", "gcc", "libc6-dev")
RUST = {
    "bookworm": ("cargo-web", "rustc-web", "libstd-rust-web-dev:arm64"),
    "trixie": ("cargo", "rustc", "libstd-rust-dev:arm64"),
}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="it is built for the other architecture on this one")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_wheel_for_every_machine_is_built_with_debians_packages_alone(
    tmp_path: Path, suite: str, request: pytest.FixtureRequest
) -> None:
    if "slow" not in request.config.option.markexpr:
        pytest.skip("it takes five minutes and more: ./dbtoll test -m slow tests/system/test_bare_debian.py")
    packages = ("pipx", "ca-certificates", *CROSS, *RUST[suite])
    with bare_debian(tmp_path / "root", suite, packages, Cache().root, architectures="amd64,arm64") as root:
        subprocess.run(["git", "clone", "-q", ROOT, root / "root/dbtoll"], check=True)
        command = "DBTOLL_WHEEL_ARCHITECTURES='x86_64 aarch64' pipx run build --wheel --outdir /root/dist /root/dbtoll"
        built = inside(root, "sh", "-c", command, timeout_s=1500)
        assert built.returncode == 0, built.stdout + built.stderr
        (wheel,) = (root / "root/dist").glob("*-py3-none-any.whl")
        agents = agents_in(wheel, root / "root/content")
        said = inside(root, "qemu-aarch64-static", f"/{agents['aarch64'].relative_to(root)}", "--version")
    assert "aarch64 static" in said.stdout
