"""The environment ``ssh`` against a real sshd on the loopback: whole runs, lines that are cut, hosts that will not do."""

from __future__ import annotations

import os
import posixpath
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.analysis.result import builder as results
from dbtoll.contracts.machines import groups_left, machine_spec, small_image
from dbtoll.environments.docker import SYSTEM_SOCKET
from dbtoll.environments.docker import Environment as Docker
from dbtoll.environments.docker.api import Api
from dbtoll.environments.docker.images import REPOSITORY, import_image, tag_of
from dbtoll.environments.ssh import Environment as Ssh
from dbtoll.environments.ssh import line, vendor
from dbtoll.environments.ssh.host import RemoteHost
from dbtoll.environments.ssh.line import OLDEST_KERNEL, SILENCE_S
from dbtoll.errors import ChannelError, DbtollError, Unavailable, UsageError
from dbtoll.interfaces.machine import FreezableMachine, RemoteMachine
from dbtoll.machines import programs
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.experiment import Arm
from dbtoll.model.machine import Artifact
from dbtoll.report import page
from dbtoll.runner.cleanup import removers
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.cleanup.removers import Cleaned, clean_one
from dbtoll.runner.hosts import remote_hosts
from dbtoll.spec.stack import parse_stack
from dbtoll.store import schema
from dbtoll.store.reader import Run
from tests.support.killed import journal_of, kill_a_run
from tests.support.lacking import lacking, needs
from tests.support.program import is_root
from tests.support.sshd import HOST, Sshd, make_key, sshd
from tests.system.test_survival import Harm, assert_only_the_victim_failed, measured, memory_disk, nothing

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_root(), reason="arms need root, here and there"),
]

Q6 = "victim Q6"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


def reached(local: AgentMachine, options: Mapping[str, Any]) -> RemoteHost:
    return Ssh().reach(local, options, NullJournal(), keeps=True)


def wait_until_nothing_is_left(there: Sshd) -> None:
    until = time.monotonic() + 20
    while there.left() and time.monotonic() < until:
        time.sleep(0.05)
    assert there.left() == []


# --- whole runs --------------------------------------------------------------------------------------------------------------


def test_a_run_on_another_host(tmp_path: Path, loopback: Sshd) -> None:
    """The same image and data there, right answers, the host's facts in the run and on its page; one login for all of it."""
    of = measured(tmp_path, loopback.stack(), Harm("", nothing), tried=False)
    assert of.complete_rounds == (0, 1)
    visits = [visit for visit in of.records(schema.Visit) if visit.arm == "victim"]
    assert visits and {each.outcome for visit in visits for each in visit.units[0].executions} == {"ok"}
    assert all(visit.units[0].host_start_ns is not None for visit in visits)
    starts = [start for start in of.records(schema.Start) if start.arm == "victim"]
    environment = (starts[0].facts or {})["environment"]
    assert environment["name"] == "ssh"
    assert {"host", "hypervisor", "dmi", "instance"} <= environment.keys()
    assert of.facts["remote_hosts"]["victim"]["kernel"] == of.facts["host"]["kernel"]
    result = results.analyze_run(of)
    assert [each.verdict for each in result.comparisons if each.arm == "victim" and each.estimand == "geomean"]
    assert f"victim on {HOST}: " in page.render(result, of)
    durable = [check for check in of.records(schema.CheckRecord) if check.check == "commit_reaches_device"]
    assert {check.passed for check in durable if check.arm == "victim"} == {
        check.passed for check in durable if check.arm == "native"
    }
    # One trial before the run, then the run; what is sent goes through the same connection.
    assert loopback.log.count("Accepted publickey") == 2
    assert loopback.left() == []


