"""A real sshd on the loopback, with keys, a port and a configuration of its own: nothing of this host's is used or touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    process: subprocess.Popen[bytes]

    @property
    def config(self) -> Path:
        """What ssh is given with -F."""
        return self.folder / "config"

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
        return sorted(os.listdir(self.folder / "there")) if (self.folder / "there").exists() else []

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
def sshd(folder: Path, *more: str) -> Iterator[Sshd]:
    """Until the end of the context. ``more``: lines of its configuration. Skips where there is none, or no root."""
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
    (folder / "sshd_config").write_text(
        "\n".join(
            [
                *(f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key", "PidFile none"),
                *(f"AuthorizedKeysFile {folder}/authorized_keys", "PermitRootLogin yes", "UsePAM no"),
                *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "StrictModes no", *more, ""),
            ]
        )
    )
    made = not PRIVILEGES.exists()
    PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-D", "-e", "-f", folder / "sshd_config"], stderr=log, stdin=subprocess.DEVNULL
        )
    running = Sshd(folder, port, process)
    try:
        running.authorize()
        running.configure("config")
        until = time.monotonic() + 20
        while b"Server listening" not in (folder / "log").read_bytes():
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.02)
        yield running
    finally:
        process.terminate()
        process.wait()
        if made:
            PRIVILEGES.rmdir()
