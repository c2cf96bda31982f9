"""The environment ``docker`` on podman's compatible socket, with a service that the tests start themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docker as sdk
import pytest

from dbtoll.contracts.machines import groups_left, machine_spec, small_image
from dbtoll.environments import docker
from dbtoll.environments.docker import DockerMachine, images
from dbtoll.environments.docker import Environment as Docker
from dbtoll.environments.podman import Environment as Podman
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.layout import find_layout
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.machine import Artifact, Provision
from dbtoll.runner.cleanup.journal import leftovers
from tests.support.import_by import import_by
from tests.support.killed import kill_a_run
from tests.support.program import is_root, processes_of

pytestmark = pytest.mark.timeout(180)

Open = Callable[..., DockerMachine]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="module")
def short_path() -> Iterator[Path]:
    """podman refuses a state of more than 50 characters."""
    with TemporaryDirectory(prefix="p") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def socket(short_path: Path, image: Artifact) -> Iterator[str]:
    """Of a service with storage of its own; skips, with what podman says, where it cannot run a container."""
    if not is_root():
        pytest.skip("not root: control groups cannot be written")
    if shutil.which("podman") is None:
        pytest.skip("no podman is installed")
    own = short_path
    podman = ["podman", *(f"--{name}={own}/{name}" for name in ("root", "runroot", "tmpdir"))]
    podman += ["--cgroup-manager=cgroupfs"]
    if shutil.which("runc"):  # crun of Debian 12 refuses hosts with both versions of control groups
        podman += ["--runtime=runc"]
    # Where root may not raise limits, podman's own defaults keep every container from starting.
    limits = ["--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000"]
    with open_local() as here:
        layout = find_layout(here)
        group = layout.path(f"t{os.getpid()}", "trial")
        trial = [*podman, "run", "--rm", "--network=none", f"--cgroup-parent={group}", *limits]
        done = subprocess.run([*trial, "--rootfs", image.path, "true"], capture_output=True, text=True, check=False)
        removal.remove(here, {"paths": [tree.mount + group for tree in layout.hierarchies]})
    if done.returncode != 0:
        pytest.skip(f"podman cannot run a container here: {done.stderr.strip()}")
    path = own / "podman.sock"
    with (own / "log").open("wb") as log:
        service = subprocess.Popen([*podman, "system", "service", "--time=0", f"unix://{path}"], stderr=log, stdout=log)
    try:
        while not path.exists():
            assert service.poll() is None, (own / "log").read_text()
            time.sleep(0.05)
        yield str(path)
    finally:
        service.terminate()
        service.wait()
        # What tidies up after a container that was killed mounts the storage once more.
        until = time.monotonic() + 30
        while processes_of(str(own)) and time.monotonic() < until:
            time.sleep(0.05)
        subprocess.run([*podman, "system", "reset", "--force"], capture_output=True, check=False)
        assert processes_of(str(own)) == []
        assert str(own) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def client(socket: str) -> Iterator[sdk.APIClient]:
    """Whatever a test did, no container and no group is left."""
    api = sdk.APIClient(base_url=f"unix://{socket}", version="auto")
    yield api
    assert api.containers(all=True) == []
    assert not api.volumes()["Volumes"]
    api.close()
    assert groups_left() == []


@pytest.fixture
def open_one(local: AgentMachine, image: Artifact, socket: str, client: sdk.APIClient) -> Open:
    del client

    def open_it(arm: str = "a", **asked: Any) -> DockerMachine:
        asked["options"] = {"socket": socket} | asked.get("options", {})
        return Docker().open(local, machine_spec(arm, image, **asked), NullJournal())

    return open_it


def test_the_probe_finds_nothing_missing(local: AgentMachine, socket: str, client: sdk.APIClient) -> None:
    del client
    assert Docker().missing_requirements(local, {"socket": socket}) == []
    assert Podman().missing_requirements(local, {"socket": socket}) == []
    (lack,) = Podman().missing_requirements(local, {"socket": socket, "runtime": "another"})
    assert "not by another" in lack.why


def test_an_arm_has_what_it_was_given_and_sleeps(open_one: Open, socket: str) -> None:
    with open_one("a") as first, open_one("b") as second:
        assert second.run(["cat"], input=b"through podman").output == b"through podman"
        assert first.run(["nproc"]).output == b"1\n"
        told = first.facts()["environment"]
        assert told["daemon"] == socket
        assert "Podman Engine" in told["components"]
        assert told["runtime_version"]
        first.freeze()
        before = first.cpu_ns()
        assert second.run(["true"]).exit_code == 0
        assert first.cpu_ns() == before
        first.thaw()
        assert first.run(["true"]).exit_code == 0
        second.close()  # with its relay, not with the other's
        assert first.run(["true"]).exit_code == 0


def test_an_image_is_imported_where_there_is_no_docker_program(
    client: sdk.APIClient, socket: str, image: Artifact, local: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman 4.3 does not look at the parameter ``tag``: the image is there by its whole name."""
    import_by("curl", local, monkeypatch)
    other = Artifact(f"{image.key}-by-curl", image.path)
    with Docker().open(local, machine_spec("a", other, options={"socket": socket}), NullJournal()) as arm:
        assert arm.run(["true"]).exit_code == 0
    client.remove_image(images.tag_of(other))


