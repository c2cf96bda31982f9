"""A real sshd on the loopback, with keys, a port and a configuration of its own: nothing of this host's is used or touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from dbtoll.contracts.machines import in_own_mounts

HOST = "elsewhere"
"""The alias in the configuration."""

PRIVILEGES = Path("/run/sshd")
"""Compiled into Debian's sshd; its service makes it."""

ITS_OWN = ("opt", "run", "run/lock", "var/lib")
"""Directories of / that a host apart has to itself, empty: whatever a run leaves in them is seen."""

ITS_DAEMONS = ("docker", "docker.sock", "docker.pid", "containerd")
"""Names in them of what a daemon of that host's own has."""

SHORT = "/srv"
"""Where a host apart has the directory for what is brought: podman takes no long path."""

APART = f"""
mount --bind "$1" {SHORT} && for own in {" ".join(ITS_OWN)}; do mkdir -p "/$own" && mount -t tmpfs tmpfs "/$own" || exit; done
mkdir {PRIVILEGES} && echo apart && read -r _
"""


@dataclass(slots=True)
class Sshd:
    """It runs. ``folder``: keys, known hosts and the configurations of both sides."""

    folder: Path
    port: int
    program: str
    process: subprocess.Popen[bytes] | None = None
    apart: subprocess.Popen[bytes] | None = None
    """Holds the mount namespace that it runs in, where that is another one than ours."""
    daemon: subprocess.Popen[bytes] | None = None
    before: frozenset[str] = frozenset()
    """What was in `ITS_OWN`."""

    @property
    def root(self) -> Path:
        """Its / as it is seen from here."""
        return Path("/") if self.apart is None else Path(f"/proc/{self.apart.pid}/root")

    def within(self, *words: str) -> list[str]:
        """A command that is executed there."""
        if self.apart is None:
            return list(words)
        # Its root may be another one than that of its mounts: `in_own_mounts` in a chroot.
        entered = [f"--mount=/proc/{self.apart.pid}/ns/mnt", f"--root={self.root}", f"--wd={self.root}"]
        return ["nsenter", *entered, *words]

    @property
    def config(self) -> Path:
        """What ssh is given with -F."""
        return self.folder / "config"

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.folder / "log").read_text()

    def start(self) -> None:
        """Returns when it listens."""
        with (self.folder / "log").open("wb") as log:
            words = self.within(self.program, "-D", "-e", "-f", str(self.folder / "sshd_config"))
            self.process = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while "Server listening" not in self.log:
            assert self.process.poll() is None and time.monotonic() < until, self.log
            time.sleep(0.02)

    def stop(self) -> None:
        """It lets nobody in any more; who is in stays."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def sessions(self) -> list[int]:
        """Its processes that serve connections. OpenSSH 9.8 and later have two for each, and either keeps it open."""
        assert self.process is not None
        found = []
        parents = [self.process.pid]
        for parent in parents:
            for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                if Path(f"/proc/{pid}/exe").readlink().name.startswith("sshd"):
                    found.append(int(pid))
                    parents.append(int(pid))
        return found

    def clients(self) -> list[int]:
        """The ssh that is connected to it by one of its configurations, of whatever user."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0] == b"ssh" and any(str(self.folder).encode() in word for word in words):
                    found.append(int(entry.name))
        return found

    def options(self, **more: Any) -> dict[str, Any]:
        """With which the environment is opened."""
        place = self.folder / "there"
        place.mkdir(exist_ok=True)
        directory = str(place) if self.apart is None else SHORT
        return {"host": HOST, "config": str(self.config), "directory": directory, **more}

    def stack(self, *words: str) -> str:
        """The same as the short form of a stack."""
        return ",".join([f"ssh:{HOST}", *(f"{k}={v}" for k, v in self.options().items() if k != "host"), *words])

    def left(self) -> list[str]:
        """What was made there and is there still; of a host apart also what was made elsewhere, and images of its daemon."""
        brought = [path.name for path in (self.folder / "there").glob("*")]
        if self.apart is None:
            return sorted(brought)
        return sorted([*brought, *(self.held() - self.before), *self.images()])

    def held(self) -> frozenset[str]:
        """What is in `ITS_OWN` and is not of its daemon."""
        paths = [path for own in ITS_OWN for path in (self.root / own).glob("*") if path.name not in ITS_DAEMONS]
        return frozenset(f"/{path.relative_to(self.root)}" for path in paths)

    def images(self) -> list[str]:
        """Names of those that its own daemon has."""
        if self.daemon is None:
            return []
        with closing(docker.DockerClient(f"unix://{self.root}/run/docker.sock")) as client:
            return [tag for image in client.images.list() for tag in image.tags]

    @contextmanager
    def own_daemon(self) -> Iterator[None]:
        """It has one of Docker while this lasts, which is nobody's but that host's. Only of a host apart."""
        assert self.apart is not None
        program = shutil.which("dockerd")
        if program is None:
            pytest.skip("no dockerd here: apt-get install -y docker.io")
        words = [program, "--iptables=false", "--ip6tables=false", "--bridge=none"]
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        if int(told.split()[2].partition(".")[0]) < 23:  # later ones write no key to /etc, and refuse this
            (self.folder / "daemon.json").write_text('{"deprecated-key-path": "/run/docker/key.json"}')
            words.append(f"--config-file={self.folder}/daemon.json")
        with (self.folder / "dockerd").open("wb") as log:
            self.daemon = subprocess.Popen(self.within(*words), stderr=log, stdin=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 60
            while not (self.folder / "dockerd").read_text().count("API listen on /var/run/docker.sock"):
                assert self.daemon.poll() is None and time.monotonic() < until, (self.folder / "dockerd").read_text()
                time.sleep(0.05)
            yield
        finally:
            self.daemon.terminate()
            self.daemon.wait()
            self.daemon = None

    def configure(self, name: str, *lines: str, **changed: str) -> Path:
        """Another configuration of the client; ``changed``: of what the first one says."""
        words = {
            "HostName": "127.0.0.1",
            "Port": str(self.port),
            "User": "root",
            "IdentityFile": str(self.folder / "key"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
            "GlobalKnownHostsFile": "/dev/null",
            **changed,
        }
        path = self.folder / name
        path.write_text("\n".join([f"Host {HOST}", *(f"  {key} {value}" for key, value in words.items()), *lines, ""]))
        return path

    def authorize(self, *options: str) -> None:
        """The key, with what an authorized_keys says before it."""
        public = (self.folder / "key.pub").read_text()
        (self.folder / "authorized_keys").write_text(" ".join(filter(None, [",".join(options), public])))


def make_key(path: Path) -> str:
    """Its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


@contextmanager
def sshd(folder: Path, *, apart: bool = False) -> Iterator[Sshd]:
    """Until the end of the context. Skips where there is none, or no root. ``apart``: in mounts of its own (`ITS_OWN`)."""
    if os.geteuid() != 0:
        pytest.skip("a server of ssh that lets root in needs root")
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no sshd here: apt-get install -y openssh-server")
    public = make_key(folder / "host_key")
    make_key(folder / "key")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    lines = [
        *(f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key", "PidFile none"),
        *(f"AuthorizedKeysFile {folder}/authorized_keys", "PermitRootLogin yes", "UsePAM no"),
        *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "StrictModes no", ""),
    ]
    (folder / "sshd_config").write_text("\n".join(lines))
    made = not PRIVILEGES.exists()
    PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
    there = Sshd(folder, port, program)
    try:
        if apart:
            there.apart = _apart(folder / "there")
            there.before = there.held()
        there.authorize()
        there.configure("config")
        there.start()
        yield there
    finally:
        there.stop()
        if there.apart is not None:
            there.apart.communicate()
        if made:
            PRIVILEGES.rmdir()


def _apart(place: Path) -> subprocess.Popen[bytes]:
    """A process in mounts of its own, until its input ends."""
    place.mkdir()
    words = in_own_mounts("sh", "-c", APART, "sh", str(place))
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"apart\n"
    return holder
