"""Sandboxes that need not be installed: what is fetched for them, what does not work is said, and whether commits reach the device.

Each is measured for one round with PostgreSQL, through the runner and the analysis.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dbtoll.analysis.result.schema import CheckResult
from dbtoll.contracts.machines import groups_left, machine_spec, small_image
from dbtoll.environments.bubblewrap import PROGRAM as BWRAP
from dbtoll.environments.bubblewrap import Environment as Bubblewrap
from dbtoll.environments.docker import Environment as Docker
from dbtoll.environments.docker import runtimes
from dbtoll.environments.podman import Environment as Podman
from dbtoll.errors import ProgramFailed, Unavailable, UsageError
from dbtoll.images import debian
from dbtoll.images.cache import Cache
from dbtoll.images.program import debian_program
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.programs import PACKAGE
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, PackagedProgram
from tests.support.lacking import needs
from tests.support.one_round import measure_one_round
from tests.support.program import skip_without_user_namespaces

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups and tracing need root"),
]


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """Where daemons of these tests keep what is theirs: a short path, as their sockets need it."""
    with TemporaryDirectory(prefix="dbtoll-") as folder:
        yield folder


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="module")
def runsc() -> Artifact:
    if lacking := debian.missing_requirements():
        pytest.skip(f"{lacking[0].what}: {lacking[0].why}")
    return debian_program(Cache(), runtimes.PACKAGED["runsc"])[0]


def stack_at(stack: str, root: str) -> str:
    """``stack`` with a data root of the tests' own, where it has one."""
    name, _, options = stack.partition(":")
    if name not in ("docker", "podman"):
        return stack
    return f"{name}:{options},data_root={root}/{name}".replace(":,", ":")


# --- what is fetched -----------------------------------------------------------------------------------------------------


def test_a_program_comes_out_of_its_package_and_says_which(runsc: Artifact) -> None:
    told = json.loads((Path(runsc.path) / PACKAGE).read_text())
    assert told["package"] == "runsc" and told["suite"] == "trixie"
    assert told["version"].startswith("0.0~20240729.0-4")
    assert len(told["sha256"]) == 64
    said = subprocess.run([f"{runsc.path}/runsc", "--version"], capture_output=True, text=True, check=True)
    assert "20240729" in said.stdout


def test_no_mirror_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="mmdebstrap ended with") as caught:
        debian_program(Cache(tmp_path), BWRAP, mirror="http://127.0.0.1:9/debian")
    assert "mirror" in caught.value.hint
    assert [path.suffix for path in (tmp_path / "program").iterdir()] == [".lock"]


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Path]:
    """A mirror with one package that holds a program ``said``; trusted, for it is signed by nobody."""
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN/control").write_text(
        "Package: said\nVersion: 1.0\nArchitecture: all\nMaintainer: dbtoll <dbtoll@localhost>\nDescription: says so\n"
    )
    (package / "usr/bin").mkdir(parents=True)
    (package / "usr/bin/said").write_text("#!/bin/sh\necho so\n")
    folder = tmp_path / "mirror"
    folder.mkdir()
    made = folder / "said_1.0_all.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", package, made], check=True, capture_output=True)
    size = made.stat().st_size
    sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
    (folder / "Packages").write_text(
        f"Package: said\nVersion: 1.0\nArchitecture: all\nFilename: ./said_1.0_all.deb\nSize: {size}\nSHA256: {sha256}\n\n"
    )
    yield folder


def taken(mirror: Path, cache: Path, name: str = "said") -> tuple[Artifact, Json]:
    wanted = PackagedProgram(name, "said", "trixie")
    return debian_program(Cache(cache), wanted, mirror=f"deb [trusted=yes] file:{mirror} ./")


def test_a_package_that_is_not_what_the_list_says_is_refused(mirror: Path, tmp_path: Path) -> None:
    made, facts = taken(mirror, tmp_path / "cache")
    assert (facts["package"], facts["version"]) == ("said", "1.0")
    assert facts["sha256"] in (mirror / "Packages").read_text()
    assert (Path(made.path) / "said").stat().st_mode & 0o777 == 0o755
    with pytest.raises(Exception, match="has no /usr/bin/other"):
        taken(mirror, tmp_path / "cache", "other")
    package = mirror / "said_1.0_all.deb"
    package.write_bytes(package.read_bytes()[:-1] + b"!")
    with pytest.raises(ProgramFailed, match=r"was not fetched: .*Hash Sum mismatch"):
        taken(mirror, tmp_path / "another")
    assert [path.suffix for path in (tmp_path / "another/program").iterdir()] == [".lock"]