@pytest.mark.parametrize("storage", ["bind", "volume", "layer", "memory"])
def test_data_lies_where_it_was_asked_for(open_one: Open, tmp_path: Path, storage: str) -> None:
    (tmp_path / "given").write_text("content")
    provision = Provision(Artifact("data", str(tmp_path)), "/dbtoll/data", writable=True)
    with open_one(provisions=[provision], options={"storage": storage}) as arm:
        assert arm.get("/dbtoll/data/given") == b"content"
        arm.put("/dbtoll/data/made", b"inside")
        assert (" /dbtoll/data " in arm.get("/proc/self/mountinfo").decode()) == (storage != "layer")
    assert (tmp_path / "made").exists() == (storage == "bind")


def test_options_reach_the_container(open_one: Open) -> None:
    def mode(arm: DockerMachine) -> str:
        status = arm.get("/proc/self/status").decode()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))

    with open_one() as arm:
        assert mode(arm) == "2"
        assert int(arm.run(["sh", "-c", "df -B1 --output=size /dev/shm | tail -n 1"]).output) == 16 << 20
        assert [line.split(":")[0].strip() for line in arm.get("/proc/net/dev").decode().splitlines()[2:]][:1] == ["lo"]
    options = {"seccomp": "unconfined", "network": "host", "shm": 4 << 20, "cpu_quota": 0.25, "cpu_period": 20_000_000}
    with open_one(options=options) as arm:
        assert mode(arm) == "0"
        assert int(arm.run(["sh", "-c", "df -B1 --output=size /dev/shm | tail -n 1"]).output) == 4 << 20
        assert arm.get("/proc/net/dev") != b""
        assert quotas() in ({"5000"}, {"5000 20000"})


def quotas() -> set[str]:
    """What the kernel holds this process's arms to: us of every period, as either version of control groups says it."""
    own = f"*t{os.getpid()}*/libpod-*"
    files = [file for name in ("cpu.cfs_quota_us", "cpu.max") for file in Path("/sys/fs/cgroup").rglob(f"{own}/{name}")]
    return {file.read_text().strip() for file in files}


def test_what_a_killed_run_left_can_be_removed(
    client: sdk.APIClient, socket: str, image: Artifact, local: AgentMachine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill_a_run(folder, "docker", image, {"socket": socket})
    left = leftovers(folder)
    assert sorted(line["kind"] for line in left) == ["cgroup", "container"]
    assert len(client.containers(all=True)) == 1
    for line in sorted(left, key=lambda line: line["kind"], reverse=True):  # the container first, still frozen
        {"container": docker.remove, "cgroup": removal.remove}[line["kind"]](local, line)
    for line in left:
        assert not any(Path(path).exists() for path in line.get("paths", []))