INNER = ("native", "docker", "podman", "uml")


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with an arm for each of them that there is here, all on one other host."""
    with sshd(tmp_path_factory.mktemp("sshd"), apart=True) as host:
        stacks = {name: f"{host.stack()}//{name}" for name in INNER if not lacking(name)}
        arms = "".join(f'[[arm]]\nname = "far {name}"\nstack = "{stack}"\n' for name, stack in stacks.items())
        of = measured(tmp_path_factory.mktemp("nested"), "native", Harm("", nothing), budget="240s", more=arms)
        assert host.left() == []
    return of


@pytest.mark.timeout(900)  # the first of them has all to be made
@pytest.mark.parametrize("inner", INNER)
def test_an_environment_that_is_nested_in_another_host(nested: Run, inner: str) -> None:
    """A container's daemon, a guest and their disks are that host's, and are gone afterwards with all that they hold."""
    needs(inner)
    assert nested.complete_rounds == (0, 1)
    starts = [start for start in nested.records(schema.Start) if start.arm == f"far {inner}"]
    assert {start.outcome for start in starts} == {"ok"}
    assert {(start.facts or {})["environment"]["name"] for start in starts} == {inner}


@pytest.mark.parametrize("inner", ["native", "docker", "podman"])
def test_what_is_opened_on_another_host_leaves_nothing_there(
    tmp_path: Path, local: AgentMachine, apart: Sshd, image: Artifact, inner: str
) -> None:
    """Also the state of a daemon of dbtoll's own lies in the directory that goes at the end."""
    needs(inner)
    with Journal(tmp_path) as journal, Ssh().reach(local, apart.options(), journal, keeps=True) as there:
        wanted = machine_spec("far", image if inner != "native" else None)
        with registry.find("environments", inner)().open(there, wanted, there.journal) as arm:
            arm.get("/proc/self/status")
        assert apart.left()[-1:] == [posixpath.basename(there.directory)]
    assert apart.left() == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("inner", ["native", "docker", "podman"])
def test_what_a_line_that_breaks_leaves_of_a_sleeping_arm_there_is_cleaned(
    tmp_path: Path, local: AgentMachine, apart: Sshd, image: Artifact, inner: str
) -> None:
    needs(inner)
    with Journal(tmp_path) as journal:
        there = Ssh().reach(local, apart.options(), journal, keeps=True)
        wanted = machine_spec("cut", image if inner != "native" else None)
        arm = registry.find("environments", inner)().open(there, wanted, there.journal)
        assert isinstance(arm, FreezableMachine)
        arm.freeze()
        for pid in apart.sessions():
            os.kill(pid, signal.SIGKILL)
        for each in (arm, there):
            with pytest.raises(DbtollError):
                each.close()
    cleaned = Cleaned()
    assert clean_one(tmp_path, cleaned), cleaned
    assert apart.left() == []
    assert groups_left() == []


def test_a_daemon_of_the_other_host_keeps_no_image_that_it_did_not_have(
    tmp_path: Path, local: AgentMachine, apart: Sshd, image: Artifact
) -> None:
    """Not after the end, nor once what a broken line left has been cleaned; one that it had is left to it."""
    had = replace(image, key="had")
    with apart.own_daemon():
        with Api(local, f"{apart.root}/run/docker.sock") as api:
            import_image(local, api, had)
        before = apart.images()

        with Journal(tmp_path) as journal:
            with Ssh().reach(local, apart.options(), journal, keeps=True) as there:
                for number, each in enumerate((image, had, image)):
                    wanted = machine_spec(f"far-{number}", each)
                    with Docker().open(there, wanted, there.journal) as arm:
                        assert arm.facts()["environment"]["daemon"] == SYSTEM_SOCKET
                assert [entry.what["kind"] for entry in there.journal.left()] == ["image", "place"]
                assert apart.images() != before
            assert apart.images() == before
            assert leftovers(tmp_path) == []

            there = Ssh().reach(local, apart.options(), journal, keeps=True)
            cut = Docker().open(there, machine_spec("cut", image), there.journal)
            for pid in apart.sessions():
                os.kill(pid, signal.SIGKILL)
            for each in (cut, there):
                with pytest.raises(DbtollError):
                    each.close()
            assert apart.images() != before
        cleaned = Cleaned()
        assert clean_one(tmp_path, cleaned), cleaned
        assert f"image {tag_of(image)} on {HOST}" in cleaned.removed
        assert apart.images() == before
        with Api(local, f"{apart.root}/run/docker.sock") as api:
            api.client.remove_image(tag_of(had))


def test_a_journal_cannot_have_other_images_removed(local: AgentMachine) -> None:
    for tag in ("postgres:17", "dbtoll/image", f"{REPOSITORY}:a b"):
        with pytest.raises(DbtollError):
            Docker().removers()["image"](local, {"socket": SYSTEM_SOCKET, "tag": tag})


