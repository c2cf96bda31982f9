"""The environment ``docker`` with a real daemon, which the tests start themselves and which nothing else may notice."""

from __future__ import annotations

import gzip
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker as sdk
import pytest

from dbtoll.contracts.machines import CPU, groups_left, machine_spec, small_image
from dbtoll.doctor import without_agent
from dbtoll.environments import docker
from dbtoll.environments.docker import DockerMachine, dockerd, images
from dbtoll.environments.docker import Environment as Docker
from dbtoll.environments.docker.api import Api
from dbtoll.environments.docker.container import LABEL
from dbtoll.environments.docker.images import Imported, import_image, imported, tag_of
from dbtoll.environments.native import Environment as Native
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images.oci import unpack_image
from dbtoll.machines import chroot, network_interfaces, programs
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision
from dbtoll.runner.cleanup.journal import leftovers
from tests.support.import_by import import_by
from tests.support.killed import kill_a_run
from tests.support.program import processes_of

pytestmark = pytest.mark.timeout(180)

Open = Callable[..., DockerMachine]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Data root of the daemon of these tests."""
    return str(tmp_path_factory.mktemp("docker"))


_lacks: dict[str, str] = {}


@pytest.fixture
def able(local: AgentMachine, root: str) -> None:
    """Skips, with what is lacking, where no container can be started."""
    if root not in _lacks:
        lacking = Docker().missing_requirements(local, {"data_root": root, "socket": None})
        _lacks[root] = f"{lacking[0].what}: {lacking[0].why}" if lacking else ""
    if _lacks[root]:
        pytest.skip(_lacks[root])


@pytest.fixture
def daemon(local: AgentMachine, root: str, able: None) -> Iterator[dockerd.Lease]:
    held = dockerd.lease(local, NullJournal(), f"t{os.getpid()}", root, (CPU,))
    yield held
    held.release()
    assert processes_of(root) == []
    assert groups_left() == []


@pytest.fixture
def client(daemon: dockerd.Lease) -> Iterator[sdk.APIClient]:
    api = sdk.APIClient(base_url=f"unix://{daemon.socket}", version="auto")
    yield api
    api.close()


@pytest.fixture
def open_one(local: AgentMachine, image: Artifact, daemon: dockerd.Lease) -> Open:
    """``open_one(arm="a", machine=…, options={…}, …)``; to be used as a context."""

    def open_it(arm: str = "a", machine: AgentMachine = local, image: Artifact = image, **asked: Any) -> DockerMachine:
        asked["options"] = {"socket": daemon.socket} | asked.get("options", {})
        return Docker().open(machine, machine_spec(arm, image, **asked), NullJournal())

    return open_it


def test_doctor_sees_a_daemon_also_without_an_agent(daemon: dockerd.Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no program is missing."""
    monkeypatch.setattr(without_agent, "PATH", "/nowhere")
    monkeypatch.setattr(docker, "SOCKETS", (daemon.socket,))
    found = without_agent.environment("docker")
    assert found.state == "not probed"
    assert re.search(rf"a daemon of version \d\S+ answers at {daemon.socket}$", found.note)
    monkeypatch.setattr(docker, "SOCKETS", (f"{daemon.socket}.none",))
    assert "dockerd" in [lack.what for lack in without_agent.environment("docker").missing_requirements]