# --- what does not work is said ------------------------------------------------------------------------------------------


def docker_lack(local: AgentMachine, root: str, **options: Any) -> str:
    """The first sentence of what docker lacks with these options, with its hint."""
    needs(f"docker:data_root={root}/docker")
    asked = {"data_root": f"{root}/docker", **options}
    (lack,) = Docker().missing_requirements(local, asked)
    assert lack.hint
    assert "\n" not in lack.why
    assert groups_left() == []
    return f"{lack.why}; {lack.hint}"


def test_a_gvisor_that_runs_nothing_is_told_from_one_that_does(
    local: AgentMachine, root: str, runsc: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runsc`` itself, told to use a platform that it has not: as an old one is, or a kernel that does not let it."""
    told = docker_lack(
        local, root, runtime="runsc", runtime_path=f"{runsc.path}/runsc", runtime_args=["--platform=none"]
    )
    assert "cannot run a program: unknown platform: none" in told and "platform" in told
    hanging = tmp_path / "runsc-hangs"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(runtimes, "TRIAL_S", 2)  # it never ends
    assert "ran no program within" in docker_lack(local, root, runtime="runsc", runtime_path=str(hanging))
    assert list(Path("/tmp").glob("runsc-do*")) == []


def test_a_gvisor_that_is_known_to_panic_is_refused(local: AgentMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the version of the package that is installed here: `runsc --version` says the same of both."""
    installed = local.run(["dpkg-query", "--show", "--showformat=${Version}", "coreutils"]).output.decode()
    monkeypatch.setattr(runtimes, "PANICS", (installed,))
    monkeypatch.setattr(runtimes, "GVISOR", "env")
    monkeypatch.setattr(runtimes, "PACKAGED", {"env": PackagedProgram("env", "coreutils", "trixie")})
    with pytest.raises(Unavailable, match="panics under PostgreSQL") as caught:
        runtimes._installed(local, "/usr/bin/env")
    assert "runtime_path" in caught.value.hint


def test_a_runtime_that_is_not_there_is_said(local: AgentMachine, root: str) -> None:
    assert "there is no runtime nosuch" in docker_lack(local, root, runtime="nosuch")
    assert "there is no runtime /no/such" in docker_lack(local, root, runtime="runsc", runtime_path="/no/such")
    assert "runtime=runsc" in docker_lack(local, root, platform="systrap")


def test_kata_is_found_by_the_name_of_its_shim(
    local: AgentMachine, root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = docker_lack(local, root, runtime="kata")
    assert "containerd-shim-kata-v2" in told and "katacontainers.io" in told
    shim = tmp_path / "containerd-shim-kata-v2"
    shim.touch(mode=0o755)
    monkeypatch.setattr(runtimes, "find_program", lambda machine, name: str(shim) if name == shim.name else None)
    options = {"runtime": "kata", "runtime_path": None, "runtime_args": (), "platform": None}
    for name in ("kata", "io.containerd.kata.v2"):
        found = runtimes.register(local, None, None, {**options, "runtime": name})  # type: ignore[arg-type]
        assert found.name == "io.containerd.kata.v2"


def test_a_daemon_of_the_machines_own_is_used_only_if_it_has_the_runtime() -> None:
    info = {"Runtimes": {"runc": {}, "runsc": {}}}
    plain = {"runtime": None, "runtime_path": None, "runtime_args": (), "platform": None}
    assert runtimes.has_runtime(info, plain)
    assert runtimes.has_runtime(info, plain | {"runtime": "runsc"})
    assert not runtimes.has_runtime(info, plain | {"runtime": "kata"})
    assert not runtimes.has_runtime(info, plain | {"runtime": "runsc", "platform": "ptrace"})
    assert not runtimes.has_runtime(info, plain | {"runtime": "runsc", "runtime_path": "/opt/runsc"})


@pytest.fixture
def bwrap(local: AgentMachine) -> str:
    found = Bubblewrap().program(local, {})
    return "bwrap" if found is None else f"{debian_program(Cache(), found)[0].path}/bwrap"


def test_bubblewrap_says_where_namespaces_are_forbidden(local: AgentMachine, bwrap: str, tmp_path: Path) -> None:
    """Around it is a user namespace in which no other may be made: what its user may not do on some hosts."""
    skip_without_user_namespaces()
    forbidding = tmp_path / "bwrap"
    inside = f'echo 0 >/proc/sys/user/max_user_namespaces; exec {bwrap} "$@"'
    forbidding.write_text(f"#!/bin/sh\nexec unshare --user --map-root-user sh -c '{inside}' bwrap \"$@\"\n")
    forbidding.chmod(0o755)
    options = {"path": str(forbidding), "unshare": ["user", "pid"]}
    (lack,) = Bubblewrap().missing_requirements(local, options)
    assert "bwrap" in lack.why and "\n" not in lack.why
    assert "max_user_namespaces" in lack.hint
    (lack,) = Bubblewrap().missing_requirements(local, {"path": "/no/such"})
    assert "there is no program /no/such" in lack.why
    with pytest.raises(UsageError, match="no namespace time"):
        Bubblewrap().missing_requirements(local, {"unshare": ["time"]})
    assert groups_left() == []


def test_bubblewrap_has_the_namespaces_that_were_asked_for(local: AgentMachine, image: Artifact, bwrap: str) -> None:
    def differing(**options: Any) -> set[str]:
        names = ("user", "pid", "ipc", "uts", "cgroup", "net", "mnt")
        ours = {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in names}
        asked = machine_spec("a", image, options={"path": bwrap, **options})
        with Bubblewrap().open(local, asked, NullJournal()) as arm:
            theirs = {name: arm.run(["readlink", f"/proc/self/ns/{name}"]).output.decode().strip() for name in names}
            told = arm.facts()["environment"]
        assert told["version"].startswith("bubblewrap ")
        return {name for name in names if ours[name] != theirs[name]}

    assert differing() == {"mnt", "pid", "ipc", "uts", "cgroup", "net"}
    assert differing(network="host", unshare=[]) == {"mnt"}
    skip_without_user_namespaces()
    assert differing(network="host", unshare=["user", "uts"]) == {"mnt", "user", "uts"}


def test_podman_says_what_is_wrong_with_a_socket(local: AgentMachine, tmp_path: Path) -> None:
    (lack,) = Podman().missing_requirements(local, {"socket": str(tmp_path / "none")})
    assert f"no Docker API answers at {tmp_path}/none" in lack.why and lack.hint
    others = tmp_path / "others"
    others.touch()
    os.chown(others, 4321, 4321)
    (lack,) = Podman().missing_requirements(local, {"socket": str(others)})
    assert "is of user 4321" in lack.why and "as that user" in lack.hint
    (lack,) = Podman().missing_requirements(local, {"data_root": f"/tmp/{'long' * 20}"})
    assert "too long for podman" in lack.why and lack.hint
    assert groups_left() == []


# --- whether commits reach the device --------------------------------------------------------------------------------------

ONE_START = """
baseline = "native"
[engine]
name = "postgres"
[workload]
name = "tpch"
scale = 0.01
queries = ["Q6"]
[resources]
memory = "1 GiB"
[precision]
rounds_min = 2
[[arm]]
name = "native"
stack = "native"
[[arm]]
name = "other"
stack = "{}"
"""


def gate(local: AgentMachine, stack: str, folder: Path) -> CheckResult:
    """What the check finds of one start with PostgreSQL, whose answers are right."""
    needs(stack)
    result = measure_one_round(ONE_START.format(stack), folder)
    (arm,) = (each for each in result.arms if each.name == "other")
    checks = {check.name: check for check in arm.checks}
    assert checks["equal_answers"].passed is True, checks["equal_answers"].finding
    return checks["commit_reaches_device"]


@pytest.mark.parametrize(
    "stack", ["docker", "docker:runsc", "docker:runsc,platform=ptrace", "podman", "bubblewrap", "bubblewrap:host"]
)
def test_commits_reach_the_device(local: AgentMachine, root: str, tmp_path: Path, stack: str) -> None:
    found = gate(local, stack_at(stack, root), tmp_path / "run")
    assert found.passed is True, found.finding
    assert found.finding.count("all 5 were written to ") == 2
    assert groups_left() == []


def test_commits_that_a_sandbox_keeps_to_itself_are_found(
    local: AgentMachine, root: str, runsc: Artifact, tmp_path: Path
) -> None:
    """gVisor with all that is written in its memory: PostgreSQL's fdatasync succeeds, and nothing reaches the host."""
    stack = stack_at("docker:runsc,runtime_args=--overlay2=all:memory", root)
    found = gate(local, stack, tmp_path / "run")
    assert found.passed is False
    assert found.finding.count("of 5 that were acknowledged none reached a block device") == 2