# --- lines that are cut ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["client", "server"])
def test_a_line_that_is_cut_in_mid_visit(tmp_path: Path, loopback: Sshd, end: str) -> None:
    """That start has failed; the host is reached again for the next round, without anything of the former one."""
    stray: list[list[str]] = []

    def cut() -> None:
        pids = loopback.clients() if end == "client" else loopback.sessions()
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def cut_in_a_moment() -> None:
        threading.Timer(0.1, cut).start()

    def look() -> None:
        stray.append(loopback.left())

    watch = Harm(Q6, cut_in_a_moment, look)
    of = measured(tmp_path, loopback.stack(), watch, measurement_time="300ms", budget="40s")
    assert "broke" in (assert_only_the_victim_failed(of).reason or "")
    assert stray
    assert loopback.left() == []
    assert loopback.clients() == []
    assert loopback.log.count("Accepted publickey") == 2


def test_a_host_that_was_away_is_cleaned_when_it_is_back(
    tmp_path: Path, local: AgentMachine, loopback: Sshd, image: Artifact
) -> None:
    """Its line breaks while an arm sleeps, and it cannot be reached for a while."""
    arm = Arm("far", parse_stack(loopback.stack()))
    with Journal(tmp_path) as journal, remote_hosts(local, 1, journal) as hosts:
        there = hosts.of(arm)
        assert there is not None and there is hosts.of(arm)
        wanted = machine_spec("far", image, cpuset=there.cpuset, options=arm.stack[0].options)
        opened = Ssh().open(there.machine, wanted, there.journal)
        assert isinstance(opened, FreezableMachine)
        opened.freeze()
        sessions = loopback.sessions()
        loopback.stop()
        for pid in sessions:
            os.kill(pid, signal.SIGKILL)
        while there.machine.channel.failure is None:
            time.sleep(0.02)
        for _ in range(2):
            with pytest.raises(Unavailable, match="nobody answers"):
                hosts.renew(arm)
        assert groups_left() != []
        loopback.start()
        hosts.renew(arm)
        assert groups_left() == []
        back = hosts.of(arm)
        assert back is not None and back is not there
        assert loopback.left() == [Path(back.directory).name]
    assert leftovers(tmp_path) == []
    assert loopback.left() == []