@pytest.mark.alone
@pytest.mark.usefixtures("able")
def test_our_own_daemon_comes_and_goes_without_a_trace(local: AgentMachine, image: Artifact, root: str) -> None:
    watched = ["/etc/docker", "/opt", "/run/docker", "/run/containerd", "/var/lib/docker", "/var/lib/containerd"]

    def seen() -> list[list[str]]:
        return [sorted(str(path) for path in Path(directory).rglob("*")) for directory in watched]

    before, mounts = seen(), Path("/proc/self/mountinfo").read_text()
    options = {"data_root": root, "socket": None}
    place_of = {arm: machine_spec(arm, image, options=options) for arm in ("a", "b")}
    with Docker().open(local, place_of["a"], NullJournal()) as first:
        told = first.facts()["environment"]
        if told["daemon"] != "dbtoll's own":
            pytest.skip("this host has a daemon of its own")
        with Docker().open(local, place_of["b"], NullJournal()) as second:
            assert len([command for command in processes_of(root) if "dockerd" in command]) == 1
            assert second.run(["true"]).exit_code == 0
        assert first.run(["true"]).exit_code == 0
        assert b"API listen on" in first.logs()["dockerd.log"]
        assert Path("/proc/self/mountinfo").read_text() == mounts
    assert processes_of(root) == []
    assert seen() == before
    assert groups_left() == []


def test_a_daemon_that_was_there_is_used_and_left_alone(client: sdk.APIClient, open_one: Open, image: Artifact) -> None:
    with open_one():
        tag = tag_of(image)
    foreign = client.create_container(tag, ["sleep", "1000"], name="foreign")["Id"]
    client.start(foreign)
    try:
        with open_one() as arm:
            assert arm.facts()["environment"]["daemon"] != "dbtoll's own"
            assert len(client.containers(all=True)) == 2
        assert [found["Id"] for found in client.containers(all=True)] == [foreign]
        assert client.inspect_container(foreign)["State"]["Running"]
    finally:
        client.remove_container(foreign, force=True)


@pytest.mark.usefixtures("able")
def test_our_own_daemon_sleeps_with_its_containers(local: AgentMachine, image: Artifact, root: str) -> None:
    options = {"data_root": root, "socket": None}
    with (
        Docker().open(local, machine_spec("a", image, options=options), NullJournal()) as first,
        Docker().open(local, machine_spec("b", image, options=options), NullJournal()) as second,
    ):
        if first.lease is None:
            pytest.skip("this host has a daemon of its own")
        asleep = first.lease.daemon._group.freezer.asleep
        first.freeze()
        assert not asleep()
        second.freeze()
        assert asleep()
        second.freeze()
        first.thaw()
        assert not asleep()
        assert first.run(["true"]).exit_code == 0
        first.freeze()
        # A third one is opened while all sleep.
        with Docker().open(local, machine_spec("c", image, options=options), NullJournal()) as third:
            assert third.run(["true"]).exit_code == 0
        assert asleep()
    assert processes_of(root) == []


