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
from tests.support.program import ROOT, is_root, skip_without_user_namespaces
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
budget = "30s"
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


USER = "ordinary"

USERS_SPECIFICATION = (
    SPECIFICATION.replace("/root/", f"/home/{USER}/")
    + """
[[arm]]
name = "bubblewrap"
stack = "bubblewrap"
[[arm]]
name = "podman"
stack = "podman"
[[arm]]
name = "uml"
stack = "uml"
"""
)


@pytest.fixture(scope="module")
def ordinary(newcomer: Path) -> Path:
    """The same machine with a user for whom root has done nothing; mmdebstrap is there."""
    skip_without_user_namespaces()
    assert inside(newcomer, "apt-get", "update").returncode == 0
    assert inside(newcomer, "apt-get", "install", "-y", "--no-install-recommends", "mmdebstrap").returncode == 0
    assert inside(newcomer, "useradd", "--create-home", "--shell", "/bin/sh", USER).returncode == 0
    home = newcomer / "home" / USER
    (wheel,) = (newcomer / "root").glob("*.whl")
    shutil.copy(wheel, home)
    shutil.copytree(ROOT / "examples/sql", home / "sql")
    (home / "spec.toml").write_text(USERS_SPECIFICATION)
    installed = inside(newcomer, "pipx", "install", f"/home/{USER}/{wheel.name}", user=USER)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return newcomer


def test_doctor_tells_an_ordinary_user_what_works_and_what_root_has_to_add(ordinary: Path) -> None:
    done = inside(ordinary, "dbtoll", "doctor", "--quick", "--json", user=USER)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "native" in found["measurable"]
    # Without this program there is but one user in the namespace, so no image can be made.
    assert "newuidmap" in [lack["what"] for lack in found["machine"]["privileges"]["lacks"]]
    assert {"uidmap", "sudo"} <= set(found["hint"].split())
    refused = inside(ordinary, "dbtoll", "run", "spec.toml", user=USER)
    assert refused.returncode == 69
    assert "apt-get install uidmap" in refused.stderr


@pytest.mark.alone  # it has a run, in whose way others would be
def test_an_ordinary_user_measures_and_is_told_what_was_missing(ordinary: Path) -> None:
    packages = ("uidmap", "user-mode-linux", "podman", "crun", "curl")
    assert inside(ordinary, "apt-get", "install", "-y", "--no-install-recommends", *packages).returncode == 0
    # Root's podman has been at work there.
    assert inside(ordinary, "touch", "/run/lock/netavark.lock").returncode == 0
    done = inside(ordinary, "dbtoll", "run", "spec.toml", "--json", "--runs-dir", "runs", user=USER)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(arm["rounds"], arm["outcome"]) for arm in result["arms"]] == [(2, "ok")] * 5
    checks = {check["name"]: check["passed"] for arm in result["arms"] for check in arm["checks"]}
    assert checks["others_asleep"] is True
    assert checks["equal_answers"] is True
    (told,) = [warning["text"] for warning in result["warnings"] if warning["kind"] == "without_root"]
    assert told.startswith("measured without root: ")
    (folder,) = (ordinary / "home" / USER / "runs").glob("2*")
    assert "measured without root" in (folder / "report.html").read_text()
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["host"]["without_root"]["control_groups"] in {"none", "v2"}
    # Root would measure something else, so it does not go on with it.
    shutil.copytree(folder, ordinary / "root/theirs", symlinks=True)
    resumed = inside(ordinary, "dbtoll", "run", "/root/theirs", "--resume", "--budget", "5m", user="root")
    assert resumed.returncode == 66
    assert "host.without_root" in resumed.stderr


def test_what_only_root_may_is_said_to_an_ordinary_user(ordinary: Path) -> None:
    for words, what in (
        (("compare", "native", "--engine", "noop", "-f", "cache=cold", "--exclusive"), "only root may"),
        (("compare", "docker", "--engine", "noop"), "without root there is no Docker daemon"),
        (("compare", "native:cpu_quota=0.5", "--engine", "noop"), "without control groups there is no quota"),
    ):
        refused = inside(ordinary, "dbtoll", *words, user=USER)
        assert refused.returncode == 69, refused.stderr
        assert what in refused.stderr


@pytest.mark.alone  # what another test runs as a user would be found
def test_nothing_of_a_killed_user_runs_on(ordinary: Path) -> None:
    """The kernel ends the processes; `clean` removes the files."""
    script = """
        dbtoll compare native --engine noop --budget 60s --runs-dir killed >told 2>&1 &
        for _ in $(seq 300); do grep -q round told && break; sleep 0.2; done
        kill -KILL $!
        wait
        sleep 1
        for each in /proc/[0-9]*; do
            [ "$(stat -c %u $each)" != "$(id -u)" ] || tr '\\0' ' ' <$each/cmdline; echo
        done 2>/dev/null | grep -c '[d]btoll-agent'
        dbtoll clean
        dbtoll clean
        find .cache/dbtoll/scratch .cache/dbtoll/run .cache/dbtoll/journals -mindepth 1 2>/dev/null | wc -l
    """
    done = inside(ordinary, "sh", "-c", script, user=USER)
    assert done.stdout.splitlines()[0] == "0", done.stdout + done.stderr
    assert "removed" in done.stdout
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr


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