def test_an_agent_that_hears_nothing_ends_and_leaves_nothing(
    local: AgentMachine, loopback: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network may go without a word. Here nobody speaks to the agent, which is told to wait for two seconds."""
    assert SILENCE_S >= 60
    monkeypatch.setattr(line, "SILENCE_S", 2)
    host = reached(local, loopback.options())
    host.spawn(["sleep", "1000"])
    assert len(loopback.left()) == 1
    wait_until_nothing_is_left(loopback)
    with pytest.raises(ChannelError):
        host.close()


def test_what_cannot_be_cleaned_now_stays_noted_and_is_named(tmp_path: Path, loopback: Sshd, image: Artifact) -> None:
    kill_a_run(tmp_path / "run", "ssh", image, loopback.options())
    wait_until_nothing_is_left(loopback)  # the agent there has seen its line end; the group of a frozen arm stays
    journal = journal_of(tmp_path / "run")
    there = [each["what"] for each in leftovers(journal) if each["kind"] == "remote"]
    groups = [Path(path) for what in there for path in what.get("paths", ())]
    assert any(group.exists() for group in groups)
    loopback.stop()
    cleaned = Cleaned()
    assert not clean_one(journal, cleaned)
    assert len([failed for failed in cleaned.failed if f"on {HOST}: " in failed and "nobody answers" in failed]) == len(
        there
    )
    assert [each["what"] for each in leftovers(journal)] == there
    loopback.start()
    cleaned = Cleaned()
    assert clean_one(journal, cleaned), cleaned
    assert len(cleaned.removed) == len(there)
    assert leftovers(journal) == []
    assert not any(group.exists() for group in groups)


def test_a_journal_cannot_have_other_things_removed_there(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    with removers.on_host(local) as by_kind:
        for what in (
            {"kind": "place", "path": str(precious)},
            {"kind": "place", "path": f"{tmp_path}/dbtoll-0123456789abcdef/../precious"},
            {"kind": "cgroup", "paths": ["/sys/fs/cgroup"]},
            {"kind": "nothing known"},
        ):
            with pytest.raises(DbtollError):
                by_kind["remote"]({"environment": "ssh", "options": loopback.options(), "what": what})
        for environment in ("native", "nowhere"):
            with pytest.raises(DbtollError):
                by_kind["remote"]({"environment": environment, "options": {}, "what": {"kind": "place", "path": "/"}})
    assert precious.exists()


# --- what is sent ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["rsync", "tar"])
@pytest.mark.parametrize("sudo", [False, True])
def test_what_is_provided_comes_as_it_is_and_once(
    local: AgentMachine, loopback: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, sudo: bool
) -> None:
    found = programs.find_program

    def find(machine: AgentMachine, name: str) -> str | None:
        return None if (program, name) == ("tar", "rsync") else found(machine, name)

    monkeypatch.setattr(programs, "find_program", find)
    if program == "rsync" and not shutil.which("rsync"):
        pytest.skip("no rsync here: apt-get install -y rsync")
    if sudo:
        pretend(loopback, tmp_path, sudo='shift; exec "$@"')
    source = tmp_path / "a tree"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/file").write_bytes(os.urandom(300_000))
    (source / "deep/file").chmod(0o4750)
    os.link(source / "deep/file", source / "again")
    os.chown(source / "deep/er", 1234, 4321)
    (source / "link").symlink_to("/nowhere")
    file = tmp_path / "a file"
    file.write_bytes(b"content")
    tree, single = Artifact("tree", str(source)), Artifact("single", str(file), "file")

    def listed(root: str) -> list[str]:
        shown = ["find", root, "-printf", "%P %y %m %U %G %n %l\n"]
        return sorted(subprocess.run(shown, capture_output=True, text=True, check=True).stdout.splitlines()[1:])

    with reached(local, loopback.options(sudo=sudo)) as host:
        at = host.provide(tree)
        assert at.startswith(host.directory)
        assert listed(at) == listed(str(source))
        assert Path(at, "deep/file").read_bytes() == (source / "deep/file").read_bytes()
        assert Path(host.provide(single)).read_bytes() == b"content"
        shutil.rmtree(source)
        assert host.provide(tree) == at
        with pytest.raises(Unavailable, match="/nonexistent"):
            host.provide(Artifact("none", "/nonexistent"))
    assert loopback.left() == []


def test_no_room_for_what_is_to_be_sent(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(32 << 20))
    with memory_disk(tmp_path / "disk", "48m") as disk, reached(local, loopback.options(directory=str(disk))) as host:
        with pytest.raises(Unavailable, match=r"no room for .*/large in .*32 MiB are needed") as caught:
            host.provide(Artifact("large", str(tmp_path / "large"), "file"))
        assert "option directory" in caught.value.hint


# --- hosts that will not do --------------------------------------------------------------------------------------------------


def lacks(local: AgentMachine, there: Sshd, why: str, hint: str, **options: Any) -> None:
    """One sentence and one hint; nothing is left."""
    (lack,) = Ssh().missing_requirements(local, there.options(**options))
    assert why in lack.why
    assert hint in lack.hint
    assert "\n" not in lack.why
    assert there.left() == []
    assert there.clients() == []


def pretend(there: Sshd, folder: Path, before: str = "", **scripts: str) -> None:
    """Programs of the names ``scripts`` come first there; ``before``: what the login shell does first."""
    place = folder / "programs"
    place.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (place / name).write_text(f"#!/bin/sh\n{script}\n")
        (place / name).chmod(0o755)
    command = f'PATH={place}:$PATH; export PATH; {before} sh -c \\"$SSH_ORIGINAL_COMMAND\\"'
    there.authorize(f'command="{command}"')


def uname(**changed: str) -> str:
    """A uname that lies."""
    told = {"s": "Linux", "m": os.uname().machine, "r": os.uname().release, **changed}
    return "case $1 in " + " ".join(f"-{key}) echo {value} ;;" for key, value in told.items()) + " esac"


def test_a_name_that_nobody_has(local: AgentMachine, loopback: Sshd) -> None:
    config = loopback.configure("unknown", HostName="nowhere.invalid")
    lacks(local, loopback, "no host of that name", "see whether `ssh -F", config=str(config))


def test_a_configuration_that_is_not_there(local: AgentMachine, loopback: Sshd) -> None:
    lacks(local, loopback, "its configuration cannot be read", "option config", config="/nonexistent/config")


def test_nobody_listens(local: AgentMachine, loopback: Sshd) -> None:
    config = loopback.configure("refused", Port="1")
    lacks(local, loopback, "nobody answers at its port", "sshd", config=str(config))


def test_a_key_that_is_not_known_is_not_accepted(local: AgentMachine, loopback: Sshd) -> None:
    (loopback.folder / "none_known").touch()
    config = loopback.configure("unknown_key", UserKnownHostsFile=str(loopback.folder / "none_known"))
    lacks(
        local,
        loopback,
        "its key is not known here",
        f"accept it yourself, once: ssh -F {config} {HOST}",
        config=str(config),
    )
    assert (loopback.folder / "none_known").read_text() == ""


def test_a_key_that_has_changed(local: AgentMachine, loopback: Sshd) -> None:
    known = loopback.folder / "others_known"
    known.write_text(f"[127.0.0.1]:{loopback.port} {make_key(loopback.folder / 'other_host')}")
    config = loopback.configure("changed_key", UserKnownHostsFile=str(known))
    lacks(local, loopback, "its key is not the one that is known", "ssh-keygen -R", config=str(config))


def test_a_key_that_does_not_open(local: AgentMachine, loopback: Sshd) -> None:
    make_key(loopback.folder / "strange")
    config = loopback.configure("no_key", IdentityFile=str(loopback.folder / "strange"))
    lacks(local, loopback, "lets nobody in with the keys", "ssh-add", config=str(config))


@pytest.mark.parametrize("command", ["echo hello", "/usr/sbin/nologin", "cat >/dev/null"])
def test_a_forced_command(local: AgentMachine, loopback: Sshd, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "ANSWER_S", 3.0)
    loopback.authorize(f'command="{command}"')
    lacks(local, loopback, "it gives no shell that runs what it is told", "no forced command")


def test_a_login_shell_that_talks_is_listened_to_up_to_a_limit(
    local: AgentMachine, loopback: Sshd, tmp_path: Path
) -> None:
    pretend(loopback, tmp_path, before="echo Welcome; echo to this host;")
    assert Ssh().missing_requirements(local, loopback.options()) == []
    pretend(loopback, tmp_path, before="head -c 200000 /dev/zero;")
    lacks(local, loopback, "prints more than 64 KiB", "rc files")


def test_another_architecture(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    pretend(loopback, tmp_path, uname=uname(m="riscv64"))
    lacks(local, loopback, "is a machine of riscv64: it needs the agent", os.uname().machine)


def test_another_system_and_an_old_kernel(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    pretend(loopback, tmp_path, uname=uname(s="FreeBSD"))
    lacks(local, loopback, "has FreeBSD", "Linux")
    pretend(loopback, tmp_path, uname=uname(r="2.6.32-754.el6"))
    lacks(local, loopback, "has Linux 2.6.32-754.el6", "newer kernel")


def test_the_oldest_kernel_is_the_one_that_the_agent_names() -> None:
    """Its note .note.ABI-tag: sizes of name and content, type 1, GNU; the system, then the kernel's version."""
    content = find_agent().read_bytes()
    begin = content.index(struct.pack("<III4s", 4, 16, 1, b"GNU\0"))
    assert struct.unpack_from("<IIII", content, begin + 16)[1:3] == OLDEST_KERNEL


def test_no_root_there(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    pretend(loopback, tmp_path, before="setpriv --reuid=65534 --regid=65534 --clear-groups")
    lacks(local, loopback, "its user is not root", "sudo=yes")
    pretend(loopback, tmp_path, sudo="echo sudo: a password is required >&2; exit 1")
    lacks(local, loopback, "become root with sudo", "NOPASSWD", sudo=True)


def test_directories_that_will_not_do(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    lacks(local, loopback, "cannot be made", "option directory", directory="/nonexistent/place")
    with memory_disk(tmp_path / "small", "1m") as small:
        lacks(local, loopback, "no room for the agent", "option directory", directory=str(small))
        assert list(small.iterdir()) == []
    with memory_disk(tmp_path / "noexec", "64m,noexec") as noexec:
        lacks(local, loopback, "noexec", "option directory", directory=str(noexec))
        assert list(noexec.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"host": "-oProxyCommand=touch /tmp/owned"},
        {"host": "a b"},
        {"host": "elsewhere", "directory": "relative"},
        {"host": "elsewhere", "directory": "/tmp/$(id)"},
    ],
)
def test_what_cannot_be_a_host_or_a_directory_is_never_given_to_ssh(
    local: AgentMachine, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        Ssh().reach(local, options, NullJournal())


# --- what it is --------------------------------------------------------------------------------------------------------------

METADATA = """
import http.server, json, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "169.254.169.254/32", "dev", "lo"], check=True)
cloud, log = sys.argv[1:]

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        with open(log, "a") as file:
            file.write(f"{self.command} {self.path}\\n")
        told = None
        if cloud == "AWS":
            if self.command == "PUT" and self.path == "/latest/api/token":
                told = "token-1"
            elif self.path == "/latest/meta-data/instance-type" and self.headers["X-aws-ec2-metadata-token"] == "token-1":
                told = "m7a.large"
        elif cloud == "Google Cloud":
            if self.path == "/computeMetadata/v1/instance/machine-type" and self.headers["Metadata-Flavor"] == "Google":
                told = "projects/12345/machineTypes/n2-standard-2"
        elif cloud == "Azure":
            if self.path.startswith("/metadata/instance/compute/vmSize?") and self.headers["Metadata"] == "true":
                told = "Standard_D2s_v5"
        elif cloud == "endless":
            told = "x" * 10_000_000
        elif cloud == "silent":
            import time
            time.sleep(60)
        self.send_response(404 if told is None else 200)
        self.end_headers()
        self.wfile.write((told or "").encode())
    do_GET = do_PUT = answer
    def log_message(self, *words): pass

server = http.server.ThreadingHTTPServer(("169.254.169.254", 80), Handler)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture
def metadata(request: pytest.FixtureRequest, loopback: Sshd, tmp_path: Path) -> Iterator[Path]:
    """A metadata service at its own address, in a network namespace; each connection is an sshd in there. Yields its log."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no ip or no unshare here: apt-get install -y iproute2")
    log = tmp_path / "asked"
    log.touch()
    words = ["unshare", "--net", sys.executable, "-c", METADATA, request.param, str(log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == b"ready\n"
            inside = f"{loopback.program} -i -f {loopback.folder}/sshd_config"
            proxy = f"nsenter --net=/proc/{service.pid}/ns/net {inside}"
            loopback.configure("config", f"  ProxyCommand {proxy}")
            yield log
        finally:
            service.terminate()


@pytest.mark.parametrize(
    ("metadata", "type_"),
    [
        ("AWS", "m7a.large"),
        ("Google Cloud", "n2-standard-2"),
        ("Azure", "Standard_D2s_v5"),
        ("none of them", None),
        ("endless", None),
        ("silent", None),
    ],
    indirect=["metadata"],
)
def test_the_metadata_service_is_asked_where_that_is_wanted_and_only_there(
    local: AgentMachine, loopback: Sshd, metadata: Path, type_: str | None, request: pytest.FixtureRequest
) -> None:
    with reached(local, loopback.options()) as host:
        assert host.told["instance"] is None
    assert metadata.read_text() == ""
    with reached(local, loopback.options(metadata=True)) as host:
        told = host.told["instance"]
    assert metadata.read_text()
    assert (told or {}).get("type") == type_
    if type_:
        assert told["cloud"] == request.node.callspec.params["metadata"]


def test_the_hypervisor_is_what_the_processor_names(local: AgentMachine, loopback: Sshd) -> None:
    with reached(local, loopback.options()) as host:
        is_guest = b"hypervisor" in Path("/proc/cpuinfo").read_bytes()
        assert (host.told["hypervisor"] is not None) == is_guest
        assert host.told["dmi"] == {
            name: Path(vendor.DMI, name).read_text().strip()[: vendor.FACT_MAX]
            for name in vendor.DMI_NAMES
            if Path(vendor.DMI, name).exists() and Path(vendor.DMI, name).read_text().strip()
        }
        assert isinstance(host, RemoteMachine)