def test_what_a_killed_run_left_with_a_daemon_that_lives_on(
    client: sdk.APIClient, daemon: dockerd.Lease, image: Artifact, local: AgentMachine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill_a_run(folder, "docker", image, {"socket": daemon.socket})
    left = leftovers(folder)
    assert sorted(line["kind"] for line in left) == ["cgroup", "container"]
    assert len(client.containers(all=True)) == 1
    for line in sorted(left, key=lambda line: line["kind"], reverse=True):  # the container first, still frozen
        {"container": docker.remove, "cgroup": removal.remove}[line["kind"]](local, line)
    assert client.containers(all=True) == []


def test_the_volume_of_a_run_that_was_killed_before_its_container_was_made_is_removed(
    client: sdk.APIClient, daemon: dockerd.Lease, local: AgentMachine
) -> None:
    """The volume is made first; nobody else's of that name is touched."""
    identity = {"socket": daemon.socket, "name": "killed"}
    client.create_volume("killed", labels={LABEL: "run"})
    docker.remove(local, identity)
    assert not client.volumes()["Volumes"]
    docker.remove(local, identity)
    client.create_volume("killed")
    with pytest.raises(DbtollError, match="none of dbtoll's"):
        docker.remove(local, identity)
    assert [found["Name"] for found in client.volumes()["Volumes"]] == ["killed"]
    client.remove_volume("killed")


@pytest.mark.usefixtures("able")
def test_a_volume_that_a_killed_daemon_of_our_own_holds_is_removed(local: AgentMachine, root: str) -> None:
    own, lines = f"{root}-volume", Noted()
    held = dockerd.lease(local, lines, f"v{os.getpid()}", own, (CPU,))
    api = sdk.APIClient(base_url=f"unix://{held.socket}", version="auto")
    api.create_volume("killed", labels={LABEL: "run"})
    api.close()
    (identity,) = [line for line in lines if line["kind"] == "process"]
    removal.remove(local, identity)  # all of it is killed
    assert Path(own, "data/volumes/killed").is_dir()
    dockerd.remove(local, identity)
    assert not Path(own, "data/volumes/killed").exists()
    held.release()
    assert processes_of(own) == []


class Noted(list[dict[str, Any]]):
    """A journal that only keeps its lines."""

    def create(self, kind: str, **identity: Any) -> Noted:
        self.append({"kind": kind, **identity})
        return self

    def done(self) -> None:
        return


def test_an_image_is_imported_once(client: sdk.APIClient, open_one: Open, image: Artifact) -> None:
    seen = set()
    for _ in range(2):
        with open_one():
            seen.add(client.inspect_image(tag_of(image))["Id"])
    assert len(seen) == 1


def test_an_image_is_imported_where_there_is_no_docker_program(
    client: sdk.APIClient, open_one: Open, image: Artifact, local: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 13 has it in a package of its own, podman has none: then curl is used."""
    with open_one():
        pass  # by docker, where that is
    import_by("curl", local, monkeypatch)
    other = Artifact(f"{image.key}-by-curl", image.path)
    with open_one(image=other) as arm:
        assert arm.run(["true"]).exit_code == 0
    assert client.inspect_image(tag_of(other))["RootFS"] == client.inspect_image(tag_of(image))["RootFS"]
    client.remove_image(tag_of(other))
    monkeypatch.setattr(images, "find_program", lambda machine, name: None)
    with pytest.raises(Unavailable, match="neither docker nor curl"):
        open_one(image=other)


@pytest.fixture
def api(local: AgentMachine, daemon: dockerd.Lease) -> Iterator[Api]:
    with Api(local, daemon.socket) as opened:
        yield opened


def imported_as(api: Api, image: Artifact) -> Imported:
    (found,) = (each for each in imported(api) if tag_of(image) in each.names)
    return found


@pytest.mark.parametrize("program", ["docker", "curl"])
def test_imported_images_are_found_by_their_label_and_told_when_they_were_used(
    api: Api, local: AgentMachine, image: Artifact, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    import_by(program, local, monkeypatch)
    labelled = Artifact(f"labelled-by-{program}", image.path)
    before = time.time()
    import_image(local, api, labelled)
    tag = tag_of(labelled)
    assert api.client.inspect_image(tag)["Config"]["Labels"] == {images.LABEL: labelled.key}
    found = imported_as(api, labelled)
    assert found.names == (tag,)
    assert found.size_bytes > 0
    assert before - 2 < found.used_at
    import_image(local, api, labelled)
    again = imported_as(api, labelled)
    assert again.used_at > found.used_at
    api.client.tag(tag, "somebody/s", "own")
    assert again.remove()
    assert (api.client.inspect_image("somebody/s:own")["Id"],) in [each.names for each in imported(api)]
    api.client.remove_image("somebody/s:own")
    assert again.remove(), "what is gone already is no error"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_docker_saves_is_unpacked_as_it_was(
    api: Api, local: AgentMachine, image: Artifact, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    import_image(local, api, image)
    (tmp_path / "saved.tar").write_bytes(pack(b"".join(api.client.get_image(tag_of(image)))))
    root = tmp_path / "root"
    root.mkdir()
    unpack_image(tmp_path / "saved.tar", root, set_owner=True)

    def seen(machine_spec: Path) -> list[object]:
        found: list[object] = []
        for path in sorted(machine_spec.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found.append((path.relative_to(machine_spec), status.st_mode, status.st_uid, int(status.st_mtime), content))
        return found

    assert seen(root) == seen(Path(image.path))


def test_an_image_that_a_container_uses_stays(api: Api, local: AgentMachine, image: Artifact) -> None:
    import_image(local, api, image)
    made = api.client.create_container(tag_of(image), ["sleep", "1000"])["Id"]
    found = imported_as(api, image)
    try:
        assert not found.remove()
        assert imported_as(api, image).names == found.names
    finally:
        api.client.remove_container(made, force=True)
    assert found.remove()


def test_imports_make_room_for_one_another(
    api: Api, local: AgentMachine, image: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "IMPORTED_MAX_BYTES", 0)
    for key in ("first", "second"):
        import_image(local, api, Artifact(key, image.path))
        assert [found.key for found in imported(api)] == [key]
    imported(api)[0].remove()


@pytest.mark.usefixtures("able")
def test_the_images_of_our_own_daemon_can_be_removed_when_it_does_not_run(
    local: AgentMachine, image: Artifact, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dockerd, "DATA_ROOT", root)
    with Docker().open(
        local, machine_spec("a", image, options={"data_root": root, "socket": None}), NullJournal()
    ) as arm:
        if arm.facts()["environment"]["daemon"] != "dbtoll's own":
            pytest.skip("this host has a daemon of its own")
        with open_local() as other, pytest.raises(Unavailable, match="another dbtoll run"):
            docker.images_of_own(other, NullJournal()).__enter__()
    with docker.images_of_own(local, NullJournal()) as found:
        assert tag_of(image).rpartition(":")[2] in [each.key for each in found]
        assert all(each.remove() for each in found)
    with docker.images_of_own(local, NullJournal()) as found:
        assert found == []
    assert processes_of(root) == []
    monkeypatch.setattr(dockerd, "DATA_ROOT", f"{root}/nothing")
    with docker.images_of_own(local, NullJournal()) as found:
        assert found == []


def test_its_facts_name_what_lies_in_between(open_one: Open) -> None:
    with open_one() as arm:
        told = arm.facts()["environment"]
    for fact in ("daemon_version", "runtime", "runtime_path", "runtime_version", "storage_driver", "cgroup_driver"):
        assert told[fact], fact
    assert told["network"] == "none"
    assert Path(told["runtime_path"]).is_file()


@pytest.mark.parametrize("storage", ["bind", "volume", "layer", "memory"])
def test_data_lies_where_it_was_asked_for(open_one: Open, client: sdk.APIClient, tmp_path: Path, storage: str) -> None:
    (tmp_path / "inner").mkdir(mode=0o700)
    (tmp_path / "inner/given").write_text("content")
    os.chown(tmp_path / "inner/given", 65534, 65534)
    provision = Provision(Artifact("data", str(tmp_path)), "/dbtoll/data", writable=True)
    with open_one(provisions=[provision], options={"storage": storage}) as arm:
        assert arm.get("/dbtoll/data/inner/given") == b"content"
        assert b"65534" in arm.run(["ls", "-ln", "/dbtoll/data/inner"]).output
        arm.put("/dbtoll/data/made", b"inside")
        mounts = arm.get("/proc/self/mountinfo").decode()
        assert (" /dbtoll/data " in mounts) == (storage != "layer")
        assert len(client.volumes()["Volumes"] or []) == (storage == "volume")
    assert (tmp_path / "made").exists() == (storage == "bind")
    assert not client.volumes()["Volumes"]


@pytest.mark.alone
def test_networks(open_one: Open, local: AgentMachine, image: Artifact, root: str) -> None:
    here = {path.name for path in Path("/sys/class/net").iterdir()}
    with open_one() as arm:
        assert interfaces(arm) == {"lo"}
    with open_one(options={"network": "host"}) as arm:
        assert interfaces(arm) == here
    own = machine_spec("a", image, options={"network": "bridge", "data_root": root})
    with Docker().open(local, own, NullJournal()) as arm:
        if arm.facts()["environment"]["daemon"] == "dbtoll's own":
            assert interfaces(arm) == {"lo", "eth0"}
    assert {path.name for path in Path("/sys/class/net").iterdir()} == here


def interfaces(arm: DockerMachine) -> set[str]:
    lines = arm.get("/proc/net/dev").decode().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines} - {
        "tunl0",
        "sit0",
        "ip6tnl0",
        "gre0",
        "gretap0",
        "erspan0",
    }


def test_seccomp_profiles(open_one: Open, tmp_path: Path) -> None:
    def mode(arm: DockerMachine) -> str:
        status = arm.get("/proc/self/status").decode()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))

    profile = tmp_path / "profile.json"
    profile.write_text(
        '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}]}'
    )
    with open_one() as arm:
        assert mode(arm) == "2"
        assert arm.run(["mkdir", "/tmp/made"], check=False).exit_code == 0
    with open_one(options={"seccomp": "unconfined"}) as arm:
        assert mode(arm) == "0"
    with open_one(options={"seccomp": str(profile)}) as arm:
        assert mode(arm) == "2"
        assert arm.run(["mkdir", "/tmp/made"], check=False).exit_code != 0


def test_a_quota_holds_back_by_what_it_says(open_one: Open) -> None:
    with open_one(options={"cpu_quota": 0.25, "cpu_period": 20_000_000}) as arm:
        arm.spawn(["sh", "-c", "while :; do :; done"])
        before, begin = arm.cpu_ns(), time.monotonic_ns()
        time.sleep(1.0)
        assert (arm.cpu_ns() - before) / (time.monotonic_ns() - begin) == pytest.approx(0.25, abs=0.05)


def test_shm_differs_only_if_asked(open_one: Open) -> None:
    size = ["sh", "-c", "df -B1 --output=size /dev/shm | tail -n 1"]
    with open_one() as arm:
        assert int(arm.run(size).output) == 16 << 20
    with open_one(options={"shm": 4 << 20}) as arm:
        assert int(arm.run(size).output) == 4 << 20


@pytest.mark.usefixtures("able")
def test_a_runtime_by_its_path_on_our_own_daemon(
    local: AgentMachine, image: Artifact, root: str, tmp_path: Path
) -> None:
    runc = programs.find_program(local, "runc")
    if runc is None:
        pytest.skip("no runc is installed")
    other = tmp_path / "other-runc"
    other.symlink_to(runc)
    options = {"data_root": root, "runtime": "other", "runtime_path": str(other)}
    plain = machine_spec("plain", image, options={"data_root": root})
    with Docker().open(local, plain, NullJournal()) as first:
        if first.facts()["environment"]["daemon"] != "dbtoll's own":
            pytest.skip("this host has a daemon of its own")
        # The running daemon learns it without a restart: the first arm lives on.
        with Docker().open(local, machine_spec("other", image, options=options), NullJournal()) as arm:
            told = arm.facts()["environment"]
            assert (told["runtime"], told["runtime_path"]) == ("other", str(other))
        assert first.run(["true"]).exit_code == 0


def test_an_unknown_runtime_is_refused_with_a_mend(
    open_one: Open, local: AgentMachine, image: Artifact, root: str
) -> None:
    with pytest.raises(Unavailable, match="nosuch") as caught:
        open_one(options={"runtime": "nosuch"})
    assert caught.value.hint
    with pytest.raises(Unavailable, match="nosuch"):
        Docker().open(local, machine_spec("a", image, options={"runtime": "nosuch", "data_root": root}), NullJournal())


def test_a_socket_where_nothing_answers(local: AgentMachine, image: Artifact, tmp_path: Path) -> None:
    options = {"socket": str(tmp_path / "none.sock")}
    with pytest.raises(DbtollError, match=r"none\.sock"):
        Docker().open(local, machine_spec("a", image, options=options), NullJournal())
    assert Docker().missing_requirements(local, options)


def test_a_data_root_that_is_too_long_for_sockets_is_refused(
    local: AgentMachine, tmp_path_factory: pytest.TempPathFactory, able: None
) -> None:
    longest = f"{tmp_path_factory.mktemp('d')}/".ljust(dockerd.DATA_ROOT_MAX_BYTES, "x")
    with pytest.raises(Unavailable, match="too long for sockets"):
        dockerd.lease(local, NullJournal(), f"t{os.getpid()}", f"{longest}x", (CPU,))
    held = dockerd.lease(local, NullJournal(), f"t{os.getpid()}", longest, (CPU,))
    assert held.daemon.serves()
    held.release()
    assert processes_of(longest) == []
    assert groups_left() == []


def test_no_second_daemon_on_the_same_data_root(daemon: dockerd.Lease, root: str) -> None:
    from dbtoll.machines.agent.local import open_local

    del daemon
    with open_local() as another, pytest.raises(Unavailable, match="another dbtoll run"):
        dockerd.lease(another, NullJournal(), "second", root, (CPU,))


def test_in_an_arm_that_is_itself_behind_an_agent(open_one: Open, local: AgentMachine, daemon: dockerd.Lease) -> None:
    outer = machine_spec("outer", None, options={"root": "host"}, resources=Resources(memory_bytes=1 << 30))
    with (
        Native().open(local, outer, NullJournal()) as machine,
        open_one("inner", machine=machine) as inner,
    ):
        assert inner.run(["cat"], input=b"through two agents").output == b"through two agents"
        assert inner.facts()["environment"]["name"] == "docker"
        group = inner.get("/proc/self/cgroup").decode()
        assert f"/{machine.name}/dbtoll/" in group  # so it sleeps with the outer one
        machine.freeze()
        before = machine.cpu_ns()  # the inner one's would be asked through the sleeping outer one
        time.sleep(0.05)
        assert machine.cpu_ns() == before
        machine.thaw()
        assert inner.run(["true"]).exit_code == 0


@pytest.mark.usefixtures("able")
def test_our_own_daemon_inside_another_arm(local: AgentMachine, image: Artifact, root: str) -> None:
    outer = machine_spec("outer", None, options={"root": "host"}, resources=Resources(memory_bytes=1 << 30))
    with Native().open(local, outer, NullJournal()) as machine:
        inner_place = machine_spec("inner", image, options={"data_root": f"{root}-nested"})
        if Docker().missing_requirements(machine, inner_place.options):
            pytest.skip("docker cannot be nested here")
        with Docker().open(machine, inner_place, NullJournal()) as inner:
            assert inner.run(["nproc"]).output == b"1\n"
    assert processes_of(f"{root}-nested") == []
    assert groups_left() == []


@pytest.mark.usefixtures("able")
def test_what_a_killed_run_left_can_be_removed(image: Artifact, local: AgentMachine, root: str, tmp_path: Path) -> None:
    removers: dict[str, Callable[..., None]] = {
        "cgroup": removal.remove,
        "stage": chroot.remove,
        "container": docker.remove,
        "network": network_interfaces.remove,
        "process": dockerd.remove,
        "litter": dockerd.remove_litter,
    }
    folder = tmp_path / "run"
    own = f"{root}-killed"
    kill_a_run(folder, "docker", image, {"data_root": own, "network": "bridge"})
    left = leftovers(folder)
    assert {"cgroup", "process", "network"} <= {line["kind"] for line in left}
    assert processes_of(own) != []
    for line in left:
        removers[line["kind"]](local, line)
        removers[line["kind"]](local, line)
    assert processes_of(own) == []
    for line in left:
        assert not any(Path(path).exists() for path in line.get("paths", []))
        assert not Path("/sys/class/net", line.get("interface", "none")).exists()
    # And the next run finds a daemon without old containers, so that names are free.
    with Docker().open(local, machine_spec("killed", image, options={"data_root": own}), NullJournal()) as arm:
        assert arm.run(["true"]).exit_code == 0
    assert not [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith("dbtoll")]
