"""A real sshd on the loopback, with keys, a port and a configuration of its own: nothing of this host's is used or touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOST = "elsewhere"
"""The alias in the configuration."""

PRIVILEGES = Path("/run/sshd")
"""Compiled into Debian's sshd; its service makes it."""


@dataclass(slots=True)
class Sshd:
    """It runs. ``folder``: keys, known hosts and the configurations of both sides."""

    folder: Path
    port: int
    program: str
    process: subprocess.Popen[bytes] | None = None

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
            words = [self.program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
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
        """Its processes that each serve a connection."""
        assert self.process is not None
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

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
        return {"host": HOST, "config": str(self.config), "directory": str(place), **more}

    def stack(self, *words: str) -> str:
        """The same as the short form of a stack."""
        return ",".join([f"ssh:{HOST}", *(f"{k}={v}" for k, v in self.options().items() if k != "host"), *words])

    def left(self) -> list[str]:
        """What was made there and is there still."""
        return sorted(path.name for path in (self.folder / "there").glob("*"))

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
def sshd(folder: Path) -> Iterator[Sshd]:
    """Until the end of the context. Skips where there is none, or no root."""
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
        there.authorize()
        there.configure("config")
        there.start()
        yield there
    finally:
        there.stop()
        if made:
            PRIVILEGES.rmdir()
